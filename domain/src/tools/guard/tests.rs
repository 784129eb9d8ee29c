use super::*;
use crate::conversation::{ActiveRun, Claim, LatestTurn, RunKind};
use crate::tool_call::{Risk, Target, ToolDispatched};
use serde_json::json;

/// A call that every built-in guard lets pass, and what a test makes of it.
struct World {
    definition: ToolDefinition,
    request: ToolCallRequested,
    call: ToolCall,
    conversation: Conversation,
    permission: Permission,
}

impl World {
    fn new() -> Self {
        let arguments = json!({ "a": 1 });
        let any = json!({ "type": "object" });
        let request = ToolCallRequested {
            conversation_id: "c".into(),
            turn_id: "t".into(),
            run_id: "r".into(),
            user_id: "ann".into(),
            graph_thread_id: "g".into(),
            model_call_id: "m".into(),
            parent_tool_call_id: None,
            tool: "add".into(),
            tool_version: "1".into(),
            target: Target::Server,
            device_id: None,
            call_hash: call_hash("add", "1", &arguments),
            arguments,
            risk: Risk::Low,
        };
        let run = ActiveRun {
            run_id: "r".into(),
            kind: RunKind::Normal,
            run_seq: 1,
            graph_thread_id: "g".into(),
            device_id: None,
            status: RunStatus::Running(Claim { node_id: "n".into(), epoch: 1 }),
            stop_requested: false,
        };
        let latest = LatestTurn {
            turn_id: "t".into(),
            sequence_no: 1,
            message_id: "m".into(),
            content: "q".into(),
            run: Some(run),
            answer_message_id: None,
            interrupts: vec![],
        };
        Self {
            definition: ToolDefinition::new("add", "", any.clone(), any),
            call: ToolCall { request: Some(request.clone()), ..ToolCall::default() },
            request,
            conversation: Conversation { owner: Some("ann".into()), latest: Some(latest), ..Conversation::default() },
            permission: Permission::Allowed("ann".into()),
        }
    }

    fn run(&mut self) -> &mut ActiveRun {
        self.conversation.latest.as_mut().and_then(|turn| turn.run.as_mut()).expect("a run")
    }

    /// Who refuses, and with which code.
    fn verdict(&self, guards: &[Guard]) -> Option<(String, &'static str)> {
        let Self { definition, request, call, conversation, permission } = self;
        let at = AtDispatch { definition, request, call, conversation: Some(conversation), permission };
        ask_guards(guards, &at).err().map(|(by, refusal)| (by, refusal.code.as_str()))
    }
}

#[test]
fn what_was_decided_is_looked_at_again_right_before_a_call_is_dispatched() {
    let attempt = ToolDispatched {
        attempt_no: 1,
        run_id: "r".into(),
        node_id: "n".into(),
        epoch: 1,
        connection_id: None,
        journal_id: None,
        wait_ms: 1,
        ttl_ms: 1,
    };
    let guarded = |change: &dyn Fn(&mut World)| {
        let mut world = World::new();
        change(&mut world);
        world.verdict(&built_in_guards())
    };
    let by = |guard: &str| Some((guard.to_owned(), "GUARD_REFUSED"));
    for (what, change, expected) in [
        ("nothing", (&|_: &mut World| {}) as &dyn Fn(&mut World), None),
        ("nobody has to be asked", &|w| w.permission = Permission::NotNeeded, None),
        ("other arguments", &|w| w.request.arguments = json!({"a": 2}), by("arguments_hash")),
        ("another version", &|w| w.definition.version = "2".into(), by("arguments_hash")),
        ("another tool", &|w| w.definition.name = "sub".into(), by("arguments_hash")),
        (
            "arguments that no frame holds",
            &|w| {
                w.request.arguments = json!({ "a": "x".repeat(MAX_TOOL_ARGUMENTS_BYTES) });
                w.request.call_hash = call_hash("add", "1", &w.request.arguments);
                w.call.request = Some(w.request.clone());
            },
            by("arguments_size"),
        ),
        ("nobody has decided", &|w| w.permission = Permission::Undecided, by("permission")),
        ("nobody has judged", &|w| w.permission = Permission::Unjudged, by("permission")),
        ("a no", &|w| w.permission = Permission::Rejected("ann".into()), by("permission")),
        ("taken back", &|w| w.permission = Permission::Cancelled, by("permission")),
        ("too late", &|w| w.permission = Permission::Expired, by("permission")),
        ("sent before", &|w| w.call.attempts.push(attempt.clone()), by("single_use")),
        (
            "sent before, where nobody has to be asked",
            &|w| {
                w.permission = Permission::NotNeeded;
                w.call.attempts.push(attempt.clone());
            },
            None,
        ),
        ("asked to stop", &|w| w.run().stop_requested = true, Some(("run".into(), "ABORTED_BEFORE_DISPATCH"))),
        ("cancelled", &|w| w.run().status = RunStatus::Cancelled, Some(("run".into(), "ABORTED_BEFORE_DISPATCH"))),
        ("replaced", &|w| w.run().graph_thread_id = "h".into(), Some(("run".into(), "ABORTED_BEFORE_DISPATCH"))),
        ("deleted", &|w| w.conversation.deleted = true, Some(("run".into(), "ABORTED_BEFORE_DISPATCH"))),
    ] {
        assert_eq!(guarded(change), expected, "{what}");
    }
}

#[test]
fn no_order_of_guards_turns_a_refusal_into_permission_and_one_that_panics_refuses() {
    let passes = || Guard::new("passes", |_| Ok(()));
    let refuses = || Guard::new("refuses", |_| Err(Refusal::new("no")));
    let panics = || Guard::new("panics", |_| panic!("a fault"));
    let world = World::new();
    for guards in [[passes(), refuses()], [refuses(), passes()], [passes(), panics()], [panics(), passes()]] {
        let (by, code) = world.verdict(&guards).expect("refused");
        assert_eq!(code, "GUARD_REFUSED", "{by}");
    }
    assert_eq!(world.verdict(&[passes(), passes()]), None);
    assert_eq!(world.verdict(&[]), None);
}

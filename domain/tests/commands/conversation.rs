//! Random commands to a conversation: mostly about its latest turn, its active run and its interrupts.

use super::{Domain, Random};
use devmind_domain::Timestamp;
use devmind_domain::canonical::call_hash;
use devmind_domain::conversation::*;
use devmind_domain::event::Role;
use devmind_domain::ids::*;
use devmind_domain::tool_call::{Risk, Target, ToolCallRequested};
use serde_json::json;

/// The call that the nth interrupt of a run shows: one version of a tool each.
fn shown(n: usize) -> ToolCallRequested {
    let version = n.to_string();
    ToolCallRequested {
        conversation_id: "c".into(),
        turn_id: "t".into(),
        run_id: "r".into(),
        user_id: "alice".into(),
        graph_thread_id: "g".into(),
        model_call_id: version.clone(),
        parent_tool_call_id: None,
        tool: "demo_text".into(),
        target: Target::Server,
        device_id: None,
        arguments: json!({}),
        call_hash: call_hash("demo_text", &version, &json!({})),
        tool_version: version,
        risk: Risk::Medium,
    }
}

fn grant(interrupt_id: &InterruptId, next: String) -> NewGrant {
    let number = interrupt_id.as_str().rsplit('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    NewGrant {
        grant_id: format!("grant {next} {interrupt_id}").into(),
        interrupt_id: interrupt_id.clone(),
        call: Box::new(shown(number)),
        arguments: json!({}),
        scope: GrantScope::Tool,
    }
}

impl Domain for Conversation {
    fn command(&self, random: &mut Random) -> ConversationCommand {
        // Ids that the caller makes anew are never used twice: each is made from the numbers of turn and run.
        let turn = self.latest.as_ref().map_or(0, |turn| turn.sequence_no);
        let run = self.latest.iter().filter_map(|turn| turn.run.as_ref()).map(|run| run.run_seq).next().unwrap_or(0);
        let next = || format!("{turn}.{}", run + 1);
        let user_id: UserId = random.of(&["alice", "alice", "alice", "alice", "alice", "alice", "mallory"]).into();
        let run_id = some_run(self, random);
        let claim = Claim { node_id: "node-1".into(), epoch: random.of(&[1, 1, 1, 1, 1, 2]) };
        match random.below(32) {
            0..=2 => ConversationCommand::Ask(Ask {
                user_id,
                existing: random.one_in(2),
                turn_id: format!("t{}", turn + 1).into(),
                message_id: format!("q{}", turn + 1).into(),
                run_id: format!("r{}.1", turn + 1).into(),
                graph_thread_id: format!("g{}.1", turn + 1).into(),
                content: "question".into(),
                device_id: random.one_in(2).then(|| "laptop".into()),
            }),
            3 | 4 => ConversationCommand::Rerun(Rerun {
                user_id,
                turn_id: format!("t{}", if random.one_in(4) { random.below(3) as u32 } else { turn }).into(),
                content: random.one_in(2).then(|| "another question".into()),
                message_id: format!("q{}", next()).into(),
                run_id: format!("r{}", next()).into(),
                graph_thread_id: format!("g{}", next()).into(),
            }),
            5..=12 => ConversationCommand::ClaimRun { run_id, claim, context_hash: "h".into() },
            13..=17 => {
                let new = (0..1 + random.below(3)).map(|n| NewInterrupt {
                    interrupt_id: format!("i{turn}.{run}.{n}").into(),
                    tool_call_id: ToolCallId::of(&"g".into(), &n.to_string()),
                    tool: "demo_text".into(),
                    arguments: json!({}),
                    arguments_hash: shown(n).call_hash,
                    message: "Allow?".into(),
                    expires_at: random.of(&[None, Some(5), Some(15)]).map(Timestamp::from_micros),
                });
                ConversationCommand::Interrupt { interrupts: new.collect(), run_id, claim }
            }
            18..=22 => ConversationCommand::Answer({
                let decisions: Vec<_> =
                    (0..1 + random.below(3)).map(|_| (some_interrupt(self, random), !random.one_in(3))).collect();
                let grants = decisions.iter().filter(|_| random.one_in(4)).map(|(id, _)| grant(id, next())).collect();
                Answer { user_id, decisions, grants, now: moment(random), run_id: format!("r{}", next()).into() }
            }),
            23 if random.one_in(3) => {
                let grant_id = self.grants.first().map_or_else(|| "none".into(), |own| own.grant_id.clone());
                ConversationCommand::RevokeGrant { user_id, grant_id }
            }
            23 | 24 => ConversationCommand::Expire { now: moment(random), run_id: format!("r{}", next()).into() },
            25 if random.one_in(2) => ConversationCommand::RequestStop { user_id, run_id },
            25 => ConversationCommand::Stop { user_id, run_id },
            26 => ConversationCommand::Rename { user_id, title: random.of(&["mine", "question"]).into() },
            27 if random.one_in(6) => ConversationCommand::Delete { user_id },
            27 => ConversationCommand::RecordRead { by: user_id, role: Role::Auditor, what: "turns".into() },
            28 | 29 => ConversationCommand::CompleteRun {
                message_id: format!("a of {run_id}").into(),
                run_id,
                claim,
                answer: "yes".into(),
            },
            30 => ConversationCommand::FailRun {
                run_id,
                claim,
                error_code: "MODEL_TIMEOUT".into(),
                error_message: "silent".into(),
                message_id: None,
                partial_text: String::new(),
            },
            _ => ConversationCommand::CancelRun {
                message_id: Some(format!("a of {run_id}").into()),
                run_id,
                claim,
                reason: RunCancelReason::Stopped,
                partial_text: "ye".into(),
            },
        }
    }
}

fn moment(random: &mut Random) -> Timestamp {
    Timestamp::from_micros(random.of(&[1, 5, 10, 20]))
}

/// The active run, or another one.
fn some_run(conversation: &Conversation, random: &mut Random) -> RunId {
    let active = conversation.latest.as_ref().and_then(|turn| turn.run.as_ref()).map(|run| run.run_id.clone());
    match active {
        Some(run_id) if !random.one_in(6) => run_id,
        _ => format!("r{}.{}", 1 + random.below(3), 1 + random.below(3)).into(),
    }
}

/// An interrupt of the latest turn, or another one.
fn some_interrupt(conversation: &Conversation, random: &mut Random) -> InterruptId {
    let known = conversation.latest.as_ref().map_or(&[][..], |turn| &turn.interrupts);
    if known.is_empty() || random.one_in(12) {
        return format!("i{}.{}.0", 1 + random.below(3), 1 + random.below(3)).into();
    }
    known[random.below(known.len())].interrupt_id.clone()
}

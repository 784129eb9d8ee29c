//! A policy, a guard, a wrapper, a tool and a post-execute step that do what a call's arguments tell them to, and a
//! trace of the stages that a call really passed.
//!
//! For calls of a device's tools, whose arguments are not ours, the words stand in `path`: `guard=refuse`.

use devmind_api::runs::{ActiveRuns, StopReason};
use devmind_api::tools::{BodyEnd, Next, ServerTool, ToolContext, ToolSet, WrappedCall, Wrapper};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::call_hash;
use devmind_domain::conversation::RunCancelReason;
use devmind_domain::tool_call::{Risk, ToolError};
use devmind_domain::tools::{
    Amendment, Approval, Guard, Policy, PolicyAnswer, PolicyCall, PostExecute, Refusal, ToolDefinition, ToolOutcome,
};
use devmind_tests::Client;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

/// The arguments of calls that only stand before the one in question: they leave no trace.
pub const FILLER: &str = r#"{"a":1,"b":1}"#;

fn filler() -> Value {
    json!({ "a": 1, "b": 1 })
}

/// What the hooks share.
#[derive(Clone)]
pub struct Probe {
    runs: ActiveRuns,
    trace: Arc<Mutex<Vec<String>>>,
    executed: Arc<Mutex<Vec<(Value, String)>>>,
    grant: Arc<Mutex<Option<(Client, Value)>>>,
}

impl Probe {
    /// Hooks that can stop these runs.
    pub fn new(runs: ActiveRuns) -> Self {
        Self { runs, trace: Arc::default(), executed: Arc::default(), grant: Arc::default() }
    }

    /// A wrapper that is told to revoke takes this grant back, as this client.
    pub fn may_revoke(&self, client: &Client, grant: Value) {
        *self.grant.lock().unwrap() = Some((client.clone(), grant));
    }

    /// The stages since this was asked last.
    pub fn trace(&self) -> Vec<String> {
        std::mem::take(&mut self.trace.lock().unwrap())
    }

    /// The arguments that bodies got since this was asked last, and their hash with tool and version.
    pub fn executed(&self) -> Vec<(Value, String)> {
        std::mem::take(&mut self.executed.lock().unwrap())
    }

    /// A stage is passed; the run is stopped there if the call says so.
    fn at(&self, stage: &str, arguments: &Value) {
        if *arguments == filler() {
            return;
        }
        self.trace.lock().unwrap().push(stage.to_owned());
        if word(arguments, "stop") == stage {
            self.runs.stop_all(StopReason::Cancelled(RunCancelReason::Stopped));
        }
    }

    /// Adds the tools and the hooks.
    pub fn install(&self, tools: &mut ToolSet) {
        let probe = |name: &str| ToolDefinition {
            risk: Risk::Low,
            requires_confirmation: false,
            approval: Approval::Never,
            ..ToolDefinition::new(
                name,
                "Does what it is told.",
                json!({ "type": "object", "properties": { "n": { "type": "integer" } } }),
                json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } }),
            )
        };
        let render = self.clone();
        let finalize = self.clone();
        let shown = ToolDefinition {
            render: Some(Arc::new(move |arguments, value| {
                render.at("render", arguments);
                match word(arguments, "render") {
                    "fails" => Err("it cannot be shown".to_owned()),
                    "panics" => panic!("a fault of the render"),
                    _ => Ok(json!(format!("n is {}", value["n"]))),
                }
            })),
            presentation: Some(Arc::new(|_, value| Ok(json!({ "number": value["n"] })))),
            finalize_content: Some(Arc::new(move |content| {
                finalize.at("finalize", &Value::Null);
                content
            })),
            ..probe("probe")
        };
        let asks = ToolDefinition { approval: Approval::Always, ..probe("probe_asks") };
        let brief = ToolDefinition { timeout_ms: Some(20), ..probe("probe_brief") };
        let denied = probe("probe_denied");
        let again = ToolDefinition { retries: 1, ..probe("probe_again") };
        for definition in [shown, asks, brief, again, denied] {
            let name = definition.name.clone();
            tools.register(definition, Arc::new(Body(self.clone(), name))).expect("a whole tool");
        }
        let guard = self.clone();
        tools.add_guard(Guard::new("probe_guard", move |at| {
            guard.at("guard", &at.request.arguments);
            match word(&at.request.arguments, "guard") {
                "refuse" => Err(Refusal::new("the guard says no")),
                "panic" => panic!("a fault of the guard"),
                _ => Ok(()),
            }
        }));
        tools.add_wrapper(Arc::new(Around(self.clone())));
        let post = self.clone();
        tools.add_post_execute(PostExecute::new("probe_post", move |call| {
            post.at("post", call.arguments);
            match word(call.arguments, "post") {
                "content" => Amendment::Content("in other words".to_owned()),
                "value" => Amendment::Value(json!({ "n": 7 })),
                "wrong_value" => Amendment::Value(json!({})),
                "block" => Amendment::Block("not for your eyes".to_owned()),
                "panic" => panic!("a fault of the step"),
                _ => Amendment::Keep,
            }
        }));
    }
}

/// What the arguments say to a hook.
fn word<'a>(arguments: &'a Value, hook: &str) -> &'a str {
    let in_path = arguments["path"].as_str().and_then(|path| path.strip_prefix(hook)?.strip_prefix('='));
    arguments[hook].as_str().or(in_path).unwrap_or_default()
}

impl Policy for Probe {
    fn judge(&self, call: &PolicyCall) -> PolicyAnswer {
        self.at("policy", &call.arguments);
        match word(&call.arguments, "policy") {
            "deny" => PolicyAnswer::Deny { code: "NOT_TODAY".to_owned(), reason: "the policy says no".to_owned() },
            "lie" => PolicyAnswer::Deny { code: "APPROVAL_GIVEN".to_owned(), reason: String::new() },
            "panic" => panic!("a fault of the policy"),
            _ => PolicyAnswer::Pass,
        }
    }
}

struct Body(Probe, String);

impl ServerTool for Body {
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        async move {
            let hash = call_hash(&self.1, "1", &arguments);
            self.0.executed.lock().unwrap().push((arguments.clone(), hash));
            self.0.at("body", &arguments);
            let outcome = match word(&arguments, "body") {
                "panic" => panic!("a fault of the tool"),
                "unknown" => return BodyEnd::unknown(ErrorCode::ResultUnknown, "it cannot tell what it did"),
                "fail" => ToolOutcome::failure(ErrorCode::NotText, "it is binary"),
                "fail_for_now" => ToolOutcome::failure(ErrorCode::IoError, "the disk is busy"),
                "wrong" => ToolOutcome::success(json!({ "m": 1 })),
                "large" => ToolOutcome::success(json!({ "n": 1, "text": "x".repeat(5 << 20) })),
                "until_asked" => {
                    context.cancel.cancelled().await;
                    ToolOutcome::success(json!({ "n": 1 }))
                }
                _ => ToolOutcome::success(json!({ "n": arguments["n"].as_i64().unwrap_or(1) })),
            };
            outcome.into()
        }
        .boxed()
    }
}

struct Around(Probe);

impl Wrapper for Around {
    fn id(&self) -> &str {
        "probe_wrapper"
    }

    fn around<'a>(&'a self, call: &'a WrappedCall<'a>, next: Next<'a>) -> BoxFuture<'a, Result<(), ToolError>> {
        async move {
            let busy = || ToolError { code: "RATE_LIMITED".to_owned(), message: "later".to_owned() };
            let word = word(call.arguments, "wrapper");
            self.0.at("wrapper before", call.arguments);
            match word {
                "refuse" => return Err(busy()),
                "lie" => return Ok(()),
                "panic_before" => panic!("a fault of the wrapper"),
                "revoke" => {
                    let grant = self.0.grant.lock().unwrap().take();
                    if let Some((client, grant)) = grant {
                        client.post("/api/conversations/grants/revoke", &grant).await.ok();
                    }
                }
                _ => {}
            }
            drop(next.run().await);
            self.0.at("wrapper after", call.arguments);
            match word {
                "fail" => Err(busy()),
                "panic_after" => panic!("a fault of the wrapper"),
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

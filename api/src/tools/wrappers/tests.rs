//! Wrappers and bodies that behave in every way, in time that is not real.

use super::*;
use crate::tools::{BodyEnd, ServerTool, ToolContext, ToolSet, Tools};
use serde_json::json;
use std::future::pending;
use tokio::time::{Instant, sleep};

type Ran = BoxFuture<'static, ToolOutcome>;

struct Body(fn(ToolContext) -> Ran);

impl ServerTool for Body {
    fn call(&self, _: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        (self.0)(context).map(BodyEnd::from).boxed()
    }
}

/// A wrapper that does what a test wants.
struct Around(fn(Next<'_>) -> BoxFuture<'_, Result<(), ToolError>>);

impl Wrapper for Around {
    fn id(&self) -> &str {
        "w"
    }

    fn around<'a>(&'a self, _: &'a WrappedCall<'a>, next: Next<'a>) -> BoxFuture<'a, Result<(), ToolError>> {
        (self.0)(next)
    }
}

fn tools(body: fn(ToolContext) -> Ran, wrapper: Option<Around>) -> Arc<ToolSet> {
    let any = json!({"type": "object"});
    let mut definition = ToolDefinition::new("t", "", any.clone(), any);
    definition.timeout_ms = Some(1_000);
    let tools = Tools::default();
    tools.change(|tools| tools.register(definition, Arc::new(Body(body)))).expect("whole");
    if let Some(wrapper) = wrapper {
        tools.change(|tools| tools.add_wrapper(Arc::new(wrapper)));
    }
    tools.current()
}

/// What the body gave, and what the wrappers made of it: `CODE` or `ok`, `-` where there is nothing.
async fn run(tools: &ToolSet, cancel: &CancellationToken) -> (String, String) {
    let definition = tools.registry().get("t").expect("registered");
    let (id, arguments, clock) = ("c".into(), json!({}), Clock::default());
    let call = WrappedCall { tool_call_id: &id, definition, arguments: &arguments, clock: clock.clone() };
    let body = |cancel| async {
        let context = ToolContext::new(id.clone(), cancel);
        clock.begin();
        let outcome = tools.execute("t", json!({}), context).await.outcome;
        clock.end();
        (outcome.clone(), outcome)
    };
    let Wrapped { ran, overruled } = ended(around(tools.wrappers(), &call, cancel, body)).await;
    let code = |outcome: ToolOutcome| outcome.error_code().unwrap_or_else(|| "ok".to_owned());
    let said = overruled.map(|(by, error)| format!("{by} {}", error.code));
    (ran.map_or_else(|| "-".to_owned(), code), said.unwrap_or_else(|| "-".to_owned()))
}

/// What has not come to its end by then never will: all limits of a call together are shorter.
const AT_LAST: Duration = Duration::from_secs(60);

/// Waits for a call, and not for ever.
async fn ended<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(AT_LAST, call).await.expect("a call comes to its end whatever its body and its wrappers do")
}

fn good(_: ToolContext) -> Ran {
    async { ToolOutcome::success(json!({})) }.boxed()
}

fn ends_when_asked(context: ToolContext) -> Ran {
    async move {
        context.cancel.cancelled().await;
        ToolOutcome::success(json!({}))
    }
    .boxed()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_panics_or_hangs_fails_alone_and_one_that_ends_late_is_recorded_as_it_ended() {
    for (what, body, expected) in [
        ("a good one", good as fn(ToolContext) -> Ran, ("ok", "-")),
        ("one that panics at once", |_| panic!("a fault"), ("EXECUTION_FAILED", "-")),
        ("one that panics", |_| async { panic!("a fault") }.boxed(), ("EXECUTION_FAILED", "-")),
        ("one that hangs", |_| pending().boxed(), ("RESULT_UNKNOWN", "timeout TOOL_TIMEOUT")),
        ("one that ends when asked", ends_when_asked, ("ok", "timeout TOOL_TIMEOUT")),
        (
            "one that is just in time",
            |_| {
                async {
                    sleep(Duration::from_millis(999)).await;
                    ToolOutcome::success(json!({}))
                }
                .boxed()
            },
            ("ok", "-"),
        ),
    ] {
        let (ran, said) = run(&tools(body, None), &CancellationToken::new()).await;
        assert_eq!((ran.as_str(), said.as_str()), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_awaited_when_its_run_is_stopped_and_left_when_it_does_not_end() {
    let stopped = CancellationToken::new();
    stopped.cancel();
    assert_eq!(run(&tools(ends_when_asked, None), &stopped).await.0, "ok");
    let since = Instant::now();
    assert_eq!(run(&tools(|_| pending().boxed(), None), &stopped).await.0, "RESULT_UNKNOWN");
    assert!(since.elapsed() < Duration::from_secs(10));
}

fn failure() -> ToolError {
    ToolError { code: "RATE_LIMITED".to_owned(), message: "not now".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_that_panics_hangs_or_lies_fails_the_call_and_what_the_body_gave_is_known() {
    type Does = fn(Next<'_>) -> BoxFuture<'_, Result<(), ToolError>>;
    let fault = "w EXECUTION_FAILED";
    let cases: [(&str, Does, (&str, &str)); 10] = [
        (
            "lets it pass",
            |next| {
                async {
                    next.run().await;
                    Ok(())
                }
                .boxed()
            },
            ("ok", "-"),
        ),
        ("refuses before", |_| async { Err(failure()) }.boxed(), ("-", "w RATE_LIMITED")),
        (
            "refuses after",
            |next| {
                async {
                    next.run().await;
                    Err(failure())
                }
                .boxed()
            },
            ("ok", "w RATE_LIMITED"),
        ),
        ("says that it ran, and it did not", |_| async { Ok(()) }.boxed(), ("-", fault)),
        ("panics at once", |_| panic!("a fault"), ("-", fault)),
        ("panics before", |_| async { panic!("a fault") }.boxed(), ("-", fault)),
        (
            "panics after",
            |next| {
                async {
                    next.run().await;
                    panic!("a fault")
                }
                .boxed()
            },
            ("ok", fault),
        ),
        ("hangs before", |_| pending().boxed(), ("-", fault)),
        (
            "hangs after",
            |next| {
                async {
                    next.run().await;
                    pending().await
                }
                .boxed()
            },
            ("ok", fault),
        ),
        (
            "keeps what is inside and never runs it",
            |next| {
                async {
                    let _kept = next;
                    pending().await
                }
                .boxed()
            },
            ("-", fault),
        ),
    ];
    for (what, does, expected) in cases {
        let (ran, said) = run(&tools(good, Some(Around(does))), &CancellationToken::new()).await;
        assert_eq!((ran.as_str(), said.as_str()), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_can_ask_a_body_to_end_but_neither_kill_it_nor_keep_a_stop_from_it() {
    // What is dropped while it runs is asked to end and awaited, and what it gave is known.
    let drops: fn(Next<'_>) -> BoxFuture<'_, Result<(), ToolError>> = |next| {
        async {
            let mut running = next.run();
            let _ = futures::poll!(&mut running);
            drop(running);
            Ok(())
        }
        .boxed()
    };
    let (ran, said) = run(&tools(ends_when_asked, Some(Around(drops))), &CancellationToken::new()).await;
    assert_eq!((ran.as_str(), said.as_str()), ("ok", "w EXECUTION_FAILED"));

    let asks: fn(Next<'_>) -> BoxFuture<'_, Result<(), ToolError>> = |next| {
        async {
            next.cancel().cancel();
            next.run().await;
            Ok(())
        }
        .boxed()
    };
    let run_goes_on = CancellationToken::new();
    let (ran, said) = run(&tools(ends_when_asked, Some(Around(asks))), &run_goes_on).await;
    assert_eq!((ran.as_str(), said.as_str()), ("ok", "-"));
    assert!(!run_goes_on.is_cancelled(), "only what is inside is asked to end");

    let passes: fn(Next<'_>) -> BoxFuture<'_, Result<(), ToolError>> = |next| {
        async {
            next.run().await;
            Ok(())
        }
        .boxed()
    };
    let stopped = CancellationToken::new();
    stopped.cancel();
    assert_eq!(run(&tools(ends_when_asked, Some(Around(passes))), &stopped).await.0, "ok");
}

#[tokio::test(start_paused = true)]
async fn what_is_recorded_slowly_around_a_body_does_not_count_as_its_time() {
    let tools = tools(good, None);
    let definition = tools.registry().get("t").expect("registered");
    let (id, arguments, clock) = ("c".into(), json!({}), Clock::default());
    let call = WrappedCall { tool_call_id: &id, definition, arguments: &arguments, clock: clock.clone() };
    let body = |_| async {
        sleep(Duration::from_secs(3)).await;
        clock.begin();
        clock.end();
        sleep(Duration::from_secs(3)).await;
        (ToolOutcome::success(json!({})), ())
    };
    let wrapped = ended(around(tools.wrappers(), &call, &CancellationToken::new(), body)).await;
    assert!(wrapped.ran.is_some() && wrapped.overruled.is_none(), "{:?}", wrapped.overruled);
}

//! Execute wrappers: what stands around a tool's body, in the server or on a device.
//!
//! A wrapper runs what is inside it at most once ([`Next::run`] uses it up), can ask it to end and nothing else
//! ([`Next::cancel`] is a token below the run's), and says afterwards whether what came of it stands. It has no word
//! for a value, so it cannot answer in a tool's place. One that panics, hangs or says that what never ran stands,
//! fails the call and nothing else. The body itself belongs to [`around`], not to the chain: whatever a wrapper drops,
//! a body that has begun is awaited. What the body does, and that its result is recorded first, is left to the caller.

use devmind_domain::ErrorCode;
use devmind_domain::ids::ToolCallId;
use devmind_domain::tool_call::ToolError;
use devmind_domain::tools::{ToolDefinition, ToolOutcome};
use futures::FutureExt;
use futures::future::{BoxFuture, join};
use serde_json::Value;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// How long wrappers may take before the body begins, and again after it has ended.
const WRAPPERS_WITHIN: Duration = Duration::from_secs(5);

/// The call that is wrapped.
pub struct WrappedCall<'a> {
    /// The call.
    pub tool_call_id: &'a ToolCallId,
    /// Its tool.
    pub definition: &'a ToolDefinition,
    /// Its arguments.
    pub arguments: &'a Value,
    /// When the body itself runs, without what is recorded before and after it.
    pub clock: Clock,
}

/// Says when a body begins and when it has ended.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    begun: CancellationToken,
    ended: CancellationToken,
}

impl Clock {
    /// Says that the body begins.
    pub fn begin(&self) {
        self.begun.cancel();
    }

    /// Says that the body has ended.
    pub fn end(&self) {
        self.ended.cancel();
    }

    /// Waits until the body begins.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Waits until the body has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Whether the body ran to its end. What was refused when it was to be sent did not run: a permission taken back,
    /// a run stopped, a call settled before.
    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }
}

/// Something around the bodies of calls.
pub trait Wrapper: Send + Sync {
    /// Stands in the event of what it does not let stand.
    fn id(&self) -> &str;

    /// Runs what is inside; `Ok` lets stand what came of it.
    fn around<'a>(&'a self, call: &'a WrappedCall<'a>, next: Next<'a>) -> BoxFuture<'a, Result<(), ToolError>>;
}

/// What is inside a wrapper.
pub struct Next<'a> {
    inside: CancellationToken,
    run: Box<dyn FnOnce() -> BoxFuture<'a, ToolOutcome> + Send + 'a>,
}

impl<'a> Next<'a> {
    /// Cancelled, it asks what is inside to end. It is cancelled with the run, whatever a wrapper does.
    pub fn cancel(&self) -> CancellationToken {
        self.inside.clone()
    }

    /// Runs what is inside, once, and says what came of it.
    pub fn run(self) -> BoxFuture<'a, ToolOutcome> {
        (self.run)()
    }
}

/// What came of a wrapped body.
pub struct Wrapped<T> {
    /// What the body gave; nothing where it never began.
    pub ran: Option<T>,
    /// Who does not let the outcome stand, and why.
    pub overruled: Option<(String, ToolError)>,
}

/// What wrappers let stand, or who does not.
type Answer = Result<ToolOutcome, (String, ToolError)>;

/// Runs a body inside wrappers, the first one outermost. `cancel` is the run's token.
pub async fn around<T, F: Future<Output = (ToolOutcome, T)>>(
    wrappers: &[Arc<dyn Wrapper>],
    call: &WrappedCall<'_>,
    cancel: &CancellationToken,
    body: impl FnOnce(CancellationToken) -> F,
) -> Wrapped<T> {
    let root = cancel.child_token();
    let (start, started) = oneshot::channel();
    let (tell, told) = oneshot::channel();
    let (begun, ended) = (CancellationToken::new(), CancellationToken::new());
    let running = async {
        let inside = started.await.ok()?;
        begun.cancel();
        let (outcome, value) = body(inside).await;
        ended.cancel();
        let _ = tell.send(outcome);
        Some(value)
    };
    let entered = Entered::default();
    let chain = async {
        let hung = async {
            tokio::select! {
                () = begun.cancelled() => {}
                () = tokio::time::sleep(WRAPPERS_WITHIN) => return,
            }
            ended.cancelled().await;
            tokio::time::sleep(WRAPPERS_WITHIN).await;
        };
        let answer = tokio::select! {
            biased;
            answer = pass(wrappers, call, root.clone(), Body { start, told }, &entered) => answer,
            () = hung => Err(fault(&entered.innermost(), "did not go on")),
        };
        // Where the chain is over before the body is: it is asked to end, and awaited below.
        root.cancel();
        answer.err()
    };
    let (ran, overruled) = join(running, chain).await;
    Wrapped { ran, overruled }
}

/// How the body is started, and what it gave.
struct Body {
    start: oneshot::Sender<CancellationToken>,
    told: oneshot::Receiver<ToolOutcome>,
}

impl Body {
    async fn run(self, inside: CancellationToken) -> Answer {
        let _ = self.start.send(inside);
        self.told.await.map_err(|_| fault("body", "did not say what came of it"))
    }
}

/// The wrappers that have not answered, outermost first: the last one is the one that holds the call up.
#[derive(Default)]
struct Entered(Mutex<Vec<String>>);

impl Entered {
    fn change(&self, change: impl FnOnce(&mut Vec<String>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn innermost(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last().cloned().unwrap_or_default()
    }
}

fn pass<'a>(
    wrappers: &'a [Arc<dyn Wrapper>],
    call: &'a WrappedCall<'a>,
    outer: CancellationToken,
    body: Body,
    entered: &'a Entered,
) -> BoxFuture<'a, Answer> {
    let Some((wrapper, rest)) = wrappers.split_first() else { return body.run(outer).boxed() };
    let inside = outer.child_token();
    let answered: Arc<OnceLock<Answer>> = Arc::default();
    let (token, answer) = (inside.clone(), answered.clone());
    let run = move || {
        async move {
            let came = pass(rest, call, token, body, entered).await;
            let seen = match &came {
                Ok(outcome) => outcome.clone(),
                Err((_, error)) => ToolOutcome { result: Err(error.clone()) },
            };
            let _ = answer.set(came);
            seen
        }
        .boxed()
    };
    let next = Next { inside, run: Box::new(run) };
    async move {
        entered.change(|all| all.push(wrapper.id().to_owned()));
        let said = AssertUnwindSafe(async { wrapper.around(call, next).await }).catch_unwind().await;
        entered.change(|all| drop(all.pop()));
        match (said, answered.get()) {
            (Ok(Ok(())), Some(came)) => came.clone(),
            (Ok(Ok(())), None) => Err(fault(wrapper.id(), "lets stand what it did not wait for")),
            (Ok(Err(error)), _) => Err((wrapper.id().to_owned(), error)),
            (Err(_panic), _) => Err(fault(wrapper.id(), "panicked")),
        }
    }
    .boxed()
}

fn fault(id: &str, what: &str) -> (String, ToolError) {
    tracing::error!(wrapper = id, "a wrapper {what}");
    let (code, message) =
        (ErrorCode::ExecutionFailed.as_str().to_owned(), format!("what stands around the tool {what}"));
    (id.to_owned(), ToolError { code, message })
}

#[cfg(test)]
mod tests;

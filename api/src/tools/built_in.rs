//! The wrappers that every call passes: how long it took, and how long it may take.

use super::wrappers::{Next, WrappedCall, Wrapper};
use devmind_domain::ErrorCode;
use devmind_domain::tool_call::{Target, ToolError};
use futures::FutureExt;
use futures::future::BoxFuture;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use std::time::{Duration, Instant};

/// Upper bounds of the histogram of durations (seconds): from a pure function to a person at a device.
const DURATION_BOUNDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 5.0, 15.0, 60.0, 120.0];

/// Durations of calls by tool. Of the tools that exist alone: the model's words make no labels.
pub type Durations = Family<Vec<(&'static str, String)>, Histogram, fn() -> Histogram>;

/// No durations yet.
pub fn durations() -> Durations {
    Durations::new_with_constructor(|| Histogram::new(DURATION_BOUNDS))
}

/// Counts how long calls take that ran, those of a device with the wait for it.
pub struct Measured(pub Durations);

impl Wrapper for Measured {
    fn id(&self) -> &str {
        "metrics"
    }

    fn around<'a>(&'a self, call: &'a WrappedCall<'a>, next: Next<'a>) -> BoxFuture<'a, Result<(), ToolError>> {
        async move {
            let since = Instant::now();
            next.run().await;
            if !call.clock.has_ended() {
                return Ok(());
            }
            let labels = vec![("tool", call.definition.name.clone())];
            self.0.get_or_create(&labels).observe(since.elapsed().as_secs_f64());
            Ok(())
        }
        .boxed()
    }
}

/// Asks a body to end when its time is over, and waits until it has. A device keeps its own time.
pub struct TimeLimit;

impl Wrapper for TimeLimit {
    fn id(&self) -> &str {
        "timeout"
    }

    fn around<'a>(&'a self, call: &'a WrappedCall<'a>, next: Next<'a>) -> BoxFuture<'a, Result<(), ToolError>> {
        async move {
            let limit = call.definition.timeout_ms.filter(|_| call.definition.target == Target::Server);
            let cancel = next.cancel();
            let inside = next.run();
            let Some(limit) = limit.map(Duration::from_millis) else {
                inside.await;
                return Ok(());
            };
            let over = async {
                call.clock.begun().await;
                tokio::select! {
                    biased;
                    () = call.clock.ended() => std::future::pending().await,
                    () = tokio::time::sleep(limit) => {}
                }
            };
            tokio::pin!(inside);
            tokio::select! {
                biased;
                _ = &mut inside => return Ok(()),
                () = over => {}
            }
            cancel.cancel();
            inside.await;
            let code = ErrorCode::ToolTimeout.as_str().to_owned();
            let message =
                format!("the tool took longer than {} ms; what it did until it ended is in the log", limit.as_millis());
            Err(ToolError { code, message })
        }
        .boxed()
    }
}

//! Callers that do the same thing again and again, and how often they got through.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};

/// For how long, and how often.
pub struct Measure {
    warm_up: Duration,
    each: Duration,
    rounds: usize,
    /// Events of the logs that are read and rebuilt.
    pub events: u64,
    /// Turns of the conversation that grows old.
    pub turns: u64,
    /// Events of the log that grows long.
    pub grown: u64,
}

/// Commands on one stream before a caller turns to its next one.
pub const COMMANDS_A_STREAM: u64 = 10;

impl Measure {
    /// A measure whose figures can be quoted, or a quick one to see that it runs.
    pub fn new(quick: bool) -> Self {
        match quick {
            true => Self {
                warm_up: Duration::from_millis(100),
                each: Duration::from_millis(500),
                rounds: 1,
                events: 20_000,
                turns: 1_000,
                grown: 100_000,
            },
            false => Self {
                warm_up: Duration::from_millis(500),
                each: Duration::from_secs(2),
                rounds: 3,
                events: 200_000,
                turns: 10_000,
                grown: 1_000_000,
            },
        }
    }

    /// Measures several things in turn, round by round, so that whatever else the machine does
    /// touches all of them; the medians, operations a second.
    pub async fn side_by_side(&self, works: &[&dyn Work]) -> Vec<f64> {
        let mut seen = vec![Vec::new(); works.len()];
        for _ in 0..self.rounds {
            for (work, rates) in works.iter().zip(&mut seen) {
                rates.push(work.rate(self.warm_up, self.each).await);
            }
        }
        seen.into_iter().map(median).collect()
    }
}

/// Something whose rate can be taken.
#[async_trait::async_trait(?Send)]
pub trait Work: Sync {
    /// Operations a second.
    async fn rate(&self, warm_up: Duration, each: Duration) -> f64;
}

/// So many callers that each call again as soon as they are answered.
pub struct Callers<F> {
    pub callers: usize,
    /// Where they run.
    pub on: Handle,
    /// Gets the caller's number and the number of the call.
    pub call: F,
}

#[async_trait::async_trait(?Send)]
impl<F, R> Work for Callers<F>
where
    F: Fn(usize, u64) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = ()> + Send,
{
    async fn rate(&self, warm_up: Duration, each: Duration) -> f64 {
        let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        // Streams of an earlier round are not used again.
        let first = NEXT.fetch_add(1 << 32, Ordering::Relaxed);
        let callers: Vec<_> = (0..self.callers)
            .map(|caller| {
                let (call, done, stop) = (self.call.clone(), done.clone(), stop.clone());
                self.on.spawn(async move {
                    let mut n = first;
                    while !stop.load(Ordering::Relaxed) {
                        call(caller, n).await;
                        n += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        tokio::time::sleep(warm_up).await;
        let (before, started) = (done.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(each).await;
        let counted = done.load(Ordering::Relaxed) - before;
        let took = started.elapsed();
        stop.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.await.expect("no caller failed");
        }
        counted as f64 / took.as_secs_f64()
    }
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The runtime of peers that run in this process: one as tokio makes it, which suits them better than the server's.
pub fn peers() -> &'static Handle {
    static PEERS: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("the system gives threads"));
    PEERS.handle()
}

/// A blocking piece of work that says how many operations it did.
pub struct Blocking<F>(pub F);

#[async_trait::async_trait(?Send)]
impl<F> Work for Blocking<F>
where
    F: Fn(Duration) -> u64 + Clone + Send + Sync + 'static,
{
    async fn rate(&self, _warm_up: Duration, each: Duration) -> f64 {
        let work = self.0.clone();
        let started = Instant::now();
        let done = tokio::task::spawn_blocking(move || work(each)).await.expect("the work ends");
        done as f64 / started.elapsed().as_secs_f64()
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

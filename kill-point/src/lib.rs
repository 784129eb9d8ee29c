//! Named places in the programs at which a test ends them, as `kill -9` or a power cut would: before and
//! after each step that is durable or leaves the process.
//!
//! A debug build looks at two variables of the environment when it starts: `DEVMIND_KILL_POINT=NAME` or
//! `NAME#N` ends the process at the N-th passing of that place; `DEVMIND_KILL_TRACE=FILE` appends the name of
//! every place that is passed, so that a test can hold its list against the code. A release build has none of
//! this. Which places there are, and what must hold after each, is left to the callers and to the tests.

/// Passes a place, if the process may live on.
#[inline]
pub fn at(name: impl FnOnce() -> String) {
    #[cfg(all(debug_assertions, unix))]
    plan::pass(name);
    #[cfg(not(all(debug_assertions, unix)))]
    let _ = name;
}

/// Passes `WHAT before`, does it, and passes `WHAT after`.
pub async fn around<T>(what: impl Fn() -> String, step: impl Future<Output = T>) -> T {
    at(|| format!("{} before", what()));
    let done = step.await;
    at(|| format!("{} after", what()));
    done
}

#[cfg(all(debug_assertions, unix))]
mod plan {
    use rustix::process::{Signal, getpid, kill_process};
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Plan {
        /// Where to end, and at which passing.
        end: Option<(String, u32)>,
        passed: AtomicU32,
        trace: Option<File>,
    }

    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();

    pub(super) fn pass(name: impl FnOnce() -> String) {
        let Some(plan) = PLAN.get_or_init(Plan::from_environment) else { return };
        let name = name();
        if let Some(mut trace) = plan.trace.as_ref() {
            // One write of one line: lines of several threads do not mix.
            trace.write_all(format!("{name}\n").as_bytes()).ok();
        }
        if let Some((end, at)) = &plan.end
            && *end == name
            && plan.passed.fetch_add(1, Ordering::SeqCst) + 1 == *at
        {
            kill_process(getpid(), Signal::KILL).ok();
        }
    }

    impl Plan {
        fn from_environment() -> Option<Self> {
            let end = std::env::var("DEVMIND_KILL_POINT").ok().map(|text| match text.rsplit_once('#') {
                Some((name, number)) => (name.to_owned(), number.parse().unwrap_or(1)),
                None => (text, 1),
            });
            let file = std::env::var_os("DEVMIND_KILL_TRACE");
            let trace = file.and_then(|file| OpenOptions::new().append(true).create(true).open(file).ok());
            (end.is_some() || trace.is_some()).then(|| Self { end, passed: AtomicU32::new(0), trace })
        }
    }
}

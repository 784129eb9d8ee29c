//! The threads that a server's tasks run on.

use std::num::NonZero;
use tokio::runtime::{Builder, Runtime};

/// What tokio itself reads the number of its workers from.
const CHOSEN: &str = "TOKIO_WORKER_THREADS";

/// The runtime of a server process, with one worker fewer than there are processors: whoever stores a batch works while
/// the tasks make the next one, be it the database's session or the thread that writes the file. With a worker for each
/// of two processors, sixteen callers append a third less, because three then wait for each other.
/// `TOKIO_WORKER_THREADS` says otherwise.
///
/// # Errors
/// When the operating system gives no threads.
pub fn runtime() -> std::io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if std::env::var_os(CHOSEN).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(processors.saturating_sub(1).max(1));
    }
    builder.enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_leaves_a_processor_to_its_store_unless_it_is_told_its_threads() {
        let chosen = std::env::var(CHOSEN).ok().and_then(|chosen| chosen.parse().ok());
        let processors = std::thread::available_parallelism().expect("counted").get();
        let expected = chosen.unwrap_or(if processors == 1 { 1 } else { processors - 1 });
        let runtime = runtime().expect("made");
        assert_eq!(runtime.metrics().num_workers(), expected);
    }
}

//! How far a long piece of work is, said on stderr: stdout is the table's.

use std::time::{Duration, Instant};

/// How often it is said.
const EVERY: Duration = Duration::from_secs(10);

/// A piece of work under way.
pub struct Progress {
    what: &'static str,
    total: u64,
    done: u64,
    began: Instant,
    said: Instant,
}

impl Progress {
    /// Nothing is done yet of `total`.
    pub fn new(what: &'static str, total: u64) -> Self {
        let began = Instant::now();
        Self { what, total, done: 0, began, said: began }
    }

    /// So much more is done.
    pub fn add(&mut self, done: u64) {
        self.done += done;
        if self.said.elapsed() < EVERY {
            return;
        }
        self.said = Instant::now();
        let rate = self.done as f64 / self.began.elapsed().as_secs_f64();
        let to_go = self.total.saturating_sub(self.done) as f64 / rate;
        let Self { what, total, done, .. } = self;
        eprintln!("{what}: {done} of {total}, {rate:.0}/s, {to_go:.0} s to go");
    }
}

//! Data on stdout, everything else on stderr.

use crate::failure::Failure;
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_ledger::DamagedRow;
use devmind_projections::{Unread, UnreadEvent};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where a command writes.
pub(crate) struct Output {
    json: bool,
    stdout: BufWriter<Stdout>,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Self { json, stdout: BufWriter::new(std::io::stdout()) }
    }

    /// Whether JSON is wanted.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line of data.
    pub fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.stdout, "{line}").map_err(Failure::from)
    }

    /// A line of data that is one JSON value.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(Failure::internal)?;
        self.line(text)
    }

    /// A piece of a line of data, where a whole one would not fit into memory.
    pub fn part(&mut self, part: impl Display) -> Result<(), Failure> {
        write!(self.stdout, "{part}").map_err(Failure::from)
    }

    /// Hands out what was written so far.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(Failure::from)
    }
}

/// Something that is no data.
pub(crate) fn say(text: impl Display) {
    // A reader of stderr that has gone is no reason to panic.
    drop(writeln!(std::io::stderr(), "{text}"));
}

/// Names the events that something was shown without; whether there are any.
pub(crate) fn tell_unread(unread: &Unread) -> bool {
    for UnreadEvent { position, code, reason, .. } in unread.events() {
        say(escaped(&format!("event {position} [{code}]: {reason}")));
    }
    match unread.count() {
        0 => false,
        count => {
            say(format_args!("{count} events could not be understood; what is shown is without them"));
            true
        }
    }
}

/// Names the rows that a command passed over, which hold no event; whether there are any.
pub(crate) fn tell_damage(data: &Source) -> bool {
    let rows = data.damaged();
    for DamagedRow { position, reason } in &rows {
        say(escaped(&format!("event {position} [{}]: {reason}", ErrorCode::LedgerCorrupt.as_str())));
    }
    if let Some(unnamed) = data.unnamed_damage() {
        say(format_args!("and {unnamed} more"));
    }
    if !rows.is_empty() {
        say("rows of the log are damaged, and what is shown is without them: `devmind-replay verify` tells the rest");
    }
    !rows.is_empty()
}

/// What something is shown without, events and rows, as JSON.
pub(crate) fn unread_json(unread: &Unread, data: &Source) -> Vec<Value> {
    let code = ErrorCode::LedgerCorrupt.as_str();
    let row =
        |DamagedRow { position, reason }| (position, json!({ "position": position, "code": code, "reason": reason }));
    let rows = data.damaged().into_iter().map(row);
    let mut all: Vec<(u64, Value)> = unread.events().map(|event| (event.position, json!(event))).chain(rows).collect();
    all.sort_by_key(|(position, _)| *position);
    all.into_iter().map(|(_, told)| told).collect()
}

/// Between two lines about progress where nobody looks at a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How far something is, with rate and remaining time, on stderr: a bar where a person looks at it; else, as in the log
/// of a scheduled job, a line every ten seconds, and one at the end.
pub(crate) struct Progress {
    bar: ProgressBar,
    what: &'static str,
    unit: &'static str,
    /// Whether a bar is drawn; else lines are written.
    drawn: bool,
    /// Whether earlier work may be part of what is done.
    goes_on: bool,
    state: Mutex<State>,
}

struct State {
    began: Instant,
    told: Instant,
    /// What was done before: it says nothing about how fast this goes. Nothing until something is told.
    before: Option<u64>,
}

impl Progress {
    /// Of what, counted in what.
    pub fn new(what: &'static str, unit: &'static str) -> Self {
        // Nothing is drawn of which nothing is known.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let template = "{msg} {wide_bar} {human_pos}/{human_len} {prefix}, {rate}/s, {eta} left";
        // The template is a constant; were it wrong, the default bar serves as well.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.with_key("rate", |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let _ = write!(text, "{:.0}", state.per_sec());
        }));
        bar.set_message(what);
        bar.set_prefix(unit);
        let now = Instant::now();
        let state = Mutex::new(State { began: now, told: now, before: None });
        Self { bar, what, unit, drawn: std::io::stderr().is_terminal(), goes_on: false, state }
    }

    /// Of what may go on where it was interrupted: what is told first was done before.
    pub fn going_on(what: &'static str, unit: &'static str) -> Self {
        let mut progress = Self::new(what, unit);
        progress.goes_on = true;
        progress
    }

    pub fn set(&self, done: u64, total: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = state.before.is_none();
        let before = *state.before.get_or_insert(if self.goes_on { done } else { 0 });
        if is_first && self.drawn {
            self.bar.set_length(total);
            self.bar.set_position(before);
            self.bar.reset_eta();
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.update(|bar| {
            bar.set_len(total);
            bar.set_pos(done);
        });
        if !self.drawn && state.told.elapsed() >= LINE_EVERY {
            state.told = Instant::now();
            say(line(self.what, self.unit, (done, total), before, state.began.elapsed()));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = state.before.filter(|_| !self.drawn) {
            let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
            say(line(self.what, self.unit, (done, total), before, state.began.elapsed()));
        }
    }
}

/// `rebuilding: 50000 of 200000 events, 25000/s, 6 s left`; how fast and how long by what was not done `before`.
fn line(what: &str, unit: &str, (done, total): (u64, u64), before: u64, elapsed: Duration) -> String {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let own = done.saturating_sub(before);
    let rate = own.saturating_mul(1_000) / millis;
    let time = match (total.saturating_sub(done), own) {
        (0, _) => format!("{}.{} s", millis / 1_000, millis / 100 % 10),
        (_, 0) => "how long is not known yet".to_owned(),
        (left, own) => format!("{} s left", (left.saturating_mul(millis) / own).div_ceil(1_000)),
    };
    format!("{what}: {done} of {total} {unit}, {rate}/s, {time}")
}

/// A text in which nothing can move a terminal's cursor or turn its writing direction.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || is_invisible(character) {
            safe.extend(character.escape_unicode());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// Marks that change how other characters are shown: directions, separators, joiners, tags.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_progress_says_how_much_is_done_how_fast_and_how_long_it_takes() {
        let of = |done, seconds: u64| {
            line("rebuilding", "events", (done, 200_000), 0, Duration::from_millis(seconds * 1_000 + 40))
        };
        assert_eq!(of(50_000, 2), "rebuilding: 50000 of 200000 events, 24509/s, 7 s left");
        assert_eq!(of(200_000, 8), "rebuilding: 200000 of 200000 events, 24875/s, 8.0 s");
        assert_eq!(of(0, 8), "rebuilding: 0 of 200000 events, 0/s, how long is not known yet");
        // What an interrupted one had done is done, and was not done now.
        let resumed = line("rebuilding", "events", (150_000, 200_000), 100_000, Duration::from_secs(2));
        assert_eq!(resumed, "rebuilding: 150000 of 200000 events, 25000/s, 2 s left");
    }

    #[test]
    fn what_could_deceive_on_a_terminal_is_escaped_and_the_rest_is_left() {
        assert_eq!(escaped("größer \u{202e}\u{1b}[2J"), "größer \\u{202e}\\u{1b}[2J");
    }
}

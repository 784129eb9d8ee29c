//! Data on stdout, everything else on stderr.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{BufWriter, Stdout, Write};

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

/// A progress bar with rate and remaining time, drawn where a person looks at stderr.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let template = "{msg} {wide_bar} {human_pos}/{human_len} events, {per_sec}, {eta} left";
        // The template is a constant; were it wrong, the default bar serves as well.
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Self(bar)
    }

    pub fn set(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
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
    fn what_could_deceive_on_a_terminal_is_escaped_and_the_rest_is_left() {
        assert_eq!(escaped("größer \u{202e}\u{1b}[2J"), "größer \\u{202e}\\u{1b}[2J");
    }
}

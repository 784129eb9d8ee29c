//! What pages are made of. A status is always a word; colour and sign only repeat it.

use devmind_domain::Timestamp;
use maud::{Markup, Render, html};

/// How a status feels; the word beside it says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Ended well.
    Good,
    /// Ended badly.
    Bad,
    /// Nobody knows, or somebody should look.
    Doubt,
    /// Under way.
    Busy,
    /// A person is waited for.
    Person,
    /// Nothing to say.
    Quiet,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Doubt => "doubt",
            Self::Busy => "busy",
            Self::Person => "person",
            Self::Quiet => "quiet",
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Good => "✓",
            Self::Bad => "✕",
            Self::Doubt => "?",
            Self::Busy => "●",
            Self::Person => "!",
            Self::Quiet => "○",
        }
    }
}

/// A status in these words.
pub fn chip(tone: Tone, words: impl Render) -> Markup {
    html! { span.chip.(tone.class()) { span aria-hidden="true" { (tone.sign()) } " " (words) } }
}

/// The status of a conversation, turn, run, tool call or attempt, as the views name it.
pub fn status(name: &str) -> Markup {
    let (tone, words) = match name {
        "completed" | "succeeded" => (Tone::Good, name),
        "failed" => (Tone::Bad, name),
        "rejected" => (Tone::Bad, "refused"),
        "cancelled" => (Tone::Quiet, "stopped"),
        "unknown" => (Tone::Doubt, "outcome unknown"),
        "indeterminate" => (Tone::Doubt, "nobody can know"),
        "timed_out" => (Tone::Doubt, "no answer in time"),
        "pending" | "queued" => (Tone::Busy, "waiting to start"),
        "running" => (Tone::Busy, "running"),
        "dispatched" => (Tone::Busy, "sent"),
        "created" => (Tone::Quiet, "not sent"),
        "interrupted" => (Tone::Person, "waiting for approval"),
        other => (Tone::Quiet, other),
    };
    chip(tone, words)
}

/// A moment; scripts show it in the reader's own time zone.
pub fn time(at: Timestamp) -> Markup {
    let text = at.to_string();
    let short = text.get(..19).map(|text| text.replace('T', " ")).unwrap_or_else(|| text.clone());
    html! { time datetime=(text) title=(text) { (short) " UTC" } }
}

/// How long something took, for people.
pub fn duration(millis: i64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{:02} s", millis / 1_000, millis % 1_000 / 10),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
        _ => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
    }
}

/// There is nothing here: why, and what would change it.
pub fn empty(title: &str, hint: Markup) -> Markup {
    html! { div.empty { p.empty-title { (title) } p { (hint) } } }
}

/// A button that copies a text; without scripts the text itself is there to be selected.
pub fn copy(label: &str, text: &str) -> Markup {
    html! { button.copy type="button" data-copy=(text) hidden { (label) } }
}

/// A button that copies what an element shows.
pub fn copy_of(label: &str, element: &str) -> Markup {
    html! { button.copy type="button" data-copy-of=(element) hidden { (label) } }
}

/// A button that copies what an address of this server answers.
pub fn copy_from(label: &str, address: &str) -> Markup {
    html! { button.copy type="button" data-copy-from=(address) hidden { (label) } }
}

/// An id: whole for copying and screen readers, its end for the eye.
pub fn id(text: &str) -> Markup {
    html! { code.id title=(text) { bdi { (text) } } }
}

/// A list of names and values.
pub fn facts(rows: &[(&str, Markup)]) -> Markup {
    html! { dl.facts { @for (name, value) in rows { div { dt { (name) } dd { (value) } } } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_told_in_units_that_people_use() {
        let told: Vec<_> = [0, 999, 1_050, 61_000, 3_660_000].into_iter().map(duration).collect();
        assert_eq!(told, ["0 ms", "999 ms", "1.05 s", "1 min 1 s", "1 h 1 min"]);
    }
}

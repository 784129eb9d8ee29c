//! What audit pages share: a line of the log, the bar and the banner of time travel, ways to take something along.

use crate::identity::Caller;
use crate::ui::components::{copy, copy_from};
use crate::ui::{text, utf8_percent};
use devmind_projections::TimelineLine;
use maud::{Markup, html};

/// Characters of what an event says, in a line.
const WORDS_CHARS: usize = 260;

/// What follows a list of events whose `data-live` says where from; scripts alone do.
pub fn follow_buttons() -> Markup {
    html! {
        div.buttons.live hidden {
            button.quiet #follow type="button" aria-pressed="false" { "Follow live" }
            button #show-new type="button" hidden {}
        }
    }
}

/// Where the events of this log have their pages.
pub const LOG: &str = "/log";

/// An event as a line: for pages and for the stream that adds to them.
pub fn line(line: &TimelineLine) -> Markup {
    line_of(line, LOG)
}

/// The same of a log whose events have their pages below `events`.
pub fn line_of(line: &TimelineLine, events: &str) -> Markup {
    let position = line.position;
    let at = line.recorded_at.to_string();
    html! {
        li.event id=(format!("p{position}")) .bad[line.undecodable] {
            a.position href=(format!("{events}/{position}")) { span.visually-hidden { "Event " } (position) }
            time.clock datetime=(at) { (clock(&at)) }
            span.words { (text::cut(&line.text, WORDS_CHARS)) }
            span.by { (text::cut(&line.actor, 60)) " · " (text::cut(&line.event_type, 60)) }
        }
    }
}

/// The time of day within a moment of RFC 3339.
pub fn clock(at: &str) -> &str {
    at.get(11..23).unwrap_or(at)
}

/// The way through time of a page: `path` is the page, with its other parameters.
pub struct Travel<'a> {
    /// The page without `at`, ready for it: it ends with `?` or `&`.
    pub path: &'a str,
    /// Other parameters, for the form.
    pub keep: &'a [(&'a str, &'a str)],
    /// Where the page stands.
    pub position: u64,
    /// Whether it stands in the past.
    pub past: bool,
    /// Where there is something to stop at.
    pub stops: Stops,
}

/// The facts around a position that time travel stops at.
#[derive(Clone, Copy, Default)]
pub struct Stops {
    /// The first of all.
    pub first: Option<u64>,
    /// The last before the position.
    pub before: Option<u64>,
    /// The first after it.
    pub after: Option<u64>,
}

impl Travel<'_> {
    /// The banner, where the page shows the past, and the bar.
    pub fn show(&self) -> Markup {
        let Self { path, position, past, stops, .. } = *self;
        let link = |at: Option<u64>| at.map(|at| format!("{path}at={at}"));
        let after = stops.after.filter(|_| past);
        let now = path.trim_end_matches(['?', '&']);
        html! {
            @if past {
                div.card.doubt.past role="status" {
                    p { strong { "You see the past: as it was after event " (position) "." } " Nothing later shows, and nothing here acts." }
                    p { a href=(now) { "Back to now" } }
                }
            }
            form.travel method="get" action=(now.split('?').next().unwrap_or(now)) aria-label="Time travel" {
                @for (name, value) in self.keep { input type="hidden" name=(name) value=(value); }
                (step("first", "First", "First", link(stops.first.filter(|first| *first != position || !past))))
                (step("back", "◀", "One event back", link(stops.before)))
                label for="at" { "As of event or time" }
                input #at name="at" value=(position) inputmode="numeric" maxlength="40" required;
                button.quiet type="submit" { "Go" }
                (step("on", "▶", "One event on", link(after)))
                (step("now", "Now", "Now", past.then(|| now.to_owned())))
            }
        }
    }
}

fn step(name: &str, sign: &str, words: &str, to: Option<String>) -> Markup {
    let hidden = (sign != words).then_some(words);
    html! {
        @match to {
            Some(to) => a.button.quiet href=(to) data-travel=(name) title=(words) { span aria-hidden=[hidden.map(|_| "true")] { (sign) } @if let Some(words) = hidden { span.visually-hidden { (words) } } }
            None => span.button.quiet.off aria-disabled="true" title=(words) { span aria-hidden="true" { (sign) } }
        }
    }
}

/// The same for programs: where the JSON is, how to ask for it, and the operator's command.
pub fn take_along(caller: &Caller, host: &str, json: &str, command: &str) -> Markup {
    // A name counts on this machine alone; a token is the reader's to put in.
    let who = if host.starts_with("localhost") || host.starts_with("127.") || host.starts_with('[') {
        format!("-H 'X-Dev-User: {}' -H 'X-Dev-Role: {}'", caller.user_id, caller.role.as_str())
    } else {
        "-H \"Authorization: Bearer $TOKEN\"".to_owned()
    };
    let scheme = if who.contains("Bearer") { "https" } else { "http" };
    let curl = format!("curl -s {who} {}", shell(&format!("{scheme}://{host}{json}")));
    html! {
        details.along {
            summary { "For programs" }
            p { a href=(json) { "The same as JSON" } " " (copy_from("Copy", json)) }
            (one("With curl", &curl))
            (one("On the server", command))
        }
    }
}

fn one(name: &str, line: &str) -> Markup {
    html! {
        h3 { (name) " " (copy("Copy", line)) }
        pre.code dir="ltr" tabindex="0" { code { (text::cut(line, 1_000)) } }
    }
}

/// A text as one word of a POSIX shell.
pub fn shell(text: &str) -> String {
    let plain =
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:@,+=".contains(&byte));
    if plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The address of a run's page.
pub fn run_link(id: &str) -> String {
    format!("/runs/{}", path_segment(id))
}

/// The address of a conversation's past.
pub fn history_link(id: &str) -> String {
    format!("/history/{}", path_segment(id))
}

/// The address of the page that a conversation goes on in.
pub fn chat_link(id: &str) -> String {
    format!("/conversations/{}", path_segment(id))
}

/// A text as one segment of a path.
pub fn path_segment(text: &str) -> String {
    utf8_percent(text).replace('/', "%2F")
}

/// The head of the request's own address.
pub fn host(headers: &axum::http::HeaderMap) -> &str {
    headers.get(axum::http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_word_of_a_shell_whatever_is_in_it() {
        assert_eq!(shell("a-b_c.1"), "a-b_c.1");
        assert_eq!(shell("x'; rm -rf $HOME"), "'x'\\''; rm -rf $HOME'");
        assert_eq!(shell(""), "''");
    }
}

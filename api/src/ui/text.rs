//! Text that people, models and devices wrote, shown so that it can do nothing: escaped, cut, kept from turning
//! the direction of what stands beside it (Unicode Technical Report 36), its invisible characters made visible.

use devmind_device::text::is_invisible;
use maud::{Markup, PreEscaped, Render, html};
use std::fmt::Write as _;

/// Characters of a text within a list, at most.
pub const LINE_CHARS: usize = 200;
/// Characters of a text on its own page, at most; the whole is a link away.
pub const BLOCK_CHARS: usize = 20_000;

/// A short text in the line it stands in: isolated, one line, cut.
pub fn inline(text: &str) -> Markup {
    cut(text, LINE_CHARS)
}

/// The same with another limit.
pub fn cut(text: &str, limit: usize) -> Markup {
    let more = text.chars().nth(limit).is_some();
    html! { bdi { (marked(text, limit, Breaks::Shown)) @if more { "…" } } }
}

/// A text where no markup can be, such as a window's title: what would not be seen is the replacement character.
pub fn plain(text: &str) -> String {
    text.chars().take(LINE_CHARS).map(|c| if is_invisible(c) { '\u{fffd}' } else { c }).collect()
}

/// A long text that keeps its lines. `whole` is where all of it can be read.
pub fn block(text: &str, whole: &str) -> Markup {
    let all = text.chars().count();
    html! {
        div.text dir="auto" { (marked(text, BLOCK_CHARS, Breaks::Kept)) }
        @if all > BLOCK_CHARS { p.cut { "Cut after " (BLOCK_CHARS) " of " (all) " characters. " a href=(whole) { "Read all of it" } } }
    }
}

/// Code or data that keeps its lines, left to right.
pub fn code(text: &str, whole: &str) -> Markup {
    code_of(text, BLOCK_CHARS, whole)
}

/// The same with another limit.
pub fn code_of(text: &str, limit: usize, whole: &str) -> Markup {
    let all = text.chars().count();
    html! {
        pre.code dir="ltr" tabindex="0" { code { (marked(text, limit, Breaks::Kept)) } }
        @if all > limit { p.cut { "Cut after " (limit) " of " (all) " characters. " a href=(whole) { "Read all of it" } } }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Breaks {
    Kept,
    Shown,
}

/// The first characters; what would not be seen is written as its code point, in a mark of its own.
fn marked(text: &str, limit: usize, breaks: Breaks) -> Markup {
    let mut shown = String::with_capacity(text.len().min(limit * 4));
    for character in text.chars().take(limit) {
        match character {
            '\n' | '\t' if breaks == Breaks::Kept => shown.push(character),
            '\n' => shown.push_str(" ↵ "),
            '\t' => shown.push(' '),
            '\r' if breaks == Breaks::Kept => {}
            hidden if is_invisible(hidden) => {
                let point = u32::from(hidden);
                // Writing to a String cannot fail.
                let _ = write!(shown, "<span class=\"hidden-character\">U+{point:04X}</span>");
            }
            plain => plain.to_string().as_str().render_to(&mut shown),
        }
    }
    PreEscaped(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_turns_or_hides_text_is_written_out_and_what_is_markup_is_escaped() {
        let shown = inline("<b>\u{202e}gpj.exe\u{200b}\u{1b}[2J\nx").into_string();
        let expected = "<bdi>&lt;b&gt;<span class=\"hidden-character\">U+202E</span>gpj.exe\
             <span class=\"hidden-character\">U+200B</span><span class=\"hidden-character\">U+001B</span>[2J ↵ x</bdi>";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_huge_text_is_cut_and_says_where_the_whole_is() {
        let shown = block(&"é".repeat(BLOCK_CHARS + 1), "/whole").into_string();
        assert!(shown.contains("href=\"/whole\"") && shown.matches('é').count() == BLOCK_CHARS, "{}", shown.len());
        assert!(!block("short", "/whole").into_string().contains("href"));
    }
}

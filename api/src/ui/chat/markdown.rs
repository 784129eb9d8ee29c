//! An answer as markup. A model writes Markdown; what it writes can be anything.
//!
//! HTML within it is shown as the text that it is, a picture as a link (nothing is loaded from elsewhere), a link
//! leads to http, https or mail and nowhere else. Characters that turn the reading direction or are not seen are
//! written out, and only so much is rendered: the whole is a link away.

use devmind_device::text::is_invisible;
use maud::{Markup, PreEscaped, html};
use pulldown_cmark::{CowStr, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd, html as render};

/// Characters of an answer that are rendered, at most.
const MAX_RENDERED_CHARS: usize = 60_000;
/// Emphasis, lists and quotes within each other, at most: markup of more is text.
const MAX_DEPTH: usize = 64;

/// The answer, and where all of it can be read where it is too long.
pub(super) fn answer(text: &str, whole: &str) -> Markup {
    let all = text.chars().count();
    let end = text.char_indices().nth(MAX_RENDERED_CHARS).map_or(text.len(), |(at, _)| at);
    let shown = rendered(text.get(..end).unwrap_or_default());
    html! {
        div.markdown dir="auto" { (shown) }
        @if all > MAX_RENDERED_CHARS {
            p.cut { "Cut after " (MAX_RENDERED_CHARS) " of " (all) " characters. " a href=(whole) { "Read all of it" } }
        }
    }
}

fn rendered(text: &str) -> Markup {
    let text = visible(text);
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut depth = 0_usize;
    let events = Parser::new_ext(&text, options).filter_map(|event| harmless(event, &mut depth));
    let mut shown = String::new();
    render::push_html(&mut shown, events);
    PreEscaped(shown)
}

/// The event as it may be shown.
fn harmless<'a>(event: Event<'a>, depth: &mut usize) -> Option<Event<'a>> {
    Some(match event {
        Event::Html(html) | Event::InlineHtml(html) => Event::Text(html),
        Event::Start(tag) => {
            *depth += 1;
            if *depth > MAX_DEPTH {
                return None;
            }
            Event::Start(harmless_tag(tag))
        }
        Event::End(end) => {
            *depth = depth.saturating_sub(1);
            if *depth >= MAX_DEPTH {
                return None;
            }
            Event::End(match end {
                TagEnd::Heading(level) => TagEnd::Heading(below(level)),
                TagEnd::Image => TagEnd::Link,
                TagEnd::HtmlBlock => TagEnd::Paragraph,
                other => other,
            })
        }
        other => other,
    })
}

fn harmless_tag(tag: Tag<'_>) -> Tag<'_> {
    match tag {
        // The page's own headings come first.
        Tag::Heading { level, .. } => Tag::Heading { level: below(level), id: None, classes: vec![], attrs: vec![] },
        Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => Tag::Link {
            link_type: LinkType::Inline,
            dest_url: if leads_somewhere_known(&dest_url) { dest_url } else { CowStr::Borrowed("#") },
            title: CowStr::Borrowed(""),
            id: CowStr::Borrowed(""),
        },
        Tag::HtmlBlock => Tag::Paragraph,
        other => other,
    }
}

const fn below(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H3,
        HeadingLevel::H2 => HeadingLevel::H4,
        HeadingLevel::H3 => HeadingLevel::H5,
        HeadingLevel::H4 | HeadingLevel::H5 | HeadingLevel::H6 => HeadingLevel::H6,
    }
}

fn leads_somewhere_known(url: &str) -> bool {
    let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| ["http", "https", "mailto"].contains(&scheme.as_str()))
}

/// The text with what would not be seen written out.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            '\r' => {}
            // A joiner is part of many scripts and of emoji.
            '\u{200c}' | '\u{200d}' => shown.push(character),
            hidden if is_invisible(hidden) => shown.push_str(&format!("‹U+{:04X}›", u32::from(hidden))),
            plain => shown.push(plain),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_of_a_hostile_answer_is_text_and_its_links_lead_nowhere() {
        for (hostile, shown) in [
            ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>\n"),
            ("a <img src=x onerror=alert(1)>", "<p>a &lt;img src=x onerror=alert(1)&gt;</p>\n"),
            ("[x](javascript:alert(1))", "<p><a href=\"#\">x</a></p>\n"),
            ("[x](JaVaScRiPt&#58;alert(1))", "<p><a href=\"#\">x</a></p>\n"),
            ("[x](data:text/html,<b>)", "<p><a href=\"#\">x</a></p>\n"),
            ("![x](http://evil.example/p.png)", "<p><a href=\"http://evil.example/p.png\">x</a></p>\n"),
            ("[x](/sign-out \"t\")", "<p><a href=\"#\">x</a></p>\n"),
            ("a\u{202e}b", "<p>a‹U+202E›b</p>\n"),
            ("# h {#top .x}", "<h3>h {#top .x}</h3>\n"),
        ] {
            assert_eq!(rendered(hostile).into_string(), shown, "{hostile}");
        }
    }

    #[test]
    fn a_code_block_names_no_attribute_of_its_own() {
        let shown = rendered("```x\" onclick=\"alert(1)\n<b>\n```").into_string();
        assert!(!shown.contains("onclick=\"") && shown.contains("&lt;b&gt;"), "{shown}");
    }

    #[test]
    fn what_is_nested_without_end_is_rendered_as_far_as_anybody_reads_and_closed_again() {
        let shown = rendered(&"> ".repeat(20_000)).into_string();
        assert_eq!(shown.matches("<blockquote>").count(), shown.matches("</blockquote>").count());
        assert!(shown.matches("<blockquote>").count() <= MAX_DEPTH);
        let shown = rendered(&format!("{}x", "*a **b ".repeat(9_000))).into_string();
        assert!(shown.contains('x'));
    }

    #[test]
    fn a_huge_answer_is_cut_and_says_where_the_whole_is() {
        let shown = answer(&"é".repeat(1_000_000), "/whole").into_string();
        assert_eq!(shown.matches('é').count(), MAX_RENDERED_CHARS);
        assert!(shown.contains("href=\"/whole\""));
        assert!(!answer("short", "/whole").into_string().contains("/whole"));
    }
}

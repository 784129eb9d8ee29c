//! How the timeline of a run is shown, of this log or of a bundle from elsewhere: drawn, folded into groups, every
//! event, or JSON, a page at a time.

use super::groups::{Group, Kind, groups};
use super::lanes::lanes;
use super::parts::{LOG, line_of};
use crate::ui::components::{copy_of, duration, status};
use crate::ui::{text, utf8_percent};
use devmind_device::text::is_invisible;
use devmind_projections::{TimelineLine, ToolCallRow};
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::HashMap;

/// Lines of one page: a page of these stays well under 100 kB.
const PAGE: usize = 120;
/// Lines of a group that are shown in it, at most.
const MAX_GROUP_LINES: usize = 40;

/// How it is shown.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Look {
    /// `groups`, `events` or `json`.
    view: String,
    /// 1, 2, 3 …
    page: Option<usize>,
}

impl Look {
    pub fn view(&self) -> &str {
        if matches!(self.view.as_str(), "events" | "json") { &self.view } else { "groups" }
    }
}

/// A timeline and where it stands.
pub struct Timeline<'a> {
    pub lines: &'a [TimelineLine],
    /// Its page, and what of its address stays whatever is looked at: empty, or ending with `&`.
    pub base: &'a str,
    pub keep: &'a str,
    /// Where its events have their pages.
    pub events: &'a str,
    /// What the views say of its tool calls, by id.
    pub calls: &'a HashMap<String, ToolCallRow>,
    /// Where all of it is, as a file.
    pub file: Option<&'a str>,
    /// Where what comes next is streamed from, and the buttons for it.
    pub live: Option<(&'a str, Markup)>,
}

impl Timeline<'_> {
    pub fn show(&self, look: &Look) -> Markup {
        let (view, lines) = (look.view(), self.lines);
        let at = |pages: usize| look.page.unwrap_or(1).clamp(1, pages.max(1));
        let (content, pages, page) = if view == "groups" {
            let groups = groups(lines);
            let pages = split(&groups);
            let page = at(pages.len());
            let own = pages.get(page - 1).cloned().unwrap_or(0..0);
            (
                html! { ol.groups #events { @for group in &groups[own] { li { (self.group(group)) } } } },
                pages.len(),
                page,
            )
        } else {
            let pages = lines.len().div_ceil(PAGE);
            let page = at(pages);
            let own: Vec<_> = lines.iter().skip((page - 1) * PAGE).take(PAGE).collect();
            let live = self.live.as_ref().filter(|_| page >= pages);
            let content = match view {
                "json" => json_view(&own, self.file),
                _ => html! {
                    @if let Some((_, buttons)) = live { (buttons) }
                    ol.events #events data-live=[live.map(|(from, _)| from)] { @for told in own { (line_of(told, self.events)) } }
                },
            };
            (content, pages, page)
        };
        // Beyond the first page the picture is known.
        let picture = page == 1 && view != "json" && !lines.is_empty();
        html! {
            @if picture { (lanes(lines, |position| self.to_line(position))) }
            nav.tabs aria-label="View" {
                @for (name, words) in [("groups", "Compact"), ("events", "All events"), ("json", "JSON")] {
                    a href=(self.link(name, None)) aria-current=[(name == view).then_some("page")] { (words) }
                }
            }
            (content)
            @if pages > 1 {
                nav.buttons aria-label="Pages of the timeline" {
                    @if page > 1 { a.button.quiet href=(self.link(view, Some(page - 1))) rel="prev" { "Earlier" } }
                    span { "Page " (page) " of " (pages) }
                    @if page < pages { a.button.quiet href=(self.link(view, Some(page + 1))) rel="next" { "Later" } }
                }
            }
        }
    }

    fn link(&self, view: &str, page: Option<usize>) -> String {
        let page = page.map(|page| format!("&page={page}")).unwrap_or_default();
        format!("{}?{}view={view}{page}", self.base, self.keep)
    }

    fn to_line(&self, position: u64) -> String {
        let page = 1 + self.lines.partition_point(|line| line.position < position) / PAGE;
        format!("{}#p{position}", self.link("events", Some(page)))
    }

    fn group(&self, group: &Group<'_>) -> Markup {
        let (Some(first), Some(last)) = (group.lines.first(), group.lines.last()) else { return html! {} };
        let call = group.call.and_then(|id| self.calls.get(id));
        let more = group.lines.len().saturating_sub(MAX_GROUP_LINES);
        html! {
            details.group id=(format!("g{}", first.position)) {
                summary {
                    span.kind { (group.kind.words()) }
                    span.words {
                        @if let Some(call) = call { strong { (text::cut(&call.tool, 60)) } " " (text::cut(&call.summary, 100)) } @else { (text::cut(&first.text, 140)) }
                        @if group.kind != Kind::Call && group.lines.len() > 1 { span.quiet { " → " (text::cut(&last.text, 140)) } }
                    }
                    span.end { @if let Some(call) = call { (status(&call.status)) " " } @if group.took_ms() > 0 { span.took { (duration(group.took_ms())) } } }
                }
                ol.events { @for told in group.lines.iter().take(MAX_GROUP_LINES) { (line_of(told, self.events)) } }
                @if more > 0 { p.hint { "And " (more) " more: " a href=(self.link("events", None)) { "all events" } } }
                @if let Some(id) = group.call.filter(|_| self.events == LOG) { p.hint { a href=(format!("/log?tool_call_id={}", utf8_percent(id))) { "Everything about this call" } } }
            }
        }
    }
}

/// Groups of one page: together not many more lines than fit.
fn split(groups: &[Group<'_>]) -> Vec<std::ops::Range<usize>> {
    let (mut pages, mut begin, mut lines) = (Vec::new(), 0, 0);
    for (index, group) in groups.iter().enumerate() {
        // A group's own line, and those in it.
        let own = 1 + group.lines.len().min(MAX_GROUP_LINES);
        if lines + own > PAGE && index > begin {
            pages.push(begin..index);
            (begin, lines) = (index, 0);
        }
        lines += own;
    }
    pages.push(begin..groups.len());
    pages
}

fn json_view(lines: &[&TimelineLine], file: Option<&str>) -> Markup {
    // Escaped as JSON does it, what would not be seen is seen, and can be copied as it stands.
    let text = serde_json::to_string_pretty(lines).unwrap_or_default();
    let escaped: String =
        text.chars().map(|c| if c != '\n' && is_invisible(c) { json_escape(c) } else { c.to_string() }).collect();
    html! {
        div.buttons { (copy_of("Copy this page", "json")) @if let Some(file) = file { a href=(file) { "All of it, as a file" } } }
        div #json { (text::code_of(&escaped, escaped.len(), "")) }
    }
}

/// A character as JSON may write it (RFC 8259, section 7).
fn json_escape(character: char) -> String {
    character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

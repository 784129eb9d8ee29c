//! The frame of every page: head, navigation, main, footer, in this order for keyboards and screen readers.

use super::assets;
use super::session::Viewer;
use super::text;
use devmind_domain::event::Role;
use maud::{DOCTYPE, Markup, html};

/// Where a page stands in the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the name says it")]
pub enum Section {
    Chat,
    Approvals,
    Log,
    Bundles,
    Operations,
    None,
}

const SECTIONS: [(Section, &str, &str); 5] = [
    (Section::Chat, "/", "Chat"),
    (Section::Approvals, "/approvals", "Approvals"),
    (Section::Log, "/log", "Log"),
    (Section::Bundles, "/bundles", "Bundles"),
    (Section::Operations, "/operations", "Operations"),
];

/// A page before it is filled.
pub struct Page<'a> {
    title: &'a str,
    section: Section,
    styles: Vec<&'static str>,
    scripts: Vec<&'static str>,
    wide: bool,
    class: &'static str,
}

impl<'a> Page<'a> {
    /// A page of this title (its `h1` is the content's to write).
    pub fn new(title: &'a str, section: Section) -> Self {
        Self { title, section, styles: Vec::new(), scripts: Vec::new(), wide: false, class: "page" }
    }

    /// With a style sheet of `api/ui` besides the common ones.
    #[must_use]
    pub fn style(mut self, name: &'static str) -> Self {
        self.styles.push(name);
        self
    }

    /// With a module of `api/ui` besides the common one.
    #[must_use]
    pub fn script(mut self, name: &'static str) -> Self {
        self.scripts.push(name);
        self
    }

    /// As wide as the window, for what has columns of its own.
    #[must_use]
    pub fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// With another class at the `body`, for a page whose frame differs.
    #[must_use]
    pub fn class(mut self, class: &'static str) -> Self {
        self.class = class;
        self
    }

    /// The whole document, for somebody.
    pub fn show(&self, viewer: &Viewer, content: Markup) -> Markup {
        self.document(Some(viewer), content)
    }

    /// The whole document, for nobody in particular.
    pub fn nobody(&self, content: Markup) -> Markup {
        self.document(None, content)
    }

    fn document(&self, viewer: Option<&Viewer>, content: Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (text::plain(self.title)) " · DevMind Ledger" }
                    link rel="icon" type="image/svg+xml" href=(assets::url("icon.svg"));
                    @for name in ["tokens.css", "page.css"].iter().chain(&self.styles) {
                        link rel="stylesheet" href=(assets::url(name));
                    }
                    @for name in ["page.js"].iter().chain(&self.scripts) {
                        script type="module" src=(assets::url(name)) {}
                    }
                }
                body.(self.class) {
                    a.skip href="#main" { "Skip to the content" }
                    header.top {
                        a.brand href="/" { img src=(assets::url("icon.svg")) alt="" width="24" height="24"; span { "DevMind Ledger" } }
                        nav aria-label="Main" {
                            @for (section, href, name) in SECTIONS {
                                a href=(href) aria-current=[(section == self.section).then_some("page")] { (name) }
                            }
                        }
                        @if let Some(viewer) = viewer { (who(viewer)) }
                    }
                    main #main tabindex="-1" .wide[self.wide] { (content) }
                    footer.bottom {
                        a href="/shortcuts" { "Keyboard shortcuts" kbd { "?" } }
                        a href="/verify" { "Verify the log" }
                        a href="/openapi.json" { "API" }
                    }
                    // What scripts say to screen readers.
                    div #announcer .visually-hidden role="status" aria-live="polite" {}
                }
            }
        }
    }
}

fn who(viewer: &Viewer) -> Markup {
    let name = html! {
        span.visually-hidden { "You are " }
        bdi { (viewer.caller.user_id.as_str()) }
        @if viewer.caller.role != Role::User { span.quiet { " " (viewer.caller.role.as_str()) } }
    };
    html! {
        // The device's program says who looks: nobody signs in within its window.
        @if viewer.device.is_some() { span.who title="The device's user" { (name) } }
        @else { a.who href="/sign-in" title="Who you are here" { (name) } }
    }
}

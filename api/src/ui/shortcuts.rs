//! What the keyboard does: a page, which scripts show as a sheet over any other.

use super::layout::{Page, Section};
use super::{PageResult, Viewer};
use crate::state::App;
use axum::Router;
use axum::routing::get;
use maud::{Markup, html};
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/shortcuts", get(show))
}

/// Keys, one after the other, and what they do.
type Shortcut = (&'static [&'static str], &'static str);

const SHORTCUTS: [(&str, &[Shortcut]); 3] = [
    (
        "Anywhere",
        &[
            (&["?"], "this sheet"),
            (&["g", "c"], "to the conversations"),
            (&["g", "a"], "to the approvals"),
            (&["g", "l"], "to the log"),
            (&["g", "b"], "to the bundles"),
            (&["g", "o"], "to the operations"),
            (&["Esc"], "close what is open"),
        ],
    ),
    (
        "In a list of events",
        &[
            (&["j"], "next"),
            (&["k"], "previous"),
            (&["Enter"], "open"),
            (&["f"], "to the filters"),
            (&["p"], "pause or go on"),
        ],
    ),
    ("In time travel", &[(&["["], "one event back"), (&["]"], "one event on"), (&["n"], "now")]),
];

async fn show(viewer: Viewer) -> PageResult {
    Ok(Page::new("Keyboard shortcuts", Section::None).show(&viewer, sheet()))
}

fn sheet() -> Markup {
    html! {
        section #shortcut-sheet aria-labelledby="shortcuts-title" {
            h1 #shortcuts-title { "Keyboard shortcuts" }
            p.quiet { "One after the other, not together. None of them acts while you write in a field." }
            div.sheet {
                @for (place, keys) in SHORTCUTS {
                    div {
                        h2 { (place) }
                        dl.keys {
                            @for (keys, what) in keys {
                                div { dt { @for key in *keys { kbd { (key) } " " } } dd { (what) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

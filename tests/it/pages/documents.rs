//! Pages as documents: what they load, that text from outside is text, how large a first paint is.

use super::{Browser, Story, lengthen};
use devmind_tests::{Question, TestServer};

/// Bytes of a first paint, at most, as they travel (nothing is compressed).
const FIRST_PAINT_BYTES: usize = 100_000;

#[tokio::test]
async fn every_page_is_a_document_that_loads_and_runs_nothing_but_our_own_files() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let mut pages = story.pages().await;
    pages.extend(["/nothing".to_owned(), "/log/999999".to_owned(), "/runs/x".to_owned(), "/history/x".to_owned()]);
    for page in pages {
        let shown = ann.get(&page).await;
        assert_eq!(shown.header("content-type"), "text/html; charset=utf-8", "{page}: {}", shown.text);
        let policy = shown.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self';"), "{page}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{page}: {policy}");
        assert_eq!(shown.header("x-content-type-options"), "nosniff", "{page}");
        for text in
            ["<!DOCTYPE html>", "<html lang=\"en\">", "<main", "<h1", "<nav aria-label=\"Main\">", "href=\"#main\""]
        {
            assert!(shown.text.contains(text), "{page} has no {text}");
        }
        for inline in [" style=\"", "<style", "javascript:", " onclick=", " onload=\"", "<script>", "<iframe"] {
            assert!(!shown.text.contains(inline), "{page} has {inline}");
        }
        let loads = shown.loads();
        assert!(loads.len() >= 4 && loads.iter().all(|address| address.starts_with("/ui/")), "{page}: {loads:?}");
        for file in loads {
            let file = ann.get(&file).await;
            assert_eq!((file.status, file.header("cache-control")), (200, "public, max-age=31536000, immutable"));
        }
    }
    story.server.finish().await;
}

#[tokio::test]
async fn what_people_wrote_is_shown_as_text_and_turns_nothing_round() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let shown_in =
        |page: &str| page.starts_with("/history/") && !page.contains("changes") || page.contains("view=events");
    for page in story.pages().await {
        let text = ann.get(&page).await.ok();
        assert!(
            !text.contains("<script>alert") && !text.contains('\u{202e}') && !text.contains("\" onload="),
            "{page}"
        );
        if shown_in(&page) {
            assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}: {text}");
        }
    }
    let position = story.position("TurnPrepared").await;
    let event = ann.get(&format!("/log/{position}")).await.ok();
    assert!(event.contains("<span class=\"hidden-character\">U+202E</span>txt.exe"), "{event}");

    let long = format!("add 1 and 2 {}", "y".repeat(31_000));
    let (asked, _) = story.server.client("ann").converse(&Question::new(&long)).await;
    let page = ann.get(&format!("/history/{}", asked.conversation_id)).await.ok();
    assert!(page.len() < 40_000 && page.contains("Read all of it"), "{} bytes", page.len());
    story.server.finish().await;
}

#[tokio::test]
async fn the_first_paint_of_a_timeline_of_a_thousand_events_is_under_100_kb_and_every_event_is_a_page_away() {
    let server = TestServer::start().await;
    let (asked, _) = server.client("ann").converse(&Question::new("add 1 and 2, what time is it?")).await;
    lengthen(&server, &asked, 1_000).await;
    let ann = Browser::of(&server, "ann");
    for view in ["groups", "events", "json"] {
        let page = ann.get(&format!("/runs/{}?view={view}", asked.run_id)).await;
        let mut bytes = page.text.len();
        for file in page.loads() {
            bytes += ann.get(&file).await.text.len();
        }
        assert!(bytes < FIRST_PAINT_BYTES, "{view}: {bytes} bytes");
    }
    let (mut seen, mut number) = (0, 1);
    loop {
        let page = ann.get(&format!("/runs/{}?view=events&page={number}", asked.run_id)).await.ok();
        seen += page.matches("<li class=\"event\"").count();
        if !page.contains("rel=\"next\"") {
            break;
        }
        number += 1;
    }
    let all = ann.get(&format!("/runs/{}/timeline.json", asked.run_id)).await.ok();
    let all: Vec<serde_json::Value> = serde_json::from_str(&all).unwrap();
    assert!(seen == all.len() && seen > 1_000, "{seen} of {}", all.len());
    server.finish().await;
}

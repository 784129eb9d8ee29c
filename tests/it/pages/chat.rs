//! The chat as documents: all turns can be reached, however many there are.

use super::Browser;
use devmind_tests::{Question, TestServer};

/// The address of the first link that says so.
fn link(page: &str, rel: &str) -> Option<String> {
    let tag = page.split('<').find(|tag| tag.starts_with("a ") && tag.contains(&format!("rel=\"{rel}\"")))?;
    Some(tag.split_once("href=\"")?.1.split_once('"')?.0.replace("&amp;", "&"))
}

/// The numbers of the turns of a page.
fn numbers(page: &str) -> Vec<u32> {
    page.split("data-number=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
}

#[tokio::test]
async fn every_turn_of_a_long_conversation_is_on_a_page_and_only_the_newest_page_asks() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let first = ann.ask(&Question::new("question 1")).await;
    for number in 2..=120 {
        ann.ask(&Question::new(&format!("question {number}")).within(&first.conversation_id)).await;
    }
    let browser = Browser::of(&server, "ann");
    let newest = format!("/conversations/{}", first.conversation_id);
    let (mut place, mut pages) = (Some(newest.clone()), Vec::new());
    while let Some(at) = place {
        let page = browser.get(&at).await.ok();
        assert_eq!(page.contains("action=\"/chat/ask\""), at == newest, "{at}");
        assert!(numbers(&page).len() <= 50, "{at}");
        place = link(&page, "prev");
        pages.push(page);
    }
    let seen: Vec<u32> = pages.iter().rev().flat_map(|page| numbers(page)).collect();
    assert_eq!(seen, (1..=120).collect::<Vec<_>>());
    // And on again, by links.
    let later = browser.get(&link(&pages[2], "next").expect("a link on")).await.ok();
    assert_eq!(numbers(&later), (21..=70).collect::<Vec<_>>());
    let last = browser.get(&link(&later, "next").expect("a link to the end")).await.ok();
    assert!(numbers(&last).contains(&120) && last.contains("action=\"/chat/ask\""), "{last}");
    // What is cut on a page is whole in the API.
    let path = format!("/api/turns?conversation_id={}&before=8&limit=1", first.conversation_id);
    let turns: Vec<serde_json::Value> = serde_json::from_str(&browser.get(&path).await.ok()).unwrap();
    assert_eq!((turns.len(), &turns[0]["question"]), (1, &"question 7".into()));
    assert_eq!(ann.get(&path.replace("limit=1", "limit=501")).await.status, 422);
    server.finish().await;
}

//! The log as pages: the past, following live, the verification.

use super::{Browser, Story, lengthen};
use devmind_api::ids::now;
use devmind_tests::{Question, eventually};
use eventsource_stream::Eventsource;
use futures::StreamExt;
use std::fmt::Write as _;

#[tokio::test]
async fn a_page_of_the_past_shows_nothing_later_and_nothing_that_acts() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let (claimed, ended) = (story.position("RunClaimed").await, story.position("RunSucceeded").await);
    let (run, conversation) = (&story.asked.run_id, &story.asked.conversation_id);
    for page in [format!("/runs/{run}"), format!("/history/{conversation}")] {
        let then = ann.get(&format!("{page}?at={claimed}")).await.ok();
        assert!(then.contains(&format!("as it was after event {claimed}")) && then.contains("> running<"), "{then}");
        assert!(!then.contains("method=\"post\"") && !then.contains(&format!("/log/{ended}\"")), "{then}");
        assert!(!then.contains("> completed<") && !then.contains("> succeeded<"), "{then}");
        let on =
            then.split("data-travel=\"on\"").next().and_then(|before| before.rsplit("at=").next()).unwrap_or_default();
        assert_eq!(on.split('"').next(), Some((claimed + 1).to_string().as_str()), "the next fact is a step away");
        let now = ann.get(&page).await.ok();
        assert!(now.contains("> completed<") && !now.contains("You see the past"), "{now}");
    }
    let beyond = ann.get(&format!("/history/{conversation}?at=99999")).await;
    assert!(beyond.status == 404 && beyond.text.contains("the log has no event 99999 yet"), "{}", beyond.text);
    let changed = ann.get(&format!("/history/{conversation}/changes?from={claimed}&to={ended}")).await.ok();
    assert!(
        changed.contains("<strong>Turn 1</strong>")
            && changed.contains("<del><bdi>running</bdi></del>")
            && changed.contains("<ins><bdi>completed</bdi></ins>"),
        "{changed}"
    );
    story.server.finish().await;
}

#[tokio::test]
async fn following_the_log_gives_the_lines_of_the_page_and_after_a_break_neither_gap_nor_repeat() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let page = ann.get("/log?after=0").await.ok();
    let follow = |last: Option<&str>| {
        let mut request = ann.http.get(format!("{}/log/stream?after=0", ann.base)).header("cookie", "devmind-user=ann");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        async move { request.send().await.unwrap().bytes_stream().eventsource() }
    };
    let frames: Vec<_> = follow(None).await.take(8).map(|frame| frame.unwrap()).collect().await;
    for frame in &frames {
        assert!(page.contains(&frame.data), "the page has not: {}", frame.data);
    }
    let mut again = follow(Some(&frames[3].id)).await;
    let next = again.next().await.unwrap().unwrap();
    assert_eq!(next.id, frames[4].id);
    let head = story.server.log().all().await.len();
    story.server.client("ann").ask(&Question::new("something new")).await;
    let new = loop {
        let frame = again.next().await.unwrap().unwrap();
        if frame.id.parse::<usize>().unwrap() > head {
            break frame;
        }
    };
    assert!(new.data.contains("something new"), "{}", new.data);
    drop(again);
    story.server.finish().await;
}

#[tokio::test]
async fn a_verification_from_the_page_holds_and_names_the_first_bad_position_of_a_log_that_was_changed() {
    let story = Story::tell().await;
    let carol = Browser::of(&story.server, "carol:auditor");
    let verified = async || {
        let begun = carol.post("/verify", "").await;
        assert_eq!((begun.status, begun.header("location")), (303, "/verify"));
        eventually("the verification ends", async || {
            let page = carol.get("/verify").await.ok();
            if page.contains("data-running") { Err(page) } else { Ok(page) }
        })
        .await
    };
    assert!(verified().await.contains("everything holds"));
    let position = story.position("TurnPrepared").await;
    let app = story.server.app();
    drop(app.checkpoints.publish(now()).await);
    let mut change = String::from("DROP TRIGGER events_no_update;");
    let _ = write!(change, "UPDATE events SET payload = replace(payload, 'add', 'sub') WHERE position = {position}");
    story.server.change_ledger(&change).await;
    let found = verified().await;
    assert!(found.contains("The first bad position is"), "{found}");
    assert!(found.contains(&format!("<a href=\"/log/{position}\">{position}</a>")), "{found}");
    // As it was: the end of a test checks the log, too.
    let trigger = include_str!("../../../migrations/sqlite/ledger/0002_redaction.sql");
    let (_, trigger) = trigger.split_once("CREATE TRIGGER events_no_update").expect("the trigger");
    let trigger = trigger.split_once("END;").expect("its end").0;
    let mend = format!(
        "UPDATE events SET payload = replace(payload, 'sub', 'add') WHERE position = {position}; \
         CREATE TRIGGER events_no_update {trigger} END;"
    );
    story.server.change_ledger(&mend).await;
    story.server.finish().await;
}

#[tokio::test]
async fn time_travel_goes_to_the_end_of_a_conversation_of_thousands_of_events() {
    let story = Story::tell().await;
    for _ in 0..6 {
        lengthen(&story.server, &story.asked, 1_000).await;
    }
    let ann = Browser::of(&story.server, "ann");
    let page = format!("/history/{}", story.asked.conversation_id);
    let step = |page: &str, name: &str| {
        let place = page.split(&format!("data-travel=\"{name}\"")).next().filter(|before| before.len() < page.len())?;
        place.rsplit("at=").next()?.split('"').next()?.parse::<u64>().ok()
    };
    let last = story.server.log().of("AnswerProgressed").await.last().expect("many").position;
    let now = ann.get(&page).await.ok();
    assert_eq!(step(&now, "back"), Some(last - 1));
    let then = ann.get(&format!("{page}?at={}", last - 1)).await.ok();
    assert_eq!((step(&then, "back"), step(&then, "on")), (Some(last - 2), Some(last)));
    let first = step(&then, "first").expect("the first");
    let begun = ann.get(&format!("{page}?at={first}")).await.ok();
    assert_eq!((step(&begun, "back"), step(&begun, "on")), (None, Some(first + 1)));
    story.server.finish().await;
}

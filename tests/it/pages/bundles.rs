//! Bundles: out, and back in to be looked at.

use super::{Browser, Story, lengthen};
use std::collections::BTreeSet;

#[tokio::test]
async fn a_bundle_goes_out_and_comes_back_verified_and_is_never_written_to_the_log() {
    let story = Story::tell().await;
    let ann = Browser::of(&story.server, "ann");
    let sent = ann.get(&format!("/bundles/download?conversation_id={}", story.asked.conversation_id)).await;
    assert!(
        sent.header("content-disposition").starts_with("attachment; filename=\"conversation-"),
        "{:?}",
        sent.headers
    );
    let bundle = sent.ok();
    let before = story.server.log().all().await.len();
    let shown = ann.upload(&bundle).await.ok();
    assert!(shown.contains("everything holds") && shown.contains("signed by the key of this server"), "{shown}");
    assert!(!shown.contains("href=\"/log/"), "what stands elsewhere leads nowhere in this log: {shown}");
    assert!(shown.contains("asked question 1") && !shown.contains("<script>alert"), "{shown}");
    let changed = ann.upload(&bundle.replacen("add 1 and 2", "sub 1 and 2", 1)).await.ok();
    assert!(changed.contains("does not hold") && changed.contains("The first bad position is"), "{changed}");
    let cut = ann.upload(&bundle[..bundle.len() / 2]).await.ok();
    assert!(cut.contains("This is no sound bundle") && cut.contains("line "), "{cut}");
    assert_eq!(ann.upload("").await.status, 422);
    assert_eq!(story.server.log().all().await.len(), before, "nothing was written");
    story.server.finish().await;
}

/// The addresses of a page's links that have this in them.
fn links(page: &str, with: &str) -> Vec<String> {
    let all = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    all.filter(|link| link.contains(with)).map(|link| link.replace("&amp;", "&")).collect()
}

#[tokio::test]
async fn every_event_of_a_bundle_and_the_timelines_of_its_runs_have_pages_for_the_one_who_uploaded_it() {
    let story = Story::tell().await;
    lengthen(&story.server, &story.asked, 300).await;
    let (ann, bob) = (Browser::of(&story.server, "ann"), Browser::of(&story.server, "bob"));
    let bundle = ann.get(&format!("/bundles/download?conversation_id={}", story.asked.conversation_id)).await.ok();
    let in_it = bundle.matches("\"event_type\"").count();
    let mut page = bob.upload(&bundle).await.ok();
    let run = links(&page, "/runs/").remove(0);
    let mut events = BTreeSet::new();
    loop {
        events.extend(links(&page, "/events/"));
        let Some(next) =
            page.split('<').find(|tag| tag.contains("rel=\"next\"")).map(|tag| links(tag, "page=").remove(0))
        else {
            break;
        };
        page = bob.get(&next).await.ok();
    }
    assert!(events.len() > 300 && events.len() == in_it, "{} of {in_it}", events.len());
    // The last is whole on its page.
    let last = events.iter().max_by_key(|link| link.rsplit('/').next().unwrap().parse::<u64>().unwrap()).unwrap();
    assert!(bob.get(last).await.ok().contains("299 of many words"));
    assert!(bob.get(&format!("{last}?raw=1")).await.ok().starts_with('{'));
    let timeline = bob.get(&format!("{run}?view=events")).await.ok();
    assert!(timeline.contains("asked question 1") && timeline.contains("Page 1 of 3"), "{timeline}");
    let own = ann.get(&format!("/runs/{}?view=events", story.asked.run_id)).await.ok();
    let positions = |page: &str| page.matches("<li class=\"event\"").count();
    assert_eq!(positions(&timeline), positions(&own), "the same facts as the log's own page");
    assert_eq!(ann.get(&run).await.status, 404, "nobody else's");
    story.server.finish().await;
}

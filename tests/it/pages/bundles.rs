//! Bundles: out, and back in to be looked at.

use super::{Browser, Story};

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

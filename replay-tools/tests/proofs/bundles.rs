//! What `export`, `verify` and `import` refuse, and how each says so: by the exit status, in words, and in JSON.

use super::support::{Data, Ran, code_of, node_stopped};
use super::{json_of, publish};
use devmind_ledger::proof::open_witness_key;
use serde_json::{Value, json};

async fn grow(data: &Data, epoch: u64) {
    let ledger = data.open().await;
    data.append(&ledger, &node_stopped(epoch)).await;
    ledger.close().await;
}

fn path(data: &Data, name: &str) -> String {
    data.path().join(name).to_str().expect("a plain path").to_owned()
}

fn refused(ran: &Ran, code: &str) {
    assert_eq!((ran.status, code_of(ran)), (1, code), "{ran:?}");
    assert!(ran.stdout.is_empty() && ran.stderr.contains("hint: "), "{ran:?}");
}

/// The key of a witness that has signed nothing.
fn stranger(folder: &std::path::Path) -> String {
    open_witness_key(&folder.join("stranger.key"), "stranger", || Ok([3; 32])).expect("a key").public().to_string()
}

#[tokio::test]
async fn an_export_is_under_the_newest_checkpoint_of_this_log_up_to_a_position_and_says_what_it_leaves_out() {
    let data = Data::with_story().await;
    let file = path(&data, "b.jsonl");
    let story = data.events() as u64;
    let export = async |more: &[&str]| {
        let ran = data.run(&[&["--json", "export", &file], more].concat()).await;
        drop(std::fs::remove_file(&file));
        ran
    };
    refused(&export(&[]).await, "NOT_READY");
    publish(&data).await;
    for option in [&["--content"][..], &["--header", "a=b"]] {
        refused(&export(option).await, "VALIDATION_FAILED");
    }
    grow(&data, 1).await;
    publish(&data).await;
    grow(&data, 2).await;
    // A log of the same key, further on, and noted last.
    let other = Data::with_story().await;
    for epoch in 1..=2 {
        grow(&other, epoch).await;
    }
    publish(&other).await;
    let noted = |data: &Data| std::fs::read_to_string(data.path().join("checkpoints.jsonl")).expect("read");
    data.write("checkpoints.jsonl", &(noted(&data) + &noted(&other)));
    let newest = export(&[]).await;
    assert_eq!((newest.status, &json_of(&newest)["position"]), (0, &json!(story + 1)), "{newest:?}");
    assert!(newest.stderr.contains(&format!("events {} to {} are in no checkpoint yet", story + 2, story + 2)));
    let earlier = export(&["--at", &story.to_string()]).await;
    assert_eq!((earlier.status, &json_of(&earlier)["position"]), (0, &json!(story)), "{earlier:?}");
    assert!(!earlier.stderr.contains("in no checkpoint"), "{earlier:?}");
    refused(&export(&["--at", &(story - 1).to_string()]).await, "NOT_READY");
    refused(&export(&["--at", "999"]).await, "NOT_FOUND");
    refused(&export(&["--witness", &stranger(data.path())]).await, "NOT_READY");
    data.write("b.jsonl", "somebody's");
    let there = data.run(&["export", &file]).await;
    assert!(code_of(&there) == "IO_ERROR" && there.stderr.contains("name a file that is not there yet"), "{there:?}");
    std::fs::remove_file(&file).expect("as it was");
    let nobody = export(&["--run", "nobody's"]).await;
    assert_eq!((nobody.status, &json_of(&nobody)["events"]), (1, &json!(0)), "{nobody:?}");
    assert!(nobody.stderr.contains("nothing in the log is of it"), "{nobody:?}");
}

#[tokio::test]
async fn a_bundle_that_is_checked_says_what_does_not_hold_and_whose_key_it_is_and_none_that_fails_is_imported() {
    let data = Data::with_story().await;
    publish(&data).await;
    let (whole, part) = (path(&data, "whole.jsonl"), path(&data, "part.jsonl"));
    assert_eq!(data.run(&["export", &whole]).await.status, 0);
    let exported = json_of(&data.run(&["--json", "export", &part, "--conversation", "c"]).await);
    let fingerprint = exported["fingerprint"].as_str().expect("a fingerprint");
    let nowhere = Data::empty();
    let unsure = nowhere.run(&["verify", &whole]).await;
    assert!(unsure.status == 0 && unsure.stderr.contains("the key that the bundle itself names"), "{unsure:?}");
    let sure = nowhere.run(&["verify", &whole, "--key", fingerprint]).await;
    assert!(sure.status == 0 && !sure.stderr.contains("itself names"), "{sure:?}");
    let witness = stranger(data.path());
    for wrong in [["--key", "another"], ["--witness", &witness]] {
        let ran = nowhere.run(&[&["--json", "verify", &whole], wrong.as_slice()].concat()).await;
        assert_eq!((ran.status, &json_of(&ran)["sound"]), (3, &json!(false)), "{wrong:?}: {ran:?}");
        assert!(ran.stderr.contains("verification failed"), "{ran:?}");
    }
    refused(&nowhere.run(&["verify", "missing.jsonl"]).await, "IO_ERROR");
    refused(&nowhere.run(&["log", "--bundle", "missing.jsonl"]).await, "IO_ERROR");

    // No bundle at all, a half one, one with a forged event: nothing of them is taken in, or shown as a log.
    let text = std::fs::read_to_string(&whole).expect("read");
    let forged = text.replacen("README.md", "readme.md", 1);
    for (name, bytes) in [("none", "no bundle\n"), ("half", &text[..text.len() / 2]), ("forged", forged.as_str())] {
        nowhere.write(name, bytes);
        let checked = nowhere.run(&["--json", "verify", name]).await;
        let told: Value = json_of(&checked);
        assert_eq!((checked.status, &told["sound"]), (3, &json!(false)), "{name}: {checked:?}");
        assert!(!told["findings"].as_array().expect("findings").is_empty(), "{name}: {told}");
        refused(&nowhere.run(&["log", "--bundle", name]).await, "LEDGER_CORRUPT");
        let imported = nowhere.run(&["--data", "new", "import", name, "--yes"]).await;
        assert_eq!(imported.status, if name == "forged" { 3 } else { 1 }, "{name}: {imported:?}");
        assert!(!nowhere.path().join("new/ledger.sqlite").exists(), "{name}");
    }
    refused(&nowhere.run(&["--data", "new", "import", &part, "--yes"]).await, "VALIDATION_FAILED");
    let other = Data::with_story().await;
    refused(&other.run(&["import", &whole, "--yes"]).await, "VALIDATION_FAILED");

    // A part proves its own events, and knows the root that was signed and no other.
    let size = data.events();
    for (at, has_root) in [(size, true), (size - 1, false)] {
        let order = ["--json", "prove-once", "--tool-call", "g:call", "--bundle", &part, "--at", &at.to_string()];
        let told = json_of(&nowhere.run(&order).await);
        assert_eq!(told["root"].is_string(), has_root, "at {at}: {told}");
    }
    let shown = nowhere.run(&["timeline", "--run", "r", "--bundle", &part]).await;
    assert!(
        shown.status == 0 && !shown.stderr.contains("damaged"),
        "what a part does not have is no damage: {shown:?}"
    );
    let part_of = nowhere.run(&["log", "--bundle", &part]).await;
    assert!(part_of.status == 0 && !part_of.stderr.contains("damaged"), "{part_of:?}");
    let opened = nowhere.run(&["log", "--bundle", &whole, "--limit", "1"]).await;
    assert!(
        ["checking: ", "opening: "].iter().all(|what| opened.stderr.contains(what)),
        "it tells its progress: {opened:?}"
    );
}

#[tokio::test]
async fn a_ledger_is_verified_with_the_key_that_is_expected_and_what_cannot_be_read_is_no_success() {
    let data = Data::with_story().await;
    data.fill(600).await;
    publish(&data).await;
    let key = std::fs::read_to_string(data.path().join("checkpoint.pub")).expect("read");
    for (expected, status) in [(key.trim(), 0), ("another", 3)] {
        let ran = data.run(&["verify", "--key", expected]).await;
        assert_eq!(ran.status, status, "{ran:?}");
    }
    let other = data.run(&["--json", "verify", "--key", "another"]).await;
    assert_eq!((other.status, &json_of(&other)["sound"]), (3, &json!(false)), "{other:?}");
    data.write("checkpoint.pub", "no key");
    refused(&data.run(&["verify"]).await, "CONFIG_INVALID");
    std::fs::remove_file(data.path().join("checkpoint.pub")).expect("removed");
    let unsigned = data.run(&["verify"]).await;
    assert!(
        unsigned.status == 0 && unsigned.stderr.contains("there is no public key beside the ledger"),
        "{unsigned:?}"
    );
    assert_eq!(data.run(&["verify", "--key", key.trim()]).await.status, 3, "the key that is expected is not there");

    // A disk that lost some pages in the middle.
    let file = data.path().join("ledger.sqlite");
    let mut bytes = std::fs::read(&file).expect("read");
    let (middle, length) = (bytes.len() / 2 / 4_096 * 4_096, 16 * 4_096);
    bytes[middle..middle + length].fill(0xff);
    std::fs::write(&file, bytes).expect("written");
    let lost = data.run(&["verify"]).await;
    assert!(lost.status == 3 && lost.stderr.contains("verification failed"), "{lost:?}");
    let told = data.run(&["--json", "verify"]).await;
    assert_eq!((told.status, &json_of(&told)["sound"]), (3, &json!(false)), "{told:?}");
}

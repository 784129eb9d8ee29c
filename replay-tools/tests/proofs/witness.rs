//! A witness on a port of its own, and ledgers that ask it: one that grew, one that lost events, one that was
//! rewritten.

use super::support::{Data, Ran, Running, code_of, node_stopped};
use super::{json_of, publish};
use devmind_domain::proof::{Checkpoint, Note, NoteKey};
use devmind_ledger::proof::{CheckpointRecord, open_key};
use serde_json::{Value, json};
use std::path::Path;

struct Witness {
    running: Running,
    url: String,
    key: String,
    told: Value,
}

async fn serve(state: &Path, data: &Data) -> Witness {
    let log = std::fs::read_to_string(data.path().join("checkpoint.pub")).expect("the log's key");
    serve_log(state, data, log.trim()).await
}

async fn serve_log(state: &Path, data: &Data, log: &str) -> Witness {
    let state = state.to_str().expect("a plain path");
    let order = ["--json", "witness", "serve", "--listen", "127.0.0.1:0", "--state", state, "--log", log];
    let mut running = data.start(&order);
    let told: Value = serde_json::from_str(&running.line().await).expect("JSON");
    let text = |field: &str| told[field].as_str().expect("a text").to_owned();
    Witness { running, url: text("listening"), key: text("key"), told }
}

impl Witness {
    async fn asked_by(&self, data: &Data) -> Ran {
        data.run(&["--json", "witness", "ask", &self.url, "--key", &self.key]).await
    }
}

async fn grow(data: &Data, epochs: std::ops::RangeInclusive<u64>) {
    let ledger = data.open().await;
    for epoch in epochs {
        data.append(&ledger, &node_stopped(epoch)).await;
    }
    ledger.close().await;
    publish(data).await;
}

#[tokio::test]
async fn a_witness_cosigns_what_grew_and_refuses_a_log_that_lost_events_or_was_rewritten_also_after_a_restart() {
    let honest = Data::with_story().await;
    publish(&honest).await;
    let (rolled_back, forked) = (honest.copy(), honest.copy());
    let state = tempfile::tempdir().expect("a folder");
    let witness = serve(state.path(), &honest).await;
    let size = honest.events() as u64;
    let ran = witness.asked_by(&honest).await;
    assert_eq!((ran.status, &json_of(&ran)["position"]), (0, &json!(size)), "{ran:?}");

    let log = std::fs::read_to_string(honest.path().join("checkpoint.pub")).expect("the log's key");
    let order = ["witness", "serve", "--listen", "127.0.0.1:0", "--state", state.path().to_str().expect("a path")];
    let second = honest.run(&[order.as_slice(), &["--log", log.trim()]].concat()).await;
    assert_eq!((second.status, code_of(&second)), (1, "STATE_LOCKED"), "one process has the memory: {second:?}");

    grow(&honest, 1..=1).await;
    let ran = witness.asked_by(&honest).await;
    assert_eq!((ran.status, &json_of(&ran)["position"]), (0, &json!(size + 1)), "{ran:?}");
    let again = witness.asked_by(&honest).await;
    assert_eq!((again.status, &json_of(&again)["cosigned_at"]), (0, &Value::Null), "once is enough: {again:?}");

    // Killed, not stopped: what it cosigned was on the disk before.
    witness.running.kill().await;
    let witness = serve(state.path(), &honest).await;
    assert_eq!(witness.told["logs"][0]["position"], size + 1);

    // It has no memory of its own of having asked, and no more events than the first checkpoint had.
    let ran = witness.asked_by(&rolled_back).await;
    assert_eq!((ran.status, code_of(&ran)), (3, "LEDGER_FORKED"), "{ran:?}");
    // As many events as were seen, and more: other ones.
    for epochs in [7..=7, 8..=9] {
        grow(&forked, epochs).await;
        let ran = witness.asked_by(&forked).await;
        assert_eq!((ran.status, code_of(&ran)), (3, "LEDGER_FORKED"), "{ran:?}");
    }
    assert!(!forked.path().join("cosignatures.jsonl").exists(), "nothing was signed");

    // Both heads are signed by the log itself: anybody can see that it told two histories.
    let refused = std::fs::read_to_string(state.path().join("refused.jsonl")).expect("kept");
    let key = NoteKey::parse(log.trim()).expect("a key");
    let contradictions: Vec<Value> = refused.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(contradictions.len(), 2, "{refused}");
    let head = |note: &Value| {
        let note = Note::parse(note.as_str().expect("a note")).expect("a note");
        note.verify(&key).expect("signed by the log");
        Checkpoint::from_text(&note.text).expect("a checkpoint")
    };
    let (seen, shown) = (head(&contradictions[0]["seen"]), head(&contradictions[0]["shown"]));
    assert!(seen.size == shown.size && seen.root != shown.root && contradictions[0]["code"] == "LEDGER_FORKED");

    // The honest log goes on.
    grow(&honest, 2..=3).await;
    let ran = witness.asked_by(&honest).await;
    assert_eq!((ran.status, &json_of(&ran)["position"]), (0, &json!(size + 3)), "{ran:?}");
}

#[tokio::test]
async fn a_cosignature_is_part_of_a_bundle_and_asked_for_by_verify() {
    let data = Data::with_story().await;
    publish(&data).await;
    let state = tempfile::tempdir().expect("a folder");
    let witness = serve(state.path(), &data).await;
    let file = data.path().join("all.jsonl");
    let file = file.to_str().expect("a plain path");
    let key = witness.key.as_str();
    let early = data.run(&["export", file, "--witness", key]).await;
    assert_eq!((early.status, code_of(&early)), (1, "NOT_READY"), "{early:?}");
    assert_eq!(data.run(&["verify", "--witness", key]).await.status, 3, "nobody has cosigned anything");
    assert_eq!(witness.asked_by(&data).await.status, 0);
    // A newer checkpoint, which nobody cosigned yet.
    grow(&data, 1..=1).await;
    let verified = data.run(&["--json", "verify", "--witness", key]).await;
    assert_eq!((verified.status, &json_of(&verified)["witnesses"][0]["position"]), (0, &json!(data.events())));

    let nowhere = Data::empty();
    assert_eq!(data.run(&["export", file, "--witness", key]).await.status, 0);
    let ran = nowhere.run(&["--json", "verify", file, "--witness", key]).await;
    assert_eq!((ran.status, &json_of(&ran)["witnesses"][0]["position"]), (0, &json!(data.events())), "{ran:?}");
    let plain = data.path().join("plain.jsonl");
    let plain = plain.to_str().expect("a plain path");
    assert_eq!(data.run(&["export", plain]).await.status, 0);
    let uncosigned = nowhere.run(&["verify", plain, "--witness", key]).await;
    assert!(uncosigned.status == 3 && uncosigned.stderr.contains("has not cosigned its head"), "{uncosigned:?}");

    // A ledger that is not what the witness saw is found even where the server's own record is gone.
    std::fs::remove_file(data.path().join("checkpoints.jsonl")).expect("removed");
    data.tamper("UPDATE events SET metadata = replace(metadata, 'ann', 'bob') WHERE position = 4").await;
    data.tamper("UPDATE events SET leaf_hash = zeroblob(32) WHERE position = 4").await;
    let ran = data.run(&["verify", "--witness", key]).await;
    assert!(ran.status == 3 && ran.stdout.contains("BROKEN  the log is what its checkpoints said"), "{ran:?}");

    // Somebody who knows only the address gets nothing signed.
    let wrong = data.run(&["witness", "ask", &witness.url, "--key", "nonsense"]).await;
    assert_eq!(wrong.status, 2, "{wrong:?}");
    let stranger = Data::with_story().await;
    publish(&stranger).await;
    let unknown = witness.asked_by(&stranger).await;
    assert_eq!((unknown.status, code_of(&unknown)), (1, "WITNESS_REFUSED"), "{unknown:?}");
    witness.running.kill().await;
}

#[tokio::test]
async fn a_log_whose_key_has_a_name_of_its_own_is_watched_by_the_name_of_the_log() {
    let data = Data::with_story().await;
    let file = data.path().join("ours.key");
    let key = open_key(&file, "ours", Some(|| Ok([9; 32]))).expect("a key").public();
    let ledger = data.open().await;
    let unused = || Ok([7; 32]);
    let record =
        CheckpointRecord::open(data.path(), Some(&file), ledger.reader().clone(), unused).await.expect("a key");
    record.publish(devmind_domain::Timestamp::from_micros(1)).await.expect("published");
    let origin = record.origin().to_owned();
    ledger.close().await;

    let state = tempfile::tempdir().expect("a folder");
    let by_key = serve_log(state.path(), &data, &key.to_string()).await;
    let ran = by_key.asked_by(&data).await;
    assert!(code_of(&ran) == "WITNESS_REFUSED" && ran.stderr.contains(&origin), "it says what to name: {ran:?}");
    by_key.running.kill().await;
    let witness = serve_log(state.path(), &data, &format!("{origin}={key}")).await;
    assert_eq!(witness.told["logs"][0]["origin"], origin);
    let ran = witness.asked_by(&data).await;
    assert_eq!((ran.status, &json_of(&ran)["position"]), (0, &json!(data.events())), "{ran:?}");
    let verified = data.run(&["verify", "--witness", &witness.key]).await;
    assert_eq!(verified.status, 0, "{verified:?}");
    witness.running.kill().await;
    // What it remembers is of the log, by its name.
    let again = serve_log(state.path(), &data, &format!("{origin}={key}")).await;
    assert_eq!(again.told["logs"][0]["position"], data.events());
    again.running.kill().await;
}

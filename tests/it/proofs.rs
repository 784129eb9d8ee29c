//! What somebody can check who has nothing of the server but its public key, and what the server does
//! when its ledger is not what it once signed.

use devmind_domain::canonical::Hash;
use devmind_domain::event::{RecordedEvent, StreamId};
use devmind_domain::proof::{Checkpoint, Note, NoteKey, verify_consistency, verify_inclusion};
use devmind_tests::{Client, DeviceProcess, Process, Question, ServerProcess, TestServer};
use serde_json::Value;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} in {value}"))
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_else(|| panic!("{field} in {value}"))
}

fn hash(value: &Value) -> Hash {
    hex::decode(value.as_str().expect("hexadecimal")).expect("hexadecimal").try_into().expect("32 bytes")
}

fn path(value: &Value) -> Vec<Hash> {
    value["path"].as_array().expect("a path").iter().map(hash).collect()
}

/// A signed head, its signature checked with the key.
fn checked(note: &str, key: &NoteKey) -> Checkpoint {
    let note = Note::parse(note).expect("a note");
    note.verify(key).expect("signed by the server");
    Checkpoint::from_text(&note.text).expect("a checkpoint")
}

/// An event as it was answered, made again from its columns alone.
fn event_of(row: &Value) -> RecordedEvent {
    RecordedEvent {
        partition: 0,
        position: number(row, "position"),
        event_id: text(row, "event_id").to_owned(),
        stream: StreamId {
            aggregate_type: text(row, "aggregate_type").to_owned(),
            aggregate_id: text(row, "aggregate_id").to_owned(),
        },
        sequence: number(row, "sequence"),
        event_type: text(row, "event_type").to_owned(),
        event_version: u32::try_from(number(row, "event_version")).unwrap(),
        payload: devmind_domain::canonical::canonical_json(&row["payload"]),
        metadata: devmind_domain::canonical::canonical_json(&row["metadata"]),
        recorded_at: devmind_domain::Timestamp::parse(text(row, "recorded_at")).unwrap(),
        leaf_hash: hash(&row["leaf_hash"]),
    }
}

async fn head(client: &Client) -> (Checkpoint, NoteKey) {
    let reply = client.get("/api/ledger/checkpoint").await.ok();
    let key = NoteKey::parse(text(&reply, "key")).expect("a key");
    let checkpoint = checked(text(&reply, "checkpoint"), &key);
    assert_eq!((number(&reply, "position"), text(&reply, "origin")), (checkpoint.size, checkpoint.origin.as_str()));
    assert_eq!(hash(&reply["root"]), checkpoint.root);
    assert_eq!(text(&reply, "fingerprint"), key.fingerprint());
    (checkpoint, key)
}

#[tokio::test]
async fn with_nothing_but_the_key_everybody_can_check_that_their_events_are_in_a_log_that_only_grew() {
    let server = TestServer::start().await;
    let ann = server.client("ann");
    let (earlier, key) = head(&ann).await;
    let (asked, _) = ann.converse(&Question::new("add 1 and 2")).await;
    let own = ann.get(&format!("/api/ledger/events?conversation_id={}", asked.conversation_id)).await.ok();
    let events = own["events"].as_array().expect("events");
    assert!(events.len() > 5);
    for row in events {
        let position = number(row, "position");
        let proof = ann.get(&format!("/api/ledger/proof?position={position}")).await.ok();
        let signed = checked(text(&proof, "checkpoint"), &key);
        assert_eq!((signed.size, signed.root), (number(&proof, "size"), hash(&proof["root"])));
        let event = event_of(&proof["event"]);
        assert_eq!(event.expected_leaf_hash(), event.leaf_hash, "the columns are what the leaf says");
        verify_inclusion(position - 1, &event.leaf_hash, signed.size, &path(&proof), &signed.root).expect("it is in");
        let grown = format!("/api/ledger/consistency?from={}&to={}", earlier.size, signed.size);
        let grown = ann.get(&grown).await.ok();
        let to = (signed.size, &signed.root);
        verify_consistency((earlier.size, &earlier.root), to, &path(&grown)).expect("it only grew");
        assert_eq!((hash(&grown["from_root"]), hash(&grown["to_root"])), (earlier.root, signed.root));
        // Of an older log, too.
        let older = ann.get(&format!("/api/ledger/proof?position={position}&size={position}")).await.ok();
        let root = hash(&older["root"]);
        verify_inclusion(position - 1, &event.leaf_hash, position, &path(&older), &root).expect("it was in");
        assert!(older.get("checkpoint").is_none());
    }
    let head = server.log().head().await;
    for (query, refused) in [
        (format!("proof?position={}", head + 1000), (404, "NOT_FOUND")),
        (format!("proof?position={}&size={}", number(&events[0], "position"), head + 1000), (404, "NOT_FOUND")),
        ("proof?position=0".to_owned(), (422, "VALIDATION_FAILED")),
        ("proof".to_owned(), (422, "VALIDATION_FAILED")),
        ("consistency?from=2&to=1".to_owned(), (422, "VALIDATION_FAILED")),
        (format!("consistency?from=1&to={}", head + 1000), (404, "NOT_FOUND")),
    ] {
        assert_eq!(ann.get(&format!("/api/ledger/{query}")).await.refused(), refused, "{query}");
    }
    server.finish().await;
}

#[tokio::test]
async fn the_last_head_is_signed_at_the_stop_and_the_key_stays_over_a_restart() {
    let server = TestServer::start().await;
    let (_, key) = head(&server.client("ann")).await;
    let stopped = server.stop().await;
    let last = devmind_ledger::proof::read_checkpoints(stopped.data.path()).expect("read").pop().expect("a checkpoint");
    let log = stopped.data.log().await;
    assert_eq!(last.checkpoint.size, log.head().await, "nothing comes after it");
    drop(log);
    let server = stopped.start().await;
    assert_eq!(head(&server.client("ann")).await.1, key);
    server.finish().await;
}

#[tokio::test]
async fn an_older_copy_of_the_ledger_is_not_served_where_newer_heads_were_signed() {
    let stopped = ServerProcess::start(&[]).await.stop().await;
    let data = stopped.data.clone();
    let copy = std::fs::read(data.ledger_file()).unwrap();
    let server = stopped.start().await;
    server.client("ann").converse(&Question::new("hello")).await;
    server.finish().await;
    std::fs::write(data.ledger_file(), copy).unwrap();
    std::fs::remove_file(data.views_file()).unwrap();
    let folder = data.path().to_str().unwrap();
    let refused = Process::run("devmind", &["--listen", "127.0.0.1:0", "--data", folder], &[]).await;
    refused.assert_refused("LEDGER_CORRUPT");
    assert!(refused.stderr.contains("checkpoints.jsonl"), "{}", refused.stderr);
    let verified = Process::run("devmind-replay", &["--data", folder, "verify"], &[]).await;
    assert_eq!(verified.code, Some(3), "{}", verified.stdout);
    assert!(verified.stdout.contains("the log is what its checkpoints said"), "{}", verified.stdout);
}

/// A folder's files, as they are.
fn files_of(folder: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[tokio::test]
async fn a_device_goes_on_with_a_log_that_grew_and_leaves_one_that_lost_or_replaced_what_it_was_shown() {
    let stopped = ServerProcess::on_sqlite(&[]).await.stop().await;
    let (data, workspace) = (stopped.data.clone(), devmind_tests::workspace());
    let old = files_of(data.path());
    let restore = || {
        files_of(data.path()).iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
        old.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    };
    let device =
        |server: &ServerProcess, state| DeviceProcess::start(&server.url(), "ann", workspace.path(), state, &["--yes"]);
    let mut state = tempfile::tempdir().unwrap();
    let mut stopped = stopped;
    for _ in 0..2 {
        // Twice: the first head, and one that continues it.
        let server = stopped.start().await;
        server.client("ann").converse(&Question::new("add 1 and 2")).await;
        server.client("ann").get("/api/ledger/checkpoint").await.ok();
        let mut device = device(&server, state);
        device.connected().await;
        state = device.kill().await;
        stopped = server.stop().await;
    }
    // An older copy of everything: log, views, what was signed, the key.
    restore();
    let server = stopped.start().await;
    let mut rolled_back = device(&server, state);
    rolled_back.process.line("LEDGER_FORKED").await;
    state = rolled_back.kill().await;
    // The same, grown again to more than the device ever saw.
    for number in 1..=6 {
        server.client("ann").converse(&Question::new(&format!("add {number} and 7"))).await;
    }
    server.client("ann").get("/api/ledger/checkpoint").await.ok();
    let forked = device(&server, state).process.ended().await;
    forked.assert_refused("LEDGER_FORKED");
    assert!(forked.stderr.contains("it is not shown that the log of"), "not for its size: {}", forked.stderr);
    let offered = server.log().await.all().await.iter().any(|fact| fact.is("ToolRegistrySynced"));
    assert!(!offered, "it offered no tool to that log");
    server.finish().await;
}

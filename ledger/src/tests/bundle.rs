//! Bundles: what is exported can be checked without the ledger, no byte of it changes unseen, and the
//! whole of it becomes the same ledger again.

use super::support::*;
use crate::bundle::*;
use crate::proof::*;
use crate::*;
use devmind_domain::Timestamp;
use devmind_domain::event::ActorKind;
use devmind_domain::proof::NoteKey;
use std::fs;
use std::path::PathBuf;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

struct Source {
    folder: Folder,
    checkpoint: RecordedCheckpoint,
    key: NoteKey,
}

impl Source {
    /// A ledger with keys, an erased event, and a checkpoint of all of it.
    async fn of(count: usize) -> Self {
        let folder = Folder::new();
        let ledger = folder.open().await;
        for (n, start) in (0..count).step_by(100).enumerate() {
            let append = append_events(&format!("s{n}"), 0, events((count - start).min(100)));
            ledger.append(with_key(append, &format!("k{n}"), "h")).await.expect("appended");
        }
        let nothing = Append { streams: Vec::new(), idempotency: Some(key("nothing", "h")) };
        ledger.append(nothing).await.expect("a request that changed nothing");
        ledger.close().await;
        redact(folder.place(), 2, "asked for", &metadata()).await.expect("erased");
        let ledger = folder.open().await;
        let seed = || Ok([7; 32]);
        let record = CheckpointRecord::open(folder.path(), None, ledger.reader().clone(), seed).await.expect("opened");
        let checkpoint = record.publish(NOW).await.expect("published");
        let key = record.key();
        ledger.close().await;
        Self { folder, checkpoint, key }
    }

    async fn export(&self, selection: &Selection, name: &str) -> Result<(Export, PathBuf), BundleError> {
        let file = self.folder.path().join(name);
        let reader = self.folder.reader().await;
        let done = export_bundle(&reader, selection, &self.checkpoint, &self.key, &file, |_, _| {}).await?;
        Ok((done, file))
    }
}

fn stream_filter(id: &str) -> Selection {
    Selection::Some(Box::new(EventFilter { stream: Some(stream(id)), ..EventFilter::default() }), id.to_owned())
}

fn check(bytes: &[u8]) -> Result<BundleReport, BundleError> {
    check_bundle(bytes, |_| {})
}

#[tokio::test]
async fn a_bundle_of_a_part_and_one_of_everything_hold_with_nothing_but_themselves() {
    let source = Source::of(250).await;
    for (selection, name, events) in
        [(Selection::Everything, "all", 251), (stream_filter("s1"), "part", 100), (stream_filter("nobody"), "none", 0)]
    {
        let (done, file) = source.export(&selection, name).await.expect("exported");
        assert_eq!((done.events, done.size, done.resumed), (events, 251, 0));
        let report = check(&fs::read(file).expect("read")).expect("a bundle");
        assert_eq!((report.findings, report.events, report.size), (vec![], events, 251));
        assert_eq!((report.root, report.key), (source.checkpoint.checkpoint.root, source.key.to_string()));
        assert_eq!(report.complete, selection == Selection::Everything);
        assert_eq!(report.redacted, if report.complete { vec![(2, 251)] } else { vec![] });
    }
    let again = source.export(&Selection::Everything, "all").await;
    assert!(matches!(again, Err(BundleError::Io(_))), "a file that is there is not overwritten");
}

#[tokio::test]
async fn one_changed_byte_anywhere_in_a_bundle_is_found() {
    let source = Source::of(6).await;
    for (selection, name) in [(Selection::Everything, "all"), (stream_filter("s0"), "part")] {
        let (_, file) = source.export(&selection, name).await.expect("exported");
        let bytes = fs::read(file).expect("read");
        assert!(bytes.len() > 2_000);
        for at in 0..bytes.len() {
            // Bit 5 turns the case of a letter, which hexadecimal digits and base64 would not all mind.
            for bit in [0, 5, 7] {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let holds = check(&changed).is_ok_and(|report| report.findings_total == 0);
                assert!(!holds, "bit {bit} of byte {at} of {name}");
            }
            assert!(check(&bytes[..at]).is_err(), "cut off at {at}");
        }
        assert!(check(&[bytes.clone(), b"\n".to_vec()].concat()).is_err());
        let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        for left_out in 0..lines.len() {
            let rest: Vec<&[u8]> =
                lines.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, line)| *line).collect();
            assert!(!check(&rest.concat()).is_ok_and(|report| report.findings_total == 0), "without line {left_out}");
        }
    }
}

#[tokio::test]
async fn who_changes_an_event_and_makes_the_last_line_fit_is_found_by_the_proof_or_the_root() {
    let source = Source::of(6).await;
    for (selection, name) in [(Selection::Everything, "all"), (stream_filter("s0"), "part")] {
        let (_, file) = source.export(&selection, name).await.expect("exported");
        let text = fs::read_to_string(file).expect("read");
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let (end, before) = lines.split_last().expect("lines");
        for (what, forge) in [
            (
                "content",
                Box::new(|line: &str| line.replacen("\\\"4\\\"", "\\\"9\\\"", 1)) as Box<dyn Fn(&str) -> String>,
            ),
            ("an actor", Box::new(|line: &str| line.replacen("ann", "bob", 1))),
        ] {
            let at = before.iter().position(|line| line.contains("\"position\":5,")).expect("the fifth event");
            let forged = forge(before[at]);
            assert_ne!(forged, before[at], "{what}");
            let mut all: Vec<String> = before.iter().map(|line| (*line).to_owned()).collect();
            all[at] = forged;
            let old = devmind_domain::canonical::sha256_hex(before.concat().as_bytes());
            let new = devmind_domain::canonical::sha256_hex(all.concat().as_bytes());
            let report = check((all.concat() + &end.replace(&old, &new)).as_bytes()).expect("a bundle");
            assert!(report.findings.iter().any(|(_, position, _)| *position == 5), "{what}: {:?}", report.findings);
        }
    }
}

/// Lines with a last one that fits them.
fn sealed(lines: &[String], events: usize) -> Vec<u8> {
    let before = lines.concat();
    let sha256 = devmind_domain::canonical::sha256_hex(before.as_bytes());
    format!("{before}{}\n", serde_json::json!({ "end": { "events": events, "sha256": sha256 } })).into_bytes()
}

#[tokio::test]
async fn whatever_is_not_as_it_is_written_is_refused_for_that_reason_also_where_the_last_line_fits() {
    let source = Source::of(6).await;
    let lines_of = async |selection: &Selection, name: &str| -> Vec<String> {
        let (_, file) = source.export(selection, name).await.expect("exported");
        let text = fs::read_to_string(file).expect("read");
        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        lines.pop();
        lines
    };
    let (all, part) = (lines_of(&Selection::Everything, "all").await, lines_of(&stream_filter("s0"), "part").await);
    let why = |bytes: &[u8]| match check(bytes) {
        Err(error) => error.to_string(),
        Ok(report) => report.findings.into_iter().map(|(_, _, reason)| reason + "; ").collect(),
    };
    let is_event = |line: &String| line.starts_with("{\"event\"");
    let events = all.iter().filter(|line| is_event(line)).count();
    assert_eq!((why(&sealed(&all, events)), why(&sealed(&part, 6))), (String::new(), String::new()));
    let first = all.iter().position(is_event).expect("an event");
    let in_all = |at: usize, from: &str, to: &str| {
        let mut lines = all.clone();
        lines[at] = lines[at].replacen(from, to, 1);
        assert_ne!(lines[at], all[at], "{from}");
        sealed(&lines, events)
    };
    let with = |lines: &[String], change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = lines.to_vec();
        change(&mut lines);
        let count = lines.iter().filter(|line| is_event(line)).count();
        sealed(&lines, count)
    };
    let spelled = |line: &str| {
        let hash = line.split("leaf_hash\":\"").nth(1).expect("a hash").split('"').next().expect("a hash").to_owned();
        (hash.clone(), hash.to_uppercase())
    };
    let (hash, shouted) = spelled(&all[first]);
    for (words, bytes) in [
        ("does not begin with a header", with(&all, &|lines| drop(lines.remove(0)))),
        ("a second header", with(&all, &|lines| lines.insert(first, lines[0].clone()))),
        ("it comes after event 1", with(&all, &|lines| drop(lines.remove(first + 1)))),
        ("it comes after event 2", with(&part, &|lines| lines.swap(1, 2))),
        ("it comes after event 1", with(&part, &|lines| lines.insert(1, lines[1].clone()))),
        ("have the root", with(&all, &|lines| drop(lines.pop()))),
        ("its format is", in_all(0, "devmind-bundle/1", "devmind-bundle/2")),
        ("fingerprint is not the key's", in_all(0, &source.key.fingerprint(), &"0".repeat(64))),
        ("does not fit the note", in_all(0, "\\n7\\n", "\\n6\\n")),
        ("event_id is", in_all(first, "\"event_id\":\"", "\"event_id\":\"x")),
        ("recorded_at is", in_all(first, "Z\",\"leaf_hash", "+00:00\",\"leaf_hash")),
        ("is no hash", in_all(first, &hash, &shouted)),
        ("as this program writes it", in_all(first, "{\"event\":{", "{\"event\": {")),
        ("the bundle ends without its last line", all.concat().into_bytes()),
        ("it was not written to its end", all.concat().trim_end().to_owned().into_bytes()),
        ("it is no text", [&b"\xff\xfe\n"[..], all.concat().as_bytes()].concat()),
        ("it comes after the end", [sealed(&all, events), all[0].clone().into_bytes()].concat()),
        ("lines before are not those", sealed(&all, events + 1)),
        (
            "it has no proof",
            with(&part, &|lines| {
                let (event, _) = lines[1].split_once(",\"proof\"").expect("a proof");
                lines[1] = format!("{event}}}}}\n");
            }),
        ),
        // As a whole one, whose events have no proofs, and are not all there.
        ("have the root", with(&all, &|lines| lines.retain(|line| !is_event(line)))),
        ("it was not written to its end", vec![b' '; (64 << 20) + 1]),
    ] {
        let told = why(&bytes);
        let reason: String = told.chars().take(200).collect();
        assert!(told.contains(words), "{words}: {reason}");
    }
    // So much is told, and all of it counted.
    let damaged: Vec<String> = lines_of(&Selection::Everything, "many").await;
    let many: Vec<String> =
        std::iter::once(damaged[0].clone()).chain(std::iter::repeat_n(damaged[first].clone(), 150)).collect();
    let report = check(&sealed(&many, 150)).expect("lines of a bundle");
    assert_eq!((report.findings.len(), report.findings_total), (100, 149 + 1));
}

#[tokio::test]
async fn an_export_that_was_interrupted_anywhere_goes_on_to_the_same_bundle() {
    let source = Source::of(6).await;
    for (selection, name) in [(Selection::Everything, "all"), (stream_filter("s0"), "part")] {
        let (done, file) = source.export(&selection, name).await.expect("exported");
        let whole = fs::read(&file).expect("read");
        let part = file.with_file_name(format!("{name}.part"));
        for cut in (0..whole.len()).step_by(7) {
            fs::remove_file(&file).expect("removed");
            fs::write(&part, &whole[..cut]).expect("written");
            let (again, _) = source.export(&selection, name).await.expect("exported");
            assert_eq!(again.events, done.events);
            assert!(fs::read(&file).expect("read") == whole, "cut at {cut}");
            assert!(!part.exists());
        }
    }
}

#[tokio::test]
async fn what_the_log_itself_refuses_to_export_leaves_nothing_behind_and_what_was_begun_of_another_log_is_begun_anew() {
    let (source, other) = (Source::of(6).await, Source::of(8).await);
    for (selection, name) in [(Selection::Everything, "all"), (stream_filter("s0"), "part")] {
        // The same key, and the same words: only the log is another.
        let (_, begun) = other.export(&selection, name).await.expect("exported");
        let (_, file) = source.export(&selection, name).await.expect("exported");
        let (whole, part) = (fs::read(&file).expect("read"), file.with_file_name(format!("{name}.part")));
        let begun = fs::read(begun).expect("read");
        let cut = begun.len() - 200;
        fs::rename(&file, file.with_extension("kept")).expect("moved");
        fs::write(&part, &begun[..cut]).expect("written");
        let (again, _) = source.export(&selection, name).await.expect("exported");
        assert!(again.resumed == 0 && fs::read(&file).expect("read") == whole, "{name}");
        fs::remove_file(&file).expect("removed");
        for damage in [
            "UPDATE events SET payload = '{}' WHERE position = 4",
            "UPDATE events SET recorded_at = 'yesterday' WHERE position = 4",
            // Everything fits, and is not what was signed.
            "UPDATE events SET metadata = replace(metadata, 'ann', 'bob') WHERE position = 4",
            "DELETE FROM events WHERE position > 5",
        ] {
            let fits = damage.contains("ann") || damage.contains("DELETE");
            let (checkpoint, key) = (source.checkpoint.clone(), source.key.clone());
            let copy = Source { folder: source.folder.copied().await, checkpoint, key };
            match fits {
                true => copy.folder.forge(damage).await,
                false => copy.folder.tamper(damage).await,
            }
            if damage.contains("DELETE") {
                copy.folder.tamper("UPDATE head SET size = 5").await;
            }
            for resumed in [false, true] {
                let left = copy.folder.path().join(format!("{name}.part"));
                if resumed {
                    fs::write(&left, &whole[..whole.len() / 2]).expect("written");
                }
                let refused = copy.export(&selection, name).await.expect_err(damage);
                assert!(
                    matches!(&refused, BundleError::Ledger(error) if error.code() == devmind_domain::ErrorCode::LedgerCorrupt),
                    "{name}, {damage}: {refused}"
                );
                assert!(!left.exists() && !copy.folder.path().join(name).exists(), "{name}, {damage}");
            }
        }
        // What a disk refuses may be gone on with.
        fs::create_dir(&part).expect("in the way");
        assert!(matches!(source.export(&selection, name).await, Err(BundleError::Io(_))) && part.exists());
        fs::remove_dir(&part).expect("removed");
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_whole_bundle_becomes_a_ledger_with_the_same_positions_bytes_hashes_keys_and_root(target: Folder) {
        let source = Source::of(2_350).await;
        let (_, file) = source.export(&Selection::Everything, "all").await.expect("exported");
        let done = import_bundle(&file, target.place(), |_| {}).await.expect("read").expect("imported");
        let head = source.folder.reader().await.head().await.expect("a head");
        assert_eq!((done.size, done.root, done.resumed), (head.position, head.root, 0));
        assert_eq!(target.reader().await.head().await.expect("a head"), head);
        assert_eq!(all(&target.reader().await).await, all(&source.folder.reader().await).await);
        assert!(target.verify().await.is_sound());
        let ledger = target.open().await;
        let seen = ledger.reader().idempotent("ann", "k1").await.expect("asked").expect("the key is known");
        assert_eq!((seen.0.as_str(), seen.1.len()), ("h", 100));
        assert!(
            ledger.reader().idempotent("ann", "nothing").await.expect("asked").is_some(),
            "of a request that changed nothing"
        );
        assert_eq!(all(ledger.reader()).await[5].metadata().expect("metadata").actor.kind, ActorKind::User);
        ledger.append(append("more", 0, "x")).await.expect("it goes on");
        ledger.close().await;
        // It now holds more than the bundle.
        let refused = import_bundle(&file, target.place(), |_| {}).await;
        assert!(matches!(refused, Err(BundleError::NotEmpty)));
    }
}

#[tokio::test]
async fn an_import_goes_on_where_it_was_interrupted_and_into_nothing_else() {
    let (source, other) = (Source::of(2_350).await, Source::of(1_000).await);
    let (_, file) = source.export(&Selection::Everything, "all").await.expect("exported");
    let target = Folder::new();
    import_bundle(&file, target.place(), |_| {}).await.expect("read").expect("imported");
    // As a crash after the first part leaves it.
    target.forge("DELETE FROM events WHERE position > 1000; DELETE FROM idempotency WHERE first_position > 1000; UPDATE head SET size = 1000").await;
    let mut told = Vec::new();
    let done = import_bundle(&file, target.place(), |now| told.push(now)).await.expect("read").expect("imported");
    assert_eq!(done.resumed, 1_000);
    // First how far the check is, then how far the import was when it began, then how far it is.
    let checks = told.iter().take_while(|now| matches!(now, Importing::Checked(_))).count();
    assert_eq!(told.get(checks - 1), Some(&Importing::Checked(done.size)));
    assert_eq!(told.get(checks), Some(&Importing::Stored(1_000, done.size)));
    assert!(told.contains(&Importing::Stored(2_000, done.size)));
    assert!(target.verify().await.is_sound());
    assert_eq!(all(&target.reader().await).await, all(&source.folder.reader().await).await);
    let again = import_bundle(&file, target.place(), |_| {}).await.expect("read").expect("already so");
    assert_eq!(again.resumed, done.size);

    let refused = import_bundle(&file, other.folder.place(), |_| {}).await;
    assert!(matches!(refused, Err(BundleError::NotEmpty)));
    let (_, part) = source.export(&stream_filter("s0"), "part").await.expect("exported");
    let refused = import_bundle(&part, Folder::new().place(), |_| {}).await;
    assert!(matches!(refused, Err(BundleError::Partial)));
    let mut bytes = fs::read(&file).expect("read");
    let at = bytes.windows(3).position(|bytes| bytes == b"ann").expect("an actor");
    bytes[at] = b'o';
    fs::write(&file, bytes).expect("written");
    let empty = Folder::new();
    let report = import_bundle(&file, empty.place(), |_| {}).await.expect("read").expect_err("it does not hold");
    assert!(report.findings_total > 0 && !empty.file().exists(), "nothing was stored");
}

//! Every single byte of every stored column of every event of a log, changed and found.
//!
//! Each change is really written to the file and read back by the store, and judged by the same
//! [`Chain`] and [`Redactions`] that `verify` runs, started where they stand before the event: running
//! the whole of `verify` for each of so many changes would take hours and judge the same row. That
//! `verify` as a whole runs them is shown for one change of every column.

use super::chain::Chain;
use super::redactions::Redactions;
use super::report::{Check, Report};
use crate::store::StoredEvent;
use crate::tests::support::*;
use crate::{LedgerReader, redact};
use devmind_domain::event::RecordedEvent;
use sqlx::{Connection, Row, SqliteConnection};

const EVENTS: u64 = 500;
/// An event whose content was erased, so that its marker is tampered with, too.
const REDACTED: u64 = 7;

const TEXTS: [&str; 7] =
    ["event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "metadata", "recorded_at"];
const INTEGERS: [&str; 4] = ["partition", "position", "sequence", "event_version"];

async fn log_of_500() -> Folder {
    let folder = Folder::new();
    let ledger = folder.open().await;
    // No one changed bit makes one of these names another one of them: an index would refuse that.
    for stream in 0..10 {
        let append = append_events(&format!("{stream}{stream}"), 0, events(49));
        ledger.append(with_key(append, &format!("key {stream}"), "hash")).await.expect("appended");
    }
    ledger.append(append_events("last", 0, events(9))).await.expect("appended");
    ledger.close().await;
    redact(folder.place(), REDACTED, "tested", &metadata()).await.expect("redacted");
    folder
}

/// The check of a log's rows, standing somewhere.
#[derive(Clone, Default)]
struct Judge {
    chain: Chain,
    redactions: Redactions,
}

impl Judge {
    /// Judges the next row and says at which positions something is wrong.
    fn see(&mut self, stored: &StoredEvent) -> Vec<u64> {
        let mut report = Report::default();
        match &stored.event {
            Ok(event) => {
                self.chain.see(event, &mut report);
                self.redactions.see(event, &mut report);
            }
            Err(reason) => {
                report.find(Check::Readable, stored.position, reason.clone());
                self.chain.skip(stored.position, &mut report);
            }
        }
        report.finish(0, [0; 32]).findings.iter().map(|finding| finding.position).collect()
    }
}

struct Bench {
    folder: Folder,
    reader: LedgerReader,
    sql: SqliteConnection,
    /// Changes bytes without a way to another thread and back, so often is it done.
    pen: rusqlite::Connection,
    rows: Vec<RecordedEvent>,
    /// Where the check stands before each row.
    before: Vec<Judge>,
}

impl Bench {
    async fn new() -> Self {
        let folder = log_of_500().await;
        let mut sql = folder.sql().await;
        let without = "DROP TRIGGER events_no_update; PRAGMA synchronous = OFF; PRAGMA ignore_check_constraints = ON";
        sqlx::raw_sql(without).execute(&mut sql).await.expect("prepared");
        let pen = rusqlite::Connection::open(folder.file()).expect("opened");
        pen.execute_batch("PRAGMA synchronous = OFF; PRAGMA ignore_check_constraints = ON").expect("prepared");
        let reader = folder.reader().await;
        let stored = reader.read_stored(0, 1_000).await.expect("read");
        assert_eq!(stored.len() as u64, EVENTS);
        let (mut judge, mut before) = (Judge::default(), Vec::new());
        for row in &stored {
            before.push(judge.clone());
            assert_eq!(judge.see(row), [] as [u64; 0], "untouched");
        }
        let rows = stored.into_iter().map(|row| row.event.expect("sound")).collect();
        Self { folder, reader, sql, pen, rows, before }
    }

    fn write(&self, column: &str, cast: &str, bytes: &[u8], position: u64) {
        let update = format!("UPDATE events SET {column} = CAST(? AS {cast}) WHERE position = ?");
        let mut update = self.pen.prepare_cached(&update).expect("prepared");
        let done = update.execute(rusqlite::params![bytes, position]);
        assert_eq!(done.unwrap_or_else(|error| panic!("{column} of {position}: {error}")), 1);
    }

    fn bytes(&self, column: &str, position: u64) -> Vec<u8> {
        let select = format!("SELECT CAST({column} AS BLOB) FROM events WHERE position = ?");
        self.pen.query_row(&select, [position], |row| row.get(0)).expect("a row")
    }

    /// Whether the row at a position, as it is in the file now, is found to be wrong there.
    async fn is_found(&mut self, position: u64) -> bool {
        let page = self.reader.read_stored(position - 1, 1).await;
        // A row that cannot even be fetched stops the reading there, which `verify` reports.
        let Ok(page) = page else { return true };
        let mut judge = self.before[usize::try_from(position - 1).expect("small")].clone();
        let mut found = judge.see(&page[0]);
        if position == REDACTED {
            // What the marker says is compared when the event comes that speaks of it.
            let told = StoredEvent {
                sequence: 0,
                position: EVENTS,
                event: Ok(self.rows[usize::try_from(EVENTS - 1).expect("small")].clone()),
            };
            let mut later = Report::default();
            if let Ok(told) = &told.event {
                judge.redactions.see(told, &mut later);
            }
            found.extend(later.finish(0, [0; 32]).findings.iter().map(|finding| finding.position));
            return found.contains(&position) || found.contains(&EVENTS);
        }
        found.contains(&position)
    }
}

#[tokio::test]
async fn every_single_byte_of_every_stored_column_of_every_event_of_a_log_is_guarded_in_its_first_half() {
    every_byte_is_guarded(1..=EVENTS / 2).await;
}

#[tokio::test]
async fn every_single_byte_of_every_stored_column_of_every_event_of_a_log_is_guarded_in_its_second_half() {
    every_byte_is_guarded(EVENTS / 2 + 1..=EVENTS).await;
}

async fn every_byte_is_guarded(positions: std::ops::RangeInclusive<u64>) {
    let mut bench = Bench::new().await;
    let mut tried = 0_u64;
    for position in positions {
        for (column, cast) in TEXTS.map(|text| (text, "TEXT")).into_iter().chain([("leaf_hash", "BLOB")]) {
            let original = bench.bytes(column, position);
            for at in 0..original.len() {
                let mut changed = original.clone();
                // One of the eight bits, another one for each byte.
                changed[at] ^= 1 << ((at + usize::try_from(position).expect("small")) % 8);
                bench.write(column, cast, &changed, position);
                assert!(bench.is_found(position).await, "byte {at} of {column} of event {position}");
                tried += 1;
            }
            bench.write(column, cast, &original, position);
        }
        assert!(!bench.is_found(position).await, "event {position} is restored");
        tried += integers(&mut bench, position).await;
    }
    assert!(tried > 70_000, "only {tried} changes were tried");
}

/// Every byte of the integers. Where two rows would be the same to an index, the database itself refuses.
async fn integers(bench: &mut Bench, position: u64) -> u64 {
    let mut tried = 0;
    for column in INTEGERS {
        let original: i64 = {
            let select = format!("SELECT {column} FROM events WHERE position = ?");
            let row = sqlx::query(&select).bind(i64::try_from(position).expect("small"));
            row.fetch_one(&mut bench.sql).await.expect("a row").get(0)
        };
        for byte in 0..8 {
            let changed = original ^ (1 << (byte * 8));
            let mut event = bench.rows[usize::try_from(position - 1).expect("small")].clone();
            // The row as it would be read: its value, or that it does not fit.
            let fits = match column {
                "partition" => u32::try_from(changed).map(|value| event.partition = value).is_ok(),
                "position" => u64::try_from(changed).map(|value| event.position = value).is_ok(),
                "sequence" => u64::try_from(changed).map(|value| event.sequence = value).is_ok(),
                _ => u32::try_from(changed).map(|value| event.event_version = value).is_ok(),
            };
            let (at, event) = (event.position, if fits { Ok(event) } else { Err("out of range".to_owned()) });
            let mut judge = bench.before[usize::try_from(position - 1).expect("small")].clone();
            let found = judge.see(&StoredEvent { position: at, sequence: 0, event });
            assert!(found.contains(&at), "byte {byte} of {column} of event {position}");
            tried += 1;
        }
    }
    tried
}

#[tokio::test]
async fn verify_as_a_whole_reports_one_change_of_every_column_at_its_event() {
    let mut bench = Bench::new().await;
    for (column, cast) in TEXTS.map(|text| (text, "TEXT")).into_iter().chain([("leaf_hash", "BLOB")]) {
        for position in [1, 250, EVENTS] {
            let original = bench.bytes(column, position);
            let mut changed = original.clone();
            let last = changed.len() - 1;
            changed[last] ^= 2;
            bench.write(column, cast, &changed, position);
            let findings = bench.folder.verify().await.findings;
            assert!(
                findings.iter().any(|finding| finding.position == position),
                "{column} of {position}: {findings:?}"
            );
            bench.write(column, cast, &original, position);
        }
    }
    for change in ["partition = 1", "position = 90001", "sequence = 90001", "event_version = 3"] {
        let restore = change.split(" = ").next().expect("a column");
        let value: i64 = sqlx::query(&format!("SELECT {restore} FROM events WHERE position = 250"))
            .fetch_one(&mut bench.sql)
            .await
            .expect("a row")
            .get(0);
        sqlx::raw_sql(&format!("UPDATE events SET {change} WHERE position = 250"))
            .execute(&mut bench.sql)
            .await
            .expect("changed");
        let findings = bench.folder.verify().await.findings;
        // A row that is no longer where it was leaves a hole before the next one.
        assert!(findings.iter().any(|finding| [250, 251].contains(&finding.position)), "{change}: {findings:?}");
        let back = format!("UPDATE events SET {restore} = {value} WHERE event_id = '{}'", bench.rows[249].event_id);
        sqlx::raw_sql(&back).execute(&mut bench.sql).await.expect("restored");
    }
    let restored = "CREATE TRIGGER events_no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'no'); END";
    sqlx::raw_sql(restored).execute(&mut bench.sql).await.expect("restored");
    assert_eq!(bench.folder.verify().await.findings, [], "everything was put back");
    bench.sql.close().await.expect("closed");
}

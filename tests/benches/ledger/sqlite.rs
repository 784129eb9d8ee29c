//! The rows on SQLite, all with `journal_mode=WAL` and `synchronous=FULL`.

use crate::load::{Blocking, Callers, Measure, peers};
use crate::table::Table;
use crate::{family, ours};
use cqrs_es::CqrsFramework;
use cqrs_es::persist::PersistedEventStore;
use devmind_ledger::Ledger;
use rusqlite::{Connection, params};
use sqlite_es::SqliteEventRepository;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use uuid::Uuid;

const CALLERS: usize = 64;

/// Our append beside sqlite-es and beside inserts without any decision.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants("sqlite append") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ledger = Ledger::open(&folder.path().join("ledger.sqlite")).await.expect("the ledger opens");
    let metadata = ours::metadata();
    let store = ledger.clone();
    let our_own = Callers {
        callers: CALLERS,
        on: Handle::current(),
        call: move |caller, n| {
            ours::carry_out(store.clone(), metadata.clone(), ours::stream(caller, n), ours::key(caller, n))
        },
    };
    let file = folder.path().join("sqlite-es.sqlite");
    let framework = peers().spawn(async move { sqlite_es(&file).await }).await.expect("it opens");
    let peer = Callers {
        callers: CALLERS,
        on: peers().clone(),
        call: move |caller, n| family::carry_out(framework.clone(), ours::stream(caller, n)),
    };
    let (one, hundred) = (folder.path().join("raw-1.sqlite"), folder.path().join("raw-100.sqlite"));
    raw_table(&one);
    raw_table(&hundred);
    let (raw_1, raw_100) =
        (Blocking(move |each| raw_inserts(&one, each, 1)), Blocking(move |each| raw_inserts(&hundred, each, 100)));
    let rates = measure.side_by_side(&[&our_own, &peer, &raw_1, &raw_100]).await;
    ledger.close().await;
    let [ours, peer, raw_1, raw_100] = rates[..] else { unreachable!("four works were measured") };
    table.figure("sqlite append, 64 callers: sqlite-es execute", peer, "events/s");
    table.figure("sqlite append: raw inserts, 1 a transaction", raw_1, "events/s");
    table.figure("sqlite append: raw inserts, 100 a transaction", raw_100, "events/s");
    table.at_least("sqlite append, 64 callers", ours, "events/s", ("sqlite-es", peer), 12.0);
    table.at_least("sqlite append, 64 callers", ours, "events/s", ("raw ×100", raw_100), 0.35);
}

async fn sqlite_es(file: &Path) -> family::Framework<SqliteEventRepository> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().max_connections(10).connect_with(options).await.expect("the file opens");
    for statement in family::TABLES {
        sqlx::query(statement).execute(&pool).await.expect("the table is made");
    }
    let store = PersistedEventStore::new_event_store(SqliteEventRepository::new(pool));
    Arc::new(CqrsFramework::new(store, Vec::new(), ()))
}

fn raw_table(file: &Path) {
    let connection = Connection::open(file).expect("the file opens");
    connection
        .execute_batch(
            "PRAGMA journal_mode=WAL; CREATE TABLE events (position INTEGER PRIMARY KEY, event_id TEXT NOT NULL UNIQUE,
             payload TEXT NOT NULL, metadata TEXT NOT NULL)",
        )
        .expect("the table is made");
}

/// Prepared inserts with a time-ordered unique id, so many a transaction.
fn raw_inserts(file: &Path, each: Duration, a_transaction: u64) -> u64 {
    let mut connection = Connection::open(file).expect("the file opens");
    connection.execute_batch("PRAGMA synchronous=FULL").expect("the setting is taken");
    let (payload, metadata) = ("x".repeat(ours::PAYLOAD_BYTES), "x".repeat(100));
    let (mut done, started) = (0, Instant::now());
    while started.elapsed() < each {
        let transaction = connection.transaction().expect("a transaction begins");
        {
            let mut insert = transaction
                .prepare_cached("INSERT INTO events (event_id, payload, metadata) VALUES (?1, ?2, ?3)")
                .expect("the statement is sound");
            for _ in 0..a_transaction {
                insert.execute(params![Uuid::now_v7().to_string(), payload, metadata]).expect("a row is stored");
            }
        }
        transaction.commit().expect("the commit is durable");
        done += a_transaction;
    }
    done
}

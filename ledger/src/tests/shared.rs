//! What several processes that share a PostgreSQL ledger are promised. Two ledgers of one process share
//! nothing but the database, like two processes.

use super::support::*;
use crate::*;
use devmind_domain::ErrorCode;
use devmind_test_postgres::Cluster;
use futures::future::join_all;
use sqlx::Connection;
use sqlx::postgres::PgListener;
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn eight_writers_in_three_processes_leave_gapless_positions_and_every_follower_sees_each_once() {
    const ROUNDS: u64 = 40;
    let folder = Folder::postgres();
    let processes = [folder.open().await, folder.open().await, folder.open().await];
    let last = 8 * ROUNDS;
    let follow = |reader: LedgerReader| {
        tokio::spawn(async move {
            let (mut follower, mut seen) = (reader.follow(0), Vec::new());
            while (seen.len() as u64) < last {
                seen.extend(follower.next().await.expect("events"));
            }
            seen
        })
    };
    let mut followers: Vec<_> = processes.iter().map(|ledger| follow(ledger.reader().clone())).collect();
    followers.push(follow(folder.reader().await));
    let writers = (0..8).map(|writer| {
        let ledger = processes[writer % 3].clone();
        tokio::spawn(async move {
            for version in 0..ROUNDS {
                ledger.append(append(&format!("s{writer}"), version, "x")).await.expect("appended");
            }
        })
    });
    for writer in join_all(writers).await {
        writer.expect("no panic");
    }
    let whole = all(&folder.reader().await).await;
    assert_gapless(&whole);
    assert_eq!(whole.len() as u64, last);
    assert!(whole.is_sorted_by_key(|event| event.recorded_at));
    for follower in followers {
        assert_eq!(follower.await.expect("no panic"), whole);
    }
    assert!(folder.verify().await.is_sound());
}

/// Appends to a ledger until an append is told on the channel, or is not.
struct Ear {
    ledger: Ledger,
    version: u64,
    heard: PgListener,
}

impl Ear {
    async fn hears(&mut self, told: bool) {
        let asked = async { while self.is_told().await != told {} };
        tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap_or_else(|_| panic!("told: never {told}"));
    }

    async fn is_told(&mut self) -> bool {
        self.ledger.append(append("told", self.version, "x")).await.expect("appended");
        self.version += 1;
        // Comes after whatever the append sent.
        sqlx::query("NOTIFY devmind_ledger, 'mark'").execute(&mut self.heard).await.expect("notified");
        let mut told = false;
        while self.heard.recv().await.expect("heard").payload() != "mark" {
            told = true;
        }
        told
    }
}

#[tokio::test]
async fn an_append_is_told_while_another_process_listens_and_not_where_nobody_does() {
    let folder = Folder::postgres();
    // It hears, and does not say that it listens.
    let mut heard = PgListener::connect(folder.url()).await.expect("connected");
    heard.listen("devmind_ledger").await.expect("listening");
    let mut ear = Ear { ledger: folder.open().await, version: 0, heard };
    ear.hears(false).await;
    let other = folder.open().await;
    ear.hears(true).await;
    other.close().await;
    ear.hears(false).await;
    let reader = folder.reader().await;
    ear.hears(true).await;
    drop(reader);
    ear.hears(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_on_one_stream_one_wins_each_version_and_a_key_is_known_to_both() {
    let folder = Folder::postgres();
    let (one, two) = (folder.open().await, folder.open().await);
    for version in 0..20 {
        let (a, b) = tokio::join!(one.append(append("s", version, "a")), two.append(append("s", version, "b")));
        let stored = [&a, &b].iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(stored, 1, "{a:?} {b:?}");
        let refused = a.err().or(b.err()).expect("one lost");
        assert_eq!(refused, AppendError::Conflict { stream: stream("s"), expected: version, actual: version + 1 });
    }
    let first = one.append(with_key(append("k", 0, "x"), "k", "h")).await.expect("stored");
    let again = two.append(with_key(append("l", 0, "x"), "k", "h")).await;
    assert_eq!(again, Err(AppendError::KeySeen { same_request: true, events: first.events }));
    assert!(folder.verify().await.is_sound());
}

#[tokio::test]
async fn a_writer_that_was_forgotten_in_the_middle_can_store_nothing_after_a_commit_in_doubt_was_settled() {
    let folder = Folder::postgres();
    let ledger = folder.open().await;
    ledger.append(append("a", 0, "x")).await.expect("appended");
    let Sql::Postgres(mut zombie) = folder.connect().await else { panic!("PostgreSQL") };
    let looked: (i64, i64) =
        sqlx::query_as("SELECT size, generation FROM head").fetch_one(&mut zombie).await.expect("looked");
    ledger.faults.set(crate::store::faults::Fault::CommitLost);
    let refused = ledger.append(append("a", 1, "y")).await.expect_err("not stored");
    assert_eq!(refused.code(), ErrorCode::LedgerUnavailable);
    // The statement that was lost on its way arrives only now.
    let late = sqlx::query("UPDATE head SET size = size + 1 WHERE size = $1 AND generation = $2")
        .bind(looked.0)
        .bind(looked.1)
        .execute(&mut zombie)
        .await
        .expect("executed");
    assert_eq!(late.rows_affected(), 0, "what was said not to be stored never will be");
    assert_eq!(ledger.append(append("a", 1, "y")).await.map(|appended| appended.position()), Ok(2));
}

#[tokio::test]
async fn settings_that_can_lose_acknowledged_events_are_refused_by_name_unless_they_are_accepted() {
    let cluster = Cluster::start(&["fsync=off", "synchronous_commit=off"]);
    let database = cluster.database();
    let url: PostgresUrl = database.url().parse().expect("a URL");
    let refused = Ledger::open(&url).await.expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::LedgerNotDurable);
    let text = refused.to_string();
    assert!(text.contains("fsync is off") && text.contains("synchronous_commit is off"), "{text}");
    let ledger = Ledger::open(&url.accepting_data_loss(true)).await.expect("accepted");
    ledger.append(append("a", 0, "x")).await.expect("appended");
}

#[tokio::test]
async fn a_database_that_is_not_there_or_holds_no_ledger_is_named_without_its_password() {
    let folder = Folder::postgres();
    let error = LedgerReader::open(folder.place()).await.expect_err("no ledger yet");
    assert_eq!(error.code(), ErrorCode::LedgerUnavailable);
    assert!(error.to_string().contains("start the server"), "{error}");
    let nowhere: PostgresUrl = "postgres://ann:geheim@127.0.0.1:1/none".parse().expect("a URL");
    let error = Ledger::open(&nowhere).await.expect_err("nobody listens");
    assert_eq!(error.code(), ErrorCode::LedgerUnavailable);
    assert!(error.to_string().contains("postgres://ann@127.0.0.1:1/none"), "{error}");
    assert!(!error.to_string().contains("geheim"), "{error}");
}

#[tokio::test]
async fn processes_that_open_a_new_database_at_once_make_one_ledger() {
    let folder = Folder::postgres();
    let opened = join_all((0..6).map(|_| async { folder.open().await })).await;
    let ids: BTreeSet<_> = opened.iter().map(|ledger| ledger.reader().ledger_id().to_owned()).collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn a_read_whose_connection_is_killed_answers_an_error_or_everything_never_less() {
    let folder = Folder::postgres();
    let ledger = folder.open().await;
    for n in 0..4 {
        ledger.append(append_events("s", n * 1_000, events(1_000))).await.expect("appended");
    }
    let reader = folder.reader().await;
    let Sql::Postgres(mut killer) = folder.connect().await else { panic!("PostgreSQL") };
    let (mut killed, mut failed, mut whole) = (0, 0, 0);
    while failed < 5 || whole < 5 {
        let stream_name = stream("s");
        let reading = reader.read_stream(&stream_name, 0);
        let kill = async {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%sequence > $3%'";
            sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut killer).await.expect("killed")
        };
        let (read, count) = tokio::join!(reading, kill);
        killed += count;
        match read {
            Ok(events) => {
                assert_eq!(events.len(), 4_000, "Ok means everything");
                whole += 1;
            }
            Err(error) => {
                assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
                failed += 1;
            }
        }
        if failed < 5 && whole >= 500 {
            panic!("no read was hit: {killed} connections killed");
        }
        if failed >= 5 {
            // Then undisturbed reads come through on new connections.
            match reader.read_stream(&stream_name, 0).await {
                Ok(events) => {
                    assert_eq!(events.len(), 4_000);
                    whole += 1;
                }
                Err(error) => assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}"),
            }
        }
    }
    killer.close().await.expect("closed");
}

#[tokio::test]
async fn the_servers_role_can_append_and_neither_change_nor_delete_nor_migrate() {
    let folder = Folder::postgres();
    folder.open().await.append(append("a", 0, "x")).await.expect("appended");
    let roles = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations/postgres/roles.sql");
    // Roles are the cluster's: of this test alone.
    let (server, reader) = ("server_of_roles_test", "reader_of_roles_test");
    folder.psql(&["-v", &format!("server={server}"), "-v", &format!("reader={reader}"), "-f", roles]);

    let as_role = |role: &str| -> PostgresUrl {
        folder.url().replace("postgres://postgres@", &format!("postgres://{role}@")).parse().expect("a URL")
    };
    let ledger = Ledger::open(&as_role(server)).await.expect("the server's role can open it");
    ledger.append(with_key(append("a", 1, "y"), "k", "h")).await.expect("and append");
    let options = as_role(server).options().clone().options([("search_path", "ledger")]);
    let mut sql = Sql::Postgres(sqlx::postgres::PgConnection::connect_with(&options).await.expect("connected"));
    for statement in [
        "UPDATE events SET payload = '{}'",
        "DELETE FROM events",
        "TRUNCATE events",
        "DELETE FROM idempotency",
        "DELETE FROM head",
        "ALTER TABLE events DISABLE TRIGGER ALL",
        "DROP TABLE events",
        "CREATE TABLE ledger.other (a int)",
    ] {
        let refused = sql.run(statement).await.expect_err(statement);
        // insufficient_privilege
        assert_eq!(refused.as_database_error().and_then(|e| e.code()).as_deref(), Some("42501"), "{statement}");
    }
    let reader = LedgerReader::open(&as_role(reader)).await.expect("the reader's role can open it");
    assert_eq!(all(&reader).await.len(), 2);
    let refused = Ledger::open(&as_role("reader_of_roles_test")).await.expect("it opens");
    refused.append(append("b", 0, "z")).await.expect_err("but it appends nothing");
    assert!(folder.verify().await.is_sound());
}

#[tokio::test]
async fn the_cost_of_a_batch_does_not_grow_with_the_log_though_its_statements_were_planned_on_empty_tables() {
    const ROUNDS: u64 = 100;
    let folder = Folder::postgres();
    // Two processes in turn: each is overtaken each time, so that both look at the log for every batch.
    let processes = [folder.open().await, folder.open().await];
    for n in 0..ROUNDS {
        for (process, ledger) in processes.iter().enumerate() {
            let append = append(&format!("{n}-{process}"), 0, "x");
            ledger.append(with_key(append, &format!("k{n}-{process}"), "h")).await.expect("appended");
        }
    }
    for ledger in processes {
        ledger.close().await;
    }
    let Sql::Postgres(mut sql) = folder.connect().await else { panic!("PostgreSQL") };
    // A connection tells what it did when it ends.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = \
                  'client backend' AND pid <> pg_backend_pid()";
    while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut sql).await.expect("counted") > 0 {
        tokio::task::yield_now().await;
    }
    let read: Vec<(String, i64)> = sqlx::query_as(
        "SELECT relname::text, (seq_tup_read + (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i \
         WHERE i.relid = t.relid))::bigint \
         FROM pg_stat_user_tables t WHERE schemaname = 'ledger' AND relname IN ('events', 'idempotency')",
    )
    .fetch_all(&mut sql)
    .await
    .expect("counted");
    assert_eq!(read.len(), 2);
    for (table, rows) in read {
        assert!(rows <= 2 * 2 * 4 * ROUNDS as i64, "{rows} rows of {table} were read for {} batches", 2 * ROUNDS);
    }
}

//! The views' file is disposable: whatever happens to it, the log brings the rows back.

use crate::check::check;
use crate::testing::*;
use crate::views::Views;
use devmind_domain::conversation::{InterruptCancelReason, RunKind};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// SQLite's default page.
const PAGE_BYTES: u64 = 4_096;

fn story() -> Vec<Fact> {
    vec![
        node_started(1),
        connected("ann/d1", "x1", 1),
        synced("ann/d1", "x1"),
        started("c1", "ann"),
        asked("c1", "t1", 1),
        prepared("c1", "r1", "t1", RunKind::Normal),
        claimed("c1", "r1"),
        requested("k", "r1"),
        dispatched("k", 1, 1, Some("x1")),
        disconnected("ann/d1", "x1"),
        failed("c1", "r1", "half"),
    ]
}

/// Opens the file, waits for the head of the log, and answers all rows.
async fn rows_at_the_head(bench: &Bench) -> Vec<String> {
    let served = bench.serve().await;
    let head = bench.ledger.reader().head().await.expect("a head").position;
    served.views.wait_for(head).await.expect("caught up");
    // Rows of another version are served until they are replaced.
    while served.views.status().await.expect("status").iter().any(|status| status.version != status.program_version) {
        tokio::task::yield_now().await;
    }
    let rows = dump(served.views.read_pool()).await;
    served.stop().await;
    rows
}

/// Runs a statement on the closed file.
async fn meddle(file: &Path, sql: &str) {
    let mut connection =
        SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(file)).await.expect("open");
    sqlx::raw_sql(sql).execute(&mut connection).await.expect(sql);
    connection.close().await.expect("closed");
}

fn copied(from: &Path, to: &Path) {
    fs::copy(from, to).expect("copied");
}

#[tokio::test]
async fn a_file_that_is_gone_damaged_newer_or_older_comes_back_from_the_log() {
    let mut bench = Bench::new().await;
    bench.append(story()).await;
    let expected = rows_at_the_head(&bench).await;
    assert!(expected.len() > 8, "{expected:?}");
    let file = bench.views_file();

    fs::remove_file(&file).expect("removed");
    assert_eq!(rows_at_the_head(&bench).await, expected, "gone");

    fs::write(&file, b"this was never a database, and it is longer than a header of a hundred bytes would be, by far")
        .expect("written");
    assert_eq!(rows_at_the_head(&bench).await, expected, "not a database");

    fs::write(&file, b"").expect("written");
    assert_eq!(rows_at_the_head(&bench).await, expected, "empty");

    // Each page alone: also those that nothing looks at when the file is opened.
    let pages = fs::metadata(&file).expect("a file").len() / PAGE_BYTES;
    assert!(pages > 10, "{pages}");
    for page in 1..pages {
        let mut damaged = fs::File::options().write(true).open(&file).expect("open");
        damaged.seek(SeekFrom::Start(page * PAGE_BYTES)).expect("within");
        damaged.write_all(&[0xFF; 64]).expect("written");
        drop(damaged);
        assert_eq!(rows_at_the_head(&bench).await, expected, "page {page}");
    }

    for sql in [
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (999, 'later', 1, x'00', 0)",
        "UPDATE _sqlx_migrations SET checksum = x'00'",
        "UPDATE projection_position SET version = version + 1; UPDATE turns SET answer = 'stale'",
        "UPDATE projection_position SET version = 0, position = 0",
        "UPDATE projection_position SET position = 999",
        "UPDATE projection_position SET leaf_hash = '00', position = 3",
        "DELETE FROM projection_position WHERE name = 'device'",
        "UPDATE views_origin SET ledger_id = 'another'; DELETE FROM turns",
        "UPDATE projection_position SET known_types = 'fewer', skipped_unknown = 1; DELETE FROM turns",
        "DROP TABLE views_origin",
    ] {
        meddle(&file, sql).await;
        assert_eq!(rows_at_the_head(&bench).await, expected, "{sql}");
    }

    // Where nothing is wrong, nothing is made anew.
    meddle(&file, "UPDATE projection_position SET known_types = 'fewer'; DELETE FROM turns").await;
    assert_eq!(rows_at_the_head(&bench).await.len(), expected.len() - 1);
}

#[tokio::test]
async fn views_of_before_calls_waited_are_migrated_and_made_anew() {
    let mut bench = Bench::new().await;
    let asked = [requested("thread-r1:i1", "r1"), raised("c1", "i1", "r1", "t1", None)];
    let stopped = withdrawn("c1", "i1", InterruptCancelReason::RunStopped);
    bench.append(story().into_iter().chain(asked).chain([stopped])).await;
    let expected = rows_at_the_head(&bench).await;
    assert!(expected.iter().any(|row| row.contains("APPROVAL_CANCELLED")), "{expected:?}");
    let before = "DROP INDEX tool_calls_of_interrupt; DROP INDEX tool_calls_of_waiting_run; \
        ALTER TABLE tool_calls DROP COLUMN interrupt_id; ALTER TABLE tool_calls DROP COLUMN waiting_run_id; \
        ALTER TABLE tool_calls DROP COLUMN approval_expired; ALTER TABLE tool_calls DROP COLUMN concluded; \
        DELETE FROM _sqlx_migrations WHERE version = 2; \
        UPDATE tool_calls SET status = 'created', error_code = NULL WHERE error_code = 'APPROVAL_CANCELLED'; \
        UPDATE projection_position SET version = 1 WHERE name = 'tool_call'";
    meddle(&bench.views_file(), before).await;
    assert_eq!(rows_at_the_head(&bench).await, expected);
    assert!(!bench.folder.path().join("views.sqlite.set-aside").exists(), "the file itself is of use");
}

#[tokio::test]
async fn views_made_from_a_log_that_was_restored_from_an_older_copy_are_made_anew() {
    let mut bench = Bench::new().await;
    bench.append(story()).await;
    let copy = bench.folder.path().join("copy");
    bench.reopen(|file| copied(file, &copy)).await;
    let more = |user| [started("c2", user), asked("c2", "t2", 1), prepared("c2", "r2", "t2", RunKind::Normal)];
    bench.append(more("lost")).await;
    rows_at_the_head(&bench).await;

    for appended in [0, 3, 5] {
        // The same positions with other events, fewer of them, or more.
        bench.reopen(|file| copied(&copy, file)).await;
        bench
            .append(more("bob").into_iter().chain([claimed("c2", "r2"), succeeded("c2", "r2", "x")]).take(appended))
            .await;
        let rows = rows_at_the_head(&bench).await;
        assert_eq!(rows, dump(bench.views().await.read_pool()).await, "{appended}");
        assert!(!rows.iter().any(|row| row.contains("lost")), "{rows:?}");
    }
}

#[tokio::test]
async fn two_processes_on_one_file_do_not_disturb_each_other() {
    let mut bench = Bench::new().await;
    bench.append(story()).await;
    let (one, two) = tokio::join!(bench.serve(), bench.serve());
    let more = [started("c2", "ann"), asked("c2", "t2", 1), prepared("c2", "r2", "t2", RunKind::Normal)];
    let head = bench.append(more).await;
    for served in [&one, &two] {
        served.views.wait_for(head).await.expect("caught up");
    }
    one.stop().await;
    let head = bench.append([claimed("c2", "r2"), succeeded("c2", "r2", "x")]).await;
    two.views.wait_for(head).await.expect("caught up");
    two.stop().await;
    let report = check(&bench.views_file(), bench.ledger.reader(), |_, _| {}).await.expect("checked");
    assert!(report.is_equal(), "{report}");
}

#[tokio::test]
async fn many_that_open_a_missing_file_at_once_all_get_it() {
    let mut bench = Bench::new().await;
    let head = bench.append(story()).await;
    let opening: Vec<_> = (0..12)
        .map(|_| {
            let (file, log) = (bench.views_file(), bench.ledger.reader().clone());
            tokio::spawn(async move { Views::open(&file, log).await.map_err(|error| error.to_string()) })
        })
        .collect();
    for opened in opening {
        let (views, runner) = opened.await.expect("no panic").expect("views");
        let served = Served::start(views, runner);
        served.views.wait_for(head).await.expect("caught up");
        served.stop().await;
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_an_error_and_nothing_is_set_aside() {
    let bench = Bench::new().await;
    let not_a_folder = bench.folder.path().join("file");
    fs::write(&not_a_folder, b"x").expect("written");
    let opened = Views::open(&not_a_folder.join("views.sqlite"), bench.ledger.reader().clone()).await;
    assert!(opened.is_err());
    assert_eq!(fs::read(&not_a_folder).expect("still there"), b"x");
}

#[cfg(unix)]
#[tokio::test]
async fn the_views_and_all_that_stands_beside_them_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mut bench = Bench::new().await;
    let head = bench.append(story()).await;
    let modes = || {
        let entries = fs::read_dir(bench.folder.path()).expect("a folder").map(|entry| entry.expect("an entry"));
        let mode = |entry: fs::DirEntry| {
            let mode = entry.metadata().expect("its metadata").permissions().mode() & 0o777;
            (entry.file_name().to_string_lossy().into_owned(), mode)
        };
        let views = entries.map(mode).filter(|(name, _)| name.starts_with("views"));
        views.collect::<std::collections::BTreeMap<_, _>>()
    };
    let all = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 0o600)).collect();
    for round in ["made", "opened again", "made anew beside a damaged one"] {
        let served = bench.serve().await;
        served.views.wait_for(head).await.expect("caught up");
        let mut names = vec!["views.sqlite", "views.sqlite.lock", "views.sqlite-shm", "views.sqlite-wal"];
        if round.ends_with("damaged one") {
            names.push("views.sqlite.set-aside");
        }
        assert_eq!(modes(), all(&names), "{round}");
        served.stop().await;
        if round == "opened again" {
            fs::write(
                bench.views_file(),
                b"no database, though it is longer than a header of a hundred bytes would be, by far",
            )
            .expect("written");
        }
    }
}

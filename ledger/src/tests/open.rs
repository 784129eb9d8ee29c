//! What opening promises: the right refusal, and no harm to a file that is not understood.

use super::support::*;
use crate::*;
use devmind_domain::ErrorCode;
use std::fs;

/// Opens for writing and for reading; both must refuse with the code and leave the bytes alone.
async fn assert_refused(folder: &Folder, code: ErrorCode, words: &str) {
    let before = fs::read(folder.file()).ok();
    let write = Ledger::open(&folder.file()).await.expect_err("refused");
    assert_eq!(write.code(), code, "{write}");
    assert!(write.to_string().contains(words), "{write}");
    if code != ErrorCode::StateLocked {
        let read = LedgerReader::open(&folder.file()).await.expect_err("refused");
        assert_eq!(read.code(), code, "{read}");
    }
    assert_eq!(fs::read(folder.file()).ok(), before, "the file was touched");
}

#[tokio::test]
async fn a_file_that_is_not_sqlite_is_refused_and_left_alone() {
    let folder = Folder::new();
    fs::write(folder.file(), "these are my notes, not a database").expect("written");
    assert_refused(&folder, ErrorCode::LedgerCorrupt, "not a SQLite file").await;
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_alone() {
    let folder = Folder::new();
    let other = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.file()).create_if_missing(true);
    let mut other = sqlx::ConnectOptions::connect(&other).await.expect("connected");
    sqlx::raw_sql("CREATE TABLE notes (text TEXT)").execute(&mut other).await.expect("created");
    assert_refused(&folder, ErrorCode::LedgerCorrupt, "another program").await;
    // One that is kept with the same library of migrations, too: before its first one and after.
    for statement in ["CREATE TABLE _sqlx_migrations (version INTEGER)", "INSERT INTO _sqlx_migrations VALUES (1)"] {
        sqlx::raw_sql(statement).execute(&mut other).await.expect("executed");
        assert_refused(&folder, ErrorCode::LedgerCorrupt, "another program").await;
    }
    sqlx::Connection::close(other).await.expect("closed");
}

#[tokio::test]
async fn a_file_whose_middle_was_overwritten_is_refused_and_left_alone() {
    let folder = Folder::new();
    folder.open().await.close().await;
    let mut bytes = fs::read(folder.file()).expect("read");
    bytes[100..].fill(0x5a);
    fs::write(folder.file(), bytes).expect("written");
    assert_refused(&folder, ErrorCode::LedgerCorrupt, "left as it is").await;
}

#[tokio::test]
async fn a_log_that_lost_its_file_but_kept_its_wal_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path().join("ledger.sqlite-wal"), "the newest events").expect("written");
    assert_refused(&folder, ErrorCode::LedgerCorrupt, "write-ahead log").await;
    assert!(!folder.file().exists());
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_alone() {
    let folder = Folder::new();
    folder.open().await.close().await;
    folder
        .tamper("INSERT INTO _sqlx_migrations SELECT 9999, 'later', installed_on, success, checksum, 0 FROM _sqlx_migrations LIMIT 1")
        .await;
    assert_refused(&folder, ErrorCode::LedgerSchemaNewer, "upgrade this program").await;
}

#[tokio::test]
async fn a_head_that_disagrees_with_the_events_is_refused() {
    let cases = [
        ("DELETE FROM events WHERE position = 3", "head is at position 3"),
        ("DELETE FROM events", "there are no events"),
        ("UPDATE head SET root = zeroblob(32)", "do not fit together"),
        ("UPDATE head SET size = 1, frontier = root", "head is at position 1"),
        ("UPDATE events SET payload = '{}' WHERE position = 3", "event 3 does not have the hash"),
        ("DELETE FROM head", "the head is missing"),
    ];
    for (statement, words) in cases {
        let folder = Folder::new();
        let ledger = folder.open().await;
        ledger.append(append_events("s", 0, events(3))).await.expect("appended");
        ledger.close().await;
        folder.tamper(statement).await;
        let refused = Ledger::open(&folder.file()).await.expect_err(statement);
        assert_eq!(refused.code(), ErrorCode::LedgerCorrupt, "{statement}: {refused}");
        assert!(refused.to_string().contains(words), "{statement}: {refused}");
    }
}

#[tokio::test]
async fn a_second_writer_is_refused_until_the_first_has_closed() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    assert_refused(&folder, ErrorCode::StateLocked, "another process").await;
    ledger.append(append("s", 0, "x")).await.expect("the first goes on");
    ledger.close().await;
    let second = folder.open().await;
    assert_eq!(second.reader().head().await.expect("head").position, 1);
}

#[tokio::test]
async fn a_missing_folder_and_an_unusable_one_are_told_apart_from_damage() {
    let folder = Folder::new();
    let missing = folder.path().join("nowhere").join("ledger.sqlite");
    let refused = Ledger::open(&missing).await.expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::LedgerUnavailable);
    assert!(refused.to_string().contains("does not exist: create it"), "{refused}");
    // A folder in the lock file's place cannot be written, whoever tries.
    fs::create_dir(folder.path().join("ledger.lock")).expect("made");
    let refused = Ledger::open(&folder.file()).await.expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::LedgerUnavailable);
    assert!(refused.to_string().contains("permissions"), "{refused}");
}

#[tokio::test]
async fn a_reader_of_a_ledger_that_does_not_exist_creates_nothing() {
    let folder = Folder::new();
    let refused = LedgerReader::open(&folder.file()).await.expect_err("refused");
    assert_eq!(refused.code(), ErrorCode::LedgerUnavailable);
    assert!(refused.to_string().contains("start the server"), "{refused}");
    assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 0);
}

#[tokio::test]
async fn a_file_left_empty_by_a_process_that_ended_at_once_is_a_new_ledger() {
    let folder = Folder::new();
    fs::write(folder.file(), "").expect("written");
    let ledger = folder.open().await;
    assert_eq!(ledger.append(append("s", 0, "x")).await.map(|appended| appended.position()), Ok(1));
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_and_its_companions_are_readable_by_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let ledger = folder.open().await;
    ledger.append(append("s", 0, "x")).await.expect("appended");
    for entry in fs::read_dir(folder.path()).expect("read") {
        let entry = entry.expect("entry");
        let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", entry.path().display());
    }
}

#[tokio::test]
async fn closing_answers_what_waits_and_leaves_the_file_complete_without_its_wal() {
    let folder = Folder::new();
    let ledger = folder.open().await;
    let (first, second, ()) =
        tokio::join!(ledger.append(append("a", 0, "x")), ledger.append(append("b", 0, "x")), ledger.close());
    assert_eq!(first.map(|appended| appended.position()), Ok(1));
    assert_eq!(second.map(|appended| appended.position()), Ok(2));
    assert_eq!(ledger.append(append("c", 0, "x")).await, Err(AppendError::Closed));
    ledger.close().await;
    let head = {
        // The one file is all there is: a copy of it is a copy of the ledger.
        let copy = Folder::new();
        fs::copy(folder.file(), copy.file()).expect("copied");
        let reader = copy.reader().await;
        assert!(copy.verify().await.is_sound());
        reader.head().await.expect("head")
    };
    assert_eq!(head.position, 2);
    assert_eq!(folder.open().await.reader().head().await.expect("head"), head);
}

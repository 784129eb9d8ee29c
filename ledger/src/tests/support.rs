//! What the tests share: a ledger in a folder of its own, and small events.

use crate::verify::{Published, VerifyReport, verify};
use crate::*;
use devmind_domain::conversation::{ConversationEvent, ConversationRenamed, TitleSource};
use devmind_domain::event::{Actor, AggregateType, DomainEvent, Metadata, NewEvent, RecordedEvent, StreamId};
use devmind_test_postgres::{Cluster, Database};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where one test keeps its ledger, removed at the end: a folder, and for PostgreSQL a database.
pub struct Folder {
    folder: tempfile::TempDir,
    database: Option<Database>,
}

/// Makes a test of each store out of one function that takes a [`Folder`].
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* async fn $name:ident($folder:ident: Folder) $body:block)*) => {$(
        mod $name {
            use super::*;

            async fn test($folder: Folder) $body

            $(#[$attribute])*
            async fn sqlite() {
                test(Folder::new()).await;
            }

            $(#[$attribute])*
            async fn postgres() {
                test(Folder::postgres()).await;
            }
        }
    )*};
}
pub(crate) use on_both_stores;

/// A connection like any other program's.
pub enum Sql {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Sql {
    pub async fn run(&mut self, statements: &str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(sql) => sql.execute(statements).await.map(drop),
            Self::Postgres(sql) => sql.execute(in_postgres(statements).as_str()).await.map(drop),
        }
    }
}

/// Tests are written in SQLite's words.
fn in_postgres(statements: &str) -> String {
    let mut text = statements.to_owned();
    for bytes in [32, 64] {
        text = text.replace(&format!("zeroblob({bytes})"), &format!("decode(repeat('00', {bytes}), 'hex')"));
    }
    text.replace("X'", "'\\x")
}

impl Folder {
    /// For SQLite.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), database: None }
    }

    /// For PostgreSQL.
    pub fn postgres() -> Self {
        Self { database: Some(Cluster::shared().database()), ..Self::new() }
    }

    /// The database's address.
    pub fn url(&self) -> &str {
        self.database.as_ref().expect("PostgreSQL").url()
    }

    /// Runs the client program of PostgreSQL.
    pub fn psql(&self, arguments: &[&str]) {
        let done = std::process::Command::new("psql").args(arguments).arg("-d").arg(self.url()).output();
        let done = done.expect("psql runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// A ledger at rest, dumped and restored with the database's own means.
    pub async fn copied(&self) -> Self {
        if !self.is_postgres() {
            let copy = Self::new();
            let into = format!("VACUUM INTO '{}'", copy.file().display());
            self.sql().await.execute(into.as_str()).await.expect("copied");
            return copy;
        }
        let copy = Self::postgres();
        let dump = copy.path().join("dump.sql");
        let dump = dump.to_str().expect("a plain path");
        let done = std::process::Command::new("pg_dump").args(["-f", dump, "-d", self.url()]).output();
        let done = done.expect("pg_dump runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        copy.psql(&["-q", "-v", "ON_ERROR_STOP=1", "-f", dump]);
        copy
    }

    pub fn is_postgres(&self) -> bool {
        self.database.is_some()
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self) -> PathBuf {
        self.path().join("ledger.sqlite")
    }

    pub fn place(&self) -> Place {
        match &self.database {
            None => Place::from(&self.file()),
            Some(database) => Place::Postgres(database.url().parse().expect("a URL")),
        }
    }

    pub async fn open(&self) -> Ledger {
        Ledger::open(self.place()).await.expect("the ledger opens")
    }

    pub async fn reader(&self) -> LedgerReader {
        LedgerReader::open(self.place()).await.expect("the ledger opens for reading")
    }

    pub async fn verify(&self) -> VerifyReport {
        verify(&self.reader().await, Published::default(), |_, _| {}).await.expect("verified")
    }

    /// A connection like any other program's to the file.
    pub async fn sql(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.file()).connect().await.expect("connected")
    }

    /// A connection to whatever it is.
    pub async fn connect(&self) -> Sql {
        match self.place() {
            Place::File(_) => Sql::Sqlite(self.sql().await),
            Place::Postgres(url) => {
                let options = url.options().clone().options([("search_path", "ledger")]);
                Sql::Postgres(PgConnection::connect_with(&options).await.expect("connected"))
            }
        }
    }

    /// Runs statements with the triggers out of the way, as somebody with the file could.
    pub async fn tamper(&self, statements: &str) {
        if self.is_postgres() {
            let mut sql = self.connect().await;
            sql.run("SET session_replication_role = replica").await.expect("a superuser's setting");
            sql.run(statements).await.expect("tampered");
            return;
        }
        let mut sql = self.sql().await;
        let triggers: Vec<(String, String)> =
            sqlx::query_as("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
                .fetch_all(&mut sql)
                .await
                .expect("triggers");
        for (name, _) in &triggers {
            sqlx::query(&format!("DROP TRIGGER {name}")).execute(&mut sql).await.expect("dropped");
        }
        sqlx::raw_sql(statements).execute(&mut sql).await.expect("tampered");
        for (_, create) in &triggers {
            sqlx::raw_sql(create).execute(&mut sql).await.expect("created");
        }
        sql.close().await.expect("closed");
    }

    /// Tampers, and makes every hash fit afterwards: a log as a faulty program could have written it.
    pub async fn forge(&self, statements: &str) {
        self.tamper(statements).await;
        let mut tree = Frontier::default();
        let mut fitting = String::new();
        for event in all(&self.reader().await).await {
            let leaf = event.expected_leaf_hash();
            tree.push(leaf);
            let (leaf, position) = (hex::encode(leaf), event.position);
            fitting += &format!("UPDATE events SET leaf_hash = X'{leaf}' WHERE position = {position};");
        }
        let (root, frontier) = (hex::encode(tree.root()), hex::encode(tree.to_bytes()));
        fitting += &format!("UPDATE head SET root = X'{root}', frontier = X'{frontier}'");
        self.tamper(&fitting).await;
    }
}

pub fn stream(id: &str) -> StreamId {
    StreamId::new(AggregateType::Conversation, id)
}

pub fn metadata() -> Metadata {
    Metadata::new(Actor::user("ann"), "node".into())
}

pub fn new_event(event: DomainEvent) -> NewEvent {
    NewEvent { event_id: uuid::Uuid::now_v7().to_string(), event, metadata: metadata() }
}

pub fn event(title: &str) -> NewEvent {
    let renamed = ConversationRenamed { title: title.to_owned(), source: TitleSource::Manual };
    new_event(ConversationEvent::from(renamed).into())
}

pub fn events(count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| event(&n.to_string())).collect()
}

/// Events for one stream.
pub fn append_events(id: &str, expected_version: u64, events: Vec<NewEvent>) -> Append {
    Append { streams: vec![StreamAppend { stream: stream(id), expected_version, events }], idempotency: None }
}

/// One event for one stream.
pub fn append(id: &str, expected_version: u64, title: &str) -> Append {
    append_events(id, expected_version, vec![event(title)])
}

pub fn key(key: &str, request_hash: &str) -> Idempotency {
    Idempotency { scope: "ann".to_owned(), key: key.to_owned(), request_hash: request_hash.to_owned() }
}

pub fn with_key(mut append: Append, name: &str, request_hash: &str) -> Append {
    append.idempotency = Some(key(name, request_hash));
    append
}

/// The whole log.
pub async fn all(reader: &LedgerReader) -> Vec<Arc<RecordedEvent>> {
    let mut events: Vec<Arc<RecordedEvent>> = Vec::new();
    loop {
        let page = reader.read(events.len() as u64, MAX_PAGE_EVENTS).await.expect("read");
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

/// Positions 1, 2, 3 …
pub fn assert_gapless(events: &[Arc<RecordedEvent>]) {
    let positions: Vec<u64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, (1..=events.len() as u64).collect::<Vec<_>>());
}

//! What the tests share: a ledger in a folder of its own, and small events.

use crate::verify::{Published, VerifyReport, verify};
use crate::*;
use devmind_domain::conversation::{ConversationEvent, ConversationRenamed, TitleSource};
use devmind_domain::event::{Actor, AggregateType, DomainEvent, Metadata, NewEvent, RecordedEvent, StreamId};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder for one ledger, removed at the end.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self) -> PathBuf {
        self.path().join("ledger.sqlite")
    }

    pub async fn open(&self) -> Ledger {
        Ledger::open(&self.file()).await.expect("the ledger opens")
    }

    pub async fn reader(&self) -> LedgerReader {
        LedgerReader::open(&self.file()).await.expect("the ledger opens for reading")
    }

    pub async fn verify(&self) -> VerifyReport {
        verify(&self.reader().await, Published::default(), |_, _| {}).await.expect("verified")
    }

    /// A connection like any other program's.
    pub async fn sql(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.file()).connect().await.expect("connected")
    }

    /// Runs statements with the triggers out of the way, as somebody with the file could.
    pub async fn tamper(&self, statements: &str) {
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

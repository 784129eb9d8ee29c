//! What the tests share: a ledger in a folder of its own, and small events.

use crate::*;
use devmind_domain::conversation::{ConversationEvent, ConversationRenamed, TitleSource};
use devmind_domain::event::{Actor, AggregateType, Metadata, NewEvent, StreamId};
use std::path::PathBuf;

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }
    pub fn file(&self) -> PathBuf {
        self.0.path().join("ledger.sqlite")
    }
    pub async fn open(&self) -> Ledger {
        Ledger::open(&self.file()).await.expect("the ledger opens")
    }
}

pub fn stream(id: &str) -> StreamId {
    StreamId::new(AggregateType::Conversation, id)
}

pub fn metadata() -> Metadata {
    Metadata::new(Actor::user("ann"), "node".into())
}

pub fn event(title: &str) -> NewEvent {
    let renamed = ConversationRenamed { title: title.to_owned(), source: TitleSource::Manual };
    NewEvent {
        event_id: uuid::Uuid::now_v7().to_string(),
        event: ConversationEvent::from(renamed).into(),
        metadata: metadata(),
    }
}

/// One event for one stream.
pub fn append(id: &str, expected_version: u64, title: &str) -> Append {
    let events = vec![event(title)];
    Append { streams: vec![StreamAppend { stream: stream(id), expected_version, events }], idempotency: None }
}

pub fn with_key(mut append: Append, key: &str, request_hash: &str) -> Append {
    let (key, request_hash) = (key.to_owned(), request_hash.to_owned());
    append.idempotency = Some(Idempotency { scope: "ann".to_owned(), key, request_hash });
    append
}

//! Taking in a log that the published stores of the cqrs-es family wrote.

use super::support::*;
use crate::foreign::{ForeignError, ForeignSource, inspect, take_in};
use crate::{Place, load};
use cqrs_es::event_sink::EventSink;
use cqrs_es::persist::{PersistedEventRepository, PersistedEventStore};
use cqrs_es::{Aggregate, CqrsFramework};
use devmind_domain::node::{Node, NodeCommand, NodeEvent, NodeStopped};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The family's own tables: the statement is that of its documentation.
const TABLE: &str = "CREATE TABLE events (aggregate_type text NOT NULL, aggregate_id text NOT NULL, \
     sequence bigint CHECK (sequence >= 0) NOT NULL, event_type text NOT NULL, event_version text NOT NULL, \
     payload JSON_TYPE NOT NULL, metadata JSON_TYPE NOT NULL, PRIMARY KEY (aggregate_type, aggregate_id, sequence))";

/// Somebody else's aggregate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Account;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum AccountEvent {
    Deposited { cents: u64 },
    Closed,
}

impl cqrs_es::DomainEvent for AccountEvent {
    fn event_type(&self) -> String {
        match self {
            Self::Deposited { .. } => "Deposited".to_owned(),
            Self::Closed => "Closed".to_owned(),
        }
    }
    fn event_version(&self) -> String {
        "1.0".to_owned()
    }
}

impl Aggregate for Account {
    const TYPE: &'static str = "account";
    type Command = AccountEvent;
    type Event = AccountEvent;
    type Error = std::convert::Infallible;
    type Services = ();

    async fn handle(
        &mut self,
        command: AccountEvent,
        (): &(),
        sink: &EventSink<Self>,
    ) -> Result<(), std::convert::Infallible> {
        sink.write(command, self).await;
        Ok(())
    }

    fn apply(&mut self, _: AccountEvent) {}
}

async fn write_with<R: PersistedEventRepository>(repository: impl Fn() -> R) {
    let nodes = PersistedEventStore::<R, Node>::new_event_store(repository());
    let nodes = CqrsFramework::<Node, _>::new(nodes, vec![], ());
    let accounts = PersistedEventStore::<R, Account>::new_event_store(repository());
    let accounts = CqrsFramework::<Account, _>::new(accounts, vec![], ());
    let by_ann =
        || HashMap::from([("actor".to_owned(), "user:ann".to_owned()), ("mood".to_owned(), "good".to_owned())]);
    let start = || NodeCommand::Start { node_id: "n".into(), version: "1".into() };
    nodes.execute_with_metadata("n", start(), by_ann()).await.expect("executed");
    accounts.execute("a", AccountEvent::Deposited { cents: 5 }).await.expect("executed");
    nodes.execute("n", NodeCommand::Stop { epoch: 1 }).await.expect("executed");
    accounts.execute("a", AccountEvent::Closed).await.expect("executed");
    nodes.execute("n", start()).await.expect("executed");
}

/// A log that the published crate wrote beside the ledger's own place.
async fn written(folder: &Folder) -> ForeignSource {
    let place = match folder.place() {
        Place::File(_) => {
            let file = folder.path().join("theirs.sqlite");
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file).create_if_missing(true);
            let pool = sqlx::SqlitePool::connect_with(options).await.expect("connected");
            sqlx::query(&TABLE.replace("JSON_TYPE", "text")).execute(&pool).await.expect("their table");
            write_with(|| sqlite_es::SqliteEventRepository::new(pool.clone())).await;
            pool.close().await;
            file.to_string_lossy().into_owned()
        }
        Place::Postgres(url) => {
            let pool = sqlx::PgPool::connect_with(url.options().clone()).await.expect("connected");
            sqlx::query(&TABLE.replace("JSON_TYPE", "json")).execute(&pool).await.expect("their table");
            write_with(|| postgres_es::PostgresEventRepository::new(pool.clone())).await;
            pool.close().await;
            folder.url().to_owned()
        }
    };
    ForeignSource::new(&place, None).expect("a source")
}

async fn run(folder: &Folder, statement: &str) {
    match folder.place() {
        Place::File(_) => {
            let file = folder.path().join("theirs.sqlite");
            let pool = sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(file)).await;
            let pool = pool.expect("connected");
            sqlx::query(statement).execute(&pool).await.expect(statement);
            pool.close().await;
        }
        Place::Postgres(url) => {
            let pool = sqlx::PgPool::connect_with(url.options().clone()).await.expect("connected");
            sqlx::query(statement).execute(&pool).await.expect(statement);
            pool.close().await;
        }
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_of_the_cqrs_es_family_is_taken_in_whole_once_and_goes_on_where_it_was_left(folder: Folder) {
        let source = written(&folder).await;
        let report = inspect(&source, |_, _| {}).await.expect("inspected");
        assert_eq!((report.events, report.streams, report.problems_total), (5, 2, 0), "{report:?}");
        assert_eq!(report.known.get("NodeStarted"), Some(&2));
        assert_eq!(report.unknown.get("account / Closed"), Some(&1));
        assert_eq!(report.unknown_events(), 2);

        let taken = take_in(&source, folder.place(), |_, _| {}).await.expect("taken in");
        assert_eq!((taken.size, taken.resumed), (5, 0));
        let verified = folder.verify().await;
        assert!(verified.is_sound(), "{verified:?}");
        assert_eq!(verified.notes_total, 2, "events of other types are told");
        let ledger = folder.open().await;
        let events = all(ledger.reader()).await;
        let types: Vec<_> = events.iter().map(|event| event.event_type.as_str()).collect();
        assert_eq!(types, ["NodeStarted", "Deposited", "NodeStopped", "Closed", "NodeStarted"], "in their order");
        assert_eq!(events[1].payload, r#"{"cents":5}"#);
        assert_eq!(events[0].metadata().expect("metadata").actor.to_string(), "user:ann");
        assert!(events[0].metadata.contains(r#""mood":"good""#));
        let (node, version) = load::<Node>(ledger.reader(), "n").await.expect("our own aggregate loads");
        assert_eq!((node.epoch, version), (2, 3));
        let stop = NodeEvent::from(NodeStopped { node_id: "n".into(), epoch: 2 });
        ledger.close().await;

        let again = take_in(&source, folder.place(), |_, _| {}).await.expect("taken in again");
        assert_eq!((again.size, again.resumed, again.root), (5, 5, taken.root), "nothing is stored twice");
        let payload = serde_json::to_string(&stop).expect("JSON");
        run(&folder, &format!("INSERT INTO events VALUES ('node', 'n', 4, 'NodeStopped', '1', '{payload}', '{{}}')")).await;
        let more = take_in(&source, folder.place(), |_, _| {}).await.expect("taken in further");
        assert_eq!((more.size, more.resumed), (6, 5));
        assert!(folder.verify().await.is_sound());

        run(&folder, "UPDATE events SET metadata = '{\"mood\":\"bad\"}' WHERE event_type = 'Deposited'").await;
        let refused = take_in(&source, folder.place(), |_, _| {}).await;
        assert!(matches!(refused, Err(ForeignError::NotEmpty)), "another history is not mixed in: {refused:?}");
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_with_a_gap_or_an_own_event_of_another_shape_is_refused_with_the_place_and_nothing_is_stored(
        folder: Folder
    ) {
        let source = written(&folder).await;
        run(&folder, "DELETE FROM events WHERE aggregate_type = 'account' AND sequence = 1").await;
        run(&folder, "UPDATE events SET payload = '{\"NodeStopped\":{}}' WHERE event_type = 'NodeStopped'").await;
        let report = inspect(&source, |_, _| {}).await.expect("inspected");
        let places: Vec<_> = report.problems.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, ["node/n event 2", "account/a event 2"], "{report:?}");
        let refused = take_in(&source, folder.place(), |_, _| {}).await;
        assert!(matches!(refused, Err(ForeignError::Source(_))), "{refused:?}");
        assert_eq!(folder.reader().await.head().await.expect("a head").position, 0);
    }
}

#[tokio::test]
async fn a_row_that_stands_before_an_earlier_event_of_its_stream_waits_for_it() {
    let folder = Folder::new();
    let source = written(&folder).await;
    run(&folder, "UPDATE events SET rowid = rowid + 100 WHERE event_type = 'NodeStopped'").await;
    take_in(&source, folder.place(), |_, _| {}).await.expect("taken in");
    let ledger = folder.open().await;
    let types: Vec<_> = all(ledger.reader()).await.iter().map(|event| event.event_type.clone()).collect();
    assert_eq!(types, ["NodeStarted", "Deposited", "Closed", "NodeStopped", "NodeStarted"]);
    assert!(folder.verify().await.is_sound());
    ledger.close().await;
}

#[tokio::test]
async fn a_tables_name_that_could_be_a_statement_and_a_file_without_the_table_are_refused() {
    assert!(ForeignSource::new("f", Some("events; DROP TABLE events")).is_err());
    let folder = Folder::new();
    folder.open().await.close().await;
    let source = ForeignSource::new(&folder.file().to_string_lossy(), Some("no_such_table")).expect("a source");
    assert!(matches!(inspect(&source, |_, _| {}).await, Err(ForeignError::Source(_))));
}

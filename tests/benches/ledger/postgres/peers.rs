//! What is measured beside us on PostgreSQL.

use crate::load::Work;
use crate::{family, ours};
use cqrs_es::persist::{GenericQuery, PersistedEventStore};
use cqrs_es::{CqrsFramework, EventEnvelope, Query, View};
use devmind_domain::Decider;
use devmind_domain::device::Device;
use postgres_es::{PostgresEventRepository, PostgresViewRepository};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgConnection};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Rows of one bulk insert.
const BULK: usize = 100;

/// The cqrs-es framework on PostgreSQL.
pub type PostgresEs = family::Framework<PostgresEventRepository>;

/// postgres-es with its own pool size.
pub async fn postgres_es(url: &str) -> PostgresEs {
    let pool = PgPoolOptions::new().max_connections(10).connect(url).await.expect("the database is there");
    for statement in family::TABLES {
        pool.execute(statement).await.expect("the table is made");
    }
    let store = PersistedEventStore::new_event_store(PostgresEventRepository::new(pool));
    Arc::new(CqrsFramework::new(store, Vec::new(), ()))
}

/// A table with the columns a store cannot do without.
pub async fn raw_table(url: &str) {
    let mut connection = PgConnection::connect(url).await.expect("the database is there");
    connection
        .execute(
            "CREATE TABLE raw_events (position bigserial PRIMARY KEY, event_id text NOT NULL UNIQUE,
             payload text NOT NULL, metadata text NOT NULL)",
        )
        .await
        .expect("the table is made");
}

/// PostgreSQL's own load generator: one prepared insert a transaction.
pub struct Pgbench {
    pub url: String,
    pub clients: usize,
}

#[async_trait::async_trait(?Send)]
impl Work for Pgbench {
    async fn rate(&self, _warm_up: Duration, each: Duration) -> f64 {
        let mut script = tempfile::NamedTempFile::new().expect("a temporary file");
        // Time-ordered ids, as ours; pgbench has no UUIDv7.
        write!(
            script,
            "INSERT INTO raw_events (event_id, payload, metadata) VALUES \
             (to_char(clock_timestamp(), 'YYYYMMDDHH24MISSUS') || '-' || :client_id || '-' || random(), '{}', '{}');",
            "x".repeat(ours::PAYLOAD_BYTES),
            "x".repeat(100),
        )
        .expect("the script is written");
        let output = tokio::process::Command::new("pgbench")
            .args(["--no-vacuum", "--protocol=prepared", "--jobs=2"])
            .arg(format!("--client={}", self.clients))
            .arg(format!("--time={}", each.as_secs().max(1)))
            .arg("--file")
            .arg(script.path())
            .arg(&self.url)
            .output()
            .await
            .expect("pgbench is installed");
        let text = String::from_utf8_lossy(&output.stdout);
        let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        tps.unwrap_or_else(|| panic!("pgbench said: {text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// One connection that inserts 100 rows with one statement, again and again.
pub struct Unnest {
    pub url: String,
}

#[async_trait::async_trait(?Send)]
impl Work for Unnest {
    async fn rate(&self, _warm_up: Duration, each: Duration) -> f64 {
        let mut connection = PgConnection::connect(&self.url).await.expect("the database is there");
        let (payload, metadata) = ("x".repeat(ours::PAYLOAD_BYTES), "x".repeat(100));
        let (mut done, started) = (0, Instant::now());
        while started.elapsed() < each {
            let ids: Vec<String> = (0..BULK).map(|_| Uuid::now_v7().to_string()).collect();
            sqlx::query(
                "INSERT INTO raw_events (event_id, payload, metadata)
                 SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[])",
            )
            .bind(ids)
            .bind(vec![payload.as_str(); BULK])
            .bind(vec![metadata.as_str(); BULK])
            .execute(&mut connection)
            .await
            .expect("the rows are stored");
            done += BULK;
        }
        done as f64 / started.elapsed().as_secs_f64()
    }
}

/// The peer's view: as small as a view can be.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Reads {
    count: u64,
}

impl View<Device> for Reads {
    fn update(&mut self, _: &EventEnvelope<Device>) {
        self.count += 1;
    }
}

/// How fast cqrs-es's generic query writes rows, one event after the other, each to a view of its own.
pub async fn view_rate(url: &str, events: u64) -> f64 {
    let pool = PgPoolOptions::new().max_connections(10).connect(url).await.expect("the database is there");
    pool.execute("CREATE TABLE reads (view_id text PRIMARY KEY, version bigint NOT NULL, payload json NOT NULL)")
        .await
        .expect("the table is made");
    let views: PostgresViewRepository<Reads, Device> = PostgresViewRepository::new("reads", pool);
    let query = GenericQuery::new(Arc::new(views));
    let payload = Device::default().decide(ours::command()).expect("decided").pop().expect("one event");
    let began = Instant::now();
    for n in 0..events {
        let id = format!("user-1/{n}");
        let event =
            EventEnvelope { aggregate_id: id.clone(), sequence: 1, payload: payload.clone(), metadata: HashMap::new() };
        query.dispatch(&id, &[event]).await;
    }
    events as f64 / began.elapsed().as_secs_f64()
}

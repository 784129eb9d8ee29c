//! The peers of the cqrs-es family, running our `device` aggregate as it is.

use crate::ours::command;
use cqrs_es::persist::{PersistedEventRepository, PersistedEventStore};
use cqrs_es::{AggregateError, CqrsFramework};
use devmind_domain::device::Device;
use std::sync::Arc;

/// The tables that the family's SQLite and PostgreSQL stores ask for.
pub const TABLES: [&str; 2] = [
    "CREATE TABLE events (aggregate_type text NOT NULL, aggregate_id text NOT NULL, sequence bigint NOT NULL,
       event_type text NOT NULL, event_version text NOT NULL, payload json NOT NULL, metadata json NOT NULL,
       PRIMARY KEY (aggregate_type, aggregate_id, sequence))",
    "CREATE TABLE snapshots (aggregate_type text NOT NULL, aggregate_id text NOT NULL, last_sequence bigint NOT NULL,
       current_snapshot bigint NOT NULL, payload json NOT NULL,
       PRIMARY KEY (aggregate_type, aggregate_id, last_sequence))",
];

/// A framework over one of the family's repositories.
pub type Framework<R> = Arc<CqrsFramework<Device, PersistedEventStore<R, Device>>>;

/// Loads, decides, appends; tries again where another caller was faster, as its users do.
pub async fn carry_out<R: PersistedEventRepository + Send + Sync>(framework: Framework<R>, stream: String) {
    loop {
        match framework.execute(&stream, command()).await {
            Ok(()) => return,
            Err(AggregateError::AggregateConflict | AggregateError::DatabaseConnectionError(_)) => {}
            Err(error) => panic!("a command was not stored: {error}"),
        }
    }
}

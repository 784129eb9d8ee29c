//! The event store of DevMind Ledger: appended in groups, read in order, followed live.
//!
//! [`Ledger`] writes a log, with a [`LedgerReader`] inside; a [`LedgerReader`] is also opened alone,
//! read-only, on a log that another process writes. The log is a SQLite file with one writing process, or
//! a PostgreSQL database that several share ([`Place`]). What events mean is
//! left to `devmind-domain`, what is shown of them to `devmind-projections`.
//!
//! The promises: positions are gapless and in commit order; a command is all or nothing and
//! answered only after its commit is durable; a refused command never disturbs its neighbours; a
//! key that was seen is remembered for ever; no row is changed or deleted.

mod append;
pub mod bundle;
mod cache;
pub mod cqrs;
mod damage;
mod error;
mod execute;
mod filed;
mod follow;
pub mod foreign;
mod lease;
mod ledger;
mod limits;
mod load;
mod merkle;
mod place;
pub mod proof;
mod reader;
mod redact;
mod ring;
mod store;
mod tips;
pub mod verify;
mod writer;

pub use append::{Append, Appended, Head, Idempotency, StreamAppend};
pub use damage::{Damage, DamagedRow};
pub use error::{AppendError, ExecuteError, LedgerError};
pub use execute::{Executed, execute};
pub use follow::Follower;
pub use lease::NodeLease;
pub use ledger::Ledger;
pub use limits::*;
pub use load::{load, load_since, remembered};
pub use merkle::Frontier;
pub use place::{Place, PostgresUrl};
pub use reader::{EventFilter, LedgerReader};
pub use redact::{Erasure, RedactError, plan_redaction, redact};
pub use store::postgres::{PgConnections, Taken};

#[cfg(test)]
mod tests;

//! What a projection is: a name, a version, its tables and one pure function.
//!
//! Following the log, transactions and positions are left to the runner.

use crate::change::Change;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};

/// A read model.
///
/// `changes` reads nothing but its arguments: no clock, no table, no other event. Whatever must be
/// looked up stands in the SQL, where it sees exactly the rows that the log's prefix made. So a
/// rebuild gives the same rows, one by one.
pub trait Projection: Send + Sync {
    /// Its name, as `status` and `rebuild` show it.
    fn name(&self) -> &'static str;

    /// Raised with every change of its function or its tables: the runner then builds the rows anew beside the
    /// live ones, and swaps.
    fn version(&self) -> u32;

    /// Its tables; no table belongs to two projections.
    fn tables(&self) -> &'static [&'static str];

    /// The kinds of streams it reads; events of others pass by undecoded.
    fn reads(&self) -> &'static [AggregateType];

    /// The kinds of streams whose events change, and look at, nothing but rows of their own stream. In a batch, what
    /// events of different streams change is then written in another order, and together.
    fn independent(&self) -> &'static [AggregateType] {
        &[]
    }

    /// The row changes that an event causes, in order. It must not fail for any history; a panic
    /// counts as a failure of this event and stops this projection alone.
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change>;
}

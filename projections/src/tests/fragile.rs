//! A projection that counts events and fails at one of them, for the tests.

use crate::change::{Change, change};
use crate::projection::Projection;
use crate::registry::PROJECTIONS;
use crate::row::Columns;
use crate::store::Projections;
use crate::views::Views;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};

/// What goes wrong at an event.
#[derive(Clone, Copy, Debug)]
pub enum Poison {
    Panic,
    /// After a statement that is fine in itself.
    BadStatement,
}

/// Counts events into the table `nodes`, and fails at one position.
pub struct Fragile(u32, Option<(u64, Poison)>);

impl Projection for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }
    fn version(&self) -> u32 {
        self.0
    }
    fn tables(&self) -> &'static [&'static str] {
        &["nodes"]
    }
    fn reads(&self) -> &'static [AggregateType] {
        &AggregateType::ALL
    }
    fn changes(&self, event: &RecordedEvent, _decoded: &DomainEvent) -> Vec<Change> {
        let count = change!(
            "INSERT INTO nodes (node_id, epoch, version, status, started_at) VALUES ($1, 1, '', '', 0)",
            event.position.to_string()
        );
        match self.1.filter(|(position, _)| *position == event.position) {
            Some((_, Poison::Panic)) => panic!("poison"),
            Some((_, Poison::BadStatement)) => {
                vec![count, change!("INSERT INTO views_origin (only_row, ledger_id) VALUES (2, '')")]
            }
            None => vec![count],
        }
    }
}

pub fn fragile(poison: Option<(u64, Poison)>) -> &'static dyn Projection {
    Box::leak(Box::new(Fragile(1, poison)))
}

pub fn fragile_of_version(version: u32) -> &'static dyn Projection {
    Box::leak(Box::new(Fragile(version, None)))
}

/// The fragile projection and those of the product that leave its table alone.
pub fn with_fragile(poison: Option<(u64, Poison)>) -> Projections {
    vec![PROJECTIONS[0], PROJECTIONS[1], fragile(poison)]
}

pub async fn counted(views: &Views) -> i64 {
    let row = views.read_pool().row("SELECT count(*) AS number FROM nodes", &[]).await.expect("a count");
    i64::try_from(Columns(&row.expect("a row")).count("number").expect("a number")).expect("small")
}

//! What the ledger costs, next to what others cost on the same machine, disk and database.
//!
//! `cargo bench -p devmind-tests --bench ledger [-- FILTER…]` prints the disk's flush time first,
//! then one tab-separated line a row (name, value, unit, ratio, goal, met) and a table for people.
//! Every ratio is ours to a peer's *of this run*; figures of other machines are never compared
//! with. FILTER names groups of rows (`sqlite append`, `postgres append`, `postgres hot`, `read`, `rebuild`,
//! `tool call`, `growth`, `rebuild growth`); `--quick` measures less, to see that it runs.
//!
//! The work is one command on the `device` aggregate, decided and stored as one event of about
//! 600 bytes of payload, durably. The peers of the cqrs-es family run that very aggregate.
//!
//! PostgreSQL is a throw-away cluster like that of the tests, with its usual durable settings.

mod disk;
mod family;
mod growth;
mod load;
mod ours;
mod postgres;
mod read;
mod rebuild;
mod sqlite;
mod table;
mod tool_call;

use load::Measure;
use table::Table;

#[tokio::main]
async fn main() {
    // `cargo bench` passes `--bench`, which says nothing here.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let measure = Measure::new(words.iter().any(|word| word == "--quick"));
    let filters = words.into_iter().filter(|word| !word.starts_with("--")).collect();
    let mut table = Table::new(filters);
    disk::flush_time(&mut table);
    sqlite::rows(&measure, &mut table).await;
    postgres::rows(&measure, &mut table).await;
    read::rows(&measure, &mut table).await;
    tool_call::rows(&measure, &mut table).await;
    growth::rows(&measure, &mut table).await;
    rebuild::rows(&measure, &mut table).await;
    table.print();
}

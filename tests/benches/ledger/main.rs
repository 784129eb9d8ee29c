//! What the ledger costs, next to what others cost on the same machine, disk and database.
//!
//! `cargo bench -p devmind-tests --bench ledger [-- FILTER…]` prints the disk's flush time first,
//! then one tab-separated line a row (name, value, unit, ratio, goal, met) and a table for people.
//! Every ratio is ours to a peer's *of this run*; figures of other machines are never compared
//! with. FILTER names groups of rows (`sqlite append`, `postgres append`, `postgres hot`, `read`, `rebuild`,
//! `tool call`, `growth`, `rebuild growth`).
//!
//! The work is one command on the `device` aggregate, decided and stored as one event of about
//! 600 bytes of payload, durably. The peers of the cqrs-es family run that very aggregate.
//!
//! PostgreSQL is a throw-away cluster like that of the tests, with its usual durable settings.
//!
//! `--peers` measures the tool call beside one durable step of Restate and of DBOS. It needs node 20 or newer and npm,
//! and for its first run the network: 230 MB of packages, and some minutes to build Restate's service
//! (`tests/peers/restate`, `tests/peers/dbos`). `--long` grows the log of `growth` to ten million events, which takes
//! 10 GB of the disk and some minutes; `--long=EVENTS` to another length. `--quick` measures less, to see that
//! it runs.

mod disk;
mod family;
mod growth;
mod load;
mod ours;
mod postgres;
mod progress;
mod read;
mod rebuild;
mod sqlite;
mod table;
mod tool_call;

use clap::Parser;
use load::Measure;
use mimalloc::MiMalloc;
use std::process::ExitCode;
use table::Table;
use tool_call::Programs;

/// What the ledger costs, next to what others cost on the same machine, disk and database.
#[derive(Parser)]
#[command(name = "ledger")]
struct Options {
    /// Groups of rows, as `append` or `tool call`; all without any.
    filters: Vec<String>,
    /// Measures less, to see that it runs.
    #[arg(long)]
    quick: bool,
    /// Measures the tool call beside Restate and DBOS, which npm fetches.
    #[arg(long)]
    peers: bool,
    /// Grows the log of `growth` to so many events.
    #[arg(long, value_name = "EVENTS", num_args = 0..=1, require_equals = true, default_missing_value = "10000000")]
    long: Option<u64>,
    /// What `cargo bench` passes; it says nothing here.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The server's, for everybody who is measured here.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    // As the server runs; the callers of peers have a runtime as tokio makes it.
    let runtime = devmind_api::runtime().expect("the system gives threads");
    match runtime.block_on(run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that may be missing is looked at before anything is measured.
async fn run(options: Options) -> Result<(), String> {
    let mut measure = Measure::new(options.quick);
    measure.grown = options.long.unwrap_or(measure.grown);
    let mut table = Table::new(options.filters);
    growth::room(&measure, &table)?;
    let peers = match options.peers && table.wants(tool_call::GROUP) {
        true => Some(Programs::fetch().await.map_err(|needs| format!("--peers needs {needs}"))?),
        false => None,
    };
    disk::flush_time(&mut table);
    sqlite::rows(&measure, &mut table).await;
    postgres::rows(&measure, &mut table).await;
    read::rows(&measure, &mut table).await;
    tool_call::rows(&measure, &mut table, peers.as_ref()).await;
    growth::rows(&measure, &mut table).await;
    rebuild::rows(&measure, &mut table).await;
    table.print();
    Ok(())
}

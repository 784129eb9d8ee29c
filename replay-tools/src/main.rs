//! `devmind-replay`: reads a ledger, shows what happened, and proves that it holds.

use clap::Parser;
use devmind_replay_tools::{Cli, run};
use mimalloc::MiMalloc;
use std::process::ExitCode;

/// As in the server, whose views and log this program reads and writes.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Settings of a `.env` count as environment; a missing file is no fault.
    drop(dotenvy::dotenv());
    run(Cli::parse())
}

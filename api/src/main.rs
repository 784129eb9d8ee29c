//! The server binary: everything is in the library, so that tests can link it.

use clap::Parser;
use mimalloc::MiMalloc;
use std::process::ExitCode;

/// A batch of events is many small texts that one thread makes and another drops: the system's allocator was a third of
/// an append's processor time, this one is half of that.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    devmind_api::cli::run(devmind_api::cli::Cli::parse())
}

//! The server binary: everything is in the library, so that tests can link it.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    devmind_api::cli::run(devmind_api::cli::Cli::parse())
}

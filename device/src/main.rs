//! `devmind-device`: the desktop device. See `devmind_device::cli`.

use mimalloc::MiMalloc;
use std::process::ExitCode;

/// As in the server, for the same reason.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    devmind_device::cli::main(devmind_device::tools::all())
}

//! `devmind-device`: the desktop device. See `devmind_device::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    devmind_device::cli::main(devmind_device::tools::all())
}

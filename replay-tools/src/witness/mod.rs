//! `witness`: somebody else's memory of a log (C2SP tlog-witness).
//!
//! `serve` is the witness: on its own computer, as its own user, it keeps the last head of each log that it
//! watches and cosigns only what continues it. `ask` is what runs beside a ledger: it has the newest checkpoint
//! cosigned and keeps the cosignature, for `verify` and `export`. What a witness decides is
//! `devmind_domain::proof`.

mod ask;
mod memory;
mod serve;

use crate::Verdict;
use crate::cli::WitnessCommand;
use crate::failure::Failure;
use crate::output::Output;
use crate::store::Source;
use devmind_domain::Timestamp;
use devmind_domain::proof::{NoteError, NoteKey, SignatureKind, WatchedLog};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) async fn run(data: &Source, command: WitnessCommand, output: &mut Output) -> Result<Verdict, Failure> {
    match command {
        WitnessCommand::Serve(args) => serve::run(args, output).await,
        WitnessCommand::Ask(args) => ask::run(data, args, output).await,
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn seconds(moment: Timestamp) -> u64 {
    u64::try_from(moment.as_micros() / 1_000_000).unwrap_or(0)
}

/// When a cosignature says that it was made.
pub(crate) fn moment(seconds: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(seconds.saturating_mul(1_000_000)).unwrap_or(i64::MAX))
}

/// Reads which log is watched, by which key.
pub(crate) fn watched_log(text: &str) -> Result<WatchedLog, String> {
    let log: WatchedLog = text.parse().map_err(|error: NoteError| error.to_string())?;
    match log.key.kind() {
        SignatureKind::Ed25519 => Ok(log),
        SignatureKind::Cosignature => Err("it is the key of a witness".to_owned()),
    }
}

/// Reads the public key of a witness.
pub(crate) fn witness_key(text: &str) -> Result<NoteKey, String> {
    let key = NoteKey::parse(text.trim()).map_err(|error| error.to_string())?;
    match key.kind() {
        SignatureKind::Cosignature => Ok(key),
        SignatureKind::Ed25519 => Err("it is the key of a log".to_owned()),
    }
}

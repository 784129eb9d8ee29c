//! `attest`: what the views' state hashes to, and under which root of the log.

use crate::Verdict;
use crate::cli::AttestArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress};
use crate::projection::views;
use crate::rebuild::tell_unbuilt;
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_projections::{attest, attest_at};
use serde_json::json;

pub(crate) async fn run(data: &Source, args: AttestArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_whole_ledger().await?;
    let Some(prover) = data.prover(&reader) else {
        return Err(Failure::new(ErrorCode::ValidationFailed, "a part of a log has no state that could be attested")
            .with_hint("export everything: `export FILE` without --conversation and --run"));
    };
    let only = args.projection.as_deref();
    let (attested, failed) = match args.at {
        None => (attest(&views(data)?, only).await?, Vec::new()),
        Some(at) => {
            let progress = Progress::new("rebuilding", "events");
            let at = data.position(&reader, Some(at)).await?;
            attest_at(&data.views(), &reader, at, only, |done, total| progress.set(done, total)).await?
        }
    };
    for one in attested {
        let root = hex::encode(prover.root(one.position).await?);
        let state = hex::encode(one.state_hash);
        if output.is_json() {
            output.json(&json!({
                "ledger_id": reader.ledger_id(), "position": one.position, "root": root,
                "projection": one.projection, "version": one.version, "state_hash": state,
            }))?;
        } else {
            let (name, version, position) = (one.projection, one.version, one.position);
            output.line(format_args!("{name} v{version} at {position} under {root}: {state}"))?;
        }
    }
    output.finish()?;
    Ok(if tell_unbuilt(&failed) { Verdict::Incomplete } else { Verdict::Holds })
}

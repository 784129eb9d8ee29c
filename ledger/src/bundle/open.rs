//! A bundle that is read like the log it is of: its events in a file of their own, and nothing where the bundle has
//! nothing.

use super::import::{Importing, store};
use super::{BundleError, BundleReport, check_bundle};
use crate::merkle::Frontier;
use crate::place::Place;
use crate::reader::LedgerReader;
use crate::store::{open_writable, sqlite};
use devmind_domain::proof::ledger_of;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Opens a bundle for reading. `folder` is the caller's, empty, and keeps the events as long as they are read. Nothing
/// is read of a bundle that does not hold. The log is as long as the checkpoint says; a bundle of a part has holes.
/// `progress` is told how far it is.
///
/// # Errors
/// [`BundleError`]; what is wrong with the bundle is in the report of an `Ok(Err(_))`.
pub async fn open_bundle(
    bundle: &Path,
    folder: &Path,
    mut progress: impl FnMut(Importing),
) -> Result<Result<(LedgerReader, BundleReport), BundleReport>, BundleError> {
    let report = check_bundle(BufReader::new(File::open(bundle)?), |events| progress(Importing::Checked(events)))?;
    if report.findings_total > 0 {
        return Ok(Err(report));
    }
    let file = folder.join("ledger.sqlite");
    let mut opened = open_writable(&Place::File(file.clone())).await?;
    let events = report.events;
    let mut tell = |done, _| progress(Importing::Stored(done, events));
    let stored = store(bundle, &mut *opened.write, (0, Frontier::default().root()), &report, &mut tell).await;
    opened.read.close().await;
    let closed = opened.write.close().await;
    stored?;
    closed?;
    sqlite::set_head(&file, report.size, &report.root).await?;
    let ledger_id = ledger_of(&report.origin).unwrap_or(&report.origin);
    Ok(Ok((LedgerReader::open_as(&file, ledger_id).await?, report)))
}

//! Taking a whole bundle into an empty ledger: the same positions, bytes, hashes and root.

use super::check::{Item, walk};
use super::{BundleError, BundleReport, KeyLine, check_bundle};
use crate::append::Idempotency;
use crate::merkle::Frontier;
use crate::place::Place;
use crate::store::{Batch, Failure, HeadRow, NewKey, WriteLog, open_writable};
use devmind_domain::canonical::Hash;
use devmind_domain::event::RecordedEvent;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events of one transaction.
const BATCH_EVENTS: usize = 1_000;

/// A bundle that was taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The ledger's size.
    pub size: u64,
    /// Its root.
    pub root: Hash,
    /// Events that an interrupted import had stored before.
    pub resumed: u64,
    /// The fingerprint of the key that signed the bundle.
    pub fingerprint: String,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importing {
    /// So many events were checked.
    Checked(u64),
    /// So many are stored, of all; at first what an interrupted import had stored.
    Stored(u64, u64),
}

/// Events and keys of one transaction.
#[derive(Default)]
struct Part {
    events: Vec<Arc<RecordedEvent>>,
    keys: Vec<KeyLine>,
}

/// Imports a bundle into the ledger in `ledger`, made where it is missing, which nobody else writes. The bundle is read
/// through and checked first: nothing is stored of one that does not hold.
///
/// # Errors
/// [`BundleError`]; what is wrong with the bundle is in the report of an `Ok(Err(_))`.
pub async fn import_bundle(
    bundle: &Path,
    ledger: impl Into<Place>,
    mut progress: impl FnMut(Importing),
) -> Result<Result<Imported, BundleReport>, BundleError> {
    let report = check_bundle(BufReader::new(File::open(bundle)?), |events| progress(Importing::Checked(events)))?;
    if report.findings_total > 0 {
        return Ok(Err(report));
    }
    if !report.complete {
        return Err(BundleError::Partial);
    }
    let mut opened = open_writable(&ledger.into()).await?;
    let begun = (opened.head.position, opened.head.root);
    progress(Importing::Stored(begun.0.min(report.size), report.size));
    let mut tell = |done, all| progress(Importing::Stored(done, all));
    let stored = store(bundle, &mut *opened.write, begun, &report, &mut tell).await;
    opened.read.close().await;
    let closed = opened.write.close().await;
    stored?;
    closed?;
    Ok(Ok(Imported { size: report.size, root: report.root, resumed: begun.0, fingerprint: report.fingerprint }))
}

pub(super) async fn store(
    bundle: &Path,
    write: &mut dyn WriteLog,
    (begun, begun_root): (u64, Hash),
    report: &BundleReport,
    progress: &mut impl FnMut(u64, u64),
) -> Result<(), BundleError> {
    // Reading blocks and storing waits: the parts go from one to the other.
    let (send, mut parts) = mpsc::channel::<Part>(2);
    let file = File::open(bundle)?;
    let reading = tokio::task::spawn_blocking(move || read(file, &send));
    let mut tree = Frontier::default();
    let mut stored = Ok(());
    while let Some(mut part) = parts.recv().await {
        let before = part.events.iter().take_while(|event| event.position <= begun).count();
        for event in part.events.drain(..before) {
            tree.push(event.leaf_hash);
        }
        part.keys.retain(|key| key.first > begun);
        if tree.size() < begun && part.events.is_empty() {
            continue;
        }
        if tree.size() == begun && tree.root() != begun_root {
            stored = Err(BundleError::NotEmpty);
            break;
        }
        stored = store_part(write, &mut tree, &part).await;
        if stored.is_err() {
            break;
        }
        progress(tree.size(), report.size);
        kill_point::at(|| "import part".to_owned());
    }
    drop(parts);
    let read = reading.await.map_err(std::io::Error::other)?;
    stored?;
    read?;
    // A ledger with more than the bundle is another history, even where it begins the same.
    if tree.size() < begun { Err(BundleError::NotEmpty) } else { Ok(()) }
}

async fn store_part(write: &mut dyn WriteLog, tree: &mut Frontier, part: &Part) -> Result<(), BundleError> {
    let from = tree.size();
    part.events.iter().for_each(|event| tree.push(event.leaf_hash));
    let keys: Vec<(Idempotency, u64, u64)> = part
        .keys
        .iter()
        .map(|key| {
            let KeyLine { scope, key, request_hash, first, last } = key.clone();
            (Idempotency { scope, key, request_hash }, first, last)
        })
        .collect();
    let keys: Vec<NewKey<'_>> =
        keys.iter().map(|(idempotency, first, last)| NewKey { idempotency, first: *first, last: *last }).collect();
    if part.events.is_empty() && keys.is_empty() {
        return Ok(());
    }
    let head = HeadRow { root: tree.root(), frontier: tree.clone() };
    let batch = Batch { events: &part.events, keys: &keys, snapshots: &[], from, head: &head };
    write.look(&[], &[]).await.map_err(failed)?;
    write.store(&batch).await.map_err(failed)
}

fn failed(failure: Failure) -> BundleError {
    match failure {
        Failure::Before(error) => BundleError::Ledger(error),
        Failure::Moved => BundleError::NotEmpty,
        Failure::Data(reason) => std::io::Error::other(reason).into(),
        Failure::AtCommit(error) => std::io::Error::other(error).into(),
    }
}

/// Reads the bundle in parts. A key stands before its first event, and is stored with it.
fn read(file: File, send: &mpsc::Sender<Part>) -> Result<(), BundleError> {
    let mut part = Part::default();
    let gone = || BundleError::Io(std::io::Error::other("the import was given up"));
    walk(
        BufReader::new(file),
        |_| {},
        |item| {
            match item {
                Item::Key(key) => part.keys.push(key),
                Item::Event(event) => {
                    if part.events.len() >= BATCH_EVENTS {
                        // Keys that came after the last event belong to this one.
                        let last = part.events.last().map_or(0, |event| event.position);
                        let (own, next) = std::mem::take(&mut part.keys).into_iter().partition(|key| key.first <= last);
                        let full = std::mem::replace(&mut part, Part { events: Vec::new(), keys: next });
                        send.blocking_send(Part { keys: own, ..full }).map_err(|_| gone())?;
                    }
                    part.events.push(Arc::new(event));
                }
            }
            Ok(())
        },
    )?;
    send.blocking_send(part).map_err(|_| gone())
}

//! Building the rows of several projections from a stretch of the log, which is read once for all of them: one task
//! reads, this one finds out what the events mean, and a thread writes ([`Draft`]).
//!
//! PostgreSQL gets rows that were made in a draft, table by table (`COPY`): a row that many events change travels
//! once. Where the database refuses them, or rows are there already, each change is made there ([`fill`]), which
//! tells the event that is at fault.

use crate::apply::{Decoded, Step, step, stored};
use crate::beside::{Beside, Room};
use crate::db::{Pool, is_the_statements_fault, values};
use crate::draft::{Draft, Part};
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::{Unbuilt, fill};
use crate::skips;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::{LedgerError, LedgerReader, MAX_PAGE_EVENTS};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pages between two of those who work on them: each may be 16 MiB.
const AHEAD: usize = 1;
/// Pieces of rows between reading them and sending them.
const PIECES: usize = 4;
/// With more events than this to go, rows of PostgreSQL that are there already are made anew: that is quicker than
/// going on with them change by change.
const MANY: u64 = 20_000;

/// What is to be built of one projection.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub projection: &'static dyn Projection,
    /// Where its rows stand.
    pub from: u64,
    /// Where they are to stand.
    pub to: u64,
}

/// What became of it: where its rows stand, or at which event it failed.
pub(crate) type Built = (&'static dyn Projection, Result<u64, Unbuilt>);

/// Builds them. Rows that fail are as they were before a page of events. `count` is told the events of each page, once
/// for each projection that they were for.
///
/// # Errors
/// When log or rows cannot be used.
pub(crate) async fn build(
    beside: &Beside,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<Vec<Built>, ViewError> {
    match beside.room() {
        Room::File(file, pragmas) => {
            let draft = blocking(move || Draft::in_file(&file, pragmas)).await??;
            let (_, built) = write(draft, ledger, wanted, count).await?;
            Ok(built)
        }
        Room::Schema(schema) => build_in_schema(beside, schema, ledger, wanted, count).await,
    }
}

async fn build_in_schema(
    beside: &Beside,
    schema: &str,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<Vec<Built>, ViewError> {
    let (anew, going_on): (Vec<_>, Vec<_>) =
        wanted.iter().copied().partition(|wanted| wanted.from == 0 || wanted.to.saturating_sub(wanted.from) > MANY);
    let mut built = Vec::new();
    if !anew.is_empty() {
        let anew: Vec<_> = anew.into_iter().map(|wanted| Wanted { from: 0, ..wanted }).collect();
        let projections = anew.iter().map(|wanted| wanted.projection).collect();
        let draft = blocking(move || Draft::unnamed(&projections)).await??;
        let (mut draft, made) = write(draft, ledger, &anew, count).await?;
        for (projection, made) in made {
            let copied = match made {
                Err(_) => false,
                Ok(_) => {
                    let (back, copied) = copy(draft, schema, &beside.store.write, projection).await?;
                    draft = back;
                    copied
                }
            };
            if copied {
                built.push((projection, made));
                continue;
            }
            let to = anew.iter().find(|wanted| wanted.projection.name() == projection.name()).map_or(0, |w| w.to);
            let (_, stands) = stored(&beside.store.write, projection.name()).await?;
            built.push((
                projection,
                told(fill(&beside.store, projection, ledger, stands.position, to, &mut |_| {}).await)?,
            ));
        }
    }
    for Wanted { projection, from, to } in going_on {
        built.push((projection, told(fill(&beside.store, projection, ledger, from, to, count).await)?));
    }
    Ok(built)
}

/// What an error says of one projection; any other is an error of them all.
pub(crate) fn told(built: Result<u64, ViewError>) -> Result<Result<u64, Unbuilt>, ViewError> {
    built.map(Ok).or_else(|error| Unbuilt::of(error).map(Err))
}

/// Reads, finds out and writes, all at the same time.
async fn write(
    draft: Draft,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<(Draft, Vec<Built>), ViewError> {
    let mut under_way = Vec::new();
    for wanted in wanted {
        let skips = skips::of(ledger, wanted.projection).await?;
        under_way.push(UnderWay { wanted: *wanted, skips, position: wanted.from, failed: None });
    }
    let from = wanted.iter().map(|wanted| wanted.from).min().unwrap_or(0);
    let to = wanted.iter().map(|wanted| wanted.to).max().unwrap_or(0);
    let mut pages = read(ledger.clone(), from, to);
    let (parts, writer) = writer(draft);
    while let Some(page) = pages.recv().await {
        let page = page?;
        let planned = plan(&mut under_way, &page);
        let events = planned.iter().map(|part| part.steps.len() as u64).sum();
        if parts.send(planned).await.is_err() {
            // The thread ended, and says why.
            break;
        }
        count(events);
    }
    drop(parts);
    let mut draft = writer.await.map_err(ended)??;
    let built = under_way.into_iter().map(|one| one.end(&mut draft.refused)).collect();
    Ok((draft, built))
}

/// One projection, while its rows are made.
struct UnderWay {
    wanted: Wanted,
    skips: BTreeSet<u64>,
    position: u64,
    failed: Option<(u64, String)>,
}

impl UnderWay {
    /// What a page means to it.
    fn part(&mut self, page: &[(Arc<RecordedEvent>, Decoded)]) -> Option<Part> {
        let Wanted { projection, to, .. } = self.wanted;
        if self.failed.is_some() {
            return None;
        }
        let own = page.iter().filter(|(event, _)| event.position > self.position && event.position <= to);
        let mut steps: Vec<(u64, Step)> = Vec::new();
        let mut last = None;
        for (event, decoded) in own {
            match step(projection, &self.skips, event, decoded) {
                Ok(step) => steps.push((event.position, step)),
                Err(reason) => {
                    self.failed = Some((event.position, reason));
                    return None;
                }
            }
            last = Some(event);
        }
        let last = last?;
        let from = std::mem::replace(&mut self.position, last.position);
        Some(Part { name: projection.name(), from, to: last.position, leaf_hash: hex::encode(last.leaf_hash), steps })
    }

    fn end(self, refused: &mut BTreeMap<&'static str, (u64, String)>) -> Built {
        let name = self.wanted.projection.name();
        // A change that is refused comes before what was not tried any more.
        let failed = refused.remove(name).or(self.failed);
        let built = match failed {
            None => Ok(self.position),
            Some((position, reason)) => Err(Unbuilt { name, position, reason }),
        };
        (self.wanted.projection, built)
    }
}

fn plan(under_way: &mut [UnderWay], page: &[Arc<RecordedEvent>]) -> Vec<Part> {
    let page: Vec<_> = page.iter().map(|event| (event.clone(), Decoded::new())).collect();
    under_way.iter_mut().filter_map(|one| one.part(&page)).collect()
}

/// Pages of the log, read ahead.
fn read(ledger: LedgerReader, from: u64, to: u64) -> mpsc::Receiver<Result<Vec<Arc<RecordedEvent>>, LedgerError>> {
    let (pages, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let mut position = from;
        while position < to {
            let page = ledger.read(position, MAX_PAGE_EVENTS).await;
            match page.as_ref().map(|page| page.last().map(|last| last.position)) {
                Ok(None) => break,
                Ok(Some(last)) => position = last,
                Err(_) => position = to,
            }
            if pages.send(page).await.is_err() {
                break;
            }
        }
    });
    receiver
}

/// A thread that writes page after page.
fn writer(mut draft: Draft) -> (mpsc::Sender<Vec<Part>>, JoinHandle<rusqlite::Result<Draft>>) {
    let (sender, mut pages) = mpsc::channel::<Vec<Part>>(AHEAD);
    let writing = tokio::task::spawn_blocking(move || {
        while let Some(page) = pages.blocking_recv() {
            draft.apply(&page)?;
            page.iter().for_each(|part| kill_point::at(|| format!("fill {}", part.name)));
        }
        Ok(draft)
    });
    (sender, writing)
}

/// Copies a projection's rows from a draft into a schema, in one transaction; answers whether they are there.
async fn copy(
    mut draft: Draft,
    schema: &str,
    to: &Pool,
    projection: &'static dyn Projection,
) -> Result<(Draft, bool), ViewError> {
    let mut work = to.begin().await?;
    for table in projection.tables() {
        // Names are the projection's own static text, and from our own migrations.
        work.run(&format!("DELETE FROM {schema}.{table}"), &[]).await?;
        let sql = format!("COPY {schema}.{table} ({}) FROM STDIN", draft.columns(table)?.join(", "));
        let (pieces, mut rows) = mpsc::channel(PIECES);
        let reading = tokio::task::spawn_blocking(move || {
            let read = draft.copy_out(table, |piece| pieces.blocking_send(piece).is_ok());
            read.map(|()| draft)
        });
        let copied = work.copy_in(&sql, &mut rows).await;
        drop(rows);
        draft = reading.await.map_err(ended)??;
        match copied {
            Ok(()) => {}
            Err(error) if is_the_statements_fault(&error) => return Ok((draft, false)),
            Err(error) => return Err(error.into()),
        }
    }
    let (position, leaf_hash, skipped) = draft.stands(projection.name())?;
    let stands = "UPDATE projection_position SET position = $2, leaf_hash = $3, skipped_unknown = $4 WHERE name = $1";
    work.run(stands, &values![projection.name(), position, leaf_hash, skipped]).await?;
    work.commit().await?;
    Ok((draft, true))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ViewError> {
    tokio::task::spawn_blocking(work).await.map_err(ended)
}

/// The thread's own panic goes on here; it is cancelled with the program alone.
fn ended(error: tokio::task::JoinError) -> ViewError {
    match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(cancelled) => ViewError::Io(std::io::Error::other(cancelled)),
    }
}

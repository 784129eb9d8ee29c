//! Building the rows of several projections from a stretch of the log, which is read once for all of them: one task
//! reads, this one finds out what the events mean, and a thread writes ([`Draft`]).
//!
//! PostgreSQL gets rows that were made in a draft, table by table (`COPY`): a row that many events change travels
//! once. Where the database refuses them, or rows are there already, each change is made there ([`fill`]), which
//! tells the event that is at fault.

use crate::apply::{Decoded, Step, step, stored};
use crate::beside::{Beside, Room};
use crate::db::{Work, is_the_statements_fault, values};
use crate::draft::{Draft, Part};
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::{Unbuilt, fill, unreadable};
use crate::skips;
use crate::store::Projections;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::{LedgerError, LedgerReader, MAX_PAGE_EVENTS};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pages between two of those who work on them: each may be 16 MiB.
const AHEAD: usize = 1;
/// Pieces of rows between reading them and sending them.
const PIECES: usize = 4;
/// With more events than this to go, rows that are in PostgreSQL already are made anew in a draft: that is quicker
/// than going on with them change by change.
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

/// The same with the draft that the rows are still in.
pub(crate) struct Drafted {
    pub projection: &'static dyn Projection,
    pub built: Result<u64, Unbuilt>,
    /// None where the rows are in their store.
    pub draft: Option<Draft>,
}

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
    let mut finishing = Vec::new();
    for drafted in draft(beside, ledger, wanted, count).await? {
        finishing.push(finish(beside, ledger, wanted, drafted));
    }
    stream::iter(finishing).buffered(beside.store.write.writers()).try_collect().await
}

/// The same, with rows for PostgreSQL left in drafts.
///
/// # Errors
/// As [`build`].
pub(crate) async fn draft(
    beside: &Beside,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<Vec<Drafted>, ViewError> {
    match beside.room() {
        Room::File(file, pragmas) => {
            let draft = blocking(move || Draft::in_file(&file, pragmas)).await??;
            let projections = wanted.iter().map(|wanted| wanted.projection).collect();
            let (_, built) = write(vec![(draft, projections)], ledger, wanted, count).await?;
            Ok(built.into_iter().map(|(projection, built)| Drafted { projection, built, draft: None }).collect())
        }
        Room::Schema(..) => draft_for_schema(beside, ledger, wanted, count).await,
    }
}

async fn draft_for_schema(
    beside: &Beside,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<Vec<Drafted>, ViewError> {
    let (mut drafted, mut there) = (Vec::new(), Vec::new());
    for wanted in wanted {
        let (_, stands) = stored(&beside.store.write, wanted.projection.name()).await?;
        match stands.position {
            // Refused from a draft before: they go on where they stand, however far the draft is.
            from if from > 0 && wanted.to.saturating_sub(from) <= MANY => there.push(Wanted { from, ..*wanted }),
            _ => drafted.push(*wanted),
        }
    }
    let drafts = drafts(beside, &mut drafted)?;
    let (drafts, built) = write(drafts, ledger, &drafted, count).await?;
    let with = |((projection, built), draft)| Drafted { projection, built, draft: Some(draft) };
    let mut all: Vec<_> = built.into_iter().zip(drafts).map(with).collect();
    for Wanted { projection, from, to } in there {
        let built = told(fill(&beside.store, projection, ledger, from, to, count).await)?;
        all.push(Drafted { projection, built, draft: None });
    }
    Ok(all)
}

/// Copies what was made in a draft into the schema, or makes it there where the database refuses it.
async fn finish(
    beside: &Beside,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    Drafted { projection, built, draft }: Drafted,
) -> Result<Built, ViewError> {
    let (Ok(_), Some(draft)) = (&built, draft) else { return Ok((projection, built)) };
    let mut work = beside.store.write.begin().await?;
    let schema = &beside.schemas.rebuilt;
    let (_, copied) = copy(draft, schema, &mut work, projection).await?;
    if copied {
        work.commit().await?;
        return Ok((projection, built));
    }
    drop(work);
    let to = wanted.iter().find(|wanted| wanted.projection.name() == projection.name()).map_or(0, |wanted| wanted.to);
    Ok((projection, told(make_there(beside, ledger, projection, to).await)?))
}

/// Makes the rows change by change where they belong: that tells the event that a database refuses.
pub(crate) async fn make_there(
    beside: &Beside,
    ledger: &LedgerReader,
    projection: &'static dyn Projection,
    to: u64,
) -> Result<u64, ViewError> {
    let (_, stands) = stored(&beside.store.write, projection.name()).await?;
    fill(&beside.store, projection, ledger, stands.position, to, &mut |_| {}).await
}

/// A draft for each, so that they are copied at the same time; what is wanted begins where they stand.
pub(crate) fn drafts(beside: &Beside, wanted: &mut [Wanted]) -> Result<Vec<(Draft, Projections)>, ViewError> {
    let mut drafts = Vec::new();
    for Wanted { projection, from, .. } in wanted {
        let draft = match beside.room() {
            Room::Schema(Some(kept)) => kept.draft(*projection)?,
            Room::Schema(None) | Room::File(..) => Draft::unnamed(*projection)?,
        };
        *from = draft.position(projection.name())?;
        drafts.push((draft, vec![*projection]));
    }
    Ok(drafts)
}

/// What an error says of one projection; any other is an error of them all.
pub(crate) fn told<T>(built: Result<T, ViewError>) -> Result<Result<T, Unbuilt>, ViewError> {
    built.map(Ok).or_else(|error| Unbuilt::of(error).map(Err))
}

/// Reads, finds out and writes, all at the same time; each draft has projections of its own.
pub(crate) async fn write(
    drafts: Vec<(Draft, Projections)>,
    ledger: &LedgerReader,
    wanted: &[Wanted],
    count: &mut (dyn FnMut(u64) + Send),
) -> Result<(Vec<Draft>, Vec<Built>), ViewError> {
    let mut under_way = Vec::new();
    for wanted in wanted {
        let (skips, failed) = match skips::of(ledger, wanted.projection).await {
            Ok(skips) => (skips, None),
            Err(error) => {
                let unbuilt = Unbuilt::of(unreadable(wanted.projection, error))?;
                (BTreeSet::new(), Some((unbuilt.position, unbuilt.reason)))
            }
        };
        under_way.push(UnderWay { wanted: *wanted, skips, position: wanted.from, failed });
    }
    let from = wanted.iter().map(|wanted| wanted.from).min().unwrap_or(0);
    let to = wanted.iter().map(|wanted| wanted.to).max().unwrap_or(0);
    let mut pages = read(ledger.clone(), from, to);
    let writers: Vec<_> = drafts.into_iter().map(|(draft, projections)| Writer::start(draft, &projections)).collect();
    'pages: while let Some(page) = pages.recv().await {
        let page = match page {
            Err(LedgerError::Damaged { position, reason, .. }) => {
                let lack = under_way.iter_mut().filter(|one| one.failed.is_none() && one.wanted.to >= position);
                lack.for_each(|one| one.failed = Some((position, reason.clone())));
                break;
            }
            page => page?,
        };
        let mut parts = plan(&mut under_way, &page);
        let events = parts.iter().map(|part| part.steps.len() as u64).sum();
        for writer in &writers {
            let own = parts.extract_if(.., |part| writer.of.contains(&part.name)).collect();
            if writer.parts.send(own).await.is_err() {
                // The thread ended, and says why.
                break 'pages;
            }
        }
        count(events);
    }
    let (mut drafts, mut refused) = (Vec::new(), BTreeMap::new());
    for Writer { parts, writing, .. } in writers {
        drop(parts);
        let mut draft = writing.await.map_err(ended)??;
        refused.append(&mut draft.refused);
        drafts.push(draft);
    }
    Ok((drafts, under_way.into_iter().map(|one| one.end(&mut refused)).collect()))
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
            let page = ledger.read_gapless(position, MAX_PAGE_EVENTS).await;
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
struct Writer {
    of: BTreeSet<&'static str>,
    parts: mpsc::Sender<Vec<Part>>,
    writing: JoinHandle<rusqlite::Result<Draft>>,
}

impl Writer {
    fn start(mut draft: Draft, projections: &Projections) -> Self {
        let (parts, mut pages) = mpsc::channel::<Vec<Part>>(AHEAD);
        let writing = tokio::task::spawn_blocking(move || {
            while let Some(page) = pages.blocking_recv() {
                draft.apply(&page)?;
                page.iter().for_each(|part| kill_point::at(|| format!("fill {}", part.name)));
            }
            Ok(draft)
        });
        Self { of: projections.iter().map(|projection| projection.name()).collect(), parts, writing }
    }
}

/// Copies a projection's rows from a draft into a schema; answers whether they are there. Where they are not, the
/// transaction is of no more use.
pub(crate) async fn copy(
    mut draft: Draft,
    schema: &str,
    work: &mut Work,
    projection: &'static dyn Projection,
) -> Result<(Draft, bool), ViewError> {
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
    let stands = format!(
        "UPDATE {schema}.projection_position SET position = $2, leaf_hash = $3, skipped_unknown = $4 WHERE name = $1"
    );
    work.run(&stands, &values![projection.name(), position, leaf_hash, skipped]).await?;
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

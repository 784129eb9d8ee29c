//! An aggregate as its stream says: from memory, from a stored state, from its events.

use crate::error::LedgerError;
use crate::limits::{MAX_PAGE_EVENTS, MAX_SNAPSHOT_BYTES, SNAPSHOT_EVERY};
use crate::reader::LedgerReader;
use crate::store::Snapshot;
use devmind_domain::Decider;
use devmind_domain::event::{Facts, RecordedEvent, StreamId};
use devmind_domain::upcast;
use std::sync::Arc;
use std::time::Instant;

/// The aggregate as its stream says now, and the stream's version.
///
/// What is known already is not read again, so the cost does not grow with the stream's age. The
/// stream's end is always read: other processes may have appended.
///
/// # Errors
/// [`LedgerError`] when the stream cannot be read; an event that this program does not know is an
/// error here, because a decision on half the facts could be wrong.
pub async fn load<A: Decider>(reader: &LedgerReader, id: &str) -> Result<(Arc<A>, u64), LedgerError> {
    let (stream, asked_at) = (StreamId::new(A::TYPE, id), Some(Instant::now()));
    let (mut state, mut version) = reader.cache().get::<A>(&stream).unwrap_or_default();
    let known = version;
    let newest = reader.store().version(&stream).await.map_err(|error| reader.error("read a version", &error))?;
    let mut page = match newest {
        Some(newest) if newest <= known => Vec::new(),
        Some(_) | None => reader.stream_page(&stream, version, SNAPSHOT_EVERY as u32 + 1).await?,
    };
    if version == 0 && page.len() as u64 > SNAPSHOT_EVERY {
        // Only a stream that is long enough to have a stored state pays for looking.
        if let Some((stored, at)) = stored_state::<A>(reader, &stream).await? {
            (state, version) = (Arc::new(stored), at);
            page = reader.stream_page(&stream, version, MAX_PAGE_EVENTS).await?;
        }
    }
    while let Some(last) = page.last() {
        version = last.sequence;
        let folded = Arc::make_mut(&mut state);
        for event in &page {
            decode::<A>(event)?.iter().for_each(|fact| folded.evolve(fact));
        }
        page = reader.stream_page(&stream, version, MAX_PAGE_EVENTS).await?;
    }
    // That there is nothing is worth remembering, too: what is decided on it is checked by the writer.
    reader.cache().put(&stream, &state, version, asked_at);
    if version - known > SNAPSHOT_EVERY {
        keep(reader, &stream, &*state, version);
    }
    Ok((state, version))
}

/// The aggregate as its stream said at a moment that is not before `since`, and the stream's version then: read only
/// where nobody in this process has read it since. For what goes together with a look that was just taken.
///
/// # Errors
/// As of [`load`].
pub async fn load_since<A: Decider>(
    reader: &LedgerReader,
    id: &str,
    since: Instant,
) -> Result<(Arc<A>, u64), LedgerError> {
    match reader.cache().get_since(&StreamId::new(A::TYPE, id), since) {
        Some(seen) => Ok(seen),
        None => load(reader, id).await,
    }
}

/// What an event of the aggregate tells.
pub(crate) fn decode<A: Decider>(event: &RecordedEvent) -> Result<Facts<A::Event>, LedgerError> {
    event.decode_as().map_err(|error| LedgerError::Undecodable {
        position: event.position,
        stream: event.stream.clone(),
        error,
    })
}

/// What stored states of an aggregate are known by: its fold, and how many older shapes its events are read from. A
/// state that was folded before an older shape got its present meaning is not used.
pub(crate) fn state_version<A: Decider>() -> u32 {
    A::STATE_VERSION + (upcast::generation(A::TYPE) << 16)
}

/// Remembers a state whose events are durable; each time its stream has grown enough it is stored.
pub(crate) fn remember<A: Decider>(reader: &LedgerReader, stream: &StreamId, state: &Arc<A>, from: u64, version: u64) {
    reader.cache().put(stream, state, version, None);
    if from / SNAPSHOT_EVERY < version / SNAPSHOT_EVERY {
        keep(reader, stream, &**state, version);
    }
}

fn keep<A: Decider>(reader: &LedgerReader, stream: &StreamId, state: &A, sequence: u64) {
    if state.held_bytes() > MAX_SNAPSHOT_BYTES {
        return;
    }
    match serde_json::to_string(state) {
        Ok(state) if state.len() <= MAX_SNAPSHOT_BYTES => {
            reader.keep(Snapshot { stream: stream.clone(), sequence, state_version: state_version::<A>(), state });
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, stream = %stream.aggregate_id, "a state cannot be stored"),
    }
}

/// The aggregate as this process saw it last, which may be long ago; nothing is read. Good for what, once it is so,
/// is so for ever.
pub fn remembered<A: Decider>(reader: &LedgerReader, id: &str) -> Option<Arc<A>> {
    reader.cache().get(&StreamId::new(A::TYPE, id)).map(|(state, _)| state)
}

/// The stored state, if it is one of this program's.
async fn stored_state<A: Decider>(reader: &LedgerReader, stream: &StreamId) -> Result<Option<(A, u64)>, LedgerError> {
    let stored = reader.store().snapshot(stream).await;
    let stored = stored.map_err(|error| reader.error("read a stored state", &error))?;
    let Some(snapshot) = stored.filter(|stored| stored.state_version == state_version::<A>()) else { return Ok(None) };
    // What cannot be read is as good as none: the events have it all.
    Ok(serde_json::from_str(&snapshot.state).ok().map(|state| (state, snapshot.sequence)))
}

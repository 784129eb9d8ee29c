//! Proofs from the stored leaf hashes. The first one walks all leaf hashes once; every later one reads
//! the tile of its event and the incomplete one at the end, a few hundred hashes, however long the
//! log is. A proof that does not hold against the log's own head is never given out.

use super::tiles::{TILE_LEAVES, TILE_LEVEL, Tiles};
use crate::append::Head;
use crate::error::LedgerError;
use crate::merkle::Frontier;
use crate::reader::LedgerReader;
use devmind_domain::canonical::Hash;
use devmind_domain::proof::{
    Subtree, consistency_ranges, inclusion_ranges, root_of_range, subtrees_of, verify_consistency, verify_inclusion,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard};

/// Why there is no proof.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProveError {
    /// The log has no such event or size.
    #[error("there is no such proof in a log of {size} events")]
    OutOfRange {
        /// The log's size.
        size: u64,
    },
    /// The log cannot be read, or is not what its head says.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// That an event is in a log of a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InclusionProof {
    /// The event's position.
    pub position: u64,
    /// Its leaf hash.
    pub leaf_hash: Hash,
    /// The log's size.
    pub size: u64,
    /// The root at that size.
    pub root: Hash,
    /// RFC 6962 §2.1.1, from the leaf upwards.
    pub path: Vec<Hash>,
}

/// That a log of one size still holds the log of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsistencyProof {
    /// The earlier size.
    pub from: u64,
    /// The root at that size.
    pub from_root: Hash,
    /// The later size.
    pub to: u64,
    /// The root at that size.
    pub to_root: Hash,
    /// RFC 6962 §2.1.2.
    pub path: Vec<Hash>,
}

/// Makes proofs about one log; clones share what was read of it.
#[derive(Clone, Debug)]
pub struct Prover {
    reader: LedgerReader,
    tiles: Arc<Mutex<Tiles>>,
}

impl Prover {
    /// Of the log that this reads.
    pub fn new(reader: LedgerReader) -> Self {
        Self { reader, tiles: Arc::default() }
    }

    /// The root at a size.
    ///
    /// # Errors
    /// [`ProveError`].
    pub async fn root(&self, size: u64) -> Result<Hash, ProveError> {
        let head = self.head_from(size).await?;
        let roots = self.roots(std::slice::from_ref(&(0..size)), &head).await?;
        roots.first().copied().ok_or_else(|| self.unsound("a root came out empty".to_owned()))
    }

    /// That the event at a position is in the log of a size.
    ///
    /// # Errors
    /// [`ProveError`].
    pub async fn inclusion(&self, position: u64, size: u64) -> Result<InclusionProof, ProveError> {
        let head = self.head_from(size).await?;
        let out_of_range = ProveError::OutOfRange { size: head.position };
        let leaf = position.checked_sub(1).ok_or(out_of_range.clone())?;
        let mut ranges = inclusion_ranges(leaf, size).map_err(|_| out_of_range)?;
        ranges.extend([leaf..position, 0..size]);
        let mut path = self.roots(&ranges, &head).await?;
        let (Some(root), Some(leaf_hash)) = (path.pop(), path.pop()) else {
            return Err(self.unsound("a proof came out empty".to_owned()));
        };
        verify_inclusion(leaf, &leaf_hash, size, &path, &root).map_err(|error| self.unsound(error.to_string()))?;
        Ok(InclusionProof { position, leaf_hash, size, root, path })
    }

    /// That the log of the size `to` still holds the log of the size `from`.
    ///
    /// # Errors
    /// [`ProveError`].
    pub async fn consistency(&self, from: u64, to: u64) -> Result<ConsistencyProof, ProveError> {
        let head = self.head_from(to).await?;
        let out_of_range = ProveError::OutOfRange { size: head.position };
        let mut ranges = consistency_ranges(from, to).map_err(|_| out_of_range)?;
        ranges.extend([0..from, 0..to]);
        let mut path = self.roots(&ranges, &head).await?;
        let (Some(to_root), Some(from_root)) = (path.pop(), path.pop()) else {
            return Err(self.unsound("a proof came out empty".to_owned()));
        };
        verify_consistency((from, &from_root), (to, &to_root), &path)
            .map_err(|error| self.unsound(error.to_string()))?;
        Ok(ConsistencyProof { from, from_root, to, to_root, path })
    }

    /// The head, which must have come as far as `size`.
    async fn head_from(&self, size: u64) -> Result<Head, ProveError> {
        let head = self.reader.head().await?;
        if size > head.position { Err(ProveError::OutOfRange { size: head.position }) } else { Ok(head) }
    }

    /// The roots over ranges of a proof. Where the whole log up to the head is among them, it must have
    /// the head's root.
    async fn roots(&self, ranges: &[Range<u64>], head: &Head) -> Result<Vec<Hash>, ProveError> {
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let tiles = self.filled(end / TILE_LEAVES).await?;
        let mut leaves: HashMap<u64, Vec<Hash>> = HashMap::new();
        for subtree in ranges.iter().flat_map(subtrees_of).filter(|subtree| subtree.level < TILE_LEVEL) {
            let tile = tile_of(subtree);
            if let Entry::Vacant(room) = leaves.entry(tile) {
                let (first, last) = (tile * TILE_LEAVES, ((tile + 1) * TILE_LEAVES).min(end));
                room.insert(self.leaves(first, last).await?);
            }
        }
        let root_of = |subtree: Subtree| {
            let kept = tiles.root(subtree);
            kept.unwrap_or_else(|| leaves.get(&tile_of(subtree)).map_or([0; 32], |tile| within(tile, subtree)))
        };
        let roots: Vec<Hash> = ranges.iter().map(|range| root_of_range(range, root_of)).collect();
        let whole = 0..head.position;
        if ranges.iter().zip(&roots).any(|(range, root)| *range == whole && *root != head.root) {
            let reason = "the events' leaf hashes do not have the head's root: `devmind-replay verify` says where";
            return Err(self.unsound(reason.to_owned()));
        }
        Ok(roots)
    }

    /// The tiles, with so many of them kept.
    async fn filled(&self, complete: u64) -> Result<MutexGuard<'_, Tiles>, ProveError> {
        let mut tiles = self.tiles.lock().await;
        while tiles.len() < complete {
            let first = tiles.len() * TILE_LEAVES;
            let last = (first + TILES_READ_AT_ONCE * TILE_LEAVES).min(complete * TILE_LEAVES);
            for leaves in self.leaves(first, last).await?.as_chunks::<{ TILE_LEAVES as usize }>().0 {
                tiles.push(root(leaves));
            }
        }
        Ok(tiles)
    }

    /// The leaf hashes from one leaf up to before another.
    async fn leaves(&self, first: u64, end: u64) -> Result<Vec<Hash>, ProveError> {
        let leaves = self.reader.leaf_hashes(first, end - first).await?;
        match leaves.len() as u64 == end - first {
            true => Ok(leaves),
            false => Err(self.unsound(format!("an event between {} and {end} is missing", first + 1))),
        }
    }

    fn unsound(&self, reason: String) -> ProveError {
        ProveError::Ledger(self.reader.corrupt(reason))
    }
}

/// Tiles whose leaves are read with one query.
const TILES_READ_AT_ONCE: u64 = 64;

const fn tile_of(subtree: Subtree) -> u64 {
    (subtree.index << subtree.level) >> TILE_LEVEL
}

/// The root of a subtree within a tile.
fn within(tile: &[Hash], subtree: Subtree) -> Hash {
    let start = usize::try_from((subtree.index << subtree.level) % TILE_LEAVES).unwrap_or(0);
    tile.get(start..start + (1 << subtree.level)).map_or([0; 32], root)
}

fn root(leaves: &[Hash]) -> Hash {
    let mut frontier = Frontier::default();
    leaves.iter().for_each(|leaf| frontier.push(*leaf));
    frontier.root()
}

//! Inclusion and consistency proofs of the Merkle tree of RFC 6962: which subtrees a proof consists
//! of, and whether one holds. Leaves are counted from 0 here, as in the RFC; the event at position
//! `p` is leaf `p - 1`.

use crate::canonical::{Hash, node_hash, sha256};
use std::ops::Range;

/// Hashes of one proof, at most: no tree of fewer than 2^64 leaves needs more.
pub const MAX_PROOF_HASHES: usize = 64;

/// A proof does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// There is no such leaf or tree.
    #[error("the proof speaks of a leaf or a tree that is not there")]
    OutOfRange,
    /// The number of hashes is not what such a proof has.
    #[error("the proof has {found} hashes, which is not the number it must have")]
    Length {
        /// How many there are.
        found: usize,
    },
    /// The hashes lead elsewhere.
    #[error("the hashes of the proof do not lead to the root")]
    Root,
}

/// A perfect subtree: the leaves from `index << level` on, `1 << level` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subtree {
    /// Its height: 0 for a single leaf.
    pub level: u8,
    /// Which of its height, from the left.
    pub index: u64,
}

/// The leaves under each hash of an inclusion proof, in the order of the proof.
///
/// # Errors
/// [`ProofError::OutOfRange`] when the tree has no such leaf.
pub fn inclusion_ranges(leaf: u64, size: u64) -> Result<Vec<Range<u64>>, ProofError> {
    if leaf >= size {
        return Err(ProofError::OutOfRange);
    }
    let (mut low, mut high, mut ranges) = (0, size, Vec::new());
    while high - low > 1 {
        let middle = low + split(high - low);
        if leaf < middle {
            ranges.push(middle..high);
            high = middle;
        } else {
            ranges.push(low..middle);
            low = middle;
        }
    }
    ranges.reverse();
    Ok(ranges)
}

/// The leaves under each hash of a consistency proof, in the order of the proof. Nothing has to be
/// shown for an empty earlier tree, or for one that did not grow.
///
/// # Errors
/// [`ProofError::OutOfRange`] when the later tree is smaller.
pub fn consistency_ranges(from: u64, to: u64) -> Result<Vec<Range<u64>>, ProofError> {
    if from > to {
        return Err(ProofError::OutOfRange);
    }
    if from == 0 {
        return Ok(Vec::new());
    }
    // `whole`: the subtree still is the whole earlier tree, whose root the verifier has.
    let (mut low, mut high, mut whole, mut ranges) = (0, to, true, Vec::new());
    while from < high {
        let middle = low + split(high - low);
        if from <= middle {
            ranges.push(middle..high);
            high = middle;
        } else {
            ranges.push(low..middle);
            low = middle;
            whole = false;
        }
    }
    if !whole {
        ranges.push(low..high);
    }
    ranges.reverse();
    Ok(ranges)
}

/// The perfect subtrees that a range of a proof, or a whole tree, consists of, from the left.
pub fn subtrees_of(range: &Range<u64>) -> impl Iterator<Item = Subtree> {
    let (mut at, mut left) = (range.start, range.end.saturating_sub(range.start));
    std::iter::from_fn(move || {
        let level = left.checked_ilog2()?;
        let subtree = Subtree { level: u8::try_from(level).unwrap_or(u8::MAX), index: at >> level };
        at += 1 << level;
        left -= 1 << level;
        Some(subtree)
    })
}

/// The root over a range of a proof, or over a whole tree, from the roots of its perfect subtrees.
pub fn root_of_range(range: &Range<u64>, mut root_of: impl FnMut(Subtree) -> Hash) -> Hash {
    let roots: Vec<Hash> = subtrees_of(range).map(&mut root_of).collect();
    let mut from_the_right = roots.iter().rev();
    match from_the_right.next() {
        Some(last) => from_the_right.fold(*last, |right, left| node_hash(left, &right)),
        None => sha256(&[]),
    }
}

/// The root that an inclusion proof leads to (RFC 9162 §2.1.3.2).
///
/// # Errors
/// [`ProofError`] when the tree has no such leaf, or the proof has another number of hashes.
pub fn root_by_inclusion(leaf: u64, leaf_hash: &Hash, size: u64, path: &[Hash]) -> Result<Hash, ProofError> {
    if leaf >= size {
        return Err(ProofError::OutOfRange);
    }
    let wrong_length = ProofError::Length { found: path.len() };
    let (mut node, mut last, mut root) = (leaf, size - 1, *leaf_hash);
    for hash in path {
        if last == 0 {
            return Err(wrong_length);
        }
        if node % 2 == 1 || node == last {
            root = node_hash(hash, &root);
            // Levels at which the right edge has no sibling have no hash in the proof.
            while node.is_multiple_of(2) && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            root = node_hash(&root, hash);
        }
        node >>= 1;
        last >>= 1;
    }
    if last == 0 { Ok(root) } else { Err(wrong_length) }
}

/// Whether a leaf is in the tree with this root.
///
/// # Errors
/// [`ProofError`] when the proof does not show it.
pub fn verify_inclusion(leaf: u64, leaf_hash: &Hash, size: u64, path: &[Hash], root: &Hash) -> Result<(), ProofError> {
    match root_by_inclusion(leaf, leaf_hash, size, path)? == *root {
        true => Ok(()),
        false => Err(ProofError::Root),
    }
}

/// Whether the tree `to` holds all leaves of the tree `from`, unchanged and first (RFC 9162 §2.1.4.2).
/// Trees are (size, root).
///
/// # Errors
/// [`ProofError`] when the proof does not show it.
pub fn verify_consistency(from: (u64, &Hash), to: (u64, &Hash), path: &[Hash]) -> Result<(), ProofError> {
    let ((from, from_root), (to, to_root)) = (from, to);
    let wrong_length = ProofError::Length { found: path.len() };
    if from > to {
        return Err(ProofError::OutOfRange);
    }
    if from == 0 || from == to {
        let root = if from == 0 { sha256(&[]) } else { *to_root };
        return match (path.is_empty(), root == *from_root) {
            (true, true) => Ok(()),
            (true, false) => Err(ProofError::Root),
            (false, _) => Err(wrong_length),
        };
    }
    let mut path = path.iter();
    // An earlier tree that is perfect is a subtree of the later one: its root begins the way.
    let first = if from.is_power_of_two() { from_root } else { path.next().ok_or(wrong_length)? };
    let (mut node, mut last) = (from - 1, to - 1);
    while node % 2 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let (mut earlier, mut later) = (*first, *first);
    for hash in path {
        if last == 0 {
            return Err(wrong_length);
        }
        if node % 2 == 1 || node == last {
            earlier = node_hash(hash, &earlier);
            later = node_hash(hash, &later);
            while node.is_multiple_of(2) && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            later = node_hash(&later, hash);
        }
        node >>= 1;
        last >>= 1;
    }
    match (last == 0, earlier == *from_root && later == *to_root) {
        (true, true) => Ok(()),
        (true, false) => Err(ProofError::Root),
        (false, _) => Err(wrong_length),
    }
}

/// The largest power of two below a number of leaves (at least 2).
const fn split(leaves: u64) -> u64 {
    1 << (leaves - 1).ilog2()
}

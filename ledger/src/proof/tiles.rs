//! Roots of perfect subtrees, kept in memory so that a proof reads two tiles of leaves and not the log.
//!
//! A tile is 256 leaves, as in C2SP tlog-tiles. Only complete tiles are kept, for they never change:
//! 64 bytes for every 256 events, with everything above them.

use devmind_domain::canonical::{Hash, node_hash};
use devmind_domain::proof::Subtree;

/// The height of a tile.
pub(super) const TILE_LEVEL: u8 = 8;
/// Leaves of a tile.
pub(super) const TILE_LEAVES: u64 = 1 << TILE_LEVEL;

#[derive(Debug, Default)]
pub(super) struct Tiles {
    /// `levels[0]` are the tiles' roots, `levels[n]` the roots of `1 << n` tiles each.
    levels: Vec<Vec<Hash>>,
}

impl Tiles {
    /// The number of complete tiles that are kept.
    pub fn len(&self) -> u64 {
        self.levels.first().map_or(0, |roots| roots.len() as u64)
    }

    /// Adds the next tile by its root.
    pub fn push(&mut self, root: Hash) {
        let mut node = root;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let roots = &mut self.levels[level];
            roots.push(node);
            let [.., left, right] = roots.as_slice() else { return };
            if roots.len() % 2 == 1 {
                return;
            }
            node = node_hash(left, right);
        }
    }

    /// The root of a subtree of whole tiles.
    pub fn root(&self, subtree: Subtree) -> Option<Hash> {
        let level = subtree.level.checked_sub(TILE_LEVEL)?;
        self.levels.get(usize::from(level))?.get(usize::try_from(subtree.index).ok()?).copied()
    }
}

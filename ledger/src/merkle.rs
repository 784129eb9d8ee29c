//! The Merkle tree of RFC 6962, grown leaf by leaf.
//!
//! Only the frontier is kept: the roots of the perfect subtrees that the leaves so far consist of,
//! largest first, one for every 1 in the binary form of their number. An append costs a handful of
//! hashes whatever the size. Proofs are left to a later module over the stored leaf hashes.

use devmind_domain::canonical::{Hash, node_hash, sha256};

/// The growing edge of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

impl Frontier {
    /// Reads what [`Frontier::to_bytes`] wrote; `None` when the bytes do not fit the size.
    pub fn from_bytes(size: u64, bytes: &[u8]) -> Option<Self> {
        let (peaks, rest) = bytes.as_chunks::<32>();
        let fits = rest.is_empty() && peaks.len() == size.count_ones() as usize;
        fits.then(|| Self { size, peaks: peaks.to_vec() })
    }

    /// The subtrees' roots, largest first, one after the other.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.peaks.concat()
    }

    /// The number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The newest leaf where it stands alone, that is, when the size is odd.
    pub fn lone_leaf(&self) -> Option<&Hash> {
        if self.size % 2 == 1 { self.peaks.last() } else { None }
    }

    /// Adds a leaf, by its hash.
    pub fn push(&mut self, leaf: Hash) {
        let mut node = leaf;
        // Every trailing 1 of the old size is a subtree as large as the node that has grown so far.
        for _ in 0..self.size.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                node = node_hash(&left, &node);
            }
        }
        self.peaks.push(node);
        self.size += 1;
    }

    /// The tree's root; of no leaves, the SHA-256 of nothing.
    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            Some(smallest) => peaks.fold(*smallest, |right, left| node_hash(left, &right)),
            None => sha256(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::canonical::leaf_hash;

    /// RFC 6962 §2.1, word for word.
    fn naive_root(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => sha256(&[]),
            [leaf] => *leaf,
            _ => {
                let split = 1 << (usize::BITS - 1 - (leaves.len() - 1).leading_zeros());
                node_hash(&naive_root(&leaves[..split]), &naive_root(&leaves[split..]))
            }
        }
    }

    /// The leaves and roots of the test vectors of the certificate-transparency reference code.
    #[test]
    fn roots_are_those_of_the_certificate_transparency_test_vectors() {
        let leaves =
            ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let mut frontier = Frontier::default();
        assert_eq!(hex::encode(frontier.root()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        for (leaf, root) in leaves.into_iter().zip(roots) {
            frontier.push(leaf_hash(&hex::decode(leaf).expect("hexadecimal")));
            assert_eq!(hex::encode(frontier.root()), root, "at size {}", frontier.size());
        }
    }

    #[test]
    fn the_frontier_gives_the_root_of_a_naive_recomputation_at_every_size() {
        let leaves: Vec<Hash> = (0u32..300).map(|n| leaf_hash(&n.to_be_bytes())).collect();
        let mut frontier = Frontier::default();
        for n in 0..=leaves.len() {
            assert_eq!(frontier.root(), naive_root(&leaves[..n]), "size {n}");
            let bytes = frontier.to_bytes();
            assert_eq!(Frontier::from_bytes(n as u64, &bytes), Some(frontier.clone()));
            assert_eq!(frontier.lone_leaf().is_some(), n % 2 == 1);
            if let Some(leaf) = leaves.get(n) {
                frontier.push(*leaf);
            }
        }
    }

    #[test]
    fn a_frontier_that_does_not_fit_its_size_is_not_read() {
        assert_eq!(Frontier::from_bytes(3, &[0; 32]), None);
        assert_eq!(Frontier::from_bytes(1, &[0; 31]), None);
        assert_eq!(Frontier::from_bytes(0, &[0; 32]), None);
    }
}

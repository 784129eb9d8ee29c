//! Merkle proofs, signed notes and checkpoints, against independent implementations and published
//! vectors.

use devmind_domain::canonical::{Hash, leaf_hash, node_hash, sha256};
use devmind_domain::proof::*;
use signed_note::{Note as PeerNote, StandardSigner, StandardVerifier, Verifier as _, VerifierList};
use std::cell::RefCell;
use std::collections::HashMap;
use tlog_tiles::tlog;

/// Every tree up to so many leaves.
const LEAVES: u64 = 130;

fn leaves() -> Vec<Hash> {
    (0..LEAVES).map(|n| leaf_hash(&n.to_be_bytes())).collect()
}

/// RFC 6962 §2.1, word for word.
fn naive_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => sha256(&[]),
        [leaf] => *leaf,
        _ => {
            let split = leaves.len().next_power_of_two() / 2;
            node_hash(&naive_root(&leaves[..split]), &naive_root(&leaves[split..]))
        }
    }
}

fn perfect(leaves: &[Hash], subtree: Subtree) -> Hash {
    let (start, end) = (subtree.index << subtree.level, (subtree.index + 1) << subtree.level);
    naive_root(&leaves[start as usize..end as usize])
}

fn prove(leaves: &[Hash], ranges: &[std::ops::Range<u64>]) -> Vec<Hash> {
    thread_local!(static ROOTS: RefCell<HashMap<(u64, Subtree), Hash>> = RefCell::default());
    // Every tree of these tests begins with the same leaves, but for the vectors'.
    let tree = u64::from_be_bytes(leaves[0][..8].try_into().expect("eight bytes"));
    let mut known = |subtree| {
        ROOTS.with_borrow_mut(|roots| *roots.entry((tree, subtree)).or_insert_with(|| perfect(leaves, subtree)))
    };
    ranges.iter().map(|range| root_of_range(range, &mut known)).collect()
}

fn inclusion(leaves: &[Hash], leaf: u64, size: u64) -> Vec<Hash> {
    prove(leaves, &inclusion_ranges(leaf, size).expect("such a leaf"))
}

fn consistency(leaves: &[Hash], from: u64, to: u64) -> Vec<Hash> {
    prove(leaves, &consistency_ranges(from, to).expect("such trees"))
}

/// The stored hashes of the other implementation.
struct Peer(HashMap<u64, tlog::Hash>);

impl Peer {
    fn of(leaves: &[Hash]) -> Self {
        let mut peer = Self(HashMap::new());
        for (n, leaf) in (0..).zip(leaves) {
            let hashes = tlog::stored_hashes_for_record_hash(n, tlog::Hash(*leaf), &peer).expect("hashes");
            let first = tlog::stored_hash_index(0, n);
            peer.0.extend((first..).zip(hashes));
        }
        peer
    }
}

impl tlog::HashReader for Peer {
    fn read_hashes(&self, indexes: &[u64]) -> Result<Vec<tlog::Hash>, tlog::Error> {
        Ok(indexes.iter().map(|index| self.0[index]).collect())
    }
}

fn peers(hashes: &[Hash]) -> Vec<tlog::Hash> {
    hashes.iter().copied().map(tlog::Hash).collect()
}

#[test]
fn every_inclusion_proof_is_that_of_an_independent_implementation_and_holds_for_its_leaf_alone() {
    let leaves = leaves();
    let peer = Peer::of(&leaves);
    for size in 1..=LEAVES {
        let root = naive_root(&leaves[..size as usize]);
        assert_eq!(tlog::tree_hash(size, &peer).expect("root").0, root);
        for leaf in 0..size {
            let path = inclusion(&leaves, leaf, size);
            assert_eq!(tlog::prove_record(size, leaf, &peer).expect("proof"), peers(&path), "{leaf} of {size}");
            assert!(path.len() <= MAX_PROOF_HASHES);
            let hash = &leaves[leaf as usize];
            verify_inclusion(leaf, hash, size, &path, &root).expect("holds");
            tlog::check_record(&peers(&path), size, tlog::Hash(root), leaf, tlog::Hash(*hash))
                .expect("holds there, too");
            // Another leaf, another place, another size with another root, a hash more or less.
            assert!(verify_inclusion(leaf, &leaf_hash(b"other"), size, &path, &root).is_err());
            // (Every pair of places of the larger trees would take minutes and show nothing new.)
            for other in (0..size.min(40)).filter(|other| *other != leaf) {
                assert!(verify_inclusion(other, hash, size, &path, &root).is_err(), "{leaf} as {other} of {size}");
            }
            assert!(verify_inclusion(leaf, hash, size, &[path.clone(), vec![root]].concat(), &root).is_err());
            if let Some((_, shorter)) = path.split_last() {
                assert!(verify_inclusion(leaf, hash, size, shorter, &root).is_err());
            }
            for at in 0..path.len() {
                let mut forged = path.clone();
                forged[at][31] ^= 1;
                assert!(verify_inclusion(leaf, hash, size, &forged, &root).is_err());
            }
        }
        assert_eq!(inclusion_ranges(size, size), Err(ProofError::OutOfRange));
        assert_eq!(verify_inclusion(size, &root, size, &[], &root), Err(ProofError::OutOfRange));
    }
}

#[test]
fn every_consistency_proof_is_that_of_an_independent_implementation_and_no_fork_has_one() {
    let leaves = leaves();
    let peer = Peer::of(&leaves);
    let roots: Vec<Hash> = (0..=leaves.len()).map(|size| naive_root(&leaves[..size])).collect();
    for to in 1..=LEAVES {
        let to_root = &roots[to as usize];
        for from in 0..=to {
            let from_root = &roots[from as usize];
            let path = consistency(&leaves, from, to);
            verify_consistency((from, from_root), (to, to_root), &path).expect("holds");
            if from > 0 {
                assert_eq!(tlog::prove_tree(to, from, &peer).expect("proof"), peers(&path), "{from} to {to}");
                let checked = tlog::check_tree(&peers(&path), to, tlog::Hash(*to_root), from, tlog::Hash(*from_root));
                checked.expect("holds there, too");
            }
            let forked = leaf_hash(b"fork");
            assert!(verify_consistency((from, &forked), (to, to_root), &path).is_err(), "{from} to {to}");
            assert!(verify_consistency((from, from_root), (to, &forked), &path).is_err() || from == 0);
            assert!(
                verify_consistency((from, from_root), (to, to_root), &[path.clone(), vec![forked]].concat()).is_err()
            );
            if let Some((_, shorter)) = path.split_last() {
                assert!(verify_consistency((from, from_root), (to, to_root), shorter).is_err(), "{from} to {to}");
            }
            for at in 0..path.len() {
                let mut altered = path.clone();
                altered[at][0] ^= 1;
                assert!(verify_consistency((from, from_root), (to, to_root), &altered).is_err(), "{from} to {to}");
            }
        }
        assert_eq!(consistency_ranges(to + 1, to), Err(ProofError::OutOfRange));
        assert!(verify_consistency((to + 1, to_root), (to, to_root), &[]).is_err());
    }
}

/// The tree of the certificate-transparency reference code, whose proofs RFC 6962 §2.1.3 draws for
/// seven leaves.
#[test]
fn the_proofs_of_the_certificate_transparency_vectors_come_out() {
    let data = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];
    let leaves: Vec<Hash> = data.map(|leaf| leaf_hash(&hex::decode(leaf).expect("hexadecimal"))).into();
    let text = |path: Vec<Hash>| path.iter().map(hex::encode).collect::<Vec<_>>();
    assert_eq!(text(inclusion(&leaves, 0, 1)), Vec::<String>::new());
    assert_eq!(
        text(inclusion(&leaves, 0, 8)),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ]
    );
    assert_eq!(
        text(inclusion(&leaves, 5, 8)),
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ]
    );
    assert_eq!(
        text(consistency(&leaves, 6, 8)),
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ]
    );
    assert_eq!(
        text(consistency(&leaves, 2, 5)),
        [
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ]
    );
}

// The vectors of golang.org/x/mod/sumdb/note, which the C2SP documents take up.
const SECRET: &str = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz";
const PUBLIC: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
const TEXT: &str =
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n";
const SIGNATURE: &str =
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";

#[test]
fn notes_and_keys_are_those_of_the_published_vectors() {
    let signer = NoteSigner::parse(SECRET).expect("a private key");
    assert_eq!(signer.secret_text(), SECRET);
    assert_eq!(signer.public().to_string(), PUBLIC);
    let note = Note::signed(TEXT.to_owned(), &signer, 0);
    assert_eq!(note.to_string(), format!("{TEXT}\n{SIGNATURE}"));
    let key = NoteKey::parse(PUBLIC).expect("a key");
    Note::parse(&note.to_string()).expect("a note").verify(&key).expect("signed");
}

#[test]
fn an_independent_implementation_reads_our_notes_and_we_read_its() {
    let verifier = StandardVerifier::new(PUBLIC).expect("a key");
    let verifiers = VerifierList::new(vec![Box::new(verifier)]);
    let ours = Note::signed(TEXT.to_owned(), &NoteSigner::parse(SECRET).expect("a key"), 0).to_string();
    let (verified, _) = PeerNote::from_bytes(ours.as_bytes()).expect("a note").verify(&verifiers).expect("verified");
    assert_eq!(verified.len(), 1);

    let signer = StandardSigner::new(SECRET).expect("a key");
    let mut theirs = PeerNote::new(TEXT.as_bytes(), &[]).expect("a note");
    theirs.add_sigs(&[&signer]).expect("signed");
    let theirs = String::from_utf8(theirs.to_bytes()).expect("text");
    Note::parse(&theirs).expect("a note").verify(&NoteKey::parse(PUBLIC).expect("a key")).expect("signed");
    assert_eq!(StandardVerifier::new(PUBLIC).expect("a key").key_id(), NoteKey::parse(PUBLIC).expect("a key").id());
}

#[test]
fn no_byte_of_a_signed_note_can_be_changed_unseen() {
    let key = NoteKey::parse(PUBLIC).expect("a key");
    let note = format!("{TEXT}\n{SIGNATURE}");
    for at in 0..note.len() {
        for bit in 0..8 {
            let mut bytes = note.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            let held = Note::parse(&changed).is_ok_and(|note| note.verify(&key).is_ok());
            assert!(!held, "bit {bit} of byte {at}: {changed:?}");
        }
    }
}

#[test]
fn a_cosignature_speaks_of_its_moment_and_of_the_whole_text() {
    let witness = NoteSigner::from_seed("witness.example/w1", SignatureKind::Cosignature, &[7; 32]).expect("a key");
    let text = Checkpoint { origin: "log.example/a".into(), size: 7, root: [9; 32] }.to_text();
    let note = Note::parse(&Note::signed(text.clone(), &witness, 1_679_315_147).to_string()).expect("a note");
    let key = NoteKey::parse(&witness.public().to_string()).expect("a key");
    assert_eq!(note.verify(&key).expect("signed").moment(), Some(1_679_315_147));
    let moved = note.to_string().replace("\n7\n", "\n8\n");
    assert_eq!(Note::parse(&moved).expect("a note").verify(&key), Err(NoteError::Forged("witness.example/w1".into())));
    // The same key as a log's key is another key.
    let log = NoteSigner::from_seed("witness.example/w1", SignatureKind::Ed25519, &[7; 32]).expect("a key").public();
    assert_eq!(note.verify(&log), Err(NoteError::Unsigned("witness.example/w1".into())));
}

#[test]
fn checkpoints_are_read_as_an_independent_implementation_reads_them() {
    let own = Checkpoint { origin: "example.com/behind-the-sofa".into(), size: 20_852_163, root: [3; 32] };
    let text = own.to_text();
    assert_eq!(Checkpoint::from_text(&text), Ok(own.clone()));
    let peer = tlog_tiles::Checkpoint::from_bytes(text.as_bytes()).expect("a checkpoint");
    assert_eq!((peer.origin(), peer.size(), peer.hash().0), (own.origin.as_str(), own.size, own.root));
    assert_eq!(Checkpoint::from_text(&format!("{text}an extension\n")), Ok(own));
    for broken in [
        "",
        "origin\n",
        "\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "origin\n01\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "origin\n+1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "origin\n1\nAAAA\n",
        "origin\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "origin\n1\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n",
    ] {
        assert!(Checkpoint::from_text(broken).is_err(), "{broken:?}");
    }
}

#[test]
fn what_is_no_note_and_no_key_is_refused() {
    let long = format!("{}\n\n{SIGNATURE}", "a".repeat(MAX_NOTE_BYTES));
    let many = format!("{TEXT}\n{}", SIGNATURE.repeat(MAX_NOTE_SIGNATURES + 1));
    let ascii_dash = format!("{TEXT}\n{}", SIGNATURE.replace('—', "-"));
    for broken in ["", "text\n", "text\n\n", &format!("{TEXT}\n{}", SIGNATURE.trim_end()), &long, &many, &ascii_dash] {
        assert!(Note::parse(broken).is_err(), "{broken:.60}");
    }
    for broken in
        ["", "a+b", "a+00000000+AAAA", &PUBLIC.replace("c74f20a3", "c74f20a4"), &PUBLIC.replace("Peter", "Pe er")]
    {
        assert!(NoteKey::parse(broken).is_err(), "{broken}");
    }
    for broken in ["", PUBLIC, &SECRET.replace("c74f20a3", "c74f20a4")] {
        assert!(NoteSigner::parse(broken).is_err(), "{broken}");
    }
}

//! Proofs about the log, and their verification with nothing but a key: Merkle paths (RFC 6962 §2.1,
//! RFC 9162 §2.1), signed notes (C2SP signed-note) and checkpoints (C2SP tlog-checkpoint).
//!
//! Whoever holds a checkpoint can check that an event is in the log it speaks of, and that a later
//! log still holds everything of an earlier one. Reading the leaves that a proof is made of, keeping
//! keys and publishing checkpoints are left to `devmind-ledger`.

mod checkpoint;
mod note;
mod tree;
mod witness;

pub use checkpoint::{Checkpoint, CheckpointError, ledger_of, log_name};
pub use note::{
    MAX_NOTE_BYTES, MAX_NOTE_SIGNATURES, Note, NoteError, NoteKey, NoteSignature, NoteSigner, SignatureKind,
};
pub use tree::{
    MAX_PROOF_HASHES, ProofError, Subtree, consistency_ranges, inclusion_ranges, root_by_inclusion, root_of_range,
    subtrees_of, verify_consistency, verify_inclusion,
};
pub use witness::{
    Acceptable, Discontinuity, MAX_SUBMISSION_BYTES, MAX_SUBMITTED_HASHES, Submission, Uncosigned, WatchedLog,
    continues, cosignable, submitted,
};

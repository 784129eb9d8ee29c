//! Proofs about a log, from its stored leaf hashes: that an event is in it, that a later head still
//! holds an earlier one, and checkpoints, which say so under a signature.
//!
//! What a proof is and whether one holds is `devmind_domain::proof`; who may read one is left to the
//! server, what goes into a bundle to `devmind-replay`.

mod key;
mod prover;
mod record;
mod tiles;

pub use key::{KEY_FILE, KeyError, PUBLIC_KEY_FILE, open_key, open_witness_key, read_public_key};
pub use prover::{ConsistencyProof, InclusionProof, ProveError, Prover};
pub use record::{
    CHECKPOINTS_FILE, COSIGNED_FILE, CheckpointRecord, RecordError, RecordedCheckpoint, read_checkpoints,
    read_cosigned, record_cosigned,
};

pub use devmind_domain::proof::log_name as origin;

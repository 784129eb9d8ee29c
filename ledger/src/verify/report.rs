//! What a verification found.

use devmind_domain::canonical::Hash;
use std::fmt;

/// Findings kept with their reasons, at most; more are counted.
const MAX_FINDINGS: usize = 100;
/// Notes kept, at most; more are counted.
const MAX_NOTES: usize = 100;

macro_rules! checks {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        /// What is checked; the text is the name that findings carry.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the name says it")]
        pub enum Check { $($(#[$doc])* $name),* }

        impl Check {
            /// Every check.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The check's name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

checks! {
    Readable = "every row can be read",
    Triggers = "the log is append-only",
    Order = "positions have no gap",
    Sequences = "versions within a stream have no gap",
    Time = "time never goes back",
    LeafHash = "every event has the hash recorded for it",
    Head = "the head is the Merkle root of the events",
    Checkpoints = "the log is what its checkpoints said",
    Redactions = "every erased payload is spoken of by an event",
    Keys = "idempotency keys and events agree",
    Decoding = "known events decode",
    StoredStates = "stored states are what their events fold to",
    RunEnd = "one terminal event a run",
    RunClaim = "a run claimed at most once",
    ActiveRun = "at most one active run a conversation",
    Interrupts = "every resolved interrupt was raised",
    DispatchRequested = "no dispatch before its request",
    Attempts = "attempts numbered 1..",
    ResultHash = "a result's arguments hash equals the request's and, where it was approved, the approval's",
    AckAfterResult = "no ack before its result",
    FinalStatus = "no final status overwritten",
    Ticket = "a ticket consumed at most once",
    Outcome = "every tool call of an ended run has an outcome or is unknown for a stated reason",
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Something is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where; 0 when it is about the file as a whole.
    pub position: u64,
    /// What does not hold.
    pub check: Check,
    /// In which way.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            0 => write!(f, "{}: {}", self.check, self.reason),
            position => write!(f, "event {position}: {}: {}", self.check, self.reason),
        }
    }
}

/// Something worth knowing that is no fault, such as an event type of a newer program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Where.
    pub position: u64,
    /// What.
    pub text: String,
}

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// How far the log was checked: its head when the verification began.
    pub position: u64,
    /// The Merkle root over the leaf hashes as computed from the events.
    pub root: Hash,
    /// What is wrong, by position; the first of them, where there are very many.
    pub findings: Vec<Finding>,
    /// How much is wrong.
    pub findings_total: u64,
    /// What is worth knowing; the first of them, where there are very many.
    pub notes: Vec<Note>,
    /// How much is worth knowing.
    pub notes_total: u64,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings_total == 0
    }
}

/// A report that is being made.
#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    findings_total: u64,
    notes: Vec<Note>,
    notes_total: u64,
}

impl Report {
    pub fn find(&mut self, check: Check, position: u64, reason: impl Into<String>) {
        self.findings_total += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { position, check, reason: reason.into() });
        }
    }

    pub fn note(&mut self, position: u64, text: String) {
        self.notes_total += 1;
        if self.notes.len() < MAX_NOTES {
            self.notes.push(Note { position, text });
        }
    }

    pub fn finish(self, position: u64, root: Hash) -> VerifyReport {
        let Self { mut findings, findings_total, notes, notes_total } = self;
        findings.sort_by_key(|finding| finding.position);
        VerifyReport { position, root, findings, findings_total, notes, notes_total }
    }
}

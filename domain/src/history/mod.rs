//! What another agent's program wrote about a session, kept line by line as it was written.
//!
//! An import turns what it understands into the events of conversations, threads and tool calls; every line stays here
//! as well, understood or not, so that nothing of the other program's history is lost or only ours to tell. The stream
//! is one session of one program; its lines are 1, 2, 3 … Reading the files is left to `devmind-replay`.

use crate::aggregate::{Decider, adapt_to_cqrs_es};
use crate::event::{AggregateType, event_set};
use serde::{Deserialize, Serialize};

/// A line of another program's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForeignRecordKept {
    /// The program, for example `codex`.
    pub source: String,
    /// 1, 2, 3 … within the session.
    pub line: u64,
    /// Which part of the line: 1, unless it is too long for one event.
    pub part: u32,
    /// How many parts the line has.
    pub parts: u32,
    /// The kind of the record, in the program's word; `unreadable` where it is no JSON object.
    pub kind: String,
    /// Whether other events of the same append say what it says.
    pub understood: bool,
    /// The line without its end, exactly; bytes that are no UTF-8 are in base64, see `base64`.
    pub text: String,
    /// Whether `text` is base64 of the bytes (RFC 4648, with padding).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base64: bool,
    /// SHA-256 of the whole line's bytes, hexadecimal.
    pub line_sha256: String,
}

/// An import reached the end of what there was of the session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryImported {
    /// The program.
    pub source: String,
    /// The lines kept so far.
    pub lines: u64,
}

event_set! {
    /// What can happen to another program's history.
    HistoryEvent of History {
        ForeignRecordKept = 1,
        HistoryImported = 1,
    }
}

/// What can be asked.
#[derive(Clone, Debug)]
pub enum HistoryCommand {
    /// Say that the end was reached.
    End(HistoryImported),
}

/// There is nothing to refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {}

/// How far a session is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Lines that are kept whole.
    pub lines: u64,
    /// The lines that were known when an import reached the end; the newest.
    pub ended_at: u64,
}

impl Decider for History {
    const TYPE: AggregateType = AggregateType::History;
    const STATE_VERSION: u32 = 1;
    type Command = HistoryCommand;
    type Event = HistoryEvent;
    type Error = HistoryError;

    fn decide(&self, command: HistoryCommand) -> Result<Vec<HistoryEvent>, HistoryError> {
        match command {
            HistoryCommand::End(told) if told.lines == self.ended_at => Ok(vec![]),
            HistoryCommand::End(told) => Ok(vec![told.into()]),
        }
    }

    fn evolve(&mut self, event: &HistoryEvent) {
        match event {
            HistoryEvent::ForeignRecordKept(e) if e.part == e.parts => self.lines = e.line,
            HistoryEvent::ForeignRecordKept(_) => {}
            HistoryEvent::HistoryImported(e) => self.ended_at = e.lines,
        }
    }
}

adapt_to_cqrs_es!(History, "history");

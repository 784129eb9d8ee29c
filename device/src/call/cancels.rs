//! Cancels that came before their request.
//!
//! A cancel names an attempt and means that one and earlier ones. It is kept until that attempt can
//! no longer begin, and the number kept is bounded.

use crate::clock::Deadline;
use devmind_domain::ids::ToolCallId;
use devmind_domain::limits::TOOL_TTL_MS;
use std::collections::HashMap;
use std::time::Duration;

/// Cancels remembered, at most; the one that expires first makes room.
const MAX_CANCELS: usize = 1_024;
/// How long after its attempt's deadline a cancel is remembered.
const AFTER_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Cancels(HashMap<ToolCallId, (u32, Deadline)>);

impl Cancels {
    /// Remembers that this attempt and earlier ones are not wanted. The request, which would tell
    /// its time to live, may not have come: the longest is assumed.
    pub(super) fn remember(&mut self, id: &ToolCallId, attempt_no: u32) {
        let until = Deadline::after(Duration::from_millis(TOOL_TTL_MS) + AFTER_DEADLINE);
        if self.0.len() >= MAX_CANCELS && !self.0.contains_key(id) {
            self.0.retain(|_, (_, until)| !until.has_passed());
            let first = self.0.iter().min_by_key(|(_, (_, until))| until.ends_at()).map(|(id, _)| id.clone());
            if let Some(first) = first.filter(|_| self.0.len() >= MAX_CANCELS) {
                self.0.remove(&first);
            }
        }
        let kept = self.0.entry(id.clone()).or_insert((attempt_no, until));
        *kept = (kept.0.max(attempt_no), until);
    }

    /// The newest attempt of the call that is not wanted.
    pub(super) fn up_to(&self, id: &ToolCallId) -> Option<u32> {
        self.0.get(id).filter(|(_, until)| !until.has_passed()).map(|(attempt_no, _)| *attempt_no)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_only_rises_and_their_number_is_bounded() {
        let mut cancels = Cancels::default();
        let id = ToolCallId::from("call");
        cancels.remember(&id, 2);
        cancels.remember(&id, 1);
        assert_eq!(cancels.up_to(&id), Some(2));
        for n in 0..MAX_CANCELS {
            cancels.remember(&ToolCallId(format!("call {n}")), 1);
        }
        assert_eq!(cancels.0.len(), MAX_CANCELS);
        assert_eq!(cancels.up_to(&id), None, "the oldest made room");
        assert_eq!(cancels.up_to(&"call 1023".into()), Some(1));
    }
}

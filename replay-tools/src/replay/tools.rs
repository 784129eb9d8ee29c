//! The tools that there were for a run: those that this program brings along, or the set that the log has.

use super::record::{Record, Unreadable, readable};
use devmind_domain::ErrorCode;
use devmind_domain::event::{AggregateType, StreamId};
use devmind_domain::thread::ThreadEvent;
use devmind_domain::tool_set::ToolSetEvent;
use devmind_domain::tools::Registry;
use devmind_ledger::{LedgerError, LedgerReader};

impl Record {
    /// The tools of the run: what its first question offered, and where it asks none, what the last one before did.
    /// `known` are tools with their functions, which are in no log.
    pub async fn tools(
        &self,
        reader: &LedgerReader,
        known: &Registry,
    ) -> Result<Result<Registry, Unreadable>, LedgerError> {
        let asked = self.facts.iter().find_map(|(_, fact)| match fact {
            ThreadEvent::ModelRequested(asked) => Some(&asked.tool_set),
            _ => None,
        });
        let Some(id) = asked.unwrap_or(&self.thread.tool_set) else { return Ok(Ok(known.clone())) };
        for event in reader.read_stream(&StreamId::new(AggregateType::ToolSet, id), 0).await? {
            let facts = match readable::<ToolSetEvent>(&event) {
                Ok(facts) => facts,
                Err(why) => return Ok(Err(why)),
            };
            if let Some(ToolSetEvent::ToolSetRecorded(set)) = facts.into_iter().next() {
                return Ok(set.registry(known).map_err(|error| (ErrorCode::RunNotReplayable, error.to_string())));
            }
        }
        Ok(Err((ErrorCode::RunNotReplayable, format!("its set of tools {id} is not in the log"))))
    }
}

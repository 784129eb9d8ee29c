//! What models were told of their calls, made anew from the log in one pass: values rendered again, content compared
//! byte for byte. The comparison itself is the domain's ([`devmind_domain::tools::told`]).

use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::redaction::Redacted;
use devmind_domain::thread::ThreadEvent;
use devmind_domain::tools::{CallFacts, Registry, Told, told};
use devmind_ledger::{LedgerError, LedgerReader, MAX_PAGE_EVENTS};
use std::collections::HashMap;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldReport {
    /// Results that were made anew, and are the same.
    pub recomputed: u64,
    /// Results whose hash or code is the recorded one.
    pub compared: u64,
    /// Results of tools that are not known in that version, or of which something was erased.
    pub passed_over: u64,
    /// Results that are others: the position, and what differs.
    pub differences: Vec<(u64, String)>,
}

/// Compares what every call's model was told with what the log gives, by these tools.
///
/// # Errors
/// When the log cannot be read.
pub async fn check_told(reader: &LedgerReader, tools: &Registry) -> Result<ToldReport, LedgerError> {
    let (mut report, mut calls, mut after) = (ToldReport::default(), HashMap::new(), 0);
    loop {
        let page = reader.read(after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { return Ok(report) };
        after = last.position;
        for event in &page {
            see(event, tools, &mut calls, &mut report);
        }
    }
}

/// `None` stands for a call of which something was erased.
type Calls = HashMap<String, Option<CallFacts>>;

fn see(event: &RecordedEvent, tools: &Registry, calls: &mut Calls, report: &mut ToldReport) {
    let erased = Redacted::parse(&event.payload).is_some();
    let Ok(facts) = event.decode() else { return };
    for fact in facts {
        match fact {
            DomainEvent::ToolCall(fact) => {
                let call = calls.entry(event.stream.aggregate_id.clone()).or_insert_with(|| Some(CallFacts::default()));
                match call {
                    Some(known) if !erased => known.see(fact),
                    Some(_) | None => *call = None,
                }
            }
            DomainEvent::Thread(ThreadEvent::ToolResultObserved(observed)) => {
                let call = calls.remove(observed.tool_call_id.as_str()).unwrap_or_else(|| Some(CallFacts::default()));
                match call.filter(|_| !erased).map(|call| told(tools, &call, &observed)) {
                    None | Some(Ok(Told::Unknown)) => report.passed_over += 1,
                    Some(Ok(Told::Recomputed)) => report.recomputed += 1,
                    Some(Ok(Told::Compared)) => report.compared += 1,
                    Some(Err(reason)) => report.differences.push((event.position, reason)),
                }
            }
            DomainEvent::Conversation(_)
            | DomainEvent::Thread(_)
            | DomainEvent::Device(_)
            | DomainEvent::Node(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => {}
        }
    }
}

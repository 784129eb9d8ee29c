//! Recorded calls before other rules: the first one about which they decide otherwise.
//!
//! Rules are judged as the server judges them: the first word about a call, then grants, then the tool itself
//! ([`devmind_domain::tools::judge`]). Calls of a program are calls like all others. What was refused before any policy
//! was heard is refused by no rule, and a person's answer is no decision of a rule.

use super::Difference;
use super::ports::{Halt, RecordedCall};
use super::record::{Record, readable};
use devmind_domain::ErrorCode;
use devmind_domain::ids::{RunId, ToolCallId};
use devmind_domain::tool_call::{Decision, ToolCallEvent, ToolCallRequested};
use devmind_domain::tools::{BY_ABSENCE, PolicyCall, Registry, Rules, Verdict, judge};
use devmind_ledger::{EventFilter, LedgerReader, MAX_PAGE_EVENTS};

/// How many calls of a run are judged in the same way, and the first that is not.
pub(super) async fn judged(
    reader: &LedgerReader,
    record: &Record,
    tools: &Registry,
    run_id: &RunId,
    rules: &Rules,
) -> Result<(u32, Option<Difference>), Halt> {
    let filter = EventFilter {
        run_id: Some(run_id.clone()),
        event_type: Some("ToolCallRequested".to_owned()),
        ..EventFilter::default()
    };
    let (mut same, mut after) = (0, 0);
    loop {
        let page = reader.query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { return Ok((same, None)) };
        after = last.position;
        for event in page.iter().filter(|event| event.position < record.until()) {
            for fact in readable::<ToolCallEvent>(event).map_err(Halt::Unreadable)? {
                let ToolCallEvent::ToolCallRequested(request) = fact else { continue };
                let id = ToolCallId::from(event.stream.aggregate_id.as_str());
                let recorded = RecordedCall::read(reader, &id, record.until()).await?;
                match difference(record, tools, rules, &request, (event.position, &id), &recorded)? {
                    None => same += 1,
                    Some(difference) => return Ok((same, Some(difference))),
                }
            }
        }
    }
}

fn difference(
    record: &Record,
    tools: &Registry,
    rules: &Rules,
    request: &ToolCallRequested,
    (position, id): (u64, &ToolCallId),
    recorded: &RecordedCall,
) -> Result<Option<Difference>, Halt> {
    recorded.check_known(tools)?;
    let Some(definition) = tools.get(&request.tool).filter(|_| !recorded.was_refused_unheard()) else {
        return Ok(None);
    };
    let (at, was) = match recorded.verdict() {
        Some(found) => found,
        None => (position, Verdict::of_tool(definition.approval)),
    };
    // A question that is not recorded was never asked: the run ended before anybody decided anything.
    if recorded.verdict().is_none() && was.decision == Decision::Ask {
        return Ok(None);
    }
    let call = PolicyCall::of(definition, request);
    let now = judge(rules, record.grants_at(position), &call, was.by != BY_ABSENCE);
    // A permission that was taken back after it had counted is no word of a rule.
    let revoked = was.by.starts_with("grant:") && was.code == ErrorCode::ApprovalCancelled.as_str();
    let decision = if revoked { Decision::Allow } else { was.decision };
    if now.decision == decision && (decision != Decision::Deny || now.code == was.code) {
        return Ok(None);
    }
    let call = format!("{} with {} ({id})", request.tool, request.arguments);
    let words = |verdict: &Verdict| {
        let decision = match verdict.decision {
            Decision::Allow => "allow",
            Decision::Ask => "ask",
            Decision::Deny => "deny",
        };
        format!("{decision} {call}: {} by {}", verdict.code, verdict.by)
    };
    Ok(Some(Difference { position: at, replay: words(&now), log: words(&was) }))
}

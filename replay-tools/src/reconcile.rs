//! `reconcile`: every tool call whose outcome can still change: why, since when, and what would settle it.
//!
//! With a device's journal both sides are joined: what the next connection will bring for each of these calls,
//! and, for all calls that were ever sent to it, whether one was executed more than once or the two
//! contradict each other.

use crate::Verdict;
use crate::cli::ReconcileArgs;
use crate::failure::Failure;
use crate::journal::{JournalFile, JournalRow};
use crate::output::{Output, Progress, escaped, say, tell_unread, unread_json};
use crate::prove_once::{Conclusion, Journal, Server, conclude, side_of};
use crate::store::Source;
use devmind_domain::Timestamp;
use devmind_domain::event::{AggregateType, StreamId};
use devmind_ledger::{EventFilter, LedgerReader, MAX_PAGE_EVENTS};
use devmind_projections::{DeviceRow, OpenApproval, ToolCallRow, Unread, UnsettledCall, Views};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The views that know what is open.
const VIEWS: [&str; 3] = ["conversation", "tool_call", "device"];
/// Contradictions that are named, at most; more are counted.
const MAX_CONFLICTS: usize = 1_000;

/// Why a call is not final.
struct Open {
    why: String,
    since: Timestamp,
    settles: String,
}

/// Prints page by page: neither the log nor what is open has to fit into memory.
pub(crate) async fn run(data: &Source, args: ReconcileArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let at = data.position(&reader, args.at).await?;
    let mut journal = match &args.journal {
        Some(file) => Some(JournalFile::open(file).await?),
        None => None,
    };
    let (views, mut unread) = {
        let progress = Progress::new("reading", "events");
        Views::at(&reader, at, &VIEWS, |done, all| progress.set(done, all)).await?
    };
    if output.is_json() {
        output.part(format_args!("{{\"position\":{at},\"open\":["))?;
    }
    let (mut open, mut after) = (0_u64, 0);
    loop {
        let page = views.unsettled_page(after).await?;
        let Some(last) = page.last() else { break };
        after = last.requested_position;
        for UnsettledCall { call, approval, .. } in &page {
            let devices = views.devices(&call.user_id).await?;
            let device = devices.iter().find(|device| Some(&device.device_id) == call.device_id.as_ref());
            let brings = match &mut journal {
                Some(journal) => {
                    let id = call.tool_call_id.as_str();
                    let (server, _) = server_of(&reader, id, at, &mut unread).await?;
                    let row = journal.row(id).await?;
                    Some(brings(&side_of(&journal.id, row, &server), call, journal.purged_through))
                }
                None => None,
            };
            print(call, &explain(call, approval.as_ref(), device), brings, open == 0, output)?;
            open += 1;
        }
    }
    views.close().await;
    let joined = match &mut journal {
        Some(journal) => Some(join(&reader, journal, at, &mut unread).await?),
        None => None,
    };
    if output.is_json() {
        let (journal, unread) = (json!(joined.as_ref().map(Joined::json)), json!(unread_json(&unread, data)));
        output.line(format_args!("],\"journal\":{journal},\"unread\":{unread}}}"))?;
    } else {
        output.line(format_args!("{open} tool calls are not final"))?;
        if let Some(joined) = &joined {
            joined.print(output)?;
        }
    }
    output.finish()?;
    say(format_args!("read at position {at}"));
    let incomplete = tell_unread(&unread);
    let conflicts = joined.map_or(0, |joined| joined.conflicts_total);
    if conflicts > 0 {
        say(format_args!("log and journal contradict each other about {conflicts} calls"));
        return Ok(Verdict::Broken);
    }
    Ok(if incomplete { Verdict::Incomplete } else { Verdict::Holds })
}

fn print(
    call: &ToolCallRow,
    Open { why, since, settles }: &Open,
    brings: Option<String>,
    first: bool,
    output: &mut Output,
) -> Result<(), Failure> {
    if output.is_json() {
        let told = json!({
            "tool_call_id": call.tool_call_id, "tool": call.tool, "status": call.status, "why": why,
            "since": since, "settles": settles, "conversation_id": call.conversation_id, "run_id": call.run_id,
            "device_id": call.device_id, "user_id": call.user_id, "attempts": call.attempts.len(),
            "journal": brings,
        });
        return output.part(format_args!("{}{told}", if first { "" } else { "," }));
    }
    let ToolCallRow { tool_call_id, tool, status, user_id, .. } = call;
    output.line(escaped(&format!("{tool_call_id} {tool} {status} of {user_id}")))?;
    output.line(escaped(&format!("  since {since}: {why}")))?;
    output.line(escaped(&format!("  settled by: {settles}")))?;
    brings.map_or(Ok(()), |brings| output.line(escaped(&format!("  the journal: {brings}"))))
}

fn explain(call: &ToolCallRow, approval: Option<&OpenApproval>, device: Option<&DeviceRow>) -> Open {
    let last = call.attempts.last();
    let since = call.wait_ended_at.or(call.dispatched_at).unwrap_or(call.requested_at);
    let report = match (device, &call.device_id) {
        (Some(device), _) if device.online => {
            format!("the report of device {}, which is connected", device.device_id)
        }
        (Some(device), _) => {
            format!("the report of device {}, not connected since {}", device.device_id, device.last_seen)
        }
        (None, Some(id)) => format!("the report of device {id}, of which the log knows no connection"),
        (None, None) => "nothing: the server process that ran it is gone, and the model was told so".to_owned(),
    };
    let (why, settles) = match (call.status.as_str(), approval) {
        ("created", Some(approval)) => {
            let until = approval.expires_at.map(|at| format!(", or its expiry at {at}")).unwrap_or_default();
            let settles = format!("an answer to approval {} (POST /api/runs/resume){until}", approval.interrupt_id);
            ("it waits for a person's approval".to_owned(), settles)
        }
        ("created", None) => {
            let settles = "the run that goes on with it, or that run's end".to_owned();
            ("it was asked for and not sent yet".to_owned(), settles)
        }
        ("dispatched", _) if call.device_id.is_none() => {
            let node = last.map(|last| format!("{} epoch {}", last.node_id, last.epoch)).unwrap_or_default();
            (format!("server process {node} carries it out"), "its result, or the next start of that server".to_owned())
        }
        ("dispatched", _) => {
            let wait = last.map_or(0, |last| last.wait_ms);
            let number = call.attempts.len();
            (format!("attempt {number} was sent and not answered yet; the server waits {wait} ms for it"), report)
        }
        ("timed_out", _) => ("the server gave up waiting for its result".to_owned(), report),
        (_, _) => {
            let code = call.error_code.as_deref().unwrap_or("RESULT_UNKNOWN");
            (format!("it was sent, and what became of it is not known ({code})"), report)
        }
    };
    Open { why, since, settles }
}

/// What the device's next connection brings for a call that is not final.
fn brings(side: &Journal, call: &ToolCallRow, purged_through: i64) -> String {
    match side {
        Journal::NotGiven => "not given".to_owned(),
        Journal::Foreign(id) => format!("it is {id}, another one than the call was sent to"),
        Journal::Unheard if call.device_id.is_none() || call.attempts.is_empty() => {
            "the call was never sent to a device".to_owned()
        }
        Journal::Unheard if call.requested_at.as_micros() <= purged_through => {
            "no row, and calls of that age may have been forgotten: it brings nothing, and nobody can know".to_owned()
        }
        Journal::Unheard => "no row: the device never accepted it, did not execute it, and brings nothing".to_owned(),
        Journal::Row(row) => match (row.phase.as_str(), row.delivery.as_str()) {
            ("settled", "pending") => {
                format!("the next connection brings {}", row.status.as_deref().unwrap_or("its result"))
            }
            ("settled", "parked") => {
                let note = row.delivery_note.as_deref().unwrap_or("?");
                format!("settled as {}, parked: the server refused it ({note})", row.status.as_deref().unwrap_or("?"))
            }
            ("settled", delivery) => {
                let status = row.status.as_deref().unwrap_or("?");
                format!("settled as {status} and {delivery}: the server once said that it has it")
            }
            ("executing", _) => {
                "begun: its result comes, or, where the device program ended meanwhile, `indeterminate`".to_owned()
            }
            (_, _) => {
                "accepted and not begun: its answer comes, or, where the device program ended, that it was not executed"
                    .to_owned()
            }
        },
    }
}

/// What the log says of a call up to a position, and whether it has its result by now.
async fn server_of(reader: &LedgerReader, id: &str, at: u64, unread: &mut Unread) -> Result<(Server, bool), Failure> {
    let mut events = reader.read_stream(&StreamId::new(AggregateType::ToolCall, id), 0).await?;
    let has_result = Server::of(&events, &mut Unread::default()).has_result();
    events.retain(|event| event.position <= at);
    Ok((Server::of(&events, unread), has_result))
}

/// Log and journal, joined over all calls that were sent to it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Joined {
    journal_id: String,
    /// Calls by what both sides prove together.
    counts: BTreeMap<&'static str, u64>,
    /// Calls about which they contradict each other, with the reason: the first ones.
    conflicts: Vec<(String, String)>,
    conflicts_total: u64,
    /// Rows for other ledgers.
    of_others: u64,
}

/// Walks over the log's calls, then over the journal's rows.
async fn join(
    reader: &LedgerReader,
    journal: &mut JournalFile,
    at: u64,
    unread: &mut Unread,
) -> Result<Joined, Failure> {
    let mut joined = Joined { journal_id: journal.id.clone(), ..Joined::default() };
    let requests = EventFilter { event_type: Some("ToolCallRequested".to_owned()), ..EventFilter::default() };
    {
        let progress = Progress::new("joining", "events");
        let mut after = 0;
        while after < at {
            let page = reader.query(&requests, after, MAX_PAGE_EVENTS).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            // One that was asked for later was not sent then.
            for event in &page {
                let id = event.stream.aggregate_id.as_str();
                let (server, has_result) = server_of(reader, id, at, unread).await?;
                if server.on_device && server.journal_id.as_ref() == Some(&journal.id) {
                    joined.sent(id, (&server, has_result), journal.row(id).await?, journal.purged_through);
                }
            }
            progress.set(after.min(at), at);
        }
    }
    let mut after = String::new();
    loop {
        let page = journal.rows_after(&after).await?;
        let Some((last, _)) = page.last() else { return Ok(joined) };
        after.clone_from(last);
        for (id, row) in &page {
            // The journal is as it is, also where the log is read as it was: what came later is no contradiction.
            let stream = StreamId::new(AggregateType::ToolCall, id.as_str());
            let known = row.server_id != reader.ledger_id() || !reader.stream_page(&stream, 0, 1).await?.is_empty();
            joined.has(id, row, reader.ledger_id(), known);
        }
    }
}

impl Joined {
    /// A call of the log that was sent to the journal's device, and the row that there is of it. `has_result`: whether
    /// the log has its result by now, for the journal is as it is now.
    fn sent(&mut self, id: &str, (server, has_result): (&Server, bool), row: Option<JournalRow>, purged_through: i64) {
        let side = side_of(&self.journal_id, row, server);
        let (conclusion, why) = match &side {
            // What is in the log and was acknowledged may be forgotten by the device.
            Journal::Unheard if purged_through > 0 => conclude(server, &Journal::NotGiven),
            Journal::Row(JournalRow { delivery, .. }) if delivery == "acked" && !has_result => {
                (Conclusion::Conflict, "the device was told that its result is stored, the log has none".to_owned())
            }
            Journal::NotGiven | Journal::Foreign(_) | Journal::Unheard | Journal::Row(_) => conclude(server, &side),
        };
        *self.counts.entry(conclusion.words()).or_default() += 1;
        if conclusion == Conclusion::Conflict {
            self.conflict(id, why);
        }
    }

    /// A row of the journal, and whether the log knows its call.
    fn has(&mut self, id: &str, row: &JournalRow, ledger_id: &str, known: bool) {
        if row.server_id != ledger_id {
            self.of_others += 1;
        } else if !known {
            self.conflict(id, "the device has a call of this ledger that the log has not".to_owned());
        }
    }

    fn conflict(&mut self, id: &str, why: String) {
        self.conflicts_total += 1;
        if self.conflicts.len() < MAX_CONFLICTS {
            self.conflicts.push((id.to_owned(), why));
        }
    }

    fn json(&self) -> Value {
        let conflicts: Vec<_> =
            self.conflicts.iter().map(|(id, why)| json!({ "tool_call_id": id, "why": why })).collect();
        json!({
            "journal_id": self.journal_id, "calls": self.counts, "conflicts": conflicts,
            "conflicts_total": self.conflicts_total, "of_other_ledgers": self.of_others,
            "executed_at_most_once": self.conflicts.is_empty(),
        })
    }

    fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let counts: Vec<_> = self.counts.iter().map(|(words, count)| format!("{count} {words}")).collect();
        let all: u64 = self.counts.values().sum();
        output.line(escaped(&format!(
            "journal {}: {all} calls were sent to it: {}",
            self.journal_id,
            counts.join(", ")
        )))?;
        for (id, why) in &self.conflicts {
            output.line(escaped(&format!("conflict: {id}: {why}")))?;
        }
        if self.conflicts_total > self.conflicts.len() as u64 {
            output.line(format_args!("conflict: {} calls in all", self.conflicts_total))?;
        }
        if self.conflicts.is_empty() {
            output.line("none was executed more than once: a call has one row there, and one result in the log")?;
        }
        if self.of_others > 0 {
            output.line(format_args!("{} of its rows are of other ledgers", self.of_others))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devmind_domain::tool_call::ResultStatus;

    fn row(phase: &str, status: Option<&str>, delivery: &str) -> JournalRow {
        JournalRow {
            call_hash: "h".into(),
            phase: phase.into(),
            status: status.map(Into::into),
            output_sha256: None,
            started: true,
            delivery: delivery.into(),
            delivery_note: None,
            server_id: "ledger".into(),
        }
    }

    fn sent() -> Server {
        Server {
            call_hash: "h".into(),
            on_device: true,
            dispatched: 1,
            journal_id: Some("j".into()),
            ..Server::default()
        }
    }

    fn joined(row_of: Option<JournalRow>, known: bool) -> Joined {
        let mut joined = Joined { journal_id: "j".into(), ..Joined::default() };
        if known {
            joined.sent("k", (&sent(), false), row_of.clone(), -1);
        }
        if let Some(row) = row_of {
            joined.has("k", &row, "ledger", known);
        }
        joined
    }

    #[test]
    fn both_sides_joined_find_what_only_one_of_them_has() {
        assert_eq!(joined(None, true).counts.get("never executed"), Some(&1));
        assert_eq!(joined(Some(row("executing", None, "open")), true).counts.get("unknown"), Some(&1));
        let waiting = joined(Some(row("settled", Some("succeeded"), "pending")), true);
        assert_eq!((waiting.counts.get("executed once"), waiting.conflicts.len()), (Some(&1), 0));
        let lost = joined(Some(row("settled", Some("succeeded"), "acked")), true);
        assert!(lost.conflicts[0].1.contains("the log has none"), "{lost:?}");
        let unknown_here = joined(Some(row("settled", Some("succeeded"), "acked")), false);
        assert!(unknown_here.conflicts[0].1.contains("that the log has not"), "{unknown_here:?}");
        let others = joined(Some(JournalRow { server_id: "another".into(), ..row("reserved", None, "open") }), false);
        assert_eq!((others.of_others, others.conflicts.len()), (1, 0));
        // What the log had not at an earlier position, it may have by now: the journal is never as it was.
        let mut earlier = Joined { journal_id: "j".into(), ..Joined::default() };
        earlier.sent("k", (&sent(), true), Some(row("settled", Some("succeeded"), "acked")), -1);
        assert_eq!((earlier.counts.get("executed once"), earlier.conflicts_total), (Some(&1), 0), "{earlier:?}");
        // A journal that forgets what is old says nothing by having no row.
        let ran = Server { result: Some((ResultStatus::Succeeded, None)), results: 1, ..sent() };
        for (purged_through, expected) in [(0, "conflict"), (1, "executed once")] {
            let mut purged = Joined { journal_id: "j".into(), ..Joined::default() };
            purged.sent("k", (&ran, true), None, purged_through);
            assert_eq!(purged.counts.get(expected), Some(&1), "{purged:?}");
        }
    }
}

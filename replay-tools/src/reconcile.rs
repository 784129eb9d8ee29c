//! `reconcile`: every tool call whose outcome can still change: why, since when, and what would settle it.
//!
//! With a device's journal both sides are joined: what the next connection will bring for each of these calls,
//! and, for all calls that were ever sent to it, whether one was executed more than once or the two
//! contradict each other.

use crate::Verdict;
use crate::at::position;
use crate::cli::ReconcileArgs;
use crate::failure::Failure;
use crate::journal::{self, JournalFile, JournalRow};
use crate::output::{Output, escaped, say};
use crate::prove_once::{Conclusion, Journal, Server, conclude, side_of};
use crate::store::Source;
use devmind_domain::Timestamp;
use devmind_domain::event::DomainEvent;
use devmind_ledger::{LedgerReader, MAX_PAGE_EVENTS};
use devmind_projections::{DeviceRow, OpenApproval, ToolCallRow, Views};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Why a call is not final.
struct Open {
    why: String,
    since: Timestamp,
    settles: String,
}

pub(crate) async fn run(data: &Source, args: ReconcileArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let at = position(&reader, args.at).await?;
    let journal = match &args.journal {
        Some(file) => Some(journal::read(file).await?),
        None => None,
    };
    let sides = Sides::read(&reader, at).await?;
    let views = Views::at(&reader, at).await?;
    let open = views.unsettled_tool_calls().await?;
    let (mut told, mut lines) = (Vec::new(), Vec::new());
    for (call, approval) in &open {
        let devices = views.devices(&call.user_id).await?;
        let device = devices.iter().find(|device| Some(&device.device_id) == call.device_id.as_ref());
        let Open { why, since, settles } = explain(call, approval.as_ref(), device);
        let brings = journal.as_ref().and_then(|journal| {
            let server = sides.0.get(call.tool_call_id.as_str())?;
            Some(brings(&side_of(journal, call.tool_call_id.as_str(), server), call, journal.purged_through))
        });
        if output.is_json() {
            told.push(json!({
                "tool_call_id": call.tool_call_id, "tool": call.tool, "status": call.status, "why": why,
                "since": since, "settles": settles, "conversation_id": call.conversation_id, "run_id": call.run_id,
                "device_id": call.device_id, "user_id": call.user_id, "attempts": call.attempts.len(),
                "journal": brings,
            }));
        } else {
            lines.push(format!("{} {} {} of {}", call.tool_call_id, call.tool, call.status, call.user_id));
            lines.push(format!("  since {since}: {why}"));
            lines.push(format!("  settled by: {settles}"));
            lines.extend(brings.map(|brings| format!("  the journal: {brings}")));
        }
    }
    views.close().await;
    let joined = journal.as_ref().map(|journal| join(&sides, journal, reader.ledger_id()));
    let conflicts = joined.as_ref().map_or(0, |joined| joined.conflicts.len());
    if output.is_json() {
        let journal = joined.as_ref().map(Joined::json);
        output.json(&json!({ "position": at, "open": told, "journal": journal }))?;
    } else {
        lines.iter().try_for_each(|line| output.line(escaped(line)))?;
        output.line(format_args!("{} tool calls are not final", open.len()))?;
        if let Some(joined) = &joined {
            joined.print(output)?;
        }
    }
    output.finish()?;
    say(format_args!("read at position {at}"));
    if conflicts > 0 {
        say(format_args!("log and journal contradict each other about {conflicts} calls"));
        return Ok(Verdict::Broken);
    }
    Ok(Verdict::Holds)
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

/// What the log says of every device call.
struct Sides(BTreeMap<String, Server>);

impl Sides {
    async fn read(reader: &LedgerReader, to: u64) -> Result<Self, Failure> {
        let (mut sides, mut after) = (BTreeMap::<String, Server>::new(), 0);
        while after < to {
            let page = reader.read(after, MAX_PAGE_EVENTS).await?;
            let Some(last) = page.last() else { break };
            after = last.position;
            for event in page.iter().filter(|event| event.position <= to) {
                for fact in event.decode().unwrap_or_default() {
                    if let DomainEvent::ToolCall(fact) = fact {
                        sides.entry(event.stream.aggregate_id.clone()).or_default().see(&fact);
                    }
                }
            }
        }
        Ok(Self(sides))
    }
}

/// Log and journal, joined over all calls that were sent to it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Joined {
    journal_id: String,
    /// Calls by what both sides prove together.
    counts: BTreeMap<&'static str, u64>,
    /// Calls about which they contradict each other, with the reason.
    conflicts: Vec<(String, String)>,
    /// Rows for other ledgers.
    of_others: u64,
}

fn join(sides: &Sides, journal: &JournalFile, ledger_id: &str) -> Joined {
    let mut joined = Joined { journal_id: journal.id.clone(), ..Joined::default() };
    let sent = |server: &&Server| server.on_device && server.journal_id.as_ref() == Some(&journal.id);
    for (id, server) in &sides.0 {
        if !sent(&server) {
            continue;
        }
        let side = side_of(journal, id, server);
        let (conclusion, why) = match &side {
            // What is in the log and was acknowledged may be forgotten by the device.
            Journal::Unheard if journal.purged_through > 0 => conclude(server, &Journal::NotGiven),
            Journal::Row(JournalRow { delivery, .. }) if delivery == "acked" && !server.has_result() => {
                (Conclusion::Conflict, "the device was told that its result is stored, the log has none".to_owned())
            }
            Journal::NotGiven | Journal::Foreign(_) | Journal::Unheard | Journal::Row(_) => conclude(server, &side),
        };
        *joined.counts.entry(conclusion.words()).or_default() += 1;
        if conclusion == Conclusion::Conflict {
            joined.conflicts.push((id.clone(), why));
        }
    }
    for (id, row) in &journal.rows {
        if row.server_id != ledger_id {
            joined.of_others += 1;
        } else if !sides.0.contains_key(id) {
            joined.conflicts.push((id.clone(), "the device has a call of this ledger that the log has not".to_owned()));
        }
    }
    joined
}

impl Joined {
    fn json(&self) -> Value {
        let conflicts: Vec<_> =
            self.conflicts.iter().map(|(id, why)| json!({ "tool_call_id": id, "why": why })).collect();
        json!({
            "journal_id": self.journal_id, "calls": self.counts, "conflicts": conflicts,
            "of_other_ledgers": self.of_others, "executed_at_most_once": self.conflicts.is_empty(),
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
        let sides = Sides(if known { BTreeMap::from([("k".to_owned(), sent())]) } else { BTreeMap::new() });
        let rows = row_of.into_iter().map(|row| ("k".to_owned(), row)).collect();
        join(&sides, &JournalFile { id: "j".into(), purged_through: -1, rows }, "ledger")
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
    }
}

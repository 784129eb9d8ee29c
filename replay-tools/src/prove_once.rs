//! `prove-once`: what became of one tool call, by the server's log and, where it is at hand, the
//! device's journal. Each side alone can be wrong or lost; joined they say whether the call took effect
//! once, never, or whether nobody can know.
//!
//! Exit status: 0 executed once or never executed, 1 unknown, 3 conflict.

use crate::Verdict;
use crate::cli::ProveOnceArgs;
use crate::failure::Failure;
use crate::journal::{JournalFile, JournalRow};
use crate::output::{Output, escaped, say, tell_unread, unread_json};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::event::{AggregateType, RecordedEvent, StreamId};
use devmind_domain::tool_call::{Decision, ResultStatus, Target, ToolCallEvent};
use devmind_ledger::{EventFilter, LedgerReader};
use devmind_projections::Unread;
use serde_json::{Value, json};
use std::sync::Arc;

/// What the two sides prove together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conclusion {
    ExecutedOnce,
    NeverExecuted,
    Unknown,
    Conflict,
}

impl Conclusion {
    pub const fn words(self) -> &'static str {
        match self {
            Self::ExecutedOnce => "executed once",
            Self::NeverExecuted => "never executed",
            Self::Unknown => "unknown",
            Self::Conflict => "conflict",
        }
    }

    const fn verdict(self) -> Verdict {
        match self {
            Self::ExecutedOnce | Self::NeverExecuted => Verdict::Holds,
            Self::Unknown => Verdict::Incomplete,
            Self::Conflict => Verdict::Broken,
        }
    }
}

/// What the server's log says.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub call_hash: String,
    pub on_device: bool,
    pub dispatched: u32,
    pub denied: bool,
    pub result: Option<(ResultStatus, Option<String>)>,
    pub results: u32,
    pub journal_id: Option<String>,
}

impl Server {
    /// Whether the log has its result.
    pub fn has_result(&self) -> bool {
        self.results > 0
    }

    /// What a call's events say; those that cannot be understood are added to the others.
    pub fn of(events: &[Arc<RecordedEvent>], unread: &mut Unread) -> Self {
        let mut server = Self::default();
        for event in events {
            match event.decode_as::<ToolCallEvent>() {
                Ok(facts) => facts.iter().for_each(|fact| server.see(fact)),
                Err(_) => unread.add(event),
            }
        }
        server
    }

    fn see(&mut self, event: &ToolCallEvent) {
        match event {
            ToolCallEvent::ToolCallRequested(e) => {
                self.call_hash = e.call_hash.clone();
                self.on_device = e.target == Target::Device;
            }
            ToolCallEvent::ToolCallDecided(e) => self.denied |= e.decision == Decision::Deny,
            ToolCallEvent::ToolDispatched(e) => {
                self.dispatched += 1;
                self.journal_id = e.journal_id.clone().or(self.journal_id.take());
            }
            ToolCallEvent::ToolResultRecorded(e) => {
                self.results += 1;
                self.result.get_or_insert((e.status, e.output_sha256.clone()));
            }
            ToolCallEvent::ToolReceived(_)
            | ToolCallEvent::ToolCancelRequested(_)
            | ToolCallEvent::ToolWaitTimedOut(_)
            | ToolCallEvent::ToolAttemptRefused(_)
            | ToolCallEvent::ToolOutcomeRevised(_)
            | ToolCallEvent::ToolResultAcked(_) => {}
        }
    }
}

/// What the device's side is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    NotGiven,
    /// The journal is another one than the call was sent to.
    Foreign(String),
    /// It has no row: the call was never accepted there.
    Unheard,
    Row(JournalRow),
}

pub(crate) async fn run(data: &Source, args: ProveOnceArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let stream = StreamId::new(AggregateType::ToolCall, args.tool_call.as_str());
    let at = data.position(&reader, args.at).await?;
    let mut events = reader.read_stream(&stream, 0).await?;
    events.retain(|event| event.position <= at);
    if events.is_empty() {
        return Err(Failure::new(ErrorCode::NotFound, format!("the log knows no tool call {}", args.tool_call))
            .with_hint("`devmind-replay log --type ToolCallRequested` lists them"));
    }
    let mut unread = Unread::default();
    let server = Server::of(&events, &mut unread);
    // A row that the call's stream has lost may still say of which run it is.
    let run = events.iter().find_map(|event| event.metadata().ok()?.correlation_id);
    reader.damaged_of(&EventFilter { run_id: run, ..EventFilter::default() }).await?;
    let journal = match &args.journal {
        None => Journal::NotGiven,
        Some(file) => {
            let mut journal = JournalFile::open(file).await?;
            side_of(&journal.id.clone(), journal.row(&args.tool_call).await?, &server)
        }
    };
    let (conclusion, why) = conclude(&server, &journal);
    let told = (conclusion, why.as_str(), &server, &journal, &unread);
    let proved = print(&args.tool_call, told, &events, (data, &reader, at), output).await?;
    output.finish()?;
    say(format_args!("read at position {at}"));
    if tell_unread(&unread) || !proved {
        // What is concluded without them is not proved.
        return Ok(if conclusion == Conclusion::Conflict { Verdict::Broken } else { Verdict::Incomplete });
    }
    Ok(conclusion.verdict())
}

/// What a journal says of a call, by the row that it has of it.
pub(crate) fn side_of(journal_id: &str, row: Option<JournalRow>, server: &Server) -> Journal {
    if server.journal_id.as_ref().is_some_and(|asked| asked != journal_id) {
        return Journal::Foreign(journal_id.to_owned());
    }
    row.map_or(Journal::Unheard, Journal::Row)
}

/// The two sides joined. Pure, so that every pair can be tested.
pub(crate) fn conclude(server: &Server, journal: &Journal) -> (Conclusion, String) {
    use Conclusion::{Conflict, ExecutedOnce, NeverExecuted, Unknown};
    let say = |conclusion, why: &str| (conclusion, why.to_owned());
    if server.results > 1 {
        return say(Conflict, "the log has more than one result of it");
    }
    let told = server.result.as_ref();
    let status = told.map(|(status, _)| *status);
    let ran = |status: ResultStatus| matches!(status, ResultStatus::Succeeded | ResultStatus::Failed);
    match journal {
        Journal::Foreign(own) => {
            (Unknown, format!("the journal {own} is not the one that the call was sent to: it cannot say anything"))
        }
        Journal::Row(row) if row.call_hash != server.call_hash => {
            say(Conflict, "the device has another call under this id")
        }
        Journal::Row(row) if row.phase == "settled" => {
            let same_status = status.is_none_or(|status| Some(status.as_str()) == row.status.as_deref());
            let same_output = told.is_none_or(|(_, hash)| *hash == row.output_sha256);
            let settled = row.status.as_deref().unwrap_or("?");
            if !same_status || !same_output {
                return (Conflict, format!("the device settled it as {settled}, the log has another result"));
            }
            match settled {
                "indeterminate" => say(Unknown, "the device began and did not finish, and has never begun it again"),
                "succeeded" => say(ExecutedOnce, "the device's journal has its one execution, and what came of it"),
                "failed" if row.started => {
                    say(ExecutedOnce, "the device's journal has its one execution, which failed")
                }
                _ => say(NeverExecuted, "the device settled it before it began"),
            }
        }
        Journal::Row(_) if status.is_some_and(ran) => {
            say(Conflict, "the log has a result that the device's journal does not have")
        }
        Journal::Row(row) if row.phase == "executing" => {
            say(Unknown, "the device began and did not finish; it reports so and never begins it again")
        }
        Journal::Row(_) => say(NeverExecuted, "the device accepted it and has not begun"),
        Journal::Unheard if status.is_some_and(ran) => {
            say(Conflict, "the log has a result of a call that the device's journal never saw")
        }
        Journal::Unheard if server.on_device => say(NeverExecuted, "the device's journal never saw it"),
        Journal::Unheard | Journal::NotGiven => match status {
            Some(status) if ran(status) => say(ExecutedOnce, "the log has its one result"),
            Some(ResultStatus::Indeterminate) => say(Unknown, "the device began and did not finish"),
            Some(_) => say(NeverExecuted, "the log has its end, before it began"),
            None if server.dispatched == 0 || server.denied => say(NeverExecuted, "it was never sent anywhere"),
            None => say(Unknown, "it was sent and nothing came back: the device's journal would settle it (--journal)"),
        },
    }
}

/// Whether everything that the log has of it could be proved.
async fn print(
    id: &str,
    (conclusion, why, server, journal, unread): (Conclusion, &str, &Server, &Journal, &Unread),
    events: &[Arc<RecordedEvent>],
    (data, reader, size): (&Source, &LedgerReader, u64),
    output: &mut Output,
) -> Result<bool, Failure> {
    let mut proofs = Vec::with_capacity(events.len());
    let root = data.root(reader, size).await?;
    // Of a part of a log the bundle has the proofs, and they were checked when it was opened.
    let prover = data.prover(reader);
    let proved = prover.is_none() || root.is_some();
    for event in events {
        let path: Option<Vec<String>> = match prover.as_ref().filter(|_| proved) {
            Some(prover) => {
                let proof = prover.inclusion(event.position, size).await?;
                Some(proof.path.iter().map(hex::encode).collect())
            }
            None => None,
        };
        proofs.push(json!({
            "position": event.position, "event_type": event.event_type, "leaf_hash": hex::encode(event.leaf_hash),
            "path": path,
        }));
    }
    if output.is_json() {
        output.json(&json!({
            "tool_call_id": id, "conclusion": conclusion.words(), "why": why, "position": size, "root": root,
            "unread": unread_json(unread, data),
            "log": { "call_hash": server.call_hash, "dispatched": server.dispatched,
                "result": server.result.as_ref().map(|(status, _)| status.as_str()), "events": proofs },
            "journal": told(journal),
        }))?;
        return Ok(proved);
    }
    output.line(escaped(&format!("{}: {why}", conclusion.words())))?;
    let root = root.map(|root| format!(", under the root {root} of {size} events")).unwrap_or_default();
    output.line(format_args!("log: {} events{root}", events.len()))?;
    for event in events {
        let (position, kind, leaf) = (event.position, &event.event_type, hex::encode(event.leaf_hash));
        output.line(escaped(&format!("  #{position} {kind} {leaf}")))?;
    }
    match journal {
        Journal::NotGiven => output.line("journal: not given"),
        Journal::Foreign(_) => output.line("journal: of another device"),
        Journal::Unheard => output.line("journal: no row"),
        Journal::Row(row) => {
            let (status, hash) = (row.status.as_deref().unwrap_or("-"), row.output_sha256.as_deref().unwrap_or("-"));
            output.line(escaped(&format!("journal: {} {status}, call {}, output {hash}", row.phase, row.call_hash)))
        }
    }?;
    Ok(proved)
}

fn told(journal: &Journal) -> Value {
    match journal {
        Journal::NotGiven => Value::Null,
        Journal::Foreign(own) => json!({ "foreign": own }),
        Journal::Unheard => json!({ "row": null }),
        Journal::Row(row) => json!({ "row": {
            "call_hash": row.call_hash, "phase": row.phase, "status": row.status,
            "output_sha256": row.output_sha256, "started": row.started,
        } }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(dispatched: u32, result: Option<ResultStatus>) -> Server {
        let result = result.map(|status| (status, Some("out".to_owned())));
        let results = u32::from(result.is_some());
        Server { call_hash: "h".into(), on_device: true, dispatched, result, results, ..Server::default() }
    }

    fn row(phase: &str, status: Option<&str>, started: bool) -> Journal {
        Journal::Row(JournalRow {
            call_hash: "h".into(),
            phase: phase.into(),
            status: status.map(str::to_owned),
            output_sha256: Some("out".into()),
            started,
            delivery: "open".into(),
            delivery_note: None,
            server_id: "s".into(),
        })
    }

    #[test]
    fn every_pair_of_sides_has_one_conclusion() {
        use Conclusion::{Conflict, ExecutedOnce, NeverExecuted, Unknown};
        use ResultStatus::{Failed, Indeterminate, Rejected, Succeeded};
        for (own, journal, expected) in [
            // The log alone.
            (server(0, None), Journal::NotGiven, NeverExecuted),
            (server(1, None), Journal::NotGiven, Unknown),
            (server(1, Some(Succeeded)), Journal::NotGiven, ExecutedOnce),
            (server(2, Some(Failed)), Journal::NotGiven, ExecutedOnce),
            (server(1, Some(Rejected)), Journal::NotGiven, NeverExecuted),
            (server(1, Some(Indeterminate)), Journal::NotGiven, Unknown),
            // The device died before it accepted, after, while executing, after the journal, after the ack.
            (server(1, None), Journal::Unheard, NeverExecuted),
            (server(1, None), row("reserved", None, false), NeverExecuted),
            (server(1, None), row("executing", None, true), Unknown),
            (server(1, None), row("settled", Some("succeeded"), true), ExecutedOnce),
            (server(1, Some(Succeeded)), row("settled", Some("succeeded"), true), ExecutedOnce),
            (server(1, None), row("settled", Some("indeterminate"), true), Unknown),
            (server(1, None), row("settled", Some("failed"), true), ExecutedOnce),
            (server(1, None), row("settled", Some("failed"), false), NeverExecuted),
            (server(1, None), row("settled", Some("rejected"), false), NeverExecuted),
            // What cannot both be true.
            (server(1, Some(Succeeded)), Journal::Unheard, Conflict),
            (server(1, Some(Succeeded)), row("executing", None, true), Conflict),
            (server(1, Some(Succeeded)), row("settled", Some("rejected"), false), Conflict),
            (Server { call_hash: "other".into(), ..server(1, None) }, row("reserved", None, false), Conflict),
            (Server { results: 2, ..server(1, Some(Succeeded)) }, Journal::NotGiven, Conflict),
            (server(1, None), Journal::Foreign("j".into()), Unknown),
            (server(1, Some(Failed)), row("settled", Some("failed"), true), ExecutedOnce),
            (
                Server { result: Some((Succeeded, Some("else".into()))), ..server(1, Some(Succeeded)) },
                row("settled", Some("succeeded"), true),
                Conflict,
            ),
            // What the server refused was sent nowhere, and what it ran itself no device has seen.
            (Server { denied: true, ..server(1, None) }, Journal::NotGiven, NeverExecuted),
            (Server { on_device: false, ..server(1, None) }, Journal::Unheard, Unknown),
        ] {
            assert_eq!(conclude(&own, &journal).0, expected, "{own:?} {journal:?}");
        }
    }

    #[test]
    fn an_attempt_that_names_no_journal_takes_none_back() {
        let sent = |journal: Option<&str>| {
            let payload = json!({
                "attempt_no": 1, "run_id": "r", "node_id": "n", "epoch": 1, "wait_ms": 1, "ttl_ms": 1,
                "journal_id": journal,
            });
            ToolCallEvent::ToolDispatched(serde_json::from_value(payload).expect("an event"))
        };
        let mut server = Server::default();
        [sent(None), sent(Some("j")), sent(None)].iter().for_each(|event| server.see(event));
        assert_eq!((server.dispatched, server.journal_id.as_deref()), (3, Some("j")));
    }
}

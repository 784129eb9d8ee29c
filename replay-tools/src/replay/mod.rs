//! `replay`: the agent loop of a run once more, over the answers that the log has; whether it takes the same
//! decisions, and where it first differs.
//!
//! The loop is the server's own ([`devmind_domain::agent::run_agent`]). Models, tools, people, ids and times come
//! from the log, and nothing else can be reached: asking for anything that the log does not have is the
//! difference. Nothing is written. The prompt is made anew from the conversation and compared by its hash.

mod history;
mod ports;
mod record;
mod what_if;

pub use what_if::{ToolPolicy, WhatIf};

use crate::Verdict;
use crate::cli::ReplayArgs;
use crate::failure::Failure;
use crate::output::{Output, escaped, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::agent::{context_hash, prompt, run_agent};
use devmind_domain::ids::RunId;
use devmind_domain::tools::{Registry, catalogue};
use devmind_ledger::{EventFilter, LedgerError, LedgerReader, MAX_PAGE_EVENTS};
use ports::{Halt, Ports};
use record::{Missing, Record, Unreadable};
use serde::Serialize;
use serde_json::json;

/// The first decision that is not the log's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The event that says otherwise, or the run's end.
    pub position: u64,
    /// What the loop does.
    pub replay: String,
    /// What the log has.
    pub log: String,
}

/// What a replay says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The same decisions from the claim to the end.
    Same,
    /// The same decisions until the run was cut off from outside: stopped, or its server ended.
    SameUntilCut,
    /// Another decision.
    Differs(Difference),
    /// It cannot be replayed.
    NotReplayable {
        /// A stable code.
        code: &'static str,
        /// Why.
        reason: String,
    },
}

impl Outcome {
    fn not_replayable((code, reason): Unreadable) -> Self {
        Self::NotReplayable { code: code.as_str(), reason }
    }
}

/// A run, replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The run.
    pub run_id: RunId,
    /// The decisions that were the same.
    pub decisions: u32,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Replays one run, which had these tools; nothing where the log does not know it.
///
/// # Errors
/// When the log cannot be read.
pub async fn replay_run(
    reader: &LedgerReader,
    tools: &Registry,
    run_id: &RunId,
    what_if: &WhatIf,
) -> Result<Option<Replayed>, LedgerError> {
    let replayed = |decisions, outcome| Ok(Some(Replayed { run_id: run_id.clone(), decisions, outcome }));
    let record = match Record::read(reader, run_id).await? {
        Ok(record) => record,
        Err(Missing::NoSuchRun) => return Ok(None),
        Err(Missing::NotClaimed) => {
            let never = (ErrorCode::RunNotReplayable, "it was never begun".to_owned());
            return replayed(0, Outcome::not_replayable(never));
        }
        Err(Missing::Unreadable(why)) => return replayed(0, Outcome::not_replayable(why)),
    };
    let begun = context_hash(&prompt(&record.context, &record.thread));
    if begun != record.context_hash {
        let (replay, log) =
            (format!("it begins with the messages {begun}"), format!("it began with {}", record.context_hash));
        return replayed(0, Outcome::Differs(Difference { position: record.claimed_at, replay, log }));
    }
    let mut ports = Ports { reader, record, what_if, tools, decisions: 0 };
    let ended = match run_agent(&mut ports).await {
        Ok(end) => ports.check_end(&end),
        Err(halt) => Err(halt),
    };
    let outcome = match ended {
        Ok(()) if ports.record.was_cut() => Outcome::SameUntilCut,
        Ok(()) => Outcome::Same,
        Err(Halt::Cut) => Outcome::SameUntilCut,
        Err(Halt::Differs(difference)) => Outcome::Differs(difference),
        Err(Halt::Unreadable(why)) => Outcome::not_replayable(why),
        Err(Halt::Ledger(error)) => return Err(error),
    };
    replayed(ports.decisions, outcome)
}

/// Replays every run that was ever claimed, in the order of the log. `each` is given one after the other.
///
/// # Errors
/// When the log cannot be read.
pub async fn replay_all(
    reader: &LedgerReader,
    tools: &Registry,
    what_if: &WhatIf,
    mut each: impl FnMut(Replayed),
) -> Result<(), LedgerError> {
    let filter = EventFilter { event_type: Some("RunClaimed".to_owned()), ..EventFilter::default() };
    let mut after = 0;
    loop {
        let page = reader.query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.position;
        for event in &page {
            let run_id = event.metadata().ok().and_then(|metadata| metadata.correlation_id);
            if let Some(run_id) = run_id
                && let Some(replayed) = replay_run(reader, tools, &run_id, what_if).await?
            {
                each(replayed);
            }
        }
    }
}

pub(crate) async fn run(data: &Source, args: ReplayArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let mut what_if = WhatIf::default();
    for with in &args.with {
        what_if.add(with).map_err(|reason| Failure::new(ErrorCode::ValidationFailed, format!("--with: {reason}")))?;
    }
    let reader = data.open_ledger().await?;
    let head = reader.head().await?.position;
    let mut runs = Vec::new();
    match &args.run {
        Some(id) => {
            let found = replay_run(&reader, catalogue(), &id.as_str().into(), &what_if).await?;
            runs.push(found.ok_or_else(|| {
                Failure::new(ErrorCode::RunNotFound, format!("the log knows no run {id} up to position {head}"))
                    .with_hint("`devmind-replay log --type RunPrepared` lists the runs")
            })?);
        }
        None => replay_all(&reader, catalogue(), &what_if, |replayed| runs.push(replayed)).await?,
    }
    let (mut differ, mut missing) = (0, 0);
    for replayed in &runs {
        differ += u32::from(matches!(replayed.outcome, Outcome::Differs(_)));
        missing += u32::from(matches!(replayed.outcome, Outcome::NotReplayable { .. }));
        if output.is_json() {
            output.json(&json!({ "what_if": what_if.is_something(), "position": head, "run": replayed }))?;
        } else {
            print(replayed, output)?;
        }
    }
    output.finish()?;
    say(format_args!("{} runs, read at position {head}; nothing was written", runs.len()));
    if what_if.is_something() {
        say(
            "what comes after a difference is not known: the log has no answer for it, and no model or device is asked",
        );
        return Ok(if missing == 0 { Verdict::Holds } else { Verdict::Incomplete });
    }
    Ok(match (differ, missing) {
        (0, 0) => Verdict::Holds,
        (0, _) => Verdict::Incomplete,
        (_, _) => Verdict::Broken,
    })
}

fn print(replayed: &Replayed, output: &mut Output) -> Result<(), Failure> {
    let Replayed { run_id, decisions, outcome } = replayed;
    match outcome {
        Outcome::Same => output.line(escaped(&format!("run {run_id}: same decisions ({decisions})"))),
        Outcome::SameUntilCut => output
            .line(escaped(&format!("run {run_id}: same decisions ({decisions}) until it was cut off from outside"))),
        Outcome::NotReplayable { code, reason } => {
            output.line(escaped(&format!("run {run_id}: cannot be replayed [{code}]: {reason}")))
        }
        Outcome::Differs(Difference { position, replay, log }) => {
            output.line(escaped(&format!(
                "run {run_id}: differs at event {position}, after {decisions} same decisions"
            )))?;
            output.line(escaped(&format!("  replay: {replay}")))?;
            output.line(escaped(&format!("  log:    {log}")))
        }
    }
}

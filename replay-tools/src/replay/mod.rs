//! `replay`: the agent loop of a run once more, over the answers that the log has; whether it takes the same
//! decisions, and where it first differs.
//!
//! The loop is the server's own ([`devmind_domain::agent::run_agent`]). Models, tools, people, ids and times come
//! from the log, and nothing else can be reached: asking for anything that the log does not have is the
//! difference. Nothing is written. The prompt is made anew from the conversation and compared by its hash.

mod branch;
mod history;
mod model;
mod policy;
mod ports;
mod record;
mod tools;
mod what_if;

pub use what_if::{ToolPolicy, WhatIf};

use crate::Verdict;
use crate::cli::ReplayArgs;
use crate::failure::Failure;
use crate::output::{Output, escaped, say};
use crate::store::Source;
use branch::{End, Step, Told, branch};
use devmind_domain::ErrorCode;
use devmind_domain::agent::{context_hash, prompt, run_agent};
use devmind_domain::ids::RunId;
use devmind_domain::thread::ThreadEvent;
use devmind_domain::tools::{Registry, catalogue};
use devmind_ledger::{EventFilter, LedgerError, LedgerReader, MAX_PAGE_EVENTS};
use model::AskedModel;
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

/// Replays one run, which had these tools, as the log stood at a position; nothing where it did not know the run.
///
/// # Errors
/// When the log cannot be read.
pub async fn replay_run(
    reader: &LedgerReader,
    tools: &Registry,
    run_id: &RunId,
    at: u64,
    what_if: &WhatIf,
) -> Result<Option<Replayed>, LedgerError> {
    let replayed = |decisions, outcome| Ok(Some(Replayed { run_id: run_id.clone(), decisions, outcome }));
    let record = match Record::read(reader, run_id, at).await? {
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
    let tools = &match record.tools(reader, tools).await? {
        Ok(tools) => tools,
        Err(why) => return replayed(0, Outcome::not_replayable(why)),
    };
    let ruled = match &what_if.rules {
        None => Ok((0, None)),
        Some(rules) => policy::judged(reader, &record, tools, run_id, rules).await,
    };
    let (judged, ruled) = match ruled {
        Ok(found) => found,
        Err(Halt::Ledger(error)) => return Err(error),
        Err(Halt::Unreadable(why)) => return replayed(0, Outcome::not_replayable(why)),
        Err(Halt::Cut) => (0, None),
        Err(Halt::Differs(difference)) => (0, Some(difference)),
    };
    let mut ports = Ports { reader, record, what_if, tools, decisions: 0 };
    let ended = match ports.pass_what_changed().await {
        Ok(()) => run_agent(&mut ports).await.and_then(|end| ports.check_end(&end)),
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
    match (outcome, ruled) {
        // Whatever is the first in the log.
        (Outcome::Differs(looped), Some(ruled)) if looped.position < ruled.position => {
            replayed(ports.decisions, Outcome::Differs(looped))
        }
        (_, Some(ruled)) => replayed(judged, Outcome::Differs(ruled)),
        (outcome, None) => replayed(ports.decisions, outcome),
    }
}

/// Replays every run that was claimed up to a position, in the order of the log. `each` is given one after the other.
///
/// # Errors
/// When the log cannot be read.
pub async fn replay_all(
    reader: &LedgerReader,
    tools: &Registry,
    at: u64,
    what_if: &WhatIf,
    mut each: impl FnMut(Replayed),
) -> Result<(), LedgerError> {
    let filter = EventFilter { event_type: Some("RunClaimed".to_owned()), ..EventFilter::default() };
    let mut after = 0;
    loop {
        let page = reader.query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.position;
        for event in page.iter().filter(|event| event.position <= at) {
            let run_id = event.metadata().ok().and_then(|metadata| metadata.correlation_id);
            if let Some(run_id) = run_id
                && let Some(replayed) = replay_run(reader, tools, &run_id, at, what_if).await?
            {
                each(replayed);
            }
        }
    }
}

pub(crate) async fn run(data: &Source, args: ReplayArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let mut what_if = WhatIf::default();
    for with in &args.with {
        what_if.add(with).map_err(|reason| {
            Failure::new(ErrorCode::ValidationFailed, format!("--with: {reason}"))
                .with_hint("`devmind-replay replay --help` lists what it takes")
        })?;
    }
    let reader = data.open_ledger().await?;
    let head = data.position(&reader, args.at).await?;
    what_if.check_tools(&reader, head).await?;
    if let (Some(address), Some(id)) = (&args.ask, &args.run) {
        return ask((data, &reader), address, &id.as_str().into(), head, &what_if, output).await;
    }
    let mut runs = Vec::new();
    match &args.run {
        Some(id) => {
            let found = replay_run(&reader, catalogue(), &id.as_str().into(), head, &what_if).await?;
            runs.push(found.ok_or_else(|| {
                Failure::new(ErrorCode::RunNotFound, format!("the log knows no run {id} up to position {head}"))
                    .with_hint("`devmind-replay log --type RunPrepared` lists the runs")
            })?);
        }
        None => replay_all(&reader, catalogue(), head, &what_if, |replayed| runs.push(replayed)).await?,
    }
    // A row that belongs to nobody any more may be what a difference comes from.
    if let Some(row) = data.damaged().first() {
        for replayed in &mut runs {
            if let Outcome::Differs(Difference { position, .. }) = replayed.outcome {
                let lacks = format!("event {} cannot be read: {}", row.position, row.reason);
                let reason = format!("it differs at event {position}, which may come of it that {lacks}");
                replayed.outcome = Outcome::not_replayable((ErrorCode::LedgerCorrupt, reason));
            }
        }
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

/// The environment's name for the key of the endpoint, as the server has it.
const KEY: &str = "MODEL_API_KEY";

/// A branch whose model really answers.
async fn ask(
    (data, reader): (&Source, &LedgerReader),
    address: &str,
    run_id: &RunId,
    at: u64,
    what_if: &WhatIf,
    output: &mut Output,
) -> Result<Verdict, Failure> {
    let record = match Record::read(reader, run_id, at).await? {
        Ok(record) => record,
        Err(Missing::NoSuchRun) => {
            return Err(Failure::new(
                ErrorCode::RunNotFound,
                format!("the log knows no run {run_id} up to position {at}"),
            )
            .with_hint("`devmind-replay log --type RunPrepared` lists the runs"));
        }
        Err(Missing::NotClaimed) => {
            return Err(Failure::new(ErrorCode::RunNotReplayable, "it was never begun"));
        }
        Err(Missing::Unreadable((code, reason))) => return Err(Failure::new(code, reason)),
    };
    let recorded = record.facts.iter().find_map(|(_, fact)| match fact {
        ThreadEvent::ModelRequested(asked) => Some(asked.model.clone()),
        _ => None,
    });
    let ended =
        record.end.as_ref().map(|(position, event)| (*position, devmind_domain::event::EventSet::type_name(event)));
    let name = what_if.model.clone().or(recorded).ok_or_else(|| {
        Failure::new(ErrorCode::ValidationFailed, "the log names no model of this run").with_hint("--with model=NAME")
    })?;
    let model = AskedModel::new(address, std::env::var(KEY).ok(), name)?;
    let root = data.root(reader, at).await?;
    let tools = record.tools(reader, catalogue()).await?;
    let tools = tools.map_err(|(code, reason)| Failure::new(code, reason))?;
    let told = branch(reader, &tools, record, run_id, what_if, &model).await?;
    if output.is_json() {
        output.json(&json!({
            "what_if": true, "position": at, "root": root, "model": model.name, "branch": told,
            "log_end": ended.map(|(position, event)| json!({ "position": position, "event_type": event })),
        }))?;
    } else {
        print_branch(&told, output)?;
        if let Some((position, event)) = ended {
            output.line(format_args!("the log: {event} at event {position}"))?;
        }
    }
    output.finish()?;
    let root = root.map(|root| format!(", root {root}")).unwrap_or_default();
    say(format_args!("read at position {at}{root}; a model was asked, no tool was called, nothing was written"));
    Ok(Verdict::Holds)
}

fn print_branch(told: &Told, output: &mut Output) -> Result<(), Failure> {
    let Told { run_id, from, steps, end } = told;
    output.line(escaped(&format!("run {run_id}: a branch from event {from}")))?;
    for step in steps {
        let line = match step {
            Step::Model { round, model, content, calls } => {
                format!("  round {round}, {model}: {content} {}", calls.join(", "))
            }
            Step::Tool { tool, arguments, content, from: Some(position), contexts, .. } => {
                let left: String = contexts.iter().map(|context| format!(" (then: {context})")).collect();
                format!("  {tool}({arguments}) as in event {position}: {content}{left}")
            }
            Step::Tool { tool, arguments, content, from: None, .. } => {
                format!("  {tool}({arguments}) is refused: {content}")
            }
        };
        output.line(escaped(line.trim_end()))?;
    }
    let line = match end {
        End::Answered { answer } => format!("  it answers: {answer}"),
        End::Fails { code } => format!("  it fails with {code}"),
        End::Asks { tool, arguments } => format!("  it would ask a person about {tool}({arguments})"),
        End::Calls { tool, arguments } => {
            format!("  it would call {tool}({arguments}), of which the log has no result: here it stops")
        }
    };
    output.line(escaped(&line))
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

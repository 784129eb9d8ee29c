//! `stats`: what fills a log, how it grows, which tools are slow, how many calls are unknown, what the models used.
//!
//! One fold over the events, with memory for the types, days, tools and models there are and for the calls that are
//! under way. Printing is at the end; prices are the operator's own.

use crate::Verdict;
use crate::cli::{Price, StatsArgs};
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say, tell_unread, unread_json};
use crate::store::Source;
use devmind_domain::Timestamp;
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::node::NodeEvent;
use devmind_domain::thread::{ModelResponded, ThreadEvent};
use devmind_domain::tool_call::{ResultStatus, ToolCallEvent};
use devmind_ledger::MAX_PAGE_EVENTS;
use devmind_projections::Unread;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Characters of a timestamp that name its day, as in `2026-01-31`.
const DAY_CHARS: usize = 10;

pub(crate) async fn run(data: &Source, args: StatsArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let position = data.position(&reader, args.at).await?;
    let mut stats = Stats::default();
    {
        let progress = Progress::new("counting", "events");
        let mut after = 0;
        while after < position {
            let page = reader.read(after, MAX_PAGE_EVENTS).await?;
            let Some(last) = page.last().map(|event| event.position) else { break };
            page.iter().filter(|event| event.position <= position).for_each(|event| stats.see(event));
            after = last;
            progress.set(after.min(position), position);
        }
    }
    let unread = std::mem::take(&mut stats.unread);
    let mut told = stats.finish(position, &args.price, &unread);
    told.unread = unread_json(&unread, data);
    if output.is_json() {
        output.json(&told)?;
    } else {
        told.print(output)?;
        output.finish()?;
        say(format_args!("read at position {position}"));
    }
    if !tell_unread(&unread) {
        return Ok(Verdict::Holds);
    }
    say("of them only type and size are counted");
    Ok(Verdict::Incomplete)
}

/// How many of something, and the bytes of their payloads and metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Volume {
    events: u64,
    bytes: u64,
}

impl Volume {
    fn add(&mut self, bytes: u64) {
        self.events += 1;
        self.bytes += bytes;
    }
}

/// The calls of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct ToolStats {
    requested: u64,
    dispatched: u64,
    succeeded: u64,
    /// Ran and failed, or was refused or cancelled on the device.
    failed: u64,
    /// Began, and the device itself cannot know how it ended.
    indeterminate: u64,
    /// Dispatched, without a result, and nobody waits any more.
    unknown: u64,
    /// Dispatched and waited for.
    under_way: u64,
    mean_ms: u64,
    max_ms: u64,
    /// The call that took longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    slowest: Option<String>,
    #[serde(skip)]
    total_ms: u64,
}

/// The tokens of one model on one day, in UTC.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct ModelStats {
    day: String,
    model: String,
    answers: u64,
    input: u64,
    output: u64,
    cached: u64,
    /// Answers whose tokens the provider did not count.
    uncounted: u64,
    /// By the prices that were given, in their unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

struct UnderWay {
    tool: String,
    dispatched_at: Timestamp,
    node: String,
    epoch: u64,
    waited_out: bool,
}

#[derive(Default)]
struct Stats {
    all: Volume,
    span: Option<(Timestamp, Timestamp)>,
    by_type: BTreeMap<String, Volume>,
    by_day: BTreeMap<String, Volume>,
    tools: BTreeMap<String, ToolStats>,
    models: BTreeMap<(String, String), ModelStats>,
    requested: HashMap<String, String>,
    under_way: HashMap<String, UnderWay>,
    /// The newest start of each process, and whether it has ended.
    nodes: HashMap<String, (u64, bool)>,
    unread: Unread,
}

/// What is printed.
#[derive(Serialize)]
struct Told {
    position: u64,
    #[serde(flatten)]
    all: Volume,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_at: Option<Timestamp>,
    by_type: BTreeMap<String, Volume>,
    by_day: BTreeMap<String, Volume>,
    tools: BTreeMap<String, ToolStats>,
    models: Vec<ModelStats>,
    undecodable: u64,
    /// Which these are, and rows that hold no event.
    unread: Vec<Value>,
}

fn day_of(moment: Timestamp) -> String {
    moment.to_string().chars().take(DAY_CHARS).collect()
}

impl Stats {
    fn see(&mut self, event: &RecordedEvent) {
        let bytes = (event.payload.len() + event.metadata.len()) as u64;
        self.all.add(bytes);
        self.by_type.entry(event.event_type.clone()).or_default().add(bytes);
        self.by_day.entry(day_of(event.happened_at())).or_default().add(bytes);
        let first = self.span.map_or(event.happened_at(), |(first, _)| first);
        self.span = Some((first, event.happened_at()));
        match event.decode() {
            Ok(facts) => facts.into_iter().for_each(|fact| self.see_fact(event, fact)),
            Err(_) => self.unread.add(event),
        }
    }

    fn see_fact(&mut self, event: &RecordedEvent, fact: DomainEvent) {
        match fact {
            DomainEvent::Thread(ThreadEvent::ModelResponded(answer)) => self.see_answer(event, &answer),
            DomainEvent::ToolCall(inner) => self.see_call(event, inner),
            DomainEvent::Node(inner) => {
                let (node, epoch, ended) = match inner {
                    NodeEvent::NodeStarted(e) => (e.node_id, e.epoch, false),
                    NodeEvent::NodeStopped(e) => (e.node_id, e.epoch, true),
                    NodeEvent::NodeLost(e) => (e.node_id, e.epoch, true),
                };
                self.nodes.insert(node.0, (epoch, ended));
            }
            DomainEvent::Thread(_)
            | DomainEvent::Conversation(_)
            | DomainEvent::Device(_)
            | DomainEvent::Redaction(_)
            | DomainEvent::Projection(_)
            | DomainEvent::History(_)
            | DomainEvent::ToolSet(_) => {}
        }
    }

    fn see_answer(&mut self, event: &RecordedEvent, answer: &ModelResponded) {
        let key = (day_of(event.happened_at()), answer.served_model.clone());
        let model = self.models.entry(key).or_default();
        model.answers += 1;
        model.input += answer.usage.input.unwrap_or(0);
        model.output += answer.usage.output.unwrap_or(0);
        model.cached += answer.usage.cached.unwrap_or(0);
        model.uncounted += u64::from(answer.usage.input.is_none() && answer.usage.output.is_none());
    }

    fn see_call(&mut self, event: &RecordedEvent, inner: ToolCallEvent) {
        let id = &event.stream.aggregate_id;
        match inner {
            ToolCallEvent::ToolCallRequested(e) => {
                self.tools.entry(e.tool.clone()).or_default().requested += 1;
                self.requested.insert(id.clone(), e.tool);
            }
            // A refusal ends the call: nothing of it is waited for.
            ToolCallEvent::ToolCallDecided(_) => {}
            ToolCallEvent::ToolDispatched(e) => {
                let Some(tool) = self.requested.get(id).cloned() else { return };
                self.tools.entry(tool.clone()).or_default().dispatched += 1;
                let (node, epoch, dispatched_at) = (e.node_id.0, e.epoch, event.happened_at());
                self.under_way.insert(id.clone(), UnderWay { tool, dispatched_at, node, epoch, waited_out: false });
            }
            ToolCallEvent::ToolResultRecorded(e) => {
                self.requested.remove(id);
                let Some(call) = self.under_way.remove(id) else { return };
                let tool = self.tools.entry(call.tool).or_default();
                match e.status {
                    ResultStatus::Succeeded => tool.succeeded += 1,
                    ResultStatus::Failed | ResultStatus::Rejected | ResultStatus::Cancelled => tool.failed += 1,
                    ResultStatus::Indeterminate => tool.indeterminate += 1,
                }
                let took = u64::try_from(event.happened_at().millis_since(call.dispatched_at)).unwrap_or(0);
                tool.total_ms += took;
                if tool.slowest.is_none() || took > tool.max_ms {
                    (tool.max_ms, tool.slowest) = (took, Some(id.clone()));
                }
            }
            ToolCallEvent::ToolWaitTimedOut(_) => {
                if let Some(call) = self.under_way.get_mut(id) {
                    call.waited_out = true;
                }
            }
            ToolCallEvent::ToolAttemptRefused(_) => {
                self.under_way.remove(id);
            }
            ToolCallEvent::ToolReceived(_)
            | ToolCallEvent::ToolCancelRequested(_)
            | ToolCallEvent::ToolOutcomeRevised(_)
            | ToolCallEvent::ToolResultAcked(_) => {}
        }
    }

    fn finish(mut self, position: u64, prices: &[Price], unread: &Unread) -> Told {
        for call in self.under_way.into_values() {
            let over = self.nodes.get(&call.node).is_some_and(|(epoch, ended)| *epoch > call.epoch || *ended);
            let tool = self.tools.entry(call.tool).or_default();
            if call.waited_out || over { tool.unknown += 1 } else { tool.under_way += 1 }
        }
        for tool in self.tools.values_mut() {
            let ended = tool.succeeded + tool.failed + tool.indeterminate;
            tool.mean_ms = tool.total_ms.checked_div(ended).unwrap_or(0);
        }
        let models = self.models.into_iter().map(|((day, model), stats)| {
            let price = prices.iter().find(|price| price.model == model);
            let cost = price.map(|price| price.of(stats.input, stats.output, stats.cached));
            ModelStats { day, model, cost, ..stats }
        });
        let (first_at, last_at) = self.span.unzip();
        Told {
            position,
            all: self.all,
            first_at,
            last_at,
            by_type: self.by_type,
            by_day: self.by_day,
            models: models.collect(),
            tools: self.tools,
            undecodable: unread.count(),
            unread: Vec::new(),
        }
    }
}

impl Told {
    fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let Volume { events, bytes } = self.all;
        output.line(format_args!("{events} events, {bytes} bytes of payload and metadata"))?;
        if let (Some(first), Some(last)) = (self.first_at, self.last_at) {
            output.line(format_args!("from {first} to {last}"))?;
        }
        output.line("\nby type\n    events        bytes  type")?;
        let mut types: Vec<_> = self.by_type.iter().collect();
        types.sort_by_key(|(_, volume)| std::cmp::Reverse(volume.bytes));
        for (name, Volume { events, bytes }) in types {
            output.line(escaped(&format!("{events:>10} {bytes:>12}  {name}")))?;
        }
        output.line("\nby day (UTC)\n    events        bytes  day")?;
        for (day, Volume { events, bytes }) in &self.by_day {
            output.line(format_args!("{events:>10} {bytes:>12}  {day}"))?;
        }
        if !self.tools.is_empty() {
            output.line(
                "\ntools, slowest first\n   mean ms     max ms   called   ran   ok  failed  unknown  waiting  tool (slowest call)",
            )?;
        }
        let mut tools: Vec<_> = self.tools.iter().collect();
        tools.sort_by_key(|(_, tool)| std::cmp::Reverse(tool.mean_ms));
        for (name, tool) in tools {
            let unknown = tool.unknown + tool.indeterminate;
            let rate = (unknown * 100).checked_div(tool.dispatched).unwrap_or(0);
            let slowest = tool.slowest.as_deref().map(|id| format!(" ({id})")).unwrap_or_default();
            output.line(escaped(&format!(
                "{:>10} {:>10} {:>8} {:>5} {:>4} {:>7} {:>4} {rate:>2} % {:>7}  {name}{slowest}",
                tool.mean_ms,
                tool.max_ms,
                tool.requested,
                tool.dispatched,
                tool.succeeded,
                tool.failed,
                unknown,
                tool.under_way,
            )))?;
        }
        if !self.models.is_empty() {
            output.line("\nmodels by day (UTC)\nday          answers        input       output       cached  model")?;
        }
        for model in &self.models {
            let cost = model.cost.map(|cost| format!("  costs {cost:.4}")).unwrap_or_default();
            let uncounted = match model.uncounted {
                0 => String::new(),
                answers => format!("  ({answers} answers without a count)"),
            };
            output.line(escaped(&format!(
                "{} {:>9} {:>12} {:>12} {:>12}  {}{cost}{uncounted}",
                model.day, model.answers, model.input, model.output, model.cached, model.model
            )))?;
        }
        Ok(())
    }
}

//! `import --from-codex` and `import --from-claude-code`: sessions of other agents, taken into a ledger.
//!
//! Every line of a session's file is kept as it was written, whether it is understood or not; what is understood
//! becomes the events that our own agent would have written, in the same append. So `timeline`, `show`, the views and
//! the pages tell it as they tell our own. An import that is repeated compares the lines it knows and goes on after
//! them. How a program writes is in `codex` and `claude_code`, what its steps become in `story`.

mod claude_code;
mod codex;
mod story;

use crate::Verdict;
use crate::cli::ImportArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say};
use crate::store::Source;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use claude_code::ClaudeCode;
use codex::Codex;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::{Actor, AggregateType, DomainEvent, Metadata, NewEvent, StreamId};
use devmind_domain::history::{ForeignRecordKept, HistoryEvent, HistoryImported, IMPORTED};
use devmind_domain::ids::{ConversationId, NodeId};
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::{Append, Ledger, StreamAppend};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use story::{Fact, Story};

/// Bytes of a line that one event keeps; a longer line has several.
const PART_BYTES: usize = 1 << 20;
/// Bytes of a file that is read; sessions are far smaller.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Folders below the one that was named, at most.
const MAX_DEPTH: u32 = 8;

/// What a person, a model or a tool did, as both programs tell it.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Asked(String),
    Said(Box<Said>),
    Returned { call_id: String, ok: bool, output: Value },
    Stopped,
    Ended,
}

/// One answer of the model.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    provider: &'static str,
    model: String,
    text: String,
    reasoning: Option<String>,
    /// Id, name and arguments of each call.
    calls: Vec<(String, String, String)>,
    finish_reason: String,
    usage: Value,
    /// When its last record was written: what was held back is told later than it happened.
    at: Option<Timestamp>,
}

/// What a line was.
#[derive(Debug, Default)]
struct Read {
    kind: String,
    understood: bool,
    steps: Vec<Step>,
}

/// When a record says that it was written.
fn moment(record: &Value) -> Option<Timestamp> {
    record["timestamp"].as_str().and_then(|text| Timestamp::parse(text).ok())
}

/// A program's way of writing; it holds back an answer until all of it was read.
trait Dialect: Send {
    /// The program's name.
    fn source(&self) -> &'static str;
    /// The session that a file is of, by its first records.
    fn session(&self, records: &[Value]) -> Option<String>;
    /// Reads one record.
    fn read(&mut self, record: &Value) -> Read;
    /// What was held back.
    fn rest(&mut self) -> Vec<Step>;
}

pub(crate) async fn run(data: &Source, args: &ImportArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let mut files = Vec::new();
    for named in args.from_codex.iter().chain(&args.from_claude_code) {
        find(named, 0, &mut files)?;
    }
    files.sort();
    if files.is_empty() {
        return Err(Failure::new(ErrorCode::NotFound, "there is no *.jsonl file")
            .with_hint("name a file, or a folder with such files"));
    }
    let codex = !args.from_codex.is_empty();
    let ledger = if args.yes {
        std::fs::create_dir_all(data.folder()).map_err(|error| io(data.folder(), &error))?;
        Some(Ledger::open(data.ledger()).await?)
    } else {
        None
    };
    let (mut told, mut failed) = (Vec::new(), 0_u64);
    {
        let progress = Progress::new("importing", "files");
        for (done, file) in (1..).zip(&files) {
            let dialect: Box<dyn Dialect> =
                if codex { Box::new(Codex::default()) } else { Box::new(ClaudeCode::default()) };
            match session(file, dialect, &args.user, ledger.as_ref()).await {
                Ok(report) => told.push(report),
                // One session that cannot be taken in does not keep the others out.
                Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
                Err(Failure::Error { code, message, .. }) => {
                    failed += 1;
                    say(escaped(&format!("{}: error[{code}]: {message}", file.display())));
                }
            }
            progress.set(done, files.len() as u64);
        }
    }
    let position = match &ledger {
        Some(ledger) => ledger.reader().head().await?.position,
        None => 0,
    };
    if let Some(ledger) = ledger {
        ledger.close().await;
    }
    print(&told, failed, position, output)?;
    if !args.yes {
        say("read, and nothing was imported: --yes imports it into the ledger of --data or DATABASE_URL");
        return Ok(Verdict::Incomplete);
    }
    say(
        "events have the time of their import, and say when they happened; the agent loop of another program cannot be replayed",
    );
    Ok(if failed == 0 { Verdict::Holds } else { Verdict::Incomplete })
}

/// What came of one file.
struct Report {
    session: String,
    conversation: ConversationId,
    lines: u64,
    /// Lines that were there from an earlier import.
    known: u64,
    events: u64,
    understood: BTreeMap<String, u64>,
    kept_only: BTreeMap<String, u64>,
    /// The last line is still being written, and was left for the next import.
    unfinished: bool,
}

fn print(told: &[Report], failed: u64, position: u64, output: &mut Output) -> Result<(), Failure> {
    let sum = |counts: &dyn Fn(&Report) -> &BTreeMap<String, u64>| {
        let mut all = BTreeMap::<String, u64>::new();
        for (kind, count) in told.iter().flat_map(counts) {
            *all.entry(kind.clone()).or_default() += count;
        }
        all
    };
    let (understood, kept_only) = (sum(&|report| &report.understood), sum(&|report| &report.kept_only));
    if output.is_json() {
        let sessions: Vec<_> = told
            .iter()
            .map(|of| {
                json!({
                    "session": of.session, "conversation_id": of.conversation, "lines": of.lines, "known": of.known,
                    "events": of.events, "unfinished": of.unfinished,
                })
            })
            .collect();
        output.json(&json!({
            "sessions": sessions, "failed": failed, "understood": understood, "kept_only": kept_only, "position": position,
        }))?;
        return output.finish();
    }
    for of in told {
        let left = if of.unfinished { ", a last line is still being written" } else { "" };
        output.line(escaped(&format!(
            "{}: {} lines, {} known before, {} events{left}",
            of.conversation, of.lines, of.known, of.events
        )))?;
    }
    for (what, counts) in [("understood", understood), ("kept, not understood", kept_only)] {
        for (kind, count) in counts {
            output.line(escaped(&format!("{count:>9}  {kind}  ({what})")))?;
        }
    }
    output.line(format_args!("{} sessions, {failed} failed", told.len()))?;
    output.finish()
}

fn io(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(ErrorCode::IoError, format!("{}: {error}", path.display())).with_hint("check the path and its rights")
}

/// The files of sessions at a path; links are not followed.
fn find(path: &Path, depth: u32, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let kind = std::fs::symlink_metadata(path).map_err(|error| io(path, &error))?;
    if kind.is_file() && (depth == 0 || path.extension().is_some_and(|end| end == "jsonl")) {
        files.push(path.to_owned());
    } else if kind.is_dir() && depth < MAX_DEPTH {
        for entry in std::fs::read_dir(path).map_err(|error| io(path, &error))? {
            find(&entry.map_err(|error| io(path, &error))?.path(), depth + 1, files)?;
        }
    }
    Ok(())
}

/// Takes one file in, or only reads it where there is no ledger.
async fn session(
    file: &Path,
    mut dialect: Box<dyn Dialect>,
    user: &str,
    ledger: Option<&Ledger>,
) -> Result<Report, Failure> {
    let size = std::fs::metadata(file).map_err(|error| io(file, &error))?.len();
    if size > MAX_FILE_BYTES {
        return Err(Failure::new(ErrorCode::ValidationFailed, format!("longer than {MAX_FILE_BYTES} bytes")));
    }
    let bytes = std::fs::read(file).map_err(|error| io(file, &error))?;
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // What follows the last line end is nothing, or a line that is being written.
    let tail = lines.pop().unwrap_or_default();
    let whole = !tail.is_empty() && serde_json::from_slice::<Value>(tail).is_ok();
    if whole {
        lines.push(tail);
    }
    let parse = |line: &[u8]| serde_json::from_slice::<Value>(line).unwrap_or(Value::Null);
    let first: Vec<Value> = lines.iter().take(100).map(|line| parse(line)).collect();
    let named = dialect.session(&first);
    let session = named.unwrap_or_else(|| file.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    let source = dialect.source();
    let conversation = ConversationId::from(format!("{source}:{session}"));
    let stream = StreamId::new(AggregateType::History, conversation.0.clone());
    let (known, mut ends) = match ledger {
        Some(ledger) => known(ledger, &stream, &lines).await?,
        None => (0, VecDeque::new()),
    };
    let mut report = Report {
        session,
        conversation: conversation.clone(),
        lines: 0,
        known,
        events: 0,
        understood: BTreeMap::new(),
        kept_only: BTreeMap::new(),
        unfinished: !tail.is_empty() && !whole,
    };
    let mut story = Story::new(conversation.clone(), user);
    let mut writer = Writer { ledger, conversation, user: user.to_owned(), versions: HashMap::new() };
    let mut at = None;
    for (number, line) in (1..).zip(&lines) {
        let record = parse(line);
        at = moment(&record).or(at);
        let mut read = if record.is_object() {
            dialect.read(&record)
        } else {
            Read { kind: "unreadable".to_owned(), ..Read::default() }
        };
        let mut facts = Vec::new();
        for step in read.steps.drain(..) {
            facts.extend(story.tell(step, at));
        }
        let counts = if read.understood { &mut report.understood } else { &mut report.kept_only };
        *counts.entry(read.kind.clone()).or_default() += 1;
        report.lines = number;
        if number > known {
            let mut all = kept(source, (number, at), &read, line, &stream);
            all.extend(facts);
            report.events += all.len() as u64;
            writer.append(all).await?;
        }
        // An earlier import ended here: what it concluded is in the log.
        while ends.front() == Some(&number) {
            ends.pop_front();
            dialect.rest().into_iter().for_each(|step| drop(story.tell(step, at)));
            drop(story.pause(at));
        }
    }
    if report.lines > known {
        let mut facts: Vec<Fact> = dialect.rest().into_iter().flat_map(|step| story.tell(step, at)).collect();
        facts.extend(story.pause(at));
        let ended = HistoryImported { source: source.to_owned(), lines: report.lines };
        facts.push(Fact { stream, event: DomainEvent::History(ended.into()), run: None, at });
        report.events += facts.len() as u64;
        writer.append(facts).await?;
    }
    Ok(report)
}

/// How many lines the ledger has whole, and where imports ended. They must be the lines of the file.
async fn known(ledger: &Ledger, stream: &StreamId, lines: &[&[u8]]) -> Result<(u64, VecDeque<u64>), Failure> {
    let (mut count, mut ends) = (0, VecDeque::new());
    for event in ledger.reader().read_stream(stream, 0).await? {
        for fact in event.decode_as().unwrap_or_default() {
            match fact {
                HistoryEvent::ForeignRecordKept(kept) => {
                    count = kept.line;
                    let index = usize::try_from(kept.line - 1).unwrap_or(usize::MAX);
                    if lines.get(index).is_none_or(|line| sha256_hex(line) != kept.line_sha256) {
                        let message = format!(
                            "line {} is another than the one that was imported at event {}",
                            kept.line, event.position
                        );
                        return Err(Failure::new(ErrorCode::ValidationFailed, message));
                    }
                }
                HistoryEvent::HistoryImported(told) => ends.push_back(told.lines),
            }
        }
    }
    Ok((count, ends))
}

/// The line as events that keep it.
fn kept(source: &str, (line, at): (u64, Option<Timestamp>), read: &Read, bytes: &[u8], stream: &StreamId) -> Vec<Fact> {
    let (text, base64) = match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(_) => (STANDARD.encode(bytes), true),
    };
    let mut parts = Vec::new();
    let mut rest = text.as_str();
    while rest.len() > PART_BYTES {
        let end = (0..=PART_BYTES).rev().find(|end| rest.is_char_boundary(*end)).unwrap_or(0);
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    let all = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let line_sha256 = sha256_hex(bytes);
    let fact = |(part, text): (u32, &str)| Fact {
        stream: stream.clone(),
        event: DomainEvent::History(
            ForeignRecordKept {
                source: source.to_owned(),
                line,
                part,
                parts: all,
                kind: read.kind.clone(),
                understood: read.understood,
                text: text.to_owned(),
                base64,
                line_sha256: line_sha256.clone(),
            }
            .into(),
        ),
        run: None,
        at,
    };
    (1..).zip(parts).map(fact).collect()
}

/// Appends what a line became, all or nothing.
struct Writer<'a> {
    ledger: Option<&'a Ledger>,
    conversation: ConversationId,
    user: String,
    versions: HashMap<StreamId, u64>,
}

/// The version of a stream that imports alone have written, but for what changes nothing of it.
async fn version_of(ledger: &Ledger, stream: &StreamId) -> Result<u64, Failure> {
    let events = ledger.reader().read_stream(stream, 0).await?;
    for event in &events {
        let imported = event.metadata().is_ok_and(|metadata| metadata.node_id.as_str() == IMPORTED);
        if !imported && !["ConversationRead", "ConversationRenamed"].contains(&event.event_type.as_str()) {
            let message = format!("the conversation went on here, with event {}", event.position);
            return Err(Failure::new(ErrorCode::ValidationFailed, message));
        }
    }
    Ok(events.len() as u64)
}

impl Writer<'_> {
    async fn append(&mut self, facts: Vec<Fact>) -> Result<(), Failure> {
        let Some(ledger) = self.ledger else { return Ok(()) };
        let mut streams: Vec<StreamAppend> = Vec::new();
        for Fact { stream, event, run, at } in facts {
            let mut metadata =
                Metadata::new(Actor::user(&self.user), NodeId::from(IMPORTED)).conversation(&self.conversation);
            metadata.occurred_at = at;
            if let Some(run) = &run {
                metadata = metadata.run(run);
            }
            let event = NewEvent { event_id: uuid::Uuid::now_v7().to_string(), event, metadata };
            match streams.iter_mut().find(|append| append.stream == stream) {
                Some(append) => append.events.push(event),
                None => {
                    let expected_version = match self.versions.get(&stream) {
                        Some(version) => *version,
                        None => version_of(ledger, &stream).await?,
                    };
                    streams.push(StreamAppend { stream, expected_version, events: vec![event] });
                }
            }
        }
        for append in &streams {
            self.versions.insert(append.stream.clone(), append.expected_version + append.events.len() as u64);
        }
        let appended = ledger.append(Append { streams, idempotency: None }).await;
        appended.map(drop).map_err(|error| Failure::new(error.code(), error.to_string()))
    }
}

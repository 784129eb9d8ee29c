//! `export --format otlp`: runs as OpenTelemetry spans, to a file of OTLP/JSON lines or to a collector by OTLP/HTTP.
//!
//! A file has one request of the trace service a line, one line a run, as the collector's file exporter writes and its
//! file receiver reads (<https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/>). Ids are the same in every
//! export: sending a run again gives its spans again, and nothing new.

mod send;
mod spans;
mod wire;

use crate::Verdict;
use crate::cli::ExportArgs;
use crate::failure::Failure;
use crate::output::{Output, Progress, say, tell_unread, unread_json};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::ConversationEvent;
use devmind_domain::event::DomainEvent;
use devmind_domain::ids::RunId;
use devmind_ledger::{EventFilter, LedgerReader, MAX_PAGE_EVENTS};
use devmind_projections::{Unread, events_of_run};
use send::Collector;
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use wire::Attribute;

/// Where the spans go.
enum Target {
    File(SpansFile),
    Collector(Collector),
}

impl Target {
    async fn take(&mut self, request: &Value) -> Result<(), Failure> {
        match self {
            Self::File(file) => file.line(request),
            Self::Collector(collector) => collector.send(request).await,
        }
    }
}

/// A file for its owner alone that has its name once it is whole; until then it is one beside it that ends with `.part`, and
/// goes with whoever writes it.
struct SpansFile {
    name: PathBuf,
    part: BufWriter<NamedTempFile>,
}

impl SpansFile {
    fn create(name: &Path) -> Result<Self, Failure> {
        let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let made = match name.exists() {
            true => Err(io::Error::from(io::ErrorKind::AlreadyExists)),
            false => tempfile::Builder::new().prefix("spans-").suffix(".part").tempfile_in(folder),
        };
        let part = BufWriter::new(made.map_err(|error| unwritten(name, &error))?);
        Ok(Self { name: name.to_owned(), part })
    }

    fn line(&mut self, request: &Value) -> Result<(), Failure> {
        writeln!(self.part, "{request}").map_err(|error| unwritten(&self.name, &error))
    }

    fn finish(self) -> Result<(), Failure> {
        let Self { name, part } = self;
        let named = part.into_inner().map_err(io::Error::from).and_then(|part| {
            part.as_file().sync_all()?;
            Ok(part.persist_noclobber(&name)?)
        });
        named.map(drop).map_err(|error| unwritten(&name, &error))
    }
}

fn unwritten(name: &Path, error: &io::Error) -> Failure {
    Failure::new(ErrorCode::IoError, format!("{} cannot be written: {error}", name.display()))
        .with_hint("name a file that is not there yet, in a folder that is and has room")
}

pub(crate) async fn export(data: &Source, args: &ExportArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let position = data.position(&reader, args.at).await?;
    let runs = runs(&reader, args, position).await?;
    if runs.is_empty() {
        return Err(Failure::new(ErrorCode::RunNotFound, format!("no such run up to position {position}"))
            .with_hint("`devmind-replay log --type RunPrepared` lists the runs"));
    }
    let named = args.file.to_string_lossy();
    let mut target = if named.starts_with("http://") || named.starts_with("https://") {
        Target::Collector(Collector::new(&named, &args.header)?)
    } else {
        Target::File(SpansFile::create(&args.file)?)
    };
    let resource: [Attribute; 2] =
        [("service.name", json!("devmind")), ("service.instance.id", json!(reader.ledger_id()))];
    let (mut spans, mut exported, mut unread) = (0, 0, Unread::default());
    {
        let progress = Progress::new("exporting", "runs");
        for (done, run_id) in (1..).zip(&runs) {
            let events = events_of_run(&reader, run_id, position).await?;
            let told = spans::of_run(run_id, &events, args.content);
            if told.undecodable > 0 {
                events.iter().for_each(|event| unread.add(event));
            }
            if !told.spans.is_empty() {
                spans += told.spans.len();
                exported += 1;
                target.take(&wire::request(&resource, &told.spans)).await?;
            }
            progress.set(done, runs.len() as u64);
        }
    }
    if let Target::File(file) = target {
        file.finish()?;
    }
    let waiting = runs.len() - exported;
    if output.is_json() {
        output.json(&json!({
            "to": named, "runs": exported, "spans": spans, "not_claimed": waiting, "position": position,
            "undecodable": unread.count(), "unread": unread_json(&unread, data),
        }))?;
    } else {
        output.line(format_args!("{exported} runs, {spans} spans"))?;
        output.finish()?;
        say(format_args!("read at position {position}"));
    }
    if waiting > 0 {
        say(format_args!("{waiting} runs were never begun and have no spans"));
    }
    Ok(if tell_unread(&unread) { Verdict::Incomplete } else { Verdict::Holds })
}

/// The runs that are meant, in the order in which they were prepared.
async fn runs(reader: &LedgerReader, args: &ExportArgs, position: u64) -> Result<Vec<RunId>, Failure> {
    let filter = EventFilter {
        event_type: Some("RunPrepared".to_owned()),
        conversation_id: args.conversation.clone().map(Into::into),
        run_id: args.run.clone().map(Into::into),
        ..EventFilter::default()
    };
    let (mut runs, mut after) = (Vec::new(), 0);
    loop {
        let page = reader.query(&filter, after, MAX_PAGE_EVENTS).await?;
        let Some(last) = page.last().map(|event| event.position) else { return Ok(runs) };
        for event in page.iter().filter(|event| event.position <= position) {
            let Ok(facts) = event.decode() else {
                // It is told with the run's other events, found by what its metadata says.
                runs.extend(event.metadata().ok().and_then(|metadata| metadata.correlation_id));
                continue;
            };
            for fact in facts {
                if let DomainEvent::Conversation(ConversationEvent::RunPrepared(prepared)) = fact {
                    runs.push(prepared.run_id);
                }
            }
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_spans_has_its_name_once_it_is_whole_is_never_written_over_and_leaves_nothing_where_it_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("spans.jsonl");
        let files = || std::fs::read_dir(folder.path()).expect("read").count();
        let mut begun = SpansFile::create(&name).expect("made");
        begun.line(&json!({ "a": 1 })).expect("written");
        assert!(!name.exists() && files() == 1);
        drop(begun);
        assert_eq!(files(), 0, "what was begun");
        let mut whole = SpansFile::create(&name).expect("made");
        whole.line(&json!({ "a": 1 })).expect("written");
        let mut second = SpansFile::create(&name).expect("nobody has the name yet");
        second.line(&json!({ "b": 2 })).expect("written");
        whole.finish().expect("whole");
        second.finish().expect_err("somebody has it by now");
        assert!(SpansFile::create(&name).is_err(), "it is there");
        assert_eq!((std::fs::read_to_string(&name).expect("read").as_str(), files()), ("{\"a\":1}\n", 1));
    }
}

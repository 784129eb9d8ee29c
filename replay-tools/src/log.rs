//! `log`: events in order, filtered, followed.

use crate::Verdict;
use crate::cli::LogArgs;
use crate::failure::Failure;
use crate::output::{Output, escaped, say};
use crate::store::Source;
use devmind_domain::event::RecordedEvent;
use devmind_ledger::{DamagedRow, EventFilter, LedgerReader, MAX_PAGE_EVENTS};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

pub(crate) async fn run(data: &Source, args: LogArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let filter = EventFilter {
        conversation_id: args.conversation.map(Into::into),
        run_id: args.run.map(Into::into),
        tool_call_id: args.tool_call.map(Into::into),
        stream: args.stream,
        event_type: args.r#type,
        actor: args.actor,
    };
    let is_filtered = filter != EventFilter::default();
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut printer = Printer { output, left: limit, undecodable: 0 };
    let mut head = data.position(&reader, args.at).await?;
    let mut after = args.after;
    loop {
        print_to(data, &reader, &filter, after, head, &mut printer).await?;
        printer.output.finish()?;
        if !args.follow || printer.left == 0 {
            break;
        }
        after = after.max(head);
        // Any event wakes; the filter is asked what it was.
        let news = reader.follow(after).next().await?;
        head = news.last().map_or(head, |event| event.position);
    }
    if is_filtered && printer.left == limit {
        say("no event is of all that was asked for; `devmind-replay stats` lists the types there are");
    }
    say(format_args!("read at position {head}"));
    if printer.undecodable == 0 {
        return Ok(Verdict::Holds);
    }
    say(format_args!("{} events could not be decoded; they were printed as they are", printer.undecodable));
    Ok(Verdict::Incomplete)
}

/// Prints what passes the filter after one position and up to another.
async fn print_to(
    data: &Source,
    reader: &LedgerReader,
    filter: &EventFilter,
    mut after: u64,
    head: u64,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    while after < head && printer.left > 0 {
        let page = reader.query(filter, after, MAX_PAGE_EVENTS).await?;
        for event in page.iter().filter(|event| event.position <= head) {
            // In its place, what was passed over on the way.
            data.damaged_between(after + 1, event.position).iter().try_for_each(|row| printer.damaged(row))?;
            if printer.left == 0 {
                return Ok(());
            }
            printer.print(event)?;
            after = event.position;
        }
        let passed = page.last().map_or(head, |event| event.position);
        data.damaged_between(after + 1, passed.min(head)).iter().try_for_each(|row| printer.damaged(row))?;
        after = passed;
    }
    Ok(())
}

struct Printer<'a> {
    output: &'a mut Output,
    left: u64,
    undecodable: u64,
}

impl Printer<'_> {
    /// A row that holds no event; it may be one that was asked for.
    fn damaged(&mut self, DamagedRow { position, reason }: &DamagedRow) -> Result<(), Failure> {
        if self.output.is_json() {
            self.output.json(&json!({ "position": position, "unreadable": reason }))
        } else {
            self.output.line(escaped(&format!("#{position} cannot be read: {reason}")))
        }
    }

    fn print(&mut self, event: &RecordedEvent) -> Result<(), Failure> {
        let undecodable = event.decode().err().map(|error| error.to_string());
        self.left -= 1;
        self.undecodable += u64::from(undecodable.is_some());
        if self.output.is_json() {
            self.output.json(&EventRow::of(event, undecodable))
        } else {
            self.output.line(text_of(event, undecodable.as_deref()))
        }
    }
}

fn text_of(event: &RecordedEvent, undecodable: Option<&str>) -> String {
    let actor = event.metadata().map_or_else(|_| "?".to_owned(), |metadata| metadata.actor.to_string());
    let note = undecodable.map(|reason| format!("  [{reason}]")).unwrap_or_default();
    let line = format!(
        "#{} {} {} {} v{} by {actor} {}{note}",
        event.position, event.recorded_at, event.stream, event.event_type, event.event_version, event.payload
    );
    escaped(&line)
}

/// An event as the server's API shows it: payload and metadata are the exact texts that were hashed.
#[derive(Serialize)]
struct EventRow<'a> {
    partition: u32,
    position: u64,
    event_id: &'a str,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    sequence: u64,
    event_type: &'a str,
    event_version: u32,
    payload: Box<RawValue>,
    metadata: Box<RawValue>,
    recorded_at: String,
    leaf_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    undecodable: Option<String>,
}

impl<'a> EventRow<'a> {
    fn of(event: &'a RecordedEvent, undecodable: Option<String>) -> Self {
        Self {
            partition: event.partition,
            position: event.position,
            event_id: &event.event_id,
            aggregate_type: &event.stream.aggregate_type,
            aggregate_id: &event.stream.aggregate_id,
            sequence: event.sequence,
            event_type: &event.event_type,
            event_version: event.event_version,
            payload: raw(&event.payload),
            metadata: raw(&event.metadata),
            recorded_at: event.recorded_at.to_string(),
            leaf_hash: hex::encode(event.leaf_hash),
            undecodable,
        }
    }
}

/// The text as it stands; text that is no JSON as a string.
fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).or_else(|_| serde_json::value::to_raw_value(text)).unwrap_or_default()
}

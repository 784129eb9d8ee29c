//! `show`: a conversation or a tool call as it was, and what changed between two points of the log.

use crate::Verdict;
use crate::at::At;
use crate::cli::ShowArgs;
use crate::failure::Failure;
use crate::output::{Output, escaped, say, tell_unread, unread_json};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::event::{AggregateType, RecordedEvent, StreamId};
use devmind_domain::ids::{ConversationId, ToolCallId};
use devmind_ledger::{EventFilter, LedgerReader};
use devmind_projections::{ConversationState, ToolCallRow, Unread, field_changes, what_can_be_read_at};
use serde_json::{Value, json};
use std::sync::Arc;

/// What is shown.
enum Subject {
    Conversation(ConversationId),
    ToolCall(ToolCallId, ConversationId),
}

impl Subject {
    async fn find(reader: &LedgerReader, args: &ShowArgs) -> Result<Self, Failure> {
        if let Some(id) = &args.conversation {
            return Ok(Self::Conversation(id.as_str().into()));
        }
        let id = args.tool_call.as_deref().unwrap_or_default();
        let stream = reader.read_stream(&StreamId::new(AggregateType::ToolCall, id), 0).await?;
        // Every event of a call says in its metadata where it belongs, also where it cannot be understood itself.
        let known = |event: &Arc<RecordedEvent>| event.metadata().ok()?.conversation_id;
        let conversation = stream.iter().find_map(known).ok_or_else(|| {
            Failure::new(ErrorCode::NotFound, format!("the log knows no tool call {id}"))
                .with_hint("`devmind-replay log --type ToolCallRequested` lists them")
        })?;
        Ok(Self::ToolCall(id.into(), conversation))
    }

    fn conversation(&self) -> &ConversationId {
        match self {
            Self::Conversation(id) | Self::ToolCall(_, id) => id,
        }
    }

    /// Its state, nothing where it had not begun; and the events that it is made without.
    async fn at(&self, reader: &LedgerReader, position: u64) -> Result<(Option<Shown>, Unread), Failure> {
        let (state, unread) = what_can_be_read_at(reader, self.conversation(), position).await?;
        let shown = state.and_then(|state| match self {
            Self::Conversation(_) => Some(Shown::Conversation(Box::new(state))),
            Self::ToolCall(id, _) => {
                let call = state.tool_calls.into_iter().find(|call| call.tool_call_id == *id);
                call.map(|call| Shown::ToolCall(Box::new(call)))
            }
        });
        Ok((shown, unread))
    }
}

enum Shown {
    Conversation(Box<ConversationState>),
    ToolCall(Box<ToolCallRow>),
}

impl Shown {
    fn json(&self) -> Value {
        let json = match self {
            Self::Conversation(state) => serde_json::to_value(state),
            Self::ToolCall(call) => serde_json::to_value(call),
        };
        json.unwrap_or_default()
    }
}

pub(crate) async fn run(data: &Source, args: ShowArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let subject = Subject::find(&reader, &args).await?;
    // A row that no stream has any more may still say what it belongs to.
    let own = EventFilter { conversation_id: Some(subject.conversation().clone()), ..EventFilter::default() };
    reader.damaged_of(&own).await?;
    if let [from, to] = args.diff.as_slice() {
        return diff(data, &reader, &subject, (*from, *to), output).await;
    }
    let at = data.position(&reader, args.at).await?;
    let (shown, unread) = subject.at(&reader, at).await?;
    let Some(shown) = shown else {
        tell_unread(&unread);
        let message = format!("up to position {at} the log knows nothing of it");
        return Err(Failure::new(ErrorCode::NotFound, message)
            .with_hint("name a later position, or look for its id: `devmind-replay log --type TurnPrepared`"));
    };
    if output.is_json() {
        output.json(&json!({ "position": at, "state": shown.json(), "unread": unread_json(&unread, data) }))?;
    } else {
        match &shown {
            Shown::Conversation(state) => print_conversation(state, output)?,
            Shown::ToolCall(call) => print_call(call, "", output)?,
        }
    }
    output.finish()?;
    say(format_args!("read at position {at}"));
    Ok(if tell_unread(&unread) { Verdict::Incomplete } else { Verdict::Holds })
}

async fn diff(
    data: &Source,
    reader: &LedgerReader,
    subject: &Subject,
    (from, to): (At, At),
    output: &mut Output,
) -> Result<Verdict, Failure> {
    let (from, to) = (data.position(reader, Some(from)).await?, data.position(reader, Some(to)).await?);
    let (before, lacks_before) = subject.at(reader, from).await?;
    let (after, lacks_after) = subject.at(reader, to).await?;
    let (before, after) = (before.map(|shown| shown.json()), after.map(|shown| shown.json()));
    for change in field_changes(before.as_ref(), after.as_ref()) {
        if output.is_json() {
            let (field, before, after) = (change.field, change.before, change.after);
            output.json(&json!({ "from": from, "to": to, "field": field, "before": before, "after": after }))?;
        } else {
            let text = |value: Option<&Value>| value.map_or_else(|| "(nothing)".to_owned(), Value::to_string);
            let (before, after) = (text(change.before.as_ref()), text(change.after.as_ref()));
            output.line(escaped(&format!("{}: {before} → {after}", change.field)))?;
        }
    }
    output.finish()?;
    say(format_args!("read at positions {from} and {to}"));
    // The later one lacks what the earlier one does, unless they were given the other way round.
    let unread = if from <= to { lacks_after } else { lacks_before };
    Ok(if tell_unread(&unread) { Verdict::Incomplete } else { Verdict::Holds })
}

fn print_conversation(state: &ConversationState, output: &mut Output) -> Result<(), Failure> {
    let ConversationState { conversation_id, user_id, title, .. } = state;
    output.line(escaped(&format!("conversation {conversation_id} of {user_id}: {title}")))?;
    if state.deleted {
        output.line("deleted by its owner; an earlier position shows its turns")?;
    }
    for turn in &state.turns {
        let run = turn.active_run.as_ref().map(|run| format!(", run {} {}", run.run_id, run.status));
        let code = turn.error_code.as_ref().map(|code| format!(" ({code})"));
        let (run, code) = (run.unwrap_or_default(), code.unwrap_or_default());
        output.line(escaped(&format!("turn {} {}{code}{run}", turn.sequence_no, turn.status)))?;
        print_text("question", &turn.question, output)?;
        if let Some(answer) = &turn.answer {
            let cut = if turn.partial { " (cut off)" } else { "" };
            print_text(&format!("answer{cut}"), answer, output)?;
        }
        for open in &turn.pending_approvals {
            output.line(escaped(&format!("  waits for approval {}: {}", open.interrupt_id, open.message)))?;
        }
        for call in &turn.tool_calls {
            if let Some(call) = state.tool_calls.iter().find(|full| full.tool_call_id == call.tool_call_id) {
                print_call(call, "  ", output)?;
            }
        }
    }
    Ok(())
}

/// What somebody said, each line of it as one.
fn print_text(what: &str, text: &str, output: &mut Output) -> Result<(), Failure> {
    let mut lines = text.lines();
    output.line(escaped(&format!("  {what}: {}", lines.next().unwrap_or_default())))?;
    lines.try_for_each(|line| output.line(escaped(&format!("    {line}"))))
}

fn print_call(call: &ToolCallRow, indent: &str, output: &mut Output) -> Result<(), Failure> {
    let code = call.error_code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
    let settled = if call.settled { "" } else { ", not final" };
    let line = format!("{indent}{} {} {}{code}{settled}: {}", call.tool_call_id, call.tool, call.status, call.summary);
    output.line(escaped(&line))?;
    for attempt in &call.attempts {
        let device = attempt.connection_id.as_ref().map(|id| format!(" on connection {id}")).unwrap_or_default();
        let line = format!(
            "{indent}  attempt {} sent {} by {} epoch {}{device}: {}",
            attempt.attempt_no, attempt.dispatched_at, attempt.node_id, attempt.epoch, attempt.status
        );
        output.line(escaped(&line))?;
    }
    Ok(())
}

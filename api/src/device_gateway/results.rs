//! A device's reports: record, wake, acknowledge — in this order.
//!
//! Every well-formed report of a known call is acknowledged, the second one like the first. An error
//! while recording acknowledges nothing: whether it was stored is not known, and the device brings it
//! again on its next connection.

use super::connections::Connection;
use super::waiters::CallKey;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::hash_json;
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::{CallResult, ProtocolError, ServerFrame};
use devmind_domain::tool_call::*;
use devmind_ledger::{ExecuteError, execute, load};

/// Bytes of a code that a device names, at most: known ones are far shorter.
const MAX_CODE_BYTES: usize = 64;

/// What the socket answers.
pub(super) type Answers = Vec<ServerFrame>;

/// Takes a report.
///
/// # Errors
/// When the ledger fails; then nothing must be acknowledged.
pub(super) async fn take(
    app: &App,
    connection: &Connection,
    report: CallResult,
) -> Result<Answers, ExecuteError<ToolCallError>> {
    let id = report.tool_call_id.clone();
    if let Some(problem) = malformed(&report) {
        return Ok(refused(&id, problem));
    }
    let (before, _) = load::<ToolCall>(app.ledger.reader(), id.as_str()).await.map_err(ExecuteError::Ledger)?;
    let Some(request) = &before.request else {
        return Ok(vec![ServerFrame::Ack { tool_call_id: id, disposition: Disposition::UnknownCall }]);
    };
    let mut metadata = app.metadata(Actor::device(&connection.device_id)).conversation(&request.conversation_id);
    metadata = metadata.run(&request.run_id);
    let sent_on = before.attempts.iter().find(|attempt| attempt.attempt_no == report.executed_attempt_no);
    let live = sent_on.is_some_and(|attempt| attempt.connection_id.as_ref() == Some(&connection.id));
    let result = recorded(report, connection, if live { ResultOrigin::Live } else { ResultOrigin::Redelivered });
    let reporter = Reporter::Device {
        user_id: connection.user_id.clone(),
        device_id: connection.device_id.clone(),
        journal_id: connection.journal_id.clone(),
    };
    let command = ToolCallCommand::RecordResult { result: Box::new(result.clone()), reporter };
    let done = match execute::<ToolCall>(&app.ledger, id.as_str(), &metadata, command, None).await {
        Ok(done) => done,
        Err(ExecuteError::Refused(error)) => return Ok(refused(&id, error.to_string())),
        Err(error) => return Err(error),
    };
    let disposition = if done.events.is_empty() { done.state.disposition_of(&result) } else { Disposition::Stored };
    app.gateway.waiters.wake(&key(connection, &id), None);
    acknowledge(app, connection, &id, &metadata, disposition).await?;
    Ok(vec![ServerFrame::Ack { tool_call_id: id, disposition }])
}

async fn acknowledge(
    app: &App,
    connection: &Connection,
    id: &ToolCallId,
    metadata: &Metadata,
    disposition: Disposition,
) -> Result<(), ExecuteError<ToolCallError>> {
    let command = ToolCallCommand::Acknowledge { connection_id: connection.id.clone(), disposition };
    execute::<ToolCall>(&app.ledger, id.as_str(), metadata, command, None).await.map(drop)
}

/// Notes how far the device has got; says nothing about the result.
///
/// # Errors
/// When the ledger fails.
pub(super) async fn note_phase(
    app: &App,
    connection: &Connection,
    id: &ToolCallId,
    attempt_no: u32,
    phase: Phase,
) -> Result<Answers, ExecuteError<ToolCallError>> {
    let (state, _) = load::<ToolCall>(app.ledger.reader(), id.as_str()).await.map_err(ExecuteError::Ledger)?;
    let own = state.request.as_ref().filter(|request| {
        request.user_id == connection.user_id && request.device_id.as_ref() == Some(&connection.device_id)
    });
    let Some(request) = own else { return Ok(vec![complaint("this call was never sent to this device".to_owned())]) };
    let metadata = app.metadata(Actor::device(&connection.device_id)).conversation(&request.conversation_id);
    let command = ToolCallCommand::Receive { attempt_no, phase };
    match execute::<ToolCall>(&app.ledger, id.as_str(), &metadata.run(&request.run_id), command, None).await {
        Ok(_) => Ok(Vec::new()),
        Err(ExecuteError::Refused(error)) => Ok(vec![complaint(error.to_string())]),
        Err(error) => Err(error),
    }
}

/// The device will not take the attempt: its waiter is told, the call is not settled.
///
/// The code goes into the thread and to the model: what is no code, for its length, is not passed on.
pub(super) fn note_refusal(app: &App, connection: &Connection, id: &ToolCallId, code: String) {
    let code = if code.len() <= MAX_CODE_BYTES { code } else { ErrorCode::ToolNotAvailable.as_str().to_owned() };
    app.gateway.waiters.wake(&key(connection, id), Some(code));
}

fn key(connection: &Connection, id: &ToolCallId) -> CallKey {
    CallKey { user_id: connection.user_id.clone(), device_id: connection.device_id.clone(), tool_call_id: id.clone() }
}

fn recorded(report: CallResult, connection: &Connection, origin: ResultOrigin) -> ToolResultRecorded {
    ToolResultRecorded {
        executed_attempt_no: report.executed_attempt_no,
        status: report.status,
        output: report.output,
        output_sha256: report.output_sha256,
        error: report.error,
        started_at: report.started_at,
        finished_at: report.finished_at,
        origin,
        connection_id: Some(connection.id.clone()),
    }
}

/// What is wrong with a report, if something is: it can never be taken then.
fn malformed(report: &CallResult) -> Option<String> {
    if let Some(output) = &report.output
        && report.output_sha256.as_deref() != Some(hash_json(output).as_str())
    {
        return Some("output_sha256 is not the hash of the output".to_owned());
    }
    if report.error.as_ref().is_some_and(|error| error.code.len() > MAX_CODE_BYTES) {
        return Some(format!("an error's code has at most {MAX_CODE_BYTES} bytes"));
    }
    if report.status != ResultStatus::Succeeded && report.error.is_none() {
        return Some("a report that is no success must carry an error".to_owned());
    }
    if report.status == ResultStatus::Succeeded && report.output.is_none() && !report.output_discarded {
        return Some("a success must carry its output".to_owned());
    }
    None
}

fn refused(id: &ToolCallId, message: String) -> Answers {
    let nack =
        ServerFrame::Nack { tool_call_id: id.clone(), code: ErrorCode::Protocol.as_str().to_owned(), permanent: true };
    vec![complaint(message), nack]
}

fn complaint(message: String) -> ServerFrame {
    ServerFrame::ProtocolError(ProtocolError {
        code: ErrorCode::Protocol.as_str().to_owned(),
        message,
        about_event_id: None,
    })
}

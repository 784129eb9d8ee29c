//! A device's reports and what else it says of calls: the shell around [`Report`], which says in which
//! order a report is recorded, wakes and is acknowledged.

use super::connections::Connection;
use super::waiters::CallKey;
use crate::state::App;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::hash_json;
use devmind_domain::device_channel::server_call::{Refusal, Report, ReportEffect, ReportInput};
use devmind_domain::event::{Actor, Metadata};
use devmind_domain::ids::ToolCallId;
use devmind_domain::protocol::{CallResult, ProtocolError, ServerFrame};
use devmind_domain::tool_call::*;
use devmind_ledger::{ExecuteError, Executed, LedgerError, execute, load, remembered};
use std::sync::Arc;

/// Bytes of a code that a device names, at most: known ones are far shorter.
const MAX_CODE_BYTES: usize = 64;

/// What the socket answers.
pub(super) type Answers = Vec<ServerFrame>;

/// Takes a report: performs what [`Report`] says.
///
/// # Errors
/// When the ledger fails; then nothing must be acknowledged.
pub(super) async fn take(
    app: &App,
    connection: &Connection,
    report: CallResult,
) -> Result<Answers, ExecuteError<ToolCallError>> {
    let id = report.tool_call_id.clone();
    let problem = malformed(&report);
    let (mut machine, mut effects) = Report::arrived(problem.is_none());
    let metadata = app.metadata(Actor::device(&connection.device_id));
    let mut taking =
        Taking { app, connection, id, report, problem, metadata, live: false, failed: None, answers: Vec::new() };
    loop {
        let mut input = None;
        for effect in effects {
            input = taking.perform(effect).await?.or(input);
        }
        let Some(input) = input else { return Ok(taking.answers) };
        effects = machine.step(input);
    }
}

/// A report that is being taken.
struct Taking<'a> {
    app: &'a App,
    connection: &'a Connection,
    id: ToolCallId,
    report: CallResult,
    /// What is wrong with it.
    problem: Option<String>,
    metadata: Metadata,
    /// Whether it came on the socket that its attempt was sent on.
    live: bool,
    /// What the ledger said when it failed.
    failed: Option<ExecuteError<ToolCallError>>,
    answers: Answers,
}

impl Taking<'_> {
    async fn perform(&mut self, effect: ReportEffect) -> Result<Option<ReportInput>, ExecuteError<ToolCallError>> {
        Ok(Some(match effect {
            ReportEffect::Read => {
                let attempt_no = self.report.executed_attempt_no;
                let has_attempt = |call: &ToolCall| call.last_attempt() >= attempt_no;
                match known_call(self.app, &self.id, has_attempt).await {
                    Ok(call) => ReportInput::Read { is_known: self.look_at(&call) },
                    Err(error) => self.in_doubt(ExecuteError::Ledger(error)),
                }
            }
            ReportEffect::Record => self.record().await,
            ReportEffect::Wake => {
                self.app.gateway.waiters.wake(&key(self.connection, &self.id), None);
                return Ok(None);
            }
            ReportEffect::SendAck(disposition) => {
                self.answers.push(ServerFrame::Ack { tool_call_id: self.id.clone(), disposition });
                return Ok(None);
            }
            ReportEffect::SendNack => {
                self.answers.extend(refused(&self.id, self.problem.take().unwrap_or_default()));
                return Ok(None);
            }
            // By the reader, for which an error means that the socket cannot go on.
            ReportEffect::CloseSocket => return self.failed.take().map_or(Ok(None), Err),
        }))
    }

    /// Whether the call is known; notes what the events about it need.
    fn look_at(&mut self, call: &ToolCall) -> bool {
        let Some(request) = &call.request else { return false };
        self.metadata = self.metadata.clone().conversation(&request.conversation_id).run(&request.run_id);
        let sent_as = call.attempts.iter().find(|attempt| attempt.attempt_no == self.report.executed_attempt_no);
        self.live = sent_as.is_some_and(|attempt| attempt.connection_id.as_ref() == Some(&self.connection.id));
        true
    }

    async fn record(&mut self) -> ReportInput {
        let origin = if self.live { ResultOrigin::Live } else { ResultOrigin::Redelivered };
        let result = recorded(self.report.clone(), self.connection, origin);
        let reporter = Reporter::Device {
            user_id: self.connection.user_id.clone(),
            device_id: self.connection.device_id.clone(),
            journal_id: self.connection.journal_id.clone(),
            connection_id: self.connection.id.clone(),
        };
        match self.command(ToolCallCommand::RecordResult { result: Box::new(result.clone()), reporter }).await {
            // The acknowledgement alone: another report was recorded before.
            Ok(done) if done.events.len() == 1 => ReportInput::Recorded(done.state.disposition_of(&result)),
            Ok(_) => ReportInput::Recorded(Disposition::Stored),
            Err(ExecuteError::Refused(error)) => {
                self.problem = Some(error.to_string());
                ReportInput::Forbidden
            }
            Err(error) => self.in_doubt(error),
        }
    }

    async fn command(&self, command: ToolCallCommand) -> Result<Executed<ToolCall>, ExecuteError<ToolCallError>> {
        execute::<ToolCall>(&self.app.ledger, self.id.as_str(), &self.metadata, command, None).await
    }

    fn in_doubt(&mut self, error: ExecuteError<ToolCallError>) -> ReportInput {
        self.failed = Some(error);
        ReportInput::InDoubt
    }
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
    note(app, connection, id, ToolCallCommand::Receive { attempt_no, phase }).await
}

/// The device will not run the attempt: recorded, then who waits for it is told. It does not settle the call.
///
/// The code goes into the thread and to the model: what is no code, for its length, is not passed on.
///
/// # Errors
/// When the ledger fails.
pub(super) async fn note_refusal(
    app: &App,
    connection: &Connection,
    id: &ToolCallId,
    attempt_no: u32,
    code: String,
) -> Result<Answers, ExecuteError<ToolCallError>> {
    let code = if code.len() <= MAX_CODE_BYTES { code } else { ErrorCode::ToolNotAvailable.as_str().to_owned() };
    let command = ToolCallCommand::Refuse { attempt_no, code: code.clone() };
    let answers = note(app, connection, id, command).await?;
    if answers.is_empty() {
        app.gateway.waiters.wake(&key(connection, id), Some(Refusal { attempt_no, code }));
    }
    Ok(answers)
}

/// Records what a device says of a call of its own.
async fn note(
    app: &App,
    connection: &Connection,
    id: &ToolCallId,
    command: ToolCallCommand,
) -> Result<Answers, ExecuteError<ToolCallError>> {
    let state = known_call(app, id, |_| true).await.map_err(ExecuteError::Ledger)?;
    let own = state.request.as_ref().filter(|request| {
        request.user_id == connection.user_id && request.device_id.as_ref() == Some(&connection.device_id)
    });
    let Some(request) = own else { return Ok(vec![complaint("this call was never sent to this device".to_owned())]) };
    let metadata = app.metadata(Actor::device(&connection.device_id)).conversation(&request.conversation_id);
    match execute::<ToolCall>(&app.ledger, id.as_str(), &metadata.run(&request.run_id), command, None).await {
        Ok(_) => Ok(Vec::new()),
        Err(ExecuteError::Refused(error)) => Ok(vec![complaint(error.to_string())]),
        Err(error) => Err(error),
    }
}

/// The call, for what never changes of it: its request, and how an attempt was sent. Read where what is remembered
/// does not suffice.
async fn known_call(
    app: &App,
    id: &ToolCallId,
    suffices: impl Fn(&ToolCall) -> bool,
) -> Result<Arc<ToolCall>, LedgerError> {
    let reader = app.ledger.reader();
    let seen = remembered::<ToolCall>(reader, id.as_str()).filter(|call| call.request.is_some() && suffices(call));
    match seen {
        Some(call) => Ok(call),
        None => load::<ToolCall>(reader, id.as_str()).await.map(|(call, _)| call),
    }
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

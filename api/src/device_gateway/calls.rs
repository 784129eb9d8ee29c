//! Calling a device's tool: dispatch, wait, and tell the truth about what is known.
//!
//! Order: enter as a waiter → append request and dispatch → read the state again → send. The wait
//! ends with the recorded result, a refusal, a lost socket (`RESULT_UNKNOWN`), a time-out, or a
//! stop. Nothing is ever sent again by itself.

use super::Gateway;
use super::connections::Connection;
use super::waiters::{CallKey, Waiter};
use crate::ids::now;
use crate::runs::{StopReason, StopSignal};
use devmind_domain::canonical::canonical_json;
use devmind_domain::conversation::Claim;
use devmind_domain::event::{AggregateType, Metadata, StreamId};
use devmind_domain::ids::{RunId, ToolCallId};
use devmind_domain::limits::{TOOL_TTL_MS, TOOL_WAIT_MS};
use devmind_domain::protocol::{CallRequest, ServerFrame};
use devmind_domain::tool_call::*;
use devmind_domain::tools::{ToolOutcome, catalogue};
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::{ExecuteError, Ledger, execute, load};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// What a call needs to know of the run that makes it.
pub struct CallContext {
    /// The run.
    pub run_id: RunId,
    /// What the user sees at the device.
    pub conversation_title: String,
    /// Metadata of the events.
    pub metadata: Metadata,
    /// How the run is stopped.
    pub signal: StopSignal,
}

/// How a wait ended.
pub enum CallEnd {
    /// With an outcome for the model.
    Outcome(ToolOutcome),
    /// The run was stopped; the outcome is what a prompt says of the call.
    Stopped(StopReason, ToolOutcome),
}

/// What cannot be told to the model.
pub type CallError = ExecuteError<ToolCallError>;

impl Gateway {
    /// Calls a device tool and waits.
    ///
    /// # Errors
    /// When the ledger fails.
    pub async fn call(
        &self,
        ledger: &Ledger,
        claim: &Claim,
        context: CallContext,
        id: &ToolCallId,
        request: ToolCallRequested,
    ) -> Result<CallEnd, CallError> {
        let call = Call { ledger, context: &context, id };
        let connection = match self.connection_for(&request) {
            Ok(connection) => connection,
            Err(code) => return call.refuse(request, code).await,
        };
        let key = CallKey {
            user_id: connection.user_id.clone(),
            device_id: connection.device_id.clone(),
            tool_call_id: id.clone(),
        };
        let (waiter, joins) = self.waiters.enter(key);
        let dispatch = Dispatch {
            run_id: context.run_id.clone(),
            node_id: claim.node_id.clone(),
            epoch: claim.epoch,
            connection_id: Some(connection.id.clone()),
            journal_id: Some(connection.journal_id.clone()),
            wait_ms: TOOL_WAIT_MS,
            ttl_ms: TOOL_TTL_MS,
            attempt_is_live: joins,
            age_ms: call.age_ms().await?,
            request,
        };
        match call.command(ToolCallCommand::Dispatch(Box::new(dispatch))).await {
            Ok(_) => call.send_and_wait(&connection, waiter, joins).await,
            // Another hash under one id, another device: the model gets the code.
            Err(ExecuteError::Refused(error)) => {
                Ok(CallEnd::Outcome(ToolOutcome::failure(error.code(), error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    /// The socket the call can go to.
    fn connection_for(&self, request: &ToolCallRequested) -> Result<Arc<Connection>, ErrorCode> {
        let device_id = request.device_id.as_ref().ok_or(ErrorCode::DesktopDeviceNotSelected)?;
        let connection = self.connections.online(&request.user_id, device_id).ok_or(ErrorCode::DeviceOffline)?;
        if connection.offers(&request.tool, &request.tool_version) {
            Ok(connection)
        } else {
            Err(ErrorCode::ToolNotAvailable)
        }
    }
}

struct Call<'a> {
    ledger: &'a Ledger,
    context: &'a CallContext,
    id: &'a ToolCallId,
}

impl Call<'_> {
    async fn command(&self, command: ToolCallCommand) -> Result<ToolCall, CallError> {
        execute::<ToolCall>(self.ledger, self.id.as_str(), &self.context.metadata, command, None)
            .await
            .map(|done| done.state)
    }

    async fn state(&self) -> Result<ToolCall, CallError> {
        let (state, _) =
            load::<ToolCall>(self.ledger.reader(), self.id.as_str()).await.map_err(ExecuteError::Ledger)?;
        Ok(state)
    }

    /// When the call was first requested; `None` where it is new.
    async fn requested_at(&self) -> Result<Option<Timestamp>, CallError> {
        let stream = StreamId::new(AggregateType::ToolCall, self.id.as_str());
        let events = self.ledger.reader().read_stream(&stream, 0).await.map_err(ExecuteError::Ledger)?;
        Ok(events.first().map(|event| event.recorded_at))
    }

    async fn age_ms(&self) -> Result<i64, CallError> {
        Ok(self.requested_at().await?.map_or(0, |at| now().millis_since(at)))
    }

    async fn refuse(&self, request: ToolCallRequested, code: ErrorCode) -> Result<CallEnd, CallError> {
        let decided = ToolCallDecided {
            stage: "device".to_owned(),
            decision: Decision::Deny,
            code: code.as_str().to_owned(),
            by: "gateway".to_owned(),
        };
        self.command(ToolCallCommand::Decide { request: Box::new(request), decided }).await?;
        Ok(CallEnd::Outcome(ToolOutcome::failure(code, code.help())))
    }

    async fn send_and_wait(
        &self,
        connection: &Arc<Connection>,
        mut waiter: Waiter,
        joins: bool,
    ) -> Result<CallEnd, CallError> {
        // Read again after the commit: a late result of an earlier attempt may stand there by now.
        let state = self.state().await?;
        if let Some(recorded) = &state.result {
            return Ok(CallEnd::Outcome(ToolOutcome::of(recorded)));
        }
        if !joins && let Some(frame) = self.request_frame(&state, connection).await? {
            // A full queue closes the socket, which ends the wait below.
            connection.send(frame);
        }
        let attempt_no = state.last_attempt();
        let started = Instant::now();
        let deadline = started + Duration::from_millis(TOOL_WAIT_MS);
        loop {
            tokio::select! {
                reason = self.context.signal.stopped() => return self.stop(connection, reason).await,
                () = connection.ended.cancelled() => return self.lost().await,
                () = sleep_until(deadline) => return self.time_out(connection, attempt_no, started).await,
                changed = waiter.wake.changed() => {
                    let refused = waiter.wake.borrow_and_update().refused.clone();
                    if let Some(recorded) = self.state().await?.result {
                        return Ok(CallEnd::Outcome(ToolOutcome::of(&recorded)));
                    }
                    if let Some(code) = refused {
                        let message = ErrorCode::parse(&code).map_or("the device refused", ErrorCode::help).to_owned();
                        let error = ToolError { code, message };
                        return Ok(CallEnd::Outcome(ToolOutcome { result: Err(error) }));
                    }
                    if changed.is_err() {
                        return self.lost().await;
                    }
                }
            }
        }
    }

    async fn request_frame(&self, state: &ToolCall, connection: &Connection) -> Result<Option<ServerFrame>, CallError> {
        let Some(request) = &state.request else { return Ok(None) };
        let Some(definition) = catalogue().get(&request.tool) else { return Ok(None) };
        Ok(Some(ServerFrame::Request(Box::new(CallRequest {
            tool_call_id: self.id.clone(),
            run_id: self.context.run_id.clone(),
            attempt_no: state.last_attempt(),
            tool_name: request.tool.clone(),
            tool_version: request.tool_version.clone(),
            arguments_json: canonical_json(&request.arguments),
            call_hash: request.call_hash.clone(),
            requires_confirmation: definition.requires_confirmation,
            execution_timeout_ms: definition.timeout_ms,
            ttl_ms: TOOL_TTL_MS,
            expires_at: Some(now().plus_millis(TOOL_TTL_MS.cast_signed())),
            call_created_at: self.requested_at().await?.unwrap_or_else(now),
            device_id: connection.device_id.clone(),
            conversation_title: self.context.conversation_title.clone(),
        }))))
    }

    /// The socket ended: what is recorded counts, else nobody knows.
    async fn lost(&self) -> Result<CallEnd, CallError> {
        let outcome = match self.state().await?.result {
            Some(recorded) => ToolOutcome::of(&recorded),
            None => ToolOutcome::failure(
                ErrorCode::ResultUnknown,
                "the connection to the device was lost while the call was under way",
            ),
        };
        Ok(CallEnd::Outcome(outcome))
    }

    async fn time_out(&self, connection: &Connection, attempt_no: u32, started: Instant) -> Result<CallEnd, CallError> {
        let after_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let state = self.command(ToolCallCommand::TimeOut { attempt_no, after_ms }).await?;
        if let Some(recorded) = &state.result {
            return Ok(CallEnd::Outcome(ToolOutcome::of(recorded)));
        }
        self.cancel(connection, CancelReason::WaitTimedOut).await?;
        Ok(CallEnd::Outcome(ToolOutcome::failure(ErrorCode::ToolTimeout, ErrorCode::ToolTimeout.help())))
    }

    async fn stop(&self, connection: &Connection, reason: StopReason) -> Result<CallEnd, CallError> {
        let state = self.cancel(connection, CancelReason::RunCancelled).await?;
        let outcome = match &state.result {
            Some(recorded) => ToolOutcome::of(recorded),
            None => ToolOutcome::failure(ErrorCode::RunCancelled, ErrorCode::RunCancelled.help()),
        };
        Ok(CallEnd::Stopped(reason, outcome))
    }

    /// Records that the call is taken back, then tells the device.
    async fn cancel(&self, connection: &Connection, reason: CancelReason) -> Result<ToolCall, CallError> {
        let state = self.command(ToolCallCommand::Cancel { reason }).await?;
        if !state.is_settled() {
            let frame = ServerFrame::Cancel { tool_call_id: self.id.clone(), attempt_no: state.last_attempt(), reason };
            connection.send(frame);
        }
        Ok(state)
    }
}

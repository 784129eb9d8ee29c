//! Calling a device's tool: the shell around [`ServerCall`].
//!
//! In which order a call is recorded, read, sent, waited for and taken back is decided by the machine
//! (`devmind_domain::device_channel::server_call`); here its effects are performed on the ledger, the
//! socket and the clock. Nothing is ever sent again by itself.

use super::Gateway;
use super::request::{request_frame, requested_at};
use super::route::{Route, is_waited_for_elsewhere};
use super::waiters::{CallKey, Waiter};
use crate::ids::now;
use crate::runs::{StopReason, StopSignal, Unchanged};
use devmind_domain::conversation::Claim;
use devmind_domain::device_channel::server_call::{Effect, End, Input, ServerCall, Stands};
use devmind_domain::event::Metadata;
use devmind_domain::ids::{RunId, ToolCallId};
use devmind_domain::limits::{TOOL_TTL_MS, TOOL_WAIT_MS};
use devmind_domain::protocol::ServerFrame;
use devmind_domain::tool_call::*;
use devmind_domain::tools::ToolOutcome;
use devmind_domain::tools::catalogue;
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::{ExecuteError, Executed, Ledger, execute, load, load_since, remembered};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// After a read that failed, the call is read again after this time.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(250);

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
    /// When the call and its device were looked at last: what stands of them since then need not be read again.
    pub looked_at: std::time::Instant,
    /// The conversation that the call's permission rests on, where it does: otherwise nothing is dispatched.
    pub unchanged: Option<Unchanged>,
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
    /// When the ledger fails, or the conversation is not as the call's permission needs it.
    pub async fn call(
        &self,
        ledger: &Ledger,
        claim: &Claim,
        context: CallContext,
        id: &ToolCallId,
        request: ToolCallRequested,
    ) -> Result<CallEnd, CallError> {
        let call = Call { ledger, context: &context, id };
        let reader = ledger.reader();
        let Some(device_id) = request.device_id.clone() else {
            return call.refuse(request, ErrorCode::DesktopDeviceNotSelected).await;
        };
        let user_id = request.user_id.clone();
        let routing = self.route(reader, claim, context.looked_at, &device_id, &request);
        let reading = load_since::<ToolCall>(reader, id.as_str(), context.looked_at);
        let (route, (known, version)) = futures::try_join!(routing, reading).map_err(ExecuteError::Ledger)?;
        let route = match route {
            Ok(route) => route,
            Err(code) => return call.refuse(request, code).await,
        };
        // Of what its user is not asked about, a device tells only so much in a minute.
        let is_asked = catalogue().get(&request.tool).is_none_or(|definition| definition.requires_confirmation);
        if !is_asked && !self.rates.listings.allows(&(user_id.clone(), device_id.clone())) {
            return call.refuse(request, ErrorCode::RateLimited).await;
        }
        let (requested_at, joins_elsewhere) = match version {
            0 => (None, false),
            _ => (
                requested_at(reader, id).await.map_err(ExecuteError::Ledger)?,
                is_waited_for_elsewhere(reader, claim, &known).await.map_err(ExecuteError::Ledger)?,
            ),
        };
        // Entered before the dispatch is appended: no result can slip between.
        let (waiter, joins) = self.waiters.enter(CallKey { user_id, device_id, tool_call_id: id.clone() });
        let joins = joins || joins_elsewhere;
        let dispatch = Dispatch {
            run_id: context.run_id.clone(),
            node_id: claim.node_id.clone(),
            epoch: claim.epoch,
            connection_id: Some(route.connection_id().clone()),
            journal_id: Some(route.journal_id().to_owned()),
            wait_ms: TOOL_WAIT_MS,
            ttl_ms: TOOL_TTL_MS,
            attempt_is_live: joins,
            age_ms: requested_at.map_or(0, |at| now().millis_since(at)),
            request,
        };
        let (machine, effects) = ServerCall::begin(joins);
        let caller = Caller {
            call,
            route,
            waiter,
            dispatch: Some(dispatch),
            requested_at,
            state: Arc::default(),
            made: None,
            stopped: None,
            failed: None,
            waiting_since: Instant::now(),
            pause: None,
        };
        caller.make(machine, effects).await
    }
}

struct Call<'a> {
    ledger: &'a Ledger,
    context: &'a CallContext,
    id: &'a ToolCallId,
}

impl Call<'_> {
    async fn command(&self, command: ToolCallCommand) -> Result<Executed<ToolCall>, CallError> {
        execute::<ToolCall>(self.ledger, self.id.as_str(), &self.context.metadata, command, None).await
    }

    async fn dispatch(&self, dispatch: Dispatch) -> Result<Executed<ToolCall>, CallError> {
        let command = ToolCallCommand::Dispatch(Box::new(dispatch));
        match &self.context.unchanged {
            Some(unchanged) => unchanged.execute(self.ledger, self.id, &self.context.metadata, &command).await,
            None => self.command(command).await,
        }
    }

    async fn state(&self) -> Result<Arc<ToolCall>, CallError> {
        let (state, _) =
            load::<ToolCall>(self.ledger.reader(), self.id.as_str()).await.map_err(ExecuteError::Ledger)?;
        Ok(state)
    }

    async fn refuse(&self, request: ToolCallRequested, code: ErrorCode) -> Result<CallEnd, CallError> {
        let error = ToolError::of(code);
        let decided = ToolCallDecided::deny("device", &error, "gateway");
        self.command(ToolCallCommand::Decide { request: Box::new(request), decided }).await?;
        Ok(CallEnd::Outcome(ToolOutcome { result: Err(error) }))
    }
}

/// One who calls and waits: performs what the machine says.
struct Caller<'a> {
    call: Call<'a>,
    route: Route,
    waiter: Waiter,
    /// Until it is recorded.
    dispatch: Option<Dispatch>,
    /// When the call was first requested; `None` until that is recorded.
    requested_at: Option<Timestamp>,
    /// The call as it was read last.
    state: Arc<ToolCall>,
    /// The call as it stands right after it was made known, until that is looked at.
    made: Option<Arc<ToolCall>>,
    /// Why the run was told to stop.
    stopped: Option<StopReason>,
    /// What the ledger, or the rules, said last when they did not take something.
    failed: Option<CallError>,
    waiting_since: Instant,
    /// After which pause the caller wakes, although nothing wakes it.
    pause: Option<Duration>,
}

impl Caller<'_> {
    /// Makes the call, to its end.
    async fn make(mut self, mut machine: ServerCall, mut effects: Vec<Effect>) -> Result<CallEnd, CallError> {
        loop {
            let mut input = None;
            for effect in effects {
                if let Effect::End(end) = effect {
                    return self.ended(end);
                }
                input = self.perform(effect).await.or(input);
            }
            // Every step but the last has an effect with an outcome.
            let Some(input) = input else { return self.ended(End::InDoubt) };
            effects = machine.step(input);
        }
    }

    async fn perform(&mut self, effect: Effect) -> Option<Input> {
        Some(match effect {
            Effect::Dispatch => {
                self.waiting_since = Instant::now();
                let dispatch = self.dispatch.take()?;
                match self.call.dispatch(dispatch).await {
                    Ok(done) => {
                        let first = done.events.first();
                        self.requested_at = self.requested_at.or(first.map(|event| event.recorded_at));
                        self.made = first.filter(|event| event.sequence == 1).map(|_| done.state);
                        Input::Dispatched
                    }
                    // Another hash under one id, another device: the model gets the code.
                    Err(ExecuteError::Refused(error)) => {
                        self.failed = Some(ExecuteError::Refused(error));
                        Input::Forbidden
                    }
                    // Nothing was appended: the caller looks again.
                    Err(error) if self.call.context.unchanged.as_ref().is_some_and(|own| own.is_why(&error)) => {
                        self.failed = Some(error);
                        Input::Forbidden
                    }
                    Err(error) => self.in_doubt(error),
                }
            }
            Effect::Read => match self.read().await {
                Ok(state) => Input::Read(self.now_stands(state)),
                Err(error) => self.in_doubt(error),
            },
            Effect::Send { attempt_no } => {
                // A socket elsewhere gets it from its holder, who reads the dispatch in the log.
                if let (Some(connection), Some(frame)) = (self.route.here(), self.request_frame(attempt_no)) {
                    // A full queue closes the socket, which ends the wait.
                    connection.send(frame);
                }
                self.waiting_since = Instant::now();
                return None;
            }
            Effect::WakeLater => {
                self.pause = Some(READ_AGAIN_AFTER);
                return None;
            }
            Effect::Wait => self.wait().await,
            Effect::RecordTimeOut { attempt_no } => {
                let after_ms = u64::try_from(self.waiting_since.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.record(ToolCallCommand::TimeOut { attempt_no, after_ms }).await
            }
            Effect::RecordCancel(reason) => self.record(ToolCallCommand::Cancel { reason }).await,
            Effect::SendCancel { attempt_no, reason } => {
                // A socket elsewhere gets it from its holder, once it is recorded.
                if let Some(connection) = self.route.here() {
                    let tool_call_id = self.call.id.clone();
                    connection.send(ServerFrame::Cancel { tool_call_id, attempt_no, reason });
                }
                return None;
            }
            // By `make`.
            Effect::End(_) => return None,
        })
    }

    fn request_frame(&self, attempt_no: u32) -> Option<ServerFrame> {
        let attempt = self.state.attempts.iter().find(|attempt| attempt.attempt_no == attempt_no)?;
        let title = self.call.context.conversation_title.clone();
        request_frame(self.call.id, &self.state, attempt, self.requested_at.unwrap_or_else(now), title)
    }

    /// How the call stands, as its stream says.
    async fn read(&mut self) -> Result<Arc<ToolCall>, CallError> {
        // Nobody can have reported a call that nobody knew before this very append: it stands as it was committed.
        if let Some(made) = self.made.take() {
            return Ok(made);
        }
        // A result that this process recorded itself, or has read before, stays what it is.
        let seen = remembered::<ToolCall>(self.call.ledger.reader(), self.call.id.as_str());
        match seen.filter(|call| call.result.is_some()) {
            Some(settled) => Ok(settled),
            None => self.call.state().await,
        }
    }

    async fn wait(&mut self) -> Input {
        // The waiter was entered before: what happens to the socket after this look wakes it.
        match &self.route {
            Route::Here(_) => {}
            Route::Elsewhere(elsewhere) => match elsewhere.counts(self.call.ledger.reader()).await {
                Ok(true) => {}
                Ok(false) => return Input::SocketLost,
                Err(error) => {
                    tracing::warn!(tool_call.id = %self.call.id, cause = %error, "a device's socket cannot be looked up");
                    self.pause = Some(READ_AGAIN_AFTER);
                }
            },
        }
        let ended = async {
            match self.route.here() {
                Some(connection) => connection.ended.cancelled().await,
                None => pending().await,
            }
        };
        let deadline = self.waiting_since + Duration::from_millis(TOOL_WAIT_MS);
        let pause = self.pause.take();
        let later = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => pending().await,
            }
        };
        tokio::select! {
            reason = self.call.context.signal.stopped() => {
                self.stopped = Some(reason);
                Input::RunStopped
            }
            () = ended => Input::SocketLost,
            () = sleep_until(deadline) => Input::WaitTimedOut,
            () = later => Input::Woken(None),
            changed = self.waiter.wake.changed() => match changed {
                Ok(()) => Input::Woken(self.waiter.wake.borrow_and_update().refused.clone()),
                Err(_) => Input::SocketLost,
            },
        }
    }

    async fn record(&mut self, command: ToolCallCommand) -> Input {
        match self.call.command(command).await {
            Ok(done) => Input::Recorded(self.now_stands(done.state)),
            Err(error) => self.in_doubt(error),
        }
    }

    fn now_stands(&mut self, state: Arc<ToolCall>) -> Stands {
        self.state = state;
        Stands::from(&*self.state)
    }

    fn in_doubt(&mut self, error: CallError) -> Input {
        tracing::error!(tool_call.id = %self.call.id, cause = %error, "the ledger failed while a device was called");
        self.failed = Some(error);
        Input::InDoubt
    }

    /// What the run gets.
    fn ended(self, end: End) -> Result<CallEnd, CallError> {
        let outcome = match end {
            End::Settled => settled(&self.state).unwrap_or_else(unknown),
            End::Refused(code) => {
                let message = ErrorCode::parse(&code).map_or("the device refused", ErrorCode::help).to_owned();
                ToolOutcome { result: Err(ToolError { code, message }) }
            }
            End::Lost => unknown(),
            End::TimedOut => ToolOutcome::failure(ErrorCode::ToolTimeout, ErrorCode::ToolTimeout.help()),
            End::Stopped => {
                let cancelled = || ToolOutcome::failure(ErrorCode::RunCancelled, ErrorCode::RunCancelled.help());
                let reason = self.stopped.unwrap_or(StopReason::ShuttingDown);
                return Ok(CallEnd::Stopped(reason, settled(&self.state).unwrap_or_else(cancelled)));
            }
            End::Forbidden | End::InDoubt => match self.failed {
                Some(ExecuteError::Refused(error)) => ToolOutcome::failure(error.code(), error.to_string()),
                Some(error) => return Err(error),
                None => unknown(),
            },
        };
        Ok(CallEnd::Outcome(outcome))
    }
}

/// The outcome of a call that can never change again: its result, or the decision that refused it.
fn settled(state: &ToolCall) -> Option<ToolOutcome> {
    if let Some(recorded) = &state.result {
        return Some(ToolOutcome::of(recorded));
    }
    Some(ToolOutcome { result: Err(state.refusal()?.error()) })
}

fn unknown() -> ToolOutcome {
    let message = "the connection to the device was lost while the call was under way";
    ToolOutcome::failure(ErrorCode::ResultUnknown, message)
}

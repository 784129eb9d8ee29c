//! One claimed run: the agent loop over real ports, from `RUN_STARTED` to its one terminal event.

use super::active::{StopReason, StopSignal};
use super::claim::Started;
use super::settle::{RunEnd, SettleError, append_end};
use super::sink::Sink;
use crate::agui::{AgUiEvent, Outcome, PROTOCOL_VERSION, Usage};
use crate::ids::new_id;
use crate::state::App;
use devmind_domain::agent::{AgentEnd, AgentPorts, Message, PlannedCall, run_agent};
use devmind_domain::conversation::{ConversationCommand, RunCancelReason};
use devmind_domain::event::{AggregateType, Metadata, NewEvent, StreamId};
use devmind_domain::ids::*;
use devmind_domain::thread::{Thread, ThreadCommand, ThreadError};
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{Append, AppendError, LedgerError, StreamAppend};
use devmind_projections::RunRow;
use futures::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Why the loop was left before its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Halt {
    /// The run was told to stop.
    #[error("stopped")]
    Stopped(StopReason),
    /// A fact could not be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The log could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The loop recorded something that does not follow: a fault of this program.
    #[error("the thread refused a fact: {0}")]
    Thread(#[from] ThreadError),
    /// A tool call's stream refused something.
    #[error("the tool call refused: {0}")]
    ToolCall(#[from] devmind_domain::tool_call::ToolCallError),
}

/// One claimed run.
pub(super) struct Execution {
    pub app: Arc<App>,
    pub run: RunRow,
    pub context: Vec<Message>,
    pub thread: Thread,
    pub thread_version: u64,
    pub sink: Sink,
    pub signal: StopSignal,
    pub usage: Vec<Usage>,
    /// Whether the client declared a protocol version, and so knows the cancelled outcome.
    declared: bool,
}

/// How the run ends, in the ledger and for the client.
enum Ending {
    Answered { message_id: MessageId, answer: String },
    Failed { code: String, message: String },
    Cancelled(RunCancelReason),
}

impl Execution {
    pub fn new(app: Arc<App>, run: RunRow, started: Started, sink: Sink, signal: StopSignal, declared: bool) -> Self {
        let Started { context, thread, thread_version } = started;
        Self { app, run, context, thread, thread_version, sink, signal, usage: Vec::new(), declared }
    }

    /// Runs to the terminal event, whatever happens: an answer, a failure, a stop, a panic.
    pub async fn run_to_end(mut self) {
        self.sink
            .send(AgUiEvent::RunStarted {
                thread_id: self.run.conversation_id.to_string(),
                run_id: self.run.run_id.to_string(),
                protocol_version: PROTOCOL_VERSION,
            })
            .await;
        let ending = match AssertUnwindSafe(run_agent(&mut self)).catch_unwind().await {
            Ok(Ok(AgentEnd::Answered { message_id, answer })) => Ending::Answered { message_id, answer },
            Ok(Ok(AgentEnd::Failed { code, message })) => Ending::Failed { code, message },
            Ok(Err(Halt::Stopped(StopReason::Cancelled(reason)))) => Ending::Cancelled(reason),
            Ok(Err(Halt::Stopped(StopReason::ShuttingDown))) => failed(ErrorCode::ShuttingDown),
            Ok(Err(halt)) => {
                tracing::error!(run.id = %self.run.run_id, cause = %halt, "run halted");
                failed(ErrorCode::Internal)
            }
            Err(_panic) => {
                tracing::error!(run.id = %self.run.run_id, "run panicked");
                failed(ErrorCode::Internal)
            }
        };
        let last = match self.settle(&ending).await {
            Ok(()) => self.terminal_event(&ending),
            Err(error) => {
                // The run stays "running" in the log until the next start settles it; the client must
                // not be told anything that the log does not say.
                tracing::error!(run.id = %self.run.run_id, cause = %error, "run could not be settled");
                let code = ErrorCode::LedgerUnavailable;
                AgUiEvent::RunError { message: code.help().to_owned(), code: code.as_str().to_owned() }
            }
        };
        self.sink.send(last).await;
    }

    pub fn metadata(&self) -> Metadata {
        self.app.server_metadata().run(&self.run.run_id).conversation(&self.run.conversation_id)
    }

    /// Appends facts of the loop to the thread, then folds them.
    pub async fn record(&mut self, command: ThreadCommand) -> Result<(), Halt> {
        let events = self.thread.decide(command)?;
        let metadata = self.metadata();
        let new = |event: &devmind_domain::thread::ThreadEvent| NewEvent {
            event_id: new_id(),
            event: event.clone().into(),
            metadata: metadata.clone(),
        };
        let thread = StreamAppend {
            stream: StreamId::new(AggregateType::Thread, self.run.graph_thread_id.as_str()),
            expected_version: self.thread_version,
            events: events.iter().map(new).collect(),
        };
        self.app.ledger.append(Append { streams: vec![thread], idempotency: None }).await?;
        self.thread_version += events.len() as u64;
        events.iter().for_each(|event| self.thread.evolve(event));
        Ok(())
    }

    async fn settle(&self, ending: &Ending) -> Result<(), SettleError> {
        let end = RunEnd {
            run: &self.run,
            thread: &self.thread,
            thread_version: self.thread_version,
            stand_in: ErrorCode::AbortedBeforeDispatch,
            command: self.ending_command(ending),
        };
        append_end(&self.app, end).await
    }

    fn ending_command(&self, ending: &Ending) -> ConversationCommand {
        let (run_id, claim) = (self.run.run_id.clone(), self.app.claim.clone());
        let (message_id, partial_text) = self.thread.streamed_text();
        match ending {
            Ending::Answered { message_id, answer } => ConversationCommand::CompleteRun {
                run_id,
                claim,
                message_id: message_id.clone(),
                answer: answer.clone(),
            },
            Ending::Failed { code, message } => ConversationCommand::FailRun {
                run_id,
                claim,
                error_code: code.clone(),
                error_message: message.clone(),
                message_id,
                partial_text,
            },
            Ending::Cancelled(reason) => {
                ConversationCommand::CancelRun { run_id, claim, reason: *reason, message_id, partial_text }
            }
        }
    }

    fn terminal_event(&self, ending: &Ending) -> AgUiEvent {
        let finished = |outcome| AgUiEvent::RunFinished {
            thread_id: self.run.conversation_id.to_string(),
            run_id: self.run.run_id.to_string(),
            outcome,
            usage: self.usage.clone(),
        };
        match ending {
            Ending::Answered { .. } => finished(Outcome::Success),
            Ending::Failed { code, message } => AgUiEvent::RunError { message: message.clone(), code: code.clone() },
            Ending::Cancelled(_) if self.declared => finished(Outcome::Cancelled),
            // Clients before 1.0 take an unknown outcome for success.
            Ending::Cancelled(_) => {
                AgUiEvent::RunError { message: "the run was stopped".to_owned(), code: "cancelled".to_owned() }
            }
        }
    }
}

fn failed(code: ErrorCode) -> Ending {
    Ending::Failed { code: code.as_str().to_owned(), message: code.help().to_owned() }
}

impl AgentPorts for Execution {
    type Halt = Halt;

    fn thread(&self) -> &Thread {
        &self.thread
    }

    async fn call_model(&mut self, round: u32) -> Result<(), Halt> {
        self.model_round(round).await
    }

    async fn run_tools(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        for planned in calls {
            self.run_tool(&planned).await?;
        }
        Ok(())
    }
}

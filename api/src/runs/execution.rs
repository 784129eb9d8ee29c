//! One claimed run: the agent loop over real ports, from `RUN_STARTED` to its one terminal event.
//!
//! What the client sees is a fold of what was appended ([`RunStream`]), so that a replay of the run
//! shows the same; streamed text alone runs ahead of the log.

use super::active::{StopReason, StopSignal};
use super::claim::Started;
use super::settle::{RunEnd, SettleError, settle};
use super::sink::Sink;
use crate::agui::{AgUiEvent, Audience, RunStream};
use crate::ids::new_id;
use crate::state::App;
use crate::tools::ToolSet;
use devmind_domain::agent::{AgentEnd, AgentPorts, Approvals, Message, PlannedCall, run_agent};
use devmind_domain::conversation::{ConversationCommand, RunCancelReason};
use devmind_domain::event::{AggregateType, Metadata, NewEvent, RecordedEvent, StreamId};
use devmind_domain::ids::*;
use devmind_domain::thread::{Thread, ThreadCommand, ThreadError, ThreadEvent};
use devmind_domain::tools::Registry;
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
    /// The task of a call broke down: a fault of this program.
    #[error("a call broke down: {0}")]
    Broken(#[from] tokio::task::JoinError),
    /// The conversation refused something: another process owns the run.
    #[error("the conversation refused: {0}")]
    Conversation(#[from] devmind_domain::conversation::ConversationError),
}

/// One claimed run.
pub(super) struct Execution {
    pub app: Arc<App>,
    pub run: RunRow,
    pub context: Vec<Message>,
    pub thread: Thread,
    pub thread_version: u64,
    pub approvals: Approvals,
    /// The tools as they were when the run began.
    pub tools: Arc<ToolSet>,
    pub signal: StopSignal,
    pub stream: RunStream,
    sink: Sink,
    /// The claim, which begins the stream.
    claimed: Vec<Arc<RecordedEvent>>,
}

/// How the run ends in the ledger.
enum Ending {
    Answered {
        message_id: MessageId,
        answer: String,
    },
    /// By `await_approval`, in the append that raised the interrupts.
    Interrupted,
    Failed {
        code: String,
        message: String,
    },
    Cancelled(RunCancelReason),
}

impl Execution {
    pub fn new(
        app: Arc<App>,
        run: RunRow,
        started: Started,
        sink: Sink,
        signal: StopSignal,
        audience: Audience,
    ) -> Self {
        let Started { context, thread, thread_version, approvals, events } = started;
        let tools = app.tools.current();
        let stream = RunStream::new(run.run_id.clone(), audience);
        Self { app, run, context, thread, thread_version, approvals, tools, signal, stream, sink, claimed: events }
    }

    /// Runs to the terminal event, whatever happens: an answer, a failure, a stop, a panic.
    pub async fn run_to_end(mut self) {
        let claimed = std::mem::take(&mut self.claimed);
        self.show(&claimed).await;
        let ending = match AssertUnwindSafe(self.loop_to_end()).catch_unwind().await {
            Ok(Ok(AgentEnd::Answered { message_id, answer })) => Ending::Answered { message_id, answer },
            Ok(Ok(AgentEnd::Interrupted)) => Ending::Interrupted,
            Ok(Ok(AgentEnd::Failed { code, message })) => Ending::Failed { code, message },
            Ok(Err(Halt::Stopped(reason))) => stopped(reason),
            Ok(Err(halt)) => {
                tracing::error!(run.id = %self.run.run_id, cause = %halt, "run halted");
                // A run that was told to stop ends as stopped, also when something failed meanwhile.
                self.signal.reason().map_or_else(|| failed(ErrorCode::Internal), stopped)
            }
            Err(_panic) => {
                tracing::error!(run.id = %self.run.run_id, "run panicked");
                failed(ErrorCode::Internal)
            }
        };
        if let Err(error) = self.settle(ending).await {
            // The run stays "running" in the log until the next start settles it; the client must not
            // be told anything that the log does not say.
            tracing::error!(run.id = %self.run.run_id, cause = %error, "run could not be settled");
            let code = ErrorCode::LedgerUnavailable;
            let last = AgUiEvent::RunError { message: code.help().to_owned(), code: code.as_str().to_owned() };
            self.sink.send(last).await;
        }
    }

    async fn loop_to_end(&mut self) -> Result<AgentEnd, Halt> {
        self.refuse_what_changed().await?;
        run_agent(self).await
    }

    pub fn metadata(&self) -> Metadata {
        self.app.server_metadata().run(&self.run.run_id).conversation(&self.run.conversation_id)
    }

    /// Shows the client what was recorded.
    pub async fn show(&mut self, recorded: &[Arc<RecordedEvent>]) {
        for event in recorded {
            match event.decode() {
                Ok(facts) => {
                    for fact in facts {
                        for shown in self.stream.see(&event.stream, &fact) {
                            self.sink.send(shown).await;
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(event.position = event.position, cause = %error, "an own event is unreadable")
                }
            }
        }
    }

    /// Shows the client text before it is recorded.
    pub async fn show_text(&mut self, message_id: &MessageId, delta: &str) {
        for shown in self.stream.text(message_id, delta) {
            self.sink.send(shown).await;
        }
    }

    /// Appends facts of the loop to the thread, folds them, shows them.
    pub async fn record(&mut self, command: ThreadCommand) -> Result<(), Halt> {
        let events = self.thread.decide(command)?;
        let metadata = self.metadata();
        let new = |event: &ThreadEvent| NewEvent {
            event_id: new_id(),
            event: event.clone().into(),
            metadata: metadata.clone(),
        };
        let thread = StreamAppend {
            stream: StreamId::new(AggregateType::Thread, self.run.graph_thread_id.as_str()),
            expected_version: self.thread_version,
            events: events.iter().map(new).collect(),
        };
        let appended = self.app.ledger.append(Append { streams: vec![thread], idempotency: None }).await?;
        self.thread_version += events.len() as u64;
        events.iter().for_each(|event| self.thread.evolve(event));
        self.show(&appended.events).await;
        Ok(())
    }

    /// Appends the run's end, and in the same transaction a stand-in result for every call that has
    /// none, so that no later prompt holds a call without a result.
    async fn settle(&mut self, ending: Ending) -> Result<(), SettleError> {
        let Some(command) = self.ending_command(ending) else { return Ok(()) };
        let end = RunEnd { run: &self.run, stand_in: ErrorCode::ToolNotStarted, command };
        let recorded = settle(&self.app, &end).await?;
        self.show(&recorded).await;
        Ok(())
    }

    fn ending_command(&self, ending: Ending) -> Option<ConversationCommand> {
        let (run_id, claim) = (self.run.run_id.clone(), self.app.claim.clone());
        let (message_id, partial_text) = self.thread.streamed_text();
        Some(match ending {
            Ending::Interrupted => return None,
            Ending::Answered { message_id, answer } => {
                ConversationCommand::CompleteRun { run_id, claim, message_id, answer }
            }
            Ending::Failed { code, message } => ConversationCommand::FailRun {
                run_id,
                claim,
                error_code: code,
                error_message: message,
                message_id,
                partial_text,
            },
            Ending::Cancelled(reason) => {
                ConversationCommand::CancelRun { run_id, claim, reason, message_id, partial_text }
            }
        })
    }
}

fn stopped(reason: StopReason) -> Ending {
    match reason {
        StopReason::Cancelled(reason) => Ending::Cancelled(reason),
        StopReason::ShuttingDown => failed(ErrorCode::ShuttingDown),
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

    fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    fn tools(&self) -> &Registry {
        self.tools.registry()
    }

    async fn call_model(&mut self, round: u32) -> Result<(), Halt> {
        self.model_round(round).await
    }

    async fn judge(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        self.hear_policies(&calls).await
    }

    async fn run_tools(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        self.carry_out(calls).await
    }

    async fn await_approval(&mut self, calls: Vec<PlannedCall>) -> Result<(), Halt> {
        self.interrupt(calls).await
    }
}

//! One question to the model: ask, stream, record.
//!
//! Text reaches the client as it comes and the thread at least every 500 ms or 2 KiB, so that a
//! crash loses no more than that. Calls are shown only after the answer that makes them is recorded.

use super::active::StopReason;
use super::execution::{Execution, Halt};
use crate::ids::new_id;
use crate::model::{ModelChunk, ModelFailure, ModelRequest, ModelStream, OfferedTool};
use devmind_domain::ErrorCode;
use devmind_domain::agent::{context_hash, prompt};
use devmind_domain::canonical::hash_json;
use devmind_domain::ids::*;
use devmind_domain::limits::*;
use devmind_domain::thread::*;
use devmind_domain::tools::catalogue;
use futures::StreamExt;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// What has come of an answer.
struct Answer {
    message_id: MessageId,
    content: String,
    /// Bytes of `content` that the thread has.
    recorded: usize,
    last_recorded: Instant,
    calls: Vec<ModelToolCall>,
    usage: TokenUsage,
    served_model: Option<String>,
    finish_reason: Option<String>,
}

enum Interruption {
    Stop(StopReason),
    Failure(ModelFailure),
    Halt(Halt),
}

impl Execution {
    pub(super) async fn model_round(&mut self, round: u32) -> Result<(), Halt> {
        if let Some(reason) = self.signal.reason() {
            return Err(Halt::Stopped(reason));
        }
        let model = self.app.model.clone();
        let request = ModelRequest { messages: prompt(&self.context, &self.thread), tools: offered_tools() };
        self.record(ThreadCommand::RequestModel(ModelRequested {
            run_id: self.run.run_id.clone(),
            round,
            provider: model.provider().to_owned(),
            model: model.name().to_owned(),
            parameters: model.parameters(),
            request_hash: context_hash(&request.messages),
            tools_hash: hash_json(&request.tools),
        }))
        .await?;

        let asked_at = Instant::now();
        let mut answer = Answer {
            message_id: new_id().into(),
            content: String::new(),
            recorded: 0,
            last_recorded: asked_at,
            calls: Vec::new(),
            usage: TokenUsage::default(),
            served_model: None,
            finish_reason: None,
        };
        let streamed = self.stream_answer(request, &mut answer).await;
        match streamed {
            Ok(()) => self.record_answer(round, answer, asked_at.elapsed()).await,
            Err(Interruption::Stop(reason)) => {
                self.record_progress(&mut answer).await?;
                Err(Halt::Stopped(reason))
            }
            Err(Interruption::Failure(failure)) => {
                self.record_progress(&mut answer).await?;
                self.record(ThreadCommand::RecordFailure(ModelFailed {
                    run_id: self.run.run_id.clone(),
                    round,
                    code: failure.code.as_str().to_owned(),
                    message: failure.message,
                    retriable: failure.code.retriable(),
                }))
                .await
            }
            Err(Interruption::Halt(halt)) => Err(halt),
        }
    }

    async fn stream_answer(&mut self, request: ModelRequest, answer: &mut Answer) -> Result<(), Interruption> {
        let model = self.app.model.clone();
        let signal = self.signal.clone();
        let first_byte = self.app.model_patience.first_byte;
        let deadline = Instant::now() + first_byte;
        let mut stream = tokio::select! {
            reason = signal.stopped() => return Err(Interruption::Stop(reason)),
            asked = timeout(first_byte, model.ask(request)) => asked.unwrap_or_else(|_| Err(silent())).map_err(Interruption::Failure)?,
        };
        let mut wait = deadline.saturating_duration_since(Instant::now());
        loop {
            let chunk = tokio::select! {
                reason = signal.stopped() => return Err(Interruption::Stop(reason)),
                chunk = next_chunk(&mut stream, wait) => chunk.map_err(Interruption::Failure)?,
            };
            wait = self.app.model_patience.idle;
            let Some(chunk) = chunk else { break };
            self.take(chunk, answer).await?;
        }
        match answer.finish_reason {
            Some(_) => Ok(()),
            None => {
                let message = "the model's answer broke off before it was complete";
                Err(Interruption::Failure(ModelFailure::new(ErrorCode::ModelStreamCut, message)))
            }
        }
    }

    async fn take(&mut self, chunk: ModelChunk, answer: &mut Answer) -> Result<(), Interruption> {
        match chunk {
            ModelChunk::Text(text) => {
                answer.content.push_str(&text);
                self.show_text(&answer.message_id, &text).await;
                let waiting = answer.content.len() - answer.recorded;
                let due = answer.last_recorded.elapsed() >= Duration::from_millis(PROGRESS_INTERVAL_MS);
                if waiting >= PROGRESS_BYTES || due {
                    self.record_progress(answer).await.map_err(Interruption::Halt)?;
                }
            }
            ModelChunk::ToolCall { index, id, name, arguments } => {
                // A provider's index is not trusted to be dense: the next slot is the most it can name.
                let slot = index.min(answer.calls.len());
                if slot == answer.calls.len() {
                    answer.calls.push(ModelToolCall {
                        id: String::new(),
                        name: String::new(),
                        arguments: String::new(),
                    });
                }
                let call = &mut answer.calls[slot];
                // The first id and name count; later pieces repeat them or leave them out.
                if call.id.is_empty() {
                    call.id = id.unwrap_or_default();
                }
                if call.name.is_empty() {
                    call.name = name.unwrap_or_default();
                }
                call.arguments.push_str(&arguments);
            }
            ModelChunk::Usage(usage) => answer.usage = usage,
            ModelChunk::Served(model) => answer.served_model = Some(model),
            ModelChunk::Finished(reason) => answer.finish_reason = Some(reason),
        }
        let bytes = answer.content.len() + answer.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        if bytes > MAX_MODEL_ANSWER_BYTES {
            let message = format!("the model wrote more than {MAX_MODEL_ANSWER_BYTES} bytes");
            return Err(Interruption::Failure(ModelFailure::new(ErrorCode::ModelAnswerTooLarge, message)));
        }
        Ok(())
    }

    async fn record_progress(&mut self, answer: &mut Answer) -> Result<(), Halt> {
        if answer.recorded < answer.content.len() {
            self.record(ThreadCommand::Progress(AnswerProgressed {
                run_id: self.run.run_id.clone(),
                message_id: answer.message_id.clone(),
                text: answer.content[answer.recorded..].to_owned(),
            }))
            .await?;
        }
        answer.recorded = answer.content.len();
        answer.last_recorded = Instant::now();
        Ok(())
    }

    async fn record_answer(&mut self, round: u32, answer: Answer, latency: Duration) -> Result<(), Halt> {
        let served_model = answer.served_model.unwrap_or_else(|| self.app.model.name().to_owned());
        self.record(ThreadCommand::RecordResponse(ModelResponded {
            run_id: self.run.run_id.clone(),
            round,
            message_id: answer.message_id,
            content: answer.content,
            reasoning: None,
            tool_calls: answer.calls,
            finish_reason: answer.finish_reason.unwrap_or_default(),
            usage: answer.usage,
            served_model,
            latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
        }))
        .await
    }
}

async fn next_chunk(stream: &mut ModelStream, wait: Duration) -> Result<Option<ModelChunk>, ModelFailure> {
    timeout(wait, stream.next()).await.map_err(|_| silent())?.transpose()
}

fn silent() -> ModelFailure {
    ModelFailure::new(ErrorCode::ModelTimeout, "the model was silent for too long")
}

fn offered_tools() -> Vec<OfferedTool> {
    let offer = |definition: &devmind_domain::tools::ToolDefinition| OfferedTool {
        name: definition.model_name(),
        description: definition.description.to_owned(),
        parameters: definition.parameters.clone(),
    };
    catalogue().definitions().map(offer).collect()
}

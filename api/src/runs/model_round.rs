//! One question to the model: ask, stream, record.
//!
//! Text reaches the client as it comes and the thread at least every 500 ms or 2 KiB, so that a
//! crash loses no more than that. Calls are shown only after the answer that makes them is recorded.
//! A model that fails for the moment before anything of its answer came is asked again within the
//! same round; the log then has one request and its one end.

use super::active::StopReason;
use super::execution::{Execution, Halt};
use crate::ids::new_id;
use crate::model::{Calls, ModelChunk, ModelFailure, ModelRequest, ModelStream, pause_before_retry};
use devmind_domain::ErrorCode;
use devmind_domain::agent::{context_hash, prompt};
use devmind_domain::canonical::hash_json;
use devmind_domain::ids::*;
use devmind_domain::limits::*;
use devmind_domain::thread::*;
use devmind_domain::tool_set::{RecordToolSet, ToolSet};
use devmind_ledger::{ExecuteError, execute};
use futures::StreamExt;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// What has come of an answer.
struct Answer {
    message_id: MessageId,
    content: String,
    /// Bytes of `content` that the thread has.
    recorded: usize,
    last_recorded: Instant,
    reasoning: String,
    calls: Calls,
    usage: TokenUsage,
    served_model: Option<String>,
    finish_reason: Option<String>,
}

impl Answer {
    fn new() -> Self {
        Self {
            message_id: new_id().into(),
            content: String::new(),
            recorded: 0,
            last_recorded: Instant::now(),
            reasoning: String::new(),
            calls: Calls::default(),
            usage: TokenUsage::default(),
            served_model: None,
            finish_reason: None,
        }
    }

    /// Whether the model has said anything: then it is not asked again.
    fn has_begun(&self) -> bool {
        !(self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty() && self.finish_reason.is_none())
    }

    fn bytes(&self) -> usize {
        self.content.len() + self.reasoning.len() + self.calls.bytes()
    }
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
        let request = ModelRequest {
            messages: prompt(&self.context, &self.thread),
            tools: self.tools.registry().model_visible(),
        };
        let tool_set = self.record_tool_set().await?;
        self.record(ThreadCommand::RequestModel(ModelRequested {
            run_id: self.run.run_id.clone(),
            round,
            provider: model.provider().to_owned(),
            model: model.name().to_owned(),
            parameters: model.parameters(),
            request_hash: context_hash(&request.messages),
            tools_hash: hash_json(&request.tools),
            tool_set,
        }))
        .await?;

        let asked_at = Instant::now();
        let mut answer = Answer::new();
        let streamed = self.stream_answer(round, request, &mut answer).await;
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

    /// Asks, and asks again while that may help; all of it within the wait for the first byte.
    async fn stream_answer(
        &mut self,
        round: u32,
        request: ModelRequest,
        answer: &mut Answer,
    ) -> Result<(), Interruption> {
        let deadline = Instant::now() + self.app.model_patience.first_byte;
        for tries in 1.. {
            let failure = match self.try_answer(request.clone(), answer, deadline).await {
                Err(Interruption::Failure(failure)) => failure,
                done_or_over => return done_or_over,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let pause = if answer.has_begun() { None } else { pause_before_retry(&failure, tries, left) };
            let Some(pause) = pause else { return Err(Interruption::Failure(failure.after_tries(tries))) };
            let (run_id, code, cause) = (&self.run.run_id, failure.code.as_str(), &failure.message);
            tracing::warn!(%run_id, round, tries, code, %cause, ?pause, "the model is asked again");
            *answer = Answer::new();
            tokio::select! {
                reason = self.signal.stopped() => return Err(Interruption::Stop(reason)),
                () = sleep(pause) => {}
            }
        }
        Ok(())
    }

    async fn try_answer(
        &mut self,
        request: ModelRequest,
        answer: &mut Answer,
        deadline: Instant,
    ) -> Result<(), Interruption> {
        let model = self.app.model.clone();
        let signal = self.signal.clone();
        let mut wait = deadline.saturating_duration_since(Instant::now());
        let mut stream = tokio::select! {
            reason = signal.stopped() => return Err(Interruption::Stop(reason)),
            asked = timeout(wait, model.ask(request)) => asked.unwrap_or_else(|_| Err(silent())).map_err(Interruption::Failure)?,
        };
        wait = deadline.saturating_duration_since(Instant::now());
        loop {
            let silent_at = Instant::now() + wait;
            let chunk = loop {
                // What was shown is recorded in time, also when nothing follows it.
                let due = answer.last_recorded + Duration::from_millis(PROGRESS_INTERVAL_MS);
                tokio::select! {
                    reason = signal.stopped() => return Err(Interruption::Stop(reason)),
                    chunk = next_chunk(&mut stream, silent_at) => break chunk,
                    () = sleep_until(due), if answer.recorded < answer.content.len() => {
                        self.record_progress(answer).await.map_err(Interruption::Halt)?;
                    }
                }
            };
            wait = self.app.model_patience.idle;
            match chunk {
                Ok(Some(chunk)) => self.take(chunk, answer).await?,
                // Only counts follow the end of an answer: it is complete without them.
                Ok(None) | Err(_) if answer.finish_reason.is_some() => return Ok(()),
                Ok(None) => {
                    let message = "the model's answer broke off before it was complete";
                    return Err(Interruption::Failure(ModelFailure::new(ErrorCode::ModelStreamCut, message)));
                }
                Err(failure) => return Err(Interruption::Failure(failure)),
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
            ModelChunk::Reasoning(text) => answer.reasoning.push_str(&text),
            ModelChunk::ToolCall { index, id, name, arguments } => answer.calls.add(index, id, name, &arguments),
            ModelChunk::Usage(usage) => answer.usage = usage,
            ModelChunk::Served(model) => answer.served_model = Some(model),
            ModelChunk::Finished(reason) => answer.finish_reason = Some(reason),
        }
        if answer.bytes() > MAX_MODEL_ANSWER_BYTES {
            let message = format!("the model wrote more than {MAX_MODEL_ANSWER_BYTES} bytes");
            return Err(Interruption::Failure(ModelFailure::new(ErrorCode::ModelAnswerTooLarge, message)));
        }
        Ok(())
    }

    /// What tools the model is offered is in the log before it is asked, once for each set of them.
    async fn record_tool_set(&self) -> Result<Option<String>, Halt> {
        let Some((id, set)) = self.tools.to_record() else { return Ok(None) };
        let command = RecordToolSet(set.clone());
        let done = execute::<ToolSet>(&self.app.ledger, id, &self.app.server_metadata(), command, None).await;
        done.map_err(|error| match error {
            ExecuteError::Refused(never) => match never {},
            ExecuteError::Append(error) => Halt::Append(error),
            ExecuteError::Ledger(error) => Halt::Ledger(error),
        })?;
        Ok(Some(id.clone()))
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
            reasoning: Some(answer.reasoning).filter(|text| !text.is_empty()),
            tool_calls: answer.calls.into_vec(),
            finish_reason: answer.finish_reason.unwrap_or_default(),
            usage: answer.usage,
            served_model,
            latency_ms: u64::try_from(latency.as_millis()).unwrap_or(u64::MAX),
        }))
        .await
    }
}

async fn next_chunk(stream: &mut ModelStream, silent_at: Instant) -> Result<Option<ModelChunk>, ModelFailure> {
    timeout_at(silent_at, stream.next()).await.map_err(|_| silent())?.transpose()
}

fn silent() -> ModelFailure {
    ModelFailure::new(ErrorCode::ModelTimeout, "the model was silent for too long")
}

//! The demo's client: the two steps that any client takes, over real HTTP.

use super::failed;
use crate::identity::DEV_USER_HEADER;
use crate::ids::new_id;
use crate::lifecycle::StartError;
use devmind_domain::ErrorCode;
use devmind_domain::ids::{ConversationId, DeviceId, InterruptId, RunId};
use eventsource_stream::Eventsource;
use futures::StreamExt;
use reqwest::{RequestBuilder, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;

/// A client of one user.
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    user: &'static str,
}

/// What the first step answers.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    pub conversation_id: ConversationId,
    pub run_id: RunId,
    user_message_id: String,
    #[serde(skip)]
    question: String,
    /// The approvals that the run goes on with.
    #[serde(skip)]
    answered: Vec<InterruptId>,
}

/// How the stream ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The last event.
    pub last: Value,
}

impl Ended {
    /// Whether the run waits for a person.
    pub fn waits_for_approval(&self) -> bool {
        self.last["outcome"]["type"] == "interrupt"
    }
}

/// A call that waits for a person.
#[derive(Debug, Deserialize)]
pub(super) struct Pending {
    pub interrupt_id: InterruptId,
    pub tool: String,
    pub arguments: Value,
}

impl Client {
    pub fn new(address: SocketAddr, user: &'static str) -> Result<Self, StartError> {
        crate::tls::install_provider();
        // The server is in this process: no proxy stands between, and no certificate is looked for (a
        // machine without any would refuse to make a client).
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build();
        let http = http.map_err(|error| failed(ErrorCode::Internal, error))?;
        Ok(Self { http, base: format!("http://{address}"), user })
    }

    /// Step one: the question and a queued run.
    pub async fn ask(&self, question: &str, device_id: &DeviceId) -> Result<Asked, StartError> {
        let body = json!({ "content": question, "device_id": device_id, "idempotency_key": new_id() });
        let answer = self.send(self.http.post(format!("{}/api/turns", self.base)).json(&body)).await?;
        let mut asked: Asked = answer.json().await.map_err(|error| failed(ErrorCode::Internal, error))?;
        question.clone_into(&mut asked.question);
        crate::say!("\nYou: {question}\n");
        Ok(asked)
    }

    /// The calls of the latest turn that wait for a person.
    pub async fn pending_approvals(&self, asked: &Asked) -> Result<Vec<Pending>, StartError> {
        #[derive(Deserialize)]
        struct Turn {
            pending_approvals: Vec<Pending>,
        }
        let url = format!("{}/api/turns?conversation_id={}", self.base, asked.conversation_id);
        let answer = self.send(self.http.get(url)).await?;
        let turns: Vec<Turn> = answer.json().await.map_err(|error| failed(ErrorCode::Internal, error))?;
        Ok(turns.into_iter().next_back().map(|turn| turn.pending_approvals).unwrap_or_default())
    }

    /// Stops the run.
    pub async fn stop(&self, asked: &Asked) -> Result<(), StartError> {
        let body = json!({ "run_id": asked.run_id });
        self.send(self.http.post(format!("{}/api/runs/stop", self.base)).json(&body)).await.map(drop)
    }

    /// Step one of going on: the answers, and the run that was prepared for them.
    pub async fn answer(&self, asked: &Asked, decisions: &[(InterruptId, bool)]) -> Result<Asked, StartError> {
        let entry = |(id, approved): &(InterruptId, bool)| json!({ "interrupt_id": id, "approved": approved });
        let list: Vec<Value> = decisions.iter().map(entry).collect();
        let body = json!({ "decisions": list, "idempotency_key": new_id() });
        let answer = self.send(self.http.post(format!("{}/api/runs/resume", self.base)).json(&body)).await?;
        let mut next: Asked = answer.json().await.map_err(|error| failed(ErrorCode::Internal, error))?;
        next.question.clone_from(&asked.question);
        next.answered = decisions.iter().map(|(id, _)| id.clone()).collect();
        Ok(next)
    }

    /// Step two: claims the run and prints its stream as it comes.
    pub async fn follow(&self, asked: &Asked) -> Result<Ended, StartError> {
        let answered = asked.answered.iter().map(|id| json!({ "interruptId": id, "status": "resolved" }));
        let body = json!({
            "resume": answered.collect::<Vec<_>>(),
            "threadId": asked.conversation_id,
            "runId": asked.run_id,
            "protocolVersion": crate::agui::PROTOCOL_VERSION,
            "messages": [{ "id": asked.user_message_id, "role": "user", "content": asked.question }],
            "tools": [], "context": [], "state": {}, "forwardedProps": {},
        });
        let answer = self.send(self.http.post(format!("{}/api/agent", self.base)).json(&body)).await?;
        let mut events = answer.bytes_stream().eventsource();
        let mut last = Value::Null;
        while let Some(event) = events.next().await {
            let event = event.map_err(|error| failed(ErrorCode::Internal, error))?;
            last = serde_json::from_str(&event.data).map_err(|error| failed(ErrorCode::Internal, error))?;
            print(&last);
        }
        Ok(Ended { last })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, StartError> {
        let answer = request.header(DEV_USER_HEADER, self.user).send().await;
        let answer = answer.map_err(|error| failed(ErrorCode::ServerUnreachable, error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or_default();
        let code = body["error"]["code"].as_str().and_then(ErrorCode::parse).unwrap_or(ErrorCode::Internal);
        Err(failed(code, format!("{status}: {}", body["error"]["message"].as_str().unwrap_or("no words"))))
    }
}

fn print(event: &Value) {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    match text("type") {
        "TEXT_MESSAGE_START" => crate::say_part!("Agent: "),
        "TEXT_MESSAGE_CONTENT" => crate::say_part!("{}", text("delta")),
        "TEXT_MESSAGE_END" => crate::say!(""),
        "TOOL_CALL_START" => crate::say_part!("  tool → {} ", text("toolCallName")),
        "TOOL_CALL_ARGS" => crate::say_part!("{}", text("delta")),
        "TOOL_CALL_END" => crate::say!(""),
        "TOOL_CALL_RESULT" => crate::say!("  tool ← {}\n", result_line(text("content"))),
        "RUN_ERROR" => crate::say!("\nThe run failed: {} ({})", text("message"), text("code")),
        _ => {}
    }
}

fn result_line(content: &str) -> String {
    const SHOWN_CHARS: usize = 100;
    let result: Value = serde_json::from_str(content).unwrap_or_default();
    if result["ok"] == true {
        let data = result["data"].to_string();
        let shown: String = data.chars().take(SHOWN_CHARS).collect();
        let more = if shown.len() < data.len() { " …" } else { "" };
        return format!("ok {shown}{more}");
    }
    format!("refused or failed: {} ({})", text_of(&result["error"]["code"]), text_of(&result["error"]["message"]))
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

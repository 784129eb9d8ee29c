//! Runs as raw SSE, with ids: replays, resumed runs, runs of stock clients.

use crate::agui;
use crate::client::{Answer, Asked, Client};
use crate::wait::within_deadline;
use eventsource_stream::Eventsource;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::{Value, json};

/// An event of a stream, with its SSE id (empty where it has none).
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The id.
    pub id: String,
    /// The event.
    pub event: Value,
}

/// A stream. Dropping it is a reader that goes away.
pub struct SseStream {
    seen: Vec<Frame>,
    frames: BoxStream<'static, Result<Frame, String>>,
}

impl SseStream {
    fn of(answer: reqwest::Response) -> Self {
        let frames = answer.bytes_stream().eventsource().map(|event| {
            let event = event.map_err(|error| error.to_string())?;
            let parsed = serde_json::from_str(&event.data).map_err(|error| format!("{error}: {}", event.data))?;
            Ok(Frame { id: event.id, event: parsed })
        });
        Self { seen: Vec::new(), frames: frames.boxed() }
    }

    /// The next event; `None` at the end of a body that was closed in order.
    pub async fn next(&mut self) -> Option<Frame> {
        let frame = within_deadline("an event of the stream", self.frames.next()).await;
        let frame = frame.map(|frame| frame.unwrap_or_else(|error| panic!("{error}, after {:#?}", self.seen)));
        self.seen.extend(frame.clone());
        frame
    }

    /// Reads up to the first event that is wanted, and answers it.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Frame {
        while let Some(frame) = self.next().await {
            if wanted(&frame.event) {
                return frame;
            }
        }
        panic!("{what} never came: {:#?}", self.seen)
    }

    /// Reads to the end; everything from the beginning.
    pub async fn rest(mut self) -> Vec<Frame> {
        while self.next().await.is_some() {}
        self.seen
    }
}

/// The events of frames.
pub fn events(frames: &[Frame]) -> Vec<Value> {
    frames.iter().map(|frame| frame.event.clone()).collect()
}

impl Client {
    /// A run's stream from the log, from its beginning or after an id.
    pub async fn replay(&self, run_id: &str, after: Option<&str>) -> SseStream {
        let mut request = self.request(reqwest::Method::GET, &format!("/api/runs/events?run_id={run_id}"));
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let answer = within_deadline("GET /api/runs/events", request.send()).await.expect("an answer");
        let status = answer.status();
        assert!(status.is_success(), "{status} {}", answer.text().await.unwrap_or_default());
        SseStream::of(answer)
    }

    /// A run's whole replay.
    pub async fn replayed(&self, run_id: &str) -> Vec<Frame> {
        self.replay(run_id, None).await.rest().await
    }

    /// A POST whose answer is a stream, or a refusal.
    pub async fn post_stream(&self, path: &str, body: &Value) -> Result<SseStream, Answer> {
        let request = self.request(reqwest::Method::POST, path).json(body);
        let answer = within_deadline(path, request.send()).await.expect("an answer");
        let status = answer.status().as_u16();
        if status == 200 {
            return Ok(SseStream::of(answer));
        }
        let text = answer.text().await.expect("a body");
        Err(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
    }

    /// Answers one approval, under the key that its card has.
    pub async fn answer(&self, interrupt_id: &str, approved: bool) -> Answer {
        let key = format!("approval:{interrupt_id}");
        let body = json!({ "interrupt_id": interrupt_id, "approved": approved, "idempotency_key": key });
        self.post("/api/runs/resume", &body).await
    }

    /// The second step of an answered approval: the resumed run's whole stream, its order checked.
    /// The calls of the turn's earlier runs are known to the client.
    pub async fn resume(&self, asked: &Asked, run_id: &str, interrupts: &[String]) -> Vec<Value> {
        let input = resume_input(asked, run_id, interrupts);
        let stream = self.post_stream("/api/agent", &input).await.unwrap_or_else(|answer| panic!("{answer:?}"));
        let events = events(&stream.rest().await);
        let known = self.get(&format!("/api/tool-calls?conversation_id={}", asked.conversation_id)).await.ok();
        let known = known.as_array().expect("calls").iter().map(|call| agui::text(call, "tool_call_id").to_owned());
        agui::assert_in_order_after(&asked.conversation_id, run_id, known, &events);
        events
    }

    /// Stops a run; the status it has ended with.
    pub async fn stop(&self, run_id: &str) -> Value {
        self.post("/api/runs/stop", &json!({ "run_id": run_id })).await.ok()["status"].clone()
    }

    /// The open approvals of the turn, oldest first.
    pub async fn pending(&self, asked: &Asked) -> Vec<Value> {
        self.turn(asked).await["pending_approvals"].as_array().expect("a list").clone()
    }
}

/// The second step's body for a resumed run.
pub fn resume_input(asked: &Asked, run_id: &str, interrupts: &[String]) -> Value {
    let entry = |id: &String| json!({ "interruptId": id, "status": "resolved", "payload": { "approved": true } });
    let mut input = asked.input();
    input["runId"] = run_id.into();
    input["messages"] = json!([]);
    input["resume"] = interrupts.iter().map(entry).collect();
    input
}

/// The interrupts that ended a stream.
pub fn interrupts(events: &[Value]) -> Vec<String> {
    let outcome = &agui::last(events)["outcome"];
    assert_eq!(outcome["type"], "interrupt", "{events:#?}");
    let ids = outcome["interrupts"].as_array().expect("interrupts").iter();
    ids.map(|interrupt| agui::text(interrupt, "id").to_owned()).collect()
}

//! Everything a person does, once without interruption and once with the server killed and restarted
//! in the middle: in the end the views say the same.

use devmind_tests::sse::interrupts;
use devmind_tests::{Asked, Client, ModelEndpoint, Question, Reply, ServerProcess, agui};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A server that is restarted between the steps of a scenario, or is not.
struct World {
    server: Option<ServerProcess>,
    model: ModelEndpoint,
    restarts: bool,
    steps: usize,
}

impl World {
    async fn new(restarts: bool, replies: Vec<Reply>) -> Self {
        let model = ModelEndpoint::start(replies).await;
        let server = ServerProcess::start(&[("MODEL_BASE_URL", &model.url()), ("MODEL_NAME", "scripted")]).await;
        Self { server: Some(server), model, restarts, steps: 0 }
    }

    /// The middle of something: by turns a kill and a stop in order.
    async fn between(&mut self) -> Client {
        if self.restarts {
            let server = self.server.take().unwrap();
            let down = if self.steps.is_multiple_of(2) { server.kill().await } else { server.stop().await };
            let url = self.model.url();
            self.server = Some(down.start_with(&[("MODEL_BASE_URL", &url), ("MODEL_NAME", "scripted")]).await);
        }
        self.steps += 1;
        self.server.as_ref().unwrap().client("ann")
    }

    /// What the views say, and what the model was told, without what differs from one time to the next.
    async fn end(mut self) -> Value {
        assert!(self.steps >= 2, "at least two restarts, one of them a kill");
        let client = self.between().await;
        let views = client.everything().await;
        let prompts: Vec<_> = self.model.requests().iter().map(|request| request["messages"].clone()).collect();
        self.server.take().unwrap().finish().await;
        let mut names = BTreeMap::new();
        plain(&json!({ "views": views, "prompts": prompts }), &mut names)
    }
}

/// Ids by the order of their first appearance, no times and no numbers of starts.
fn plain(value: &Value, names: &mut BTreeMap<String, String>) -> Value {
    match value {
        Value::Object(fields) => {
            let timed = |name: &str| name == "epoch" || name.ends_with("_at") || name.ends_with("_epoch");
            let fields = fields.iter().filter(|(name, value)| !timed(name) || value.is_null());
            fields.map(|(name, value)| (name.clone(), plain(value, names))).collect()
        }
        Value::Array(items) => items.iter().map(|item| plain(item, names)).collect(),
        Value::String(text) => {
            let id = |part: &str| part.len() == 36 && part.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
            let mut parts = Vec::new();
            for part in text.split(':') {
                let next = format!("id-{}", names.len());
                parts.push(if id(part) {
                    names.entry(part.to_owned()).or_insert(next).clone()
                } else {
                    part.to_owned()
                });
            }
            Value::String(parts.join(":"))
        }
        other => other.clone(),
    }
}

/// Runs a scenario both ways.
async fn same(replies: impl Fn() -> Vec<Reply>, scenario: impl AsyncFn(&mut World)) {
    let mut ends = Vec::new();
    for restarts in [false, true] {
        let mut world = World::new(restarts, replies()).await;
        scenario(&mut world).await;
        ends.push(world.end().await);
    }
    assert_eq!(ends[0], ends[1]);
}

async fn answered(client: &Client, asked: &Asked) {
    agui::assert_success(&client.run(asked).await);
}

#[tokio::test]
async fn a_first_and_a_second_question_survive_restarts_between_their_two_steps() {
    let replies =
        || vec![Reply::say("hello, Ann"), Reply::call("c1", "add", &json!({"a":1,"b":2})), Reply::say("Ann, 3")];
    same(replies, async |world| {
        let ann = world.between().await;
        let first = ann.ask(&Question::new("my name is Ann")).await;
        answered(&world.between().await, &first).await;
        let ann = world.between().await;
        let second = ann.ask(&Question::new("who am I, and 1 + 2?").within(&first.conversation_id)).await;
        answered(&world.between().await, &second).await;
    })
    .await;
}

#[tokio::test]
async fn an_approval_survives_restarts_before_its_answer_and_before_its_run() {
    let replies = || vec![Reply::call("c1", "demo_text", &json!({})), Reply::say("there it is")];
    same(replies, async |world| {
        let ann = world.between().await;
        let asked = ann.ask(&Question::new("the text")).await;
        let open = interrupts(&ann.run(&asked).await);
        let ann = world.between().await;
        assert_eq!(ann.pending(&asked).await[0]["interrupt_id"], open[0].as_str());
        let reply = ann.answer(&open[0], true).await.ok();
        let ann = world.between().await;
        assert_eq!(ann.answer(&open[0], true).await.ok(), reply);
        agui::assert_success(&ann.resume(&asked, reply["run_id"].as_str().unwrap(), &open).await);
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_a_turn_that_waits_survives_restarts_before_and_after_its_first_step() {
    let replies = || vec![Reply::call("c1", "demo_text", &json!({})), Reply::say("I am DevMind")];
    same(replies, async |world| {
        let ann = world.between().await;
        let asked = ann.ask(&Question::new("the text")).await;
        let open = interrupts(&ann.run(&asked).await);
        let ann = world.between().await;
        let edited = ann.rerun(&asked, Some("who are you?")).await;
        let ann = world.between().await;
        assert_eq!(ann.answer(&open[0], true).await.refused(), (409, "INTERRUPT_CLOSED"));
        answered(&ann, &edited).await;
    })
    .await;
}

#[tokio::test]
async fn a_stop_and_a_continue_survive_restarts_between_them() {
    let replies = || vec![Reply::stream().text("1 2 3").hold(), Reply::say("4 5")];
    same(replies, async |world| {
        let ann = world.between().await;
        let asked = ann.ask(&Question::new("count to five")).await;
        let mut stream = ann.stream(&asked).await;
        stream.until("text", |event| event["delta"] == "1 2 3").await;
        assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
        drop(stream);
        let ann = world.between().await;
        let next = ann.ask(&Question::new("continue").within(&asked.conversation_id)).await;
        let ann = world.between().await;
        assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
        answered(&ann, &next).await;
    })
    .await;
}

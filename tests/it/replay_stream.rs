//! A run's stream read from the log: what a second window or a client that comes back sees.

use devmind_domain::ErrorCode;
use devmind_tests::sse::{events, interrupts};
use devmind_tests::{
    Asked, Client, Frame, ModelEndpoint, Question, Reply, Script, ScriptedModel, ServerProcess, StalledReader,
    TestServer, agui, new_id,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// What two streams of one run have in common: types with ids, pieces of one text put together.
fn essence(events: &[Value]) -> Vec<(String, String)> {
    let mut essence: Vec<(String, String)> = Vec::new();
    for event in events {
        let kind = agui::text(event, "type").to_owned();
        let mut rest = event.clone();
        if kind == "TEXT_MESSAGE_CONTENT" {
            rest["delta"] = Value::Null;
        }
        let next = (kind, rest.to_string());
        // Only pieces of one text can be equal neighbours.
        if essence.last() != Some(&next) {
            essence.push(next);
        }
    }
    essence
}

/// Fails unless the replay of a run is its live stream.
async fn assert_replays(client: &Client, run_id: &str, live: &[Value]) -> Vec<Frame> {
    let frames = client.replayed(run_id).await;
    let replayed = events(&frames);
    assert_eq!(essence(&replayed), essence(live));
    assert_eq!(agui::spoken(&replayed), agui::spoken(live));
    frames
}

/// Fails unless a reader that lost its connection after any event goes on with the next.
async fn assert_goes_on_after_every_id(client: &Client, run_id: &str, frames: &[Frame]) {
    let ids: std::collections::BTreeSet<_> = frames.iter().map(|frame| &frame.id).collect();
    assert_eq!(ids.len(), frames.len(), "every event has an id of its own");
    for (at, frame) in frames.iter().enumerate() {
        let rest = client.replay(run_id, Some(&frame.id)).await.rest().await;
        assert_eq!(rest, frames[at + 1..], "after {}", frame.id);
    }
}

/// Text, tools, several rounds, an approval.
fn rich() -> Vec<Script> {
    let calls = [("a", "add", r#"{"a":1,"b":2}"#), ("b", "rm_rf", "{}"), ("c", "demo_text", "{}")];
    let mut first = Script::new().text("I will ").text("look.");
    for (index, (id, name, arguments)) in calls.into_iter().enumerate() {
        first = first.piece(index, Some(id), Some(name), arguments);
    }
    vec![first.finish("tool_calls"), Script::new().text("It ").text("is 3 — 三.").done()]
}

#[tokio::test]
async fn the_replay_of_a_run_is_its_live_stream_and_goes_on_after_every_one_of_its_ids() {
    let server = TestServer::with_scripted(ScriptedModel::new(rich())).await;
    let ann = server.client("ann");
    let (asked, live) = ann.converse(&Question::new("go")).await;
    let open = interrupts(&live);
    let frames = assert_replays(&ann, &asked.run_id, &live).await;
    assert_goes_on_after_every_id(&ann, &asked.run_id, &frames).await;

    let reply = ann.answer(&open[0], true).await.ok();
    let run_id = reply["run_id"].as_str().unwrap();
    let resumed = ann.resume(&asked, run_id, &open).await;
    agui::assert_success(&resumed);
    let frames = assert_replays(&ann, run_id, &resumed).await;
    assert_goes_on_after_every_id(&ann, run_id, &frames).await;

    // The interrupted run's stream is what it was, and stays so after a restart.
    let frames = assert_replays(&ann, &asked.run_id, &live).await;
    let server = server.restart().await;
    assert_eq!(server.client("ann").replayed(&asked.run_id).await, frames);
    server.finish().await;
}

/// B14.
#[tokio::test]
async fn a_providers_disorder_reaches_nobody_live_or_replayed() {
    let pieces = || {
        Script::new()
            .text("one ")
            .piece(0, Some("a"), Some("add"), r#"{"a":1,"#)
            .piece(1, Some("b"), Some("add"), r#"{"a":"#)
            .piece(0, Some("again"), None, r#""b":2}"#)
            .text("two")
            .piece(1, None, Some("other"), r#"1,"b":1}"#)
            .piece(7, None, None, "stray")
    };
    let scripts = [
        pieces().text(" three").finish("tool_calls"),
        Script::say("the end"),
        pieces().fail(ErrorCode::ModelUnavailable),
        pieces(),
    ];
    let server = TestServer::with_scripted(ScriptedModel::new(scripts)).await;
    let ann = server.client("ann");
    for end in [None, Some("MODEL_UNAVAILABLE"), Some("MODEL_STREAM_CUT")] {
        // The client checks the order: text closed before a call, each begun and ended once.
        let (asked, live) = ann.converse(&Question::new("go")).await;
        match end {
            None => {
                agui::assert_success(&live);
                let results = agui::results(&live);
                // In the order in which the calls ended.
                for sum in [3, 2] {
                    assert!(results.iter().any(|result| result["data"]["sum"] == sum), "{results:?}");
                }
                assert_eq!(results.len(), 3);
                assert!(
                    results.iter().any(|result| result["ok"] == false),
                    "a stray piece is a call that cannot be carried out"
                );
                assert_eq!(agui::spoken(&live), "one two threethe end");
            }
            Some(code) => {
                assert_eq!(agui::error_code(&live), code);
                assert_eq!(agui::spoken(&live), "one two");
                assert!(live.iter().all(|event| event["type"] != "TOOL_CALL_START"), "half a call is no call");
            }
        }
        let frames = assert_replays(&ann, &asked.run_id, &live).await;
        assert_goes_on_after_every_id(&ann, &asked.run_id, &frames).await;
    }
    server.finish().await;
}

#[tokio::test]
async fn several_readers_follow_a_run_from_anywhere_and_their_leaving_does_not_stop_it() {
    let (more, end) = (CancellationToken::new(), CancellationToken::new());
    // What has been said is in the log at the latest with the next round.
    let script = [
        Script::new()
            .text("first ")
            .gate(&more)
            .text("second")
            .piece(0, Some("a"), Some("add"), "{}")
            .finish("tool_calls"),
        Script::new().gate(&end).text("third").done(),
    ];
    let server = TestServer::with_scripted(ScriptedModel::new(script)).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go")).await;
    // One reads before anything has begun.
    let early = ann.replay(&asked.run_id, None).await;
    let live = ann.stream(&asked).await;
    let mut leaves = ann.replay(&asked.run_id, None).await;
    leaves.until("the start", |event| event["type"] == "RUN_STARTED").await;
    drop(leaves);
    more.cancel();
    let mut middle = ann.replay(&asked.run_id, None).await;
    let seen = middle.until("the call's result", |event| event["type"] == "TOOL_CALL_RESULT").await;
    let late = ann.replay(&asked.run_id, Some(&seen.id)).await;
    drop(ann.replay(&asked.run_id, None).await);
    end.cancel();
    let live = live.rest().await;
    agui::assert_success(&live);
    let frames = assert_replays(&ann, &asked.run_id, &live).await;
    assert_eq!(early.rest().await, frames);
    assert_eq!(middle.rest().await, frames);
    let at = frames.iter().position(|frame| frame.id == seen.id).unwrap();
    assert_eq!(late.rest().await, frames[at + 1..]);
    server.finish().await;
}

/// B15.
#[tokio::test]
async fn a_reader_that_stops_reading_blocks_nobody_and_has_missed_nothing_when_it_reads_on() {
    // Some 8 MB in all: more than what the system would hold for a reader.
    let text = "0123456789abcdef".repeat(128);
    let round = (0..400).fold(Script::new(), |script, _| script.text(&text));
    let round = round.piece(0, Some("a"), Some("add"), r#"{"a":1,"b":2}"#).finish("tool_calls");
    let mut scripts = vec![round; 10];
    scripts.push(Script::say("the end"));
    let server = TestServer::with_scripted(ScriptedModel::new(scripts)).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go")).await;
    let path = format!("/api/runs/events?run_id={}", asked.run_id);
    let mut slow = Vec::new();
    for _ in 0..2 {
        slow.push(StalledReader::open(server.address(), "ann", "GET", &path, "").await);
    }
    let fast = ann.replay(&asked.run_id, None).await;
    let live = ann.run(&asked).await;
    agui::assert_success(&live);
    let fast = fast.rest().await;
    assert_eq!(essence(&events(&fast)), essence(&live));
    // One reads on, the other has lost its connection and comes back with its first id.
    let whole = slow.pop().unwrap().rest().await;
    let fast: Vec<_> = fast.into_iter().map(|frame| (frame.id, frame.event)).collect();
    assert!(whole.len() > 500 && whole == fast, "{} events of {}", whole.len(), fast.len());
    drop(slow);
    let rest = ann.replay(&asked.run_id, Some(&whole[0].0)).await.rest().await;
    assert_eq!(rest.len(), whole.len() - 1);
    server.finish().await;
}

#[tokio::test]
async fn a_run_that_was_ended_before_it_began_has_a_stream_with_an_end() {
    let server = TestServer::with_scripted(ScriptedModel::new([])).await;
    let ann = server.client("ann");
    let whole = ["RUN_STARTED", "RUN_FINISHED"];
    let cancelled = async |asked: &Asked| {
        let events = events(&ann.replayed(&asked.run_id).await);
        assert_eq!(agui::types(&events), whole, "{}", asked.run_id);
        assert_eq!(agui::last(&events)["outcome"]["type"], "cancelled");
        agui::assert_in_order(&asked.conversation_id, &asked.run_id, &events);
    };
    let stopped = ann.ask(&Question::new("one")).await;
    ann.stop(&stopped.run_id).await;
    cancelled(&stopped).await;

    // Ended by another run's request, also for those who read already.
    let abandoned = ann.ask(&Question::new("two")).await;
    let reader = ann.replay(&abandoned.run_id, None).await;
    let next = ann.ask(&Question::new("three").within(&abandoned.conversation_id)).await;
    assert_eq!(agui::types(&events(&reader.rest().await)), whole);
    cancelled(&abandoned).await;
    let rerun = ann.rerun(&next, None).await;
    cancelled(&next).await;
    let live = ann.run(&rerun).await;
    agui::assert_success(&live);
    assert_replays(&ann, &rerun.run_id, &live).await;

    // A deleted conversation's reader is let go.
    let deleted = ann.ask(&Question::new("four")).await;
    let reader = ann.replay(&deleted.run_id, None).await;
    ann.post("/api/conversations/delete", &json!({ "conversation_id": deleted.conversation_id })).await.ok();
    assert_eq!(agui::types(&events(&reader.rest().await)), whole);
    server.finish().await;
}

#[tokio::test]
async fn a_stop_in_order_ends_every_stream_of_a_run_with_the_same_terminal_event() {
    let model = ScriptedModel::new([Script::new().text("half").hold()]);
    let server = TestServer::with_scripted(model.clone()).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go")).await;
    let mut live = ann.stream(&asked).await;
    live.until("text", |event| event["delta"] == "half").await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut reader = ann.replay(&asked.run_id, None).await;
        reader.until("the start", |event| event["type"] == "RUN_STARTED").await;
        readers.push(reader);
    }
    let queued = ann.ask(&Question::new("not begun")).await;
    let waits = ann.replay(&queued.run_id, None).await;
    let stopped = server.stop().await;
    let live = live.rest().await;
    assert_eq!(agui::error_code(&live), "SHUTTING_DOWN");
    for reader in readers {
        assert_eq!(essence(&events(&reader.rest().await)), essence(&live));
    }
    assert_eq!(waits.rest().await, [], "what has not begun has no end either");
    let server = stopped.start().await;
    assert_replays(&server.client("ann"), &asked.run_id, &live).await;
    server.finish().await;
}

#[tokio::test]
async fn the_stream_of_a_run_that_a_killed_server_left_ends_after_the_restart() {
    let text = "word ".repeat(600);
    let endpoint = ModelEndpoint::start([Reply::stream().text(&text).hold()]).await;
    let url = endpoint.url();
    let server = ServerProcess::start(&[("MODEL_BASE_URL", &url), ("MODEL_NAME", "scripted")]).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go")).await;
    let live = ann.stream(&asked).await;
    let mut reader = ann.replay(&asked.run_id, None).await;
    let seen = reader.until("text", |event| event["type"] == "TEXT_MESSAGE_CONTENT").await;
    let server = server.kill().await.start().await;
    drop(live);
    let ann = server.client("ann");
    let rest = events(&ann.replay(&asked.run_id, Some(&seen.id)).await.rest().await);
    assert_eq!(agui::types(&rest), ["TEXT_MESSAGE_END", "RUN_ERROR"]);
    assert_eq!(agui::error_code(&rest), "SERVER_RESTARTED");
    let whole = events(&ann.replayed(&asked.run_id).await);
    agui::assert_in_order(&asked.conversation_id, &asked.run_id, &whole);
    assert_eq!(agui::spoken(&whole), text);
    server.finish().await;
}

#[tokio::test]
async fn a_stream_is_its_owners_and_an_id_that_is_none_is_refused() {
    let server = TestServer::with_scripted(ScriptedModel::new([])).await;
    let ann = server.client("ann");
    let (asked, _) = ann.converse(&Question::new("go")).await;
    let path = format!("/api/runs/events?run_id={}", asked.run_id);
    assert_eq!(server.client("bob").get(&path).await.refused(), (403, "FORBIDDEN"));
    assert_eq!(ann.anonymous().get(&path).await.refused(), (401, "UNAUTHENTICATED"));
    let unknown = format!("/api/runs/events?run_id={}", new_id());
    assert_eq!(ann.get(&unknown).await.refused(), (404, "RUN_NOT_FOUND"));
    for id in ["x", "-1", "1-", "99999999", "1.5"] {
        let refused = ann.get_after(&path, id).await;
        assert_eq!(refused.refused(), (422, "VALIDATION_FAILED"), "{id}");
    }
    server.finish().await;
}

#[tokio::test]
async fn text_that_was_shown_is_recorded_in_time_also_when_nothing_follows_it() {
    let model = ScriptedModel::new([Script::new().text("half").hold()]);
    let server = TestServer::with_scripted(model).await;
    let ann = server.client("ann");
    let asked = ann.ask(&Question::new("go")).await;
    let mut stream = ann.stream(&asked).await;
    stream.until("text", |event| event["delta"] == "half").await;
    let recorded = server.log().wait_kind("AnswerProgressed").await;
    assert_eq!(recorded.payload["text"], "half");
    assert_eq!(ann.stop(&asked.run_id).await, "cancelled");
    server.finish().await;
}

//! `replay` over a run that holds, altered in one place after the other: what differs is found where it is, what was cut
//! off is no difference, and nothing that came after the run, or after the position that is asked for, is heard.

#[allow(dead_code, reason = "shared with another test program")]
mod support;

use devmind_domain::Decider;
use devmind_domain::agent::{CallsInAnswer, assemble, context_hash, prompt};
use devmind_domain::canonical::hash_json;
use devmind_domain::event::DomainEvent;
use devmind_domain::thread::{ModelToolCall, Thread};
use devmind_domain::tools::{ToolOutcome, admit, catalogue};
use serde_json::{Value, json};
use support::{Data, Fact, code_of};

const QUESTION: &str = "add 1 and 2";
/// Where the run is claimed, where it ends, and what comes after it.
const CLAIMED: u64 = 4;
const ENDED: u64 = 20;

fn story() -> Vec<Fact> {
    let conversation = |event_type, payload| ("conversation", "c", event_type, payload);
    let context = assemble(CallsInAnswer::One, &[], QUESTION);
    let mut thread = Thread::default();
    let mut facts = vec![
        conversation("ConversationStarted", json!({ "user_id": "ann", "title": "t" })),
        conversation(
            "TurnPrepared",
            json!({ "turn_id": "t", "sequence_no": 1, "message_id": "q", "content": QUESTION }),
        ),
        conversation(
            "RunPrepared",
            json!({
                "run_id": "r", "turn_id": "t", "kind": "normal", "trigger": "ask", "run_seq": 1, "graph_thread_id": "g",
            }),
        ),
        conversation(
            "RunClaimed",
            json!({
                "run_id": "r", "node_id": "n", "epoch": 1, "context_hash": context_hash(&prompt(&context, &thread)),
            }),
        ),
    ];
    let see = |thread: &mut Thread, facts: &mut Vec<Fact>, event_type, payload: Value| {
        let event =
            DomainEvent::decode("thread", event_type, 1, &payload.to_string()).expect("a known event").remove(0);
        let DomainEvent::Thread(event) = event else { panic!("of a thread") };
        thread.evolve(&event);
        facts.push(("thread", "g", event_type, payload));
    };
    let asked = |thread: &Thread, round: u32| {
        json!({
            "run_id": "r", "round": round, "provider": "p", "model": "m", "parameters": {}, "tools_hash": "h",
            "request_hash": context_hash(&prompt(&context, thread)),
        })
    };
    let begun = json!({ "conversation_id": "c", "turn_id": "t", "run_id": "r", "user_id": "ann" });
    see(&mut thread, &mut facts, "ThreadStarted", begun);
    let question = asked(&thread, 1);
    see(&mut thread, &mut facts, "ModelRequested", question);
    // One that runs, one with wrong arguments, one of a tool that there is not.
    let calls = [("a", "add", r#"{"a":1,"b":2}"#), ("b", "add", r#"{"a":"one"}"#), ("c", "nope", "{}")];
    let written: Vec<_> =
        calls.iter().map(|(id, name, arguments)| json!({ "id": id, "name": name, "arguments": arguments })).collect();
    let answer = json!({
        "run_id": "r", "round": 1, "message_id": "m1", "content": "", "finish_reason": "tool_calls",
        "tool_calls": written, "usage": {}, "served_model": "m", "latency_ms": 1,
    });
    see(&mut thread, &mut facts, "ModelResponded", answer);
    for (id, name, arguments) in calls {
        let stream = match id {
            "a" => "g:a",
            "b" => "g:b",
            _ => "g:c",
        };
        let call = ModelToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() };
        let admitted = admit(catalogue(), &call, false);
        let requested = json!({
            "conversation_id": "c", "turn_id": "t", "run_id": "r", "user_id": "ann", "graph_thread_id": "g",
            "model_call_id": id, "tool": admitted.tool, "tool_version": admitted.version, "target": "server",
            "call_hash": admitted.call_hash, "arguments": admitted.arguments, "risk": admitted.risk,
        });
        facts.push(("tool_call", stream, "ToolCallRequested", requested));
        let outcome = match &admitted.refusal {
            Some((stage, error)) => {
                let decided = json!({
                    "stage": stage, "decision": "deny", "code": error.code, "by": "server", "reason": error.message,
                });
                facts.push(("tool_call", stream, "ToolCallDecided", decided));
                ToolOutcome { result: Err(error.clone()) }
            }
            None => {
                let sent = json!({
                    "attempt_no": 1, "run_id": "r", "node_id": "n", "epoch": 1, "wait_ms": 1, "ttl_ms": 1,
                });
                facts.push(("tool_call", stream, "ToolDispatched", sent));
                let output = json!({ "sum": 3 });
                let result = json!({
                    "executed_attempt_no": 1, "status": "succeeded", "output_sha256": hash_json(&output),
                    "output": output, "origin": "live",
                });
                facts.push(("tool_call", stream, "ToolResultRecorded", result));
                ToolOutcome::success(output)
            }
        };
        let mut told = json!({ "tool_call_id": stream, "ok": admitted.refusal.is_none(), "content": outcome.content(&admitted.tool) });
        if let Some((_, error)) = &admitted.refusal {
            told["error"] = json!(error.code);
        }
        see(&mut thread, &mut facts, "ToolResultObserved", told);
    }
    let question = asked(&thread, 2);
    see(&mut thread, &mut facts, "ModelRequested", question);
    let answer = json!({
        "run_id": "r", "round": 2, "message_id": "m2", "content": "3", "finish_reason": "stop", "tool_calls": [],
        "usage": {}, "served_model": "m", "latency_ms": 1,
    });
    see(&mut thread, &mut facts, "ModelResponded", answer);
    facts.push(conversation("RunSucceeded", json!({ "run_id": "r", "message_id": "m2", "answer": "3" })));
    assert_eq!(facts.len() as u64, ENDED);
    // After its end: what nobody heard any more.
    let late = json!({ "stage": "validate", "decision": "deny", "code": "LATE", "by": "server" });
    facts.push(("tool_call", "g:a", "ToolCallDecided", late));
    facts.push(("thread", "g", "AnswerProgressed", json!({ "run_id": "r", "message_id": "m3", "text": "late" })));
    let requested = json!({
        "conversation_id": "c", "turn_id": "t", "run_id": "r", "user_id": "ann", "graph_thread_id": "g",
        "model_call_id": "late", "tool": "get_current_time", "tool_version": catalogue().get("get_current_time").expect("a tool").version,
        "target": "server", "call_hash": "h", "arguments": {}, "risk": "LOW",
    });
    facts.push(("tool_call", "g:late", "ToolCallRequested", requested));
    facts.push(conversation(
        "RunFailed",
        json!({ "run_id": "r", "error_code": "LATE", "partial_text": "", "error_message": "late" }),
    ));
    let again = json!({ "turn_id": "t2", "sequence_no": 2, "message_id": "q2", "content": "and 3?" });
    facts.push(conversation("TurnPrepared", again));
    facts.push(conversation(
        "RunPrepared",
        json!({
            "run_id": "r2", "turn_id": "t2", "kind": "normal", "trigger": "ask", "run_seq": 2, "graph_thread_id": "g2",
        }),
    ));
    facts
}

async fn filled() -> Data {
    let data = Data::empty();
    let ledger = data.open().await;
    for fact in story() {
        data.append(&ledger, &fact).await;
    }
    ledger.close().await;
    data
}

/// The exit status, the outcome and where it differs.
async fn replayed(data: &Data, more: &[&str]) -> (i32, String, Option<u64>) {
    let ran = data.run(&[&["--json", "replay", "--run", "r"], more].concat()).await;
    let told: Value = serde_json::from_str(ran.stdout.lines().next().unwrap_or("null")).expect("JSON");
    let outcome = told["run"]["outcome"].as_str().unwrap_or(code_of(&ran)).to_owned();
    (ran.status, outcome, told["run"]["position"].as_u64())
}

fn of(status: i32, outcome: &str, position: Option<u64>) -> (i32, String, Option<u64>) {
    (status, outcome.to_owned(), position)
}

#[tokio::test]
async fn what_was_altered_is_found_where_it_is_and_what_came_after_the_run_is_not_heard() {
    let data = filled().await;
    assert_eq!(replayed(&data, &[]).await, of(0, "same", None));
    let set = |path: &str, value: &str| format!("payload = json_set(payload, '$.{path}', {value})");
    let (refused, sent) = (
        "event_type = 'ToolCallDecided', payload = '{\"by\":\"s\",\"code\":\"X\",\"decision\":\"deny\",\"stage\":\"limit\"}'",
        "event_type = 'ToolDispatched', payload = '{\"attempt_no\":1,\"epoch\":1,\"node_id\":\"n\",\"run_id\":\"r\",\"ttl_ms\":1,\"wait_ms\":1}'",
    );
    let ended = |kind: &str, code: &str| {
        format!(
            "event_type = '{kind}', payload = '{{\"run_id\":\"r\",\"error_code\":\"{code}\",\"error_message\":\"\",\"partial_text\":\"\"}}'"
        )
    };
    let (stopped, restarted, other) =
        (ended("RunCancelled", "STOPPED"), ended("RunFailed", "SERVER_RESTARTED"), ended("RunFailed", "OTHER"));
    let answered = "payload = json_set(payload, '$.tool_calls', json('[]'), '$.content', 'no calls')";
    for (position, change, differs_at) in [
        (CLAIMED, set("context_hash", "'x'"), Some(CLAIMED)),
        (6, set("request_hash", "'x'"), Some(6)),
        (6, set("round", "2"), Some(6)),
        (7, set("round", "3"), Some(7)),
        (7, answered.to_owned(), Some(8 + 3)),
        (8, set("call_hash", "'x'"), Some(8)),
        (9, refused.to_owned(), Some(9)),
        (11, set("content", "'another'"), Some(11)),
        (11, set("tool_call_id", "'g:x'"), Some(11)),
        (13, set("code", "'OTHER'"), Some(13)),
        (13, set("decision", "'allow'"), Some(13)),
        (13, sent.to_owned(), Some(13)),
        // What devices and processes decided is what the loop was given.
        (13, set("stage", "'device'"), None),
        (14, set("content", "'another'"), Some(14)),
        (14, set("tool_call_id", "'g:a'"), Some(14)),
        (19, set("content", "'4'"), Some(ENDED)),
        (ENDED, set("answer", "'4'"), Some(ENDED)),
        (ENDED, other, Some(ENDED)),
    ] {
        let expected = if differs_at.is_some() { of(3, "differs", differs_at) } else { of(0, "same", None) };
        assert_eq!(altered(&data, position..=position, &change).await, expected, "{position}: {change}");
    }
    // A call that was never begun, of a run that went to its end.
    let strayed = "aggregate_id = replace(aggregate_id, 'g:a', 'g:strayed')";
    assert_eq!(altered(&data, 8..=21, strayed).await, of(3, "differs", Some(11)));
    // A tool that is not at hand says nothing about what it decided.
    assert_eq!(altered(&data, 8..=8, &set("tool", "'gone'")).await, of(1, "not_replayable", None));

    // Cut off from outside, the log may stop anywhere, and has stand-ins for what it lacks.
    for end in [&stopped, &restarted] {
        data.tamper(&format!("UPDATE events SET {end} WHERE position = {ENDED}")).await;
        let cut = of(0, "same_until_cut", None);
        assert_eq!(replayed(&data, &[]).await, cut, "{end}");
        assert_eq!(altered(&data, 8..=21, strayed).await, cut, "{end}: it was not begun");
        assert_eq!(altered(&data, 7..=7, answered).await, cut, "{end}: facts are left");
        let stands_in = "payload = CASE position WHEN 14 THEN json_set(payload, '$.content', 'stands in') ELSE payload END, \
             aggregate_id = CASE WHEN position > 17 AND aggregate_type = 'thread' THEN 'elsewhere' ELSE aggregate_id END";
        assert_eq!(altered(&data, 14..=22, stands_in).await, cut, "{end}");
        assert_eq!(altered(&data, 11..=11, &set("content", "'another'")).await, of(3, "differs", Some(11)), "{end}");
    }
}

/// The replay of a log in which something is altered for once.
async fn altered(data: &Data, positions: std::ops::RangeInclusive<u64>, change: &str) -> (i32, String, Option<u64>) {
    let copy = data.copy();
    let (first, last) = (positions.start(), positions.end());
    copy.tamper(&format!("UPDATE events SET {change} WHERE position BETWEEN {first} AND {last}")).await;
    replayed(&copy, &[]).await
}

#[tokio::test]
async fn at_every_position_of_a_run_it_is_the_same_as_far_as_it_goes_and_rules_judge_no_later_call() {
    let data = filled().await;
    let events = story().len() as u64;
    for at in 1..=events {
        let expected = match at {
            1..=2 => of(1, "RUN_NOT_FOUND", None),
            3 => of(1, "not_replayable", None),
            CLAIMED..ENDED => of(0, "same_until_cut", None),
            _ => of(0, "same", None),
        };
        assert_eq!(replayed(&data, &["--at", &at.to_string()]).await, expected, "at {at}");
        let all = data.run(&["--json", "replay", "--all", "--at", &at.to_string()]).await;
        assert_eq!((all.status, all.stdout.lines().count()), (0, usize::from(at >= CLAIMED)), "at {at}: {all:?}");
    }
    let beyond = data.run(&["replay", "--all", "--at", "999"]).await;
    assert_eq!((beyond.status, code_of(&beyond)), (1, "NOT_FOUND"), "{beyond:?}");

    let rules = |name: &str, tool: &str| {
        data.write(name, &format!("[[policies]]\nid = \"p\"\ntool = \"{tool}\"\ndecision = \"deny\""));
        format!("policy={name}")
    };
    let (late, sums) = (rules("late.toml", "get_current_time"), rules("sums.toml", "add"));
    assert_eq!(replayed(&data, &["--with", &late]).await, of(0, "same", None));
    let judged = of(0, "differs", Some(8));
    assert_eq!(replayed(&data, &["--with", &sums]).await, judged);
    // The first of the two in the log, whichever finds it.
    data.tamper("UPDATE events SET payload = json_set(payload, '$.content', 'another') WHERE position = 11").await;
    assert_eq!(replayed(&data, &["--with", &sums]).await, judged);
    data.tamper("UPDATE events SET payload = json_set(payload, '$.request_hash', 'x') WHERE position = 6").await;
    assert_eq!(replayed(&data, &["--with", &sums]).await, of(0, "differs", Some(6)));
}

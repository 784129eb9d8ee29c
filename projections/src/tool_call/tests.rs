//! The fold of a call's status, every provisional state against every later event.

mod waiting;

use crate::testing::*;
use crate::tool_call::ToolCallQuery;
use devmind_domain::conversation::{InterruptCancelReason, RunCancelReason};
use devmind_domain::tool_call::*;
use serde_json::json;
use waiting::{asked, resumed};

fn timed_out(attempt_no: u32) -> Fact {
    tool_call("k", ToolWaitTimedOut { attempt_no, after_ms: 120_000 })
}
fn taken_back(reason: CancelReason) -> Fact {
    tool_call("k", ToolCancelRequested { attempt_no: 1, reason })
}
fn acked(disposition: Disposition) -> Fact {
    tool_call("k", ToolResultAcked { connection_id: "x1".into(), disposition })
}
fn stopped() -> Fact {
    cancelled("c1", "r2", RunCancelReason::Stopped, "")
}
fn denied() -> Fact {
    let (stage, code, by) = ("device".into(), "DEVICE_OFFLINE".into(), "policy".into());
    tool_call("k", ToolCallDecided { stage, decision: Decision::Deny, code, by, reason: None })
}

/// The status and code that a history leads to.
async fn status(facts: &[Fact]) -> String {
    let store = store_of(&recorded(facts), facts.len()).await;
    let row = row(&store, "status, error_code", "tool_calls").await;
    format!("{} {}", row["status"].as_str().expect("a call"), row["error_code"].as_str().unwrap_or("-"))
}

/// A call in each provisional state, sent (where it was) on socket x1 by run r1, process n1, start 1, and left
/// (where a person was asked) to run r2. A conclusion from the end of a wait is provisional, too.
fn provisional() -> Vec<(&'static str, Vec<Fact>)> {
    let sent = vec![requested("k", "r1"), dispatched("k", 1, 1, Some("x1"))];
    let with = |fact: Fact| [sent.clone(), vec![fact]].concat();
    vec![
        ("created -", vec![requested("k", "r1")]),
        ("dispatched -", sent.clone()),
        ("timed_out TOOL_TIMEOUT", with(timed_out(1))),
        ("unknown RESULT_UNKNOWN", with(disconnected("ann/d1", "x1"))),
        ("unknown SERVER_RESTARTED", with(node_started(2))),
        ("unknown RUN_CANCELLED", with(taken_back(CancelReason::RunCancelled))),
        ("created -", asked([resolved("c1", "i1", true), resumed()])),
        ("created -", asked([expired("c1", "i1"), resumed()])),
        ("rejected APPROVAL_CANCELLED", asked([withdrawn("c1", "i1", InterruptCancelReason::RunStopped)])),
        ("rejected APPROVAL_EXPIRED", asked([expired("c1", "i1"), resumed(), stopped()])),
        ("rejected ABORTED_BEFORE_DISPATCH", asked([resolved("c1", "i1", true), resumed(), stopped()])),
    ]
}

/// Every settlement, by its event.
fn settlements() -> Vec<(&'static str, Fact)> {
    vec![
        ("succeeded -", result("k", 1, ResultStatus::Succeeded)),
        ("failed OF_THE_RESULT", result("k", 1, ResultStatus::Failed)),
        ("rejected OF_THE_RESULT", result("k", 1, ResultStatus::Rejected)),
        ("cancelled OF_THE_RESULT", result("k", 1, ResultStatus::Cancelled)),
        ("indeterminate OF_THE_RESULT", result("k", 1, ResultStatus::Indeterminate)),
        ("rejected DEVICE_OFFLINE", denied()),
    ]
}

/// What ends a wait without a result, with the status it gives to a dispatched call.
fn losses() -> Vec<(&'static str, Fact)> {
    vec![
        ("timed_out TOOL_TIMEOUT", timed_out(1)),
        ("unknown RESULT_UNKNOWN", disconnected("ann/d1", "x1")),
        ("unknown RESULT_UNKNOWN", replaced("ann/d1", "x1", "x2")),
        ("unknown SERVER_RESTARTED", node_started(2)),
        ("unknown SERVER_RESTARTED", node_lost(1)),
        ("unknown RUN_CANCELLED", taken_back(CancelReason::RunCancelled)),
        ("unknown RUN_CANCELLED", cancelled("c1", "r1", RunCancelReason::Stopped, "")),
    ]
}

/// What says nothing about a call's outcome.
fn bystanders() -> Vec<Fact> {
    vec![
        disconnected("ann/d1", "x9"),
        replaced("ann/d1", "x9", "x1"),
        node_started(1),
        node_lost(0),
        node_stopped(1),
        cancelled("c1", "r9", RunCancelReason::Stopped, ""),
        succeeded("c1", "r1", "done"),
        failed("c1", "r1", ""),
        taken_back(CancelReason::WaitTimedOut),
        timed_out(9),
        tool_call("k", ToolReceived { attempt_no: 1, phase: Phase::Executing }),
        tool_call("k", ToolOutcomeRevised { by: "x".into(), reason: "y".into(), content_hash: "z".into() }),
        acked(Disposition::Stored),
        requested("k", "r1"),
        tool_call(
            "k",
            ToolCallDecided {
                stage: "s".into(),
                decision: Decision::Allow,
                code: "OK".into(),
                by: "p".into(),
                reason: None,
            },
        ),
    ]
}

#[tokio::test]
async fn a_dispatched_call_is_lost_with_its_socket_its_process_or_its_run_and_the_first_cause_stays() {
    for (before, history) in provisional() {
        assert_eq!(status(&history).await, before);
        for (lost, loss) in losses() {
            let expected = if before == "dispatched -" { lost } else { before };
            let after = [history.clone(), vec![loss.clone()]].concat();
            assert_eq!(status(&after).await, expected, "{before}, then {loss:?}");
        }
    }
}

#[tokio::test]
async fn a_provisional_status_gives_way_to_any_report_and_to_another_dispatch() {
    for (before, history) in provisional() {
        for (settled, settlement) in settlements() {
            let after = [history.clone(), vec![settlement.clone()]].concat();
            assert_eq!(status(&after).await, settled, "{before}, then {settlement:?}");
        }
        let again = [history.clone(), vec![dispatched("k", 2, 2, Some("x2"))]].concat();
        assert_eq!(row_of(&again).await["settled_at"], serde_json::Value::Null, "{before}, then another dispatch");
        assert_eq!(status(&again).await, "dispatched -", "{before}, then another dispatch");
    }
}

#[tokio::test]
async fn what_says_nothing_about_the_outcome_changes_no_status() {
    for (before, history) in provisional().into_iter().chain(settled()) {
        for bystander in bystanders() {
            let after = [history.clone(), vec![bystander.clone()]].concat();
            assert_eq!(status(&after).await, before, "{before}, then {bystander:?}");
        }
    }
}

fn settled() -> Vec<(&'static str, Vec<Fact>)> {
    let sent = vec![requested("k", "r1"), dispatched("k", 1, 1, Some("x1"))];
    settlements().into_iter().map(|(status, fact)| (status, [sent.clone(), vec![fact]].concat())).collect()
}

#[tokio::test]
async fn a_settled_status_is_never_overwritten() {
    for (settled, history) in settled() {
        let later = settlements().into_iter().chain(losses()).map(|(_, fact)| fact);
        for fact in later.chain([dispatched("k", 2, 2, Some("x2"))]) {
            let before = row_of(&history).await;
            let after = row_of(&[history.clone(), vec![fact.clone()]].concat()).await;
            assert_eq!(after, before, "{settled}, then {fact:?}");
        }
    }
}

/// Everything of a call that a result sets.
async fn row_of(facts: &[Fact]) -> serde_json::Value {
    let store = store_of(&recorded(facts), facts.len()).await;
    let columns =
        "status, error_code, error_message, executed_attempt_no, output, output_sha256, settled_at, concluded";
    row(&store, columns, "tool_calls").await
}

#[tokio::test]
async fn the_end_of_an_older_attempts_socket_takes_nothing_from_the_newest() {
    let history = [
        requested("k", "r1"),
        dispatched("k", 1, 1, Some("x1")),
        timed_out(1),
        dispatched("k", 2, 1, Some("x2")),
        disconnected("ann/d1", "x1"),
    ];
    assert_eq!(status(&history).await, "dispatched -");
}

#[tokio::test]
async fn a_server_tool_of_a_restarted_process_is_unknown_too() {
    let history = [requested("k", "r1"), dispatched("k", 1, 1, None), node_started(2)];
    assert_eq!(status(&history).await, "unknown SERVER_RESTARTED");
}

#[tokio::test]
async fn the_attempt_that_ran_gets_the_outcome_and_the_others_are_superseded() {
    let mut bench = Bench::new().await;
    bench
        .append([
            requested("k", "r1"),
            dispatched("k", 1, 1, Some("x1")),
            tool_call("k", ToolReceived { attempt_no: 1, phase: Phase::Confirming }),
            disconnected("ann/d1", "x1"),
            dispatched("k", 2, 1, Some("x2")),
            result("k", 1, ResultStatus::Succeeded),
            acked(Disposition::Stored),
            acked(Disposition::Duplicate),
            acked(Disposition::Superseded),
        ])
        .await;
    let calls = bench.views().await.tool_calls(ToolCallQuery::Call("k".into())).await.expect("calls");
    let [call] = calls.as_slice() else { panic!("one call, not {}", calls.len()) };
    assert_eq!((call.status.as_str(), call.settled, call.executed_attempt_no), ("succeeded", true, Some(1)));
    assert_eq!(call.output, Some(json!({"content": "hello"})));
    assert_eq!((call.acks, call.late_results), (3, 2));
    assert_eq!(call.summary, "path: README.md");
    let attempts: Vec<_> =
        call.attempts.iter().map(|a| (a.attempt_no, a.status.as_str(), a.phase.as_deref())).collect();
    assert_eq!(attempts, [(1, "succeeded", Some("confirming")), (2, "superseded", None)]);
}

#[tokio::test]
async fn calls_are_found_by_conversation_run_and_id_in_the_order_they_were_asked_for() {
    let mut bench = Bench::new().await;
    bench.append([requested("k2", "r1"), requested("k1", "r1"), requested("k3", "r2")]).await;
    let views = bench.views().await;
    for (query, expected) in [
        (ToolCallQuery::Conversation("c1".into()), vec!["k2", "k1", "k3"]),
        (ToolCallQuery::Run("r1".into()), vec!["k2", "k1"]),
        (ToolCallQuery::Call("k3".into()), vec!["k3"]),
        (ToolCallQuery::Call("' OR 1=1 --".into()), vec![]),
    ] {
        let calls = views.tool_calls(query).await.expect("calls");
        assert_eq!(calls.iter().map(|call| call.tool_call_id.as_str()).collect::<Vec<_>>(), expected);
    }
}

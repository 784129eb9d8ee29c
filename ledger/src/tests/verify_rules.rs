//! What `verify` finds in a history that the domain's rules would never have written.

use super::support::*;
use crate::verify::Check;
use crate::*;
use devmind_domain::canonical::{call_hash, hash_json};
use devmind_domain::event::{DomainEvent, StreamId};
use serde_json::{Value, json};

/// One event: its stream's kind and id, its type, its payload.
type Fact = (&'static str, &'static str, &'static str, Value);

/// Appends the facts as they are, and compares what is found, as check and position.
async fn check(facts: &[Fact], expected: &[(Check, u64)]) {
    let folder = Folder::new();
    let ledger = folder.open().await;
    for (kind, id, event_type, payload) in facts {
        let stream = StreamId { aggregate_type: (*kind).to_owned(), aggregate_id: (*id).to_owned() };
        let expected_version = ledger.reader().read_stream(&stream, 0).await.expect("read").len() as u64;
        let event = DomainEvent::decode(kind, event_type, 1, &payload.to_string()).expect("a known event").remove(0);
        let append = StreamAppend { stream, expected_version, events: vec![new_event(event)] };
        ledger.append(Append { streams: vec![append], idempotency: None }).await.expect("appended");
    }
    let report = folder.verify().await;
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.check, finding.position)).collect();
    assert_eq!(found, expected, "{:?}", report.findings);
}

fn conversation(event_type: &'static str, payload: Value) -> Fact {
    ("conversation", "c", event_type, payload)
}
fn prepared(run: &str) -> Fact {
    let payload = json!({
        "run_id": run, "turn_id": "t", "kind": "normal", "trigger": "ask", "run_seq": 1, "graph_thread_id": "g",
    });
    conversation("RunPrepared", payload)
}
fn claimed(run: &str) -> Fact {
    conversation("RunClaimed", json!({ "run_id": run, "node_id": "n", "epoch": 1, "context_hash": "h" }))
}
fn succeeded(run: &str) -> Fact {
    conversation("RunSucceeded", json!({ "run_id": run, "message_id": "m", "answer": "a" }))
}
fn failed(run: &str) -> Fact {
    let payload = json!({ "run_id": run, "error_code": "E", "error_message": "m", "partial_text": "" });
    conversation("RunFailed", payload)
}

/// A question about the call `g:call` as it was shown.
fn raised(interrupt: &str, arguments_hash: &str) -> Fact {
    let payload = json!({
        "interrupt_id": interrupt, "run_id": "r1", "turn_id": "t", "kind": "tool_approval", "tool_call_id": "g:call",
        "tool": "add", "arguments": { "a": 1 }, "arguments_hash": arguments_hash, "message": "Allow?",
    });
    conversation("InterruptRaised", payload)
}
fn answered(interrupt: &str, arguments_hash: &str, approved: bool) -> Fact {
    let payload = json!({
        "interrupt_id": interrupt, "approved": approved, "resolved_by": "ann", "arguments_hash": arguments_hash,
    });
    conversation("InterruptResolved", payload)
}
fn resolved(interrupt: &str, arguments_hash: &str) -> Fact {
    answered(interrupt, arguments_hash, true)
}
fn refused_by_person(interrupt: &str, arguments_hash: &str) -> Fact {
    answered(interrupt, arguments_hash, false)
}
fn expired(interrupt: &str) -> Fact {
    conversation("InterruptExpired", json!({ "interrupt_id": interrupt }))
}
fn withdrawn(interrupt: &str) -> Fact {
    conversation("InterruptCancelled", json!({ "interrupt_id": interrupt, "reason": "EDITED" }))
}

fn call(event_type: &'static str, payload: Value) -> Fact {
    ("tool_call", "g:call", event_type, payload)
}
fn requested_with(call_hash: &str) -> Fact {
    let payload = json!({
        "conversation_id": "c", "turn_id": "t", "run_id": "r1", "user_id": "ann", "graph_thread_id": "g",
        "model_call_id": "call", "tool": "add", "tool_version": "1", "target": "device", "device_id": "d",
        "arguments": { "a": 1 }, "call_hash": call_hash, "risk": "LOW",
    });
    call("ToolCallRequested", payload)
}
fn requested() -> Fact {
    requested_with(&call_hash("add", "1", &json!({ "a": 1 })))
}
fn dispatched(attempt_no: u32) -> Fact {
    let payload = json!({
        "attempt_no": attempt_no, "run_id": "r1", "node_id": "n", "epoch": 1, "connection_id": "s", "journal_id": "j",
        "wait_ms": 1, "ttl_ms": 1,
    });
    call("ToolDispatched", payload)
}
fn result_with(attempt_no: u32, output_sha256: &str) -> Fact {
    let payload = json!({
        "executed_attempt_no": attempt_no, "status": "succeeded", "output": { "sum": 3 },
        "output_sha256": output_sha256, "origin": "live", "connection_id": "s",
    });
    call("ToolResultRecorded", payload)
}
fn result(attempt_no: u32) -> Fact {
    result_with(attempt_no, &hash_json(&json!({ "sum": 3 })))
}
fn acked() -> Fact {
    call("ToolResultAcked", json!({ "connection_id": "s", "disposition": "stored" }))
}
fn denied() -> Fact {
    call(
        "ToolCallDecided",
        json!({ "stage": "limit", "decision": "deny", "code": "TOOL_LIMIT_REACHED", "by": "policy" }),
    )
}

#[tokio::test]
async fn an_orderly_history_has_no_findings() {
    let story = [
        prepared("r1"),
        claimed("r1"),
        requested(),
        dispatched(1),
        call("ToolReceived", json!({ "attempt_no": 1, "phase": "executing" })),
        dispatched(2),
        result(1),
        acked(),
        acked(),
        succeeded("r1"),
        prepared("r2"),
        claimed("r2"),
        failed("r2"),
        prepared("r3"),
    ];
    check(&story, &[]).await;
}

#[tokio::test]
async fn a_run_has_one_terminal_event() {
    check(&[prepared("r1"), claimed("r1"), succeeded("r1"), failed("r1")], &[(Check::RunEnd, 4)]).await;
}

#[tokio::test]
async fn a_run_is_claimed_at_most_once_and_not_after_its_end() {
    check(&[prepared("r1"), claimed("r1"), claimed("r1")], &[(Check::RunClaim, 3)]).await;
    check(&[prepared("r1"), failed("r1"), claimed("r1")], &[(Check::RunClaim, 3)]).await;
}

#[tokio::test]
async fn a_conversation_has_at_most_one_active_run() {
    check(&[prepared("r1"), prepared("r2")], &[(Check::ActiveRun, 2)]).await;
    check(&[prepared("r1"), claimed("r1"), prepared("r2")], &[(Check::ActiveRun, 3)]).await;
    check(&[prepared("r1"), conversation("RunInterrupted", json!({ "run_id": "r1" })), prepared("r2")], &[]).await;
}

#[tokio::test]
async fn an_interrupt_that_ends_was_raised() {
    for end in [resolved("i", "h"), expired("i"), withdrawn("i")] {
        check(&[end], &[(Check::Interrupts, 1)]).await;
    }
}

#[tokio::test]
async fn an_interrupt_is_raised_once_and_ends_once() {
    check(&[raised("i", "h"), raised("i", "h")], &[(Check::Interrupts, 2)]).await;
    for first in [resolved("i", "h"), expired("i"), withdrawn("i")] {
        for second in [resolved("i", "h"), expired("i"), withdrawn("i")] {
            check(&[raised("i", "h"), first.clone(), second], &[(Check::Interrupts, 3)]).await;
        }
    }
    check(&[raised("i", "h"), raised("j", "h"), resolved("i", "h"), expired("j")], &[]).await;
}

#[tokio::test]
async fn an_answer_is_about_the_arguments_that_were_shown() {
    check(&[raised("i", "h"), resolved("i", "another")], &[(Check::Interrupts, 2)]).await;
}

#[tokio::test]
async fn a_call_that_a_person_was_asked_about_is_sent_only_as_it_was_approved() {
    let own = call_hash("add", "1", &json!({ "a": 1 }));
    let asked = |shown: &str| vec![requested(), raised("i", shown)];
    let sent = |shown: &str, between: &[Fact]| [asked(shown), between.to_vec(), vec![dispatched(1)]].concat();
    check(&sent(&own, &[resolved("i", &own)]), &[]).await;
    check(&sent(&own, &[]), &[(Check::ResultHash, 3)]).await;
    check(&sent(&own, &[refused_by_person("i", &own)]), &[(Check::ResultHash, 4)]).await;
    check(&sent(&own, &[expired("i")]), &[(Check::ResultHash, 4)]).await;
    check(&sent(&own, &[withdrawn("i")]), &[(Check::ResultHash, 4)]).await;
    check(&sent("another", &[resolved("i", "another")]), &[(Check::ResultHash, 4)]).await;
    // An answer about other arguments is no approval of those that were shown.
    let forged = [(Check::Interrupts, 3), (Check::ResultHash, 4)];
    check(&sent("another", &[resolved("i", &own)]), &forged).await;
    // Asked again after a silence, and allowed.
    check(&sent(&own, &[expired("i"), raised("j", &own), resolved("j", &own)]), &[]).await;
    // Allowed and, asked again, refused.
    let taken_back = [resolved("i", &own), raised("j", &own), refused_by_person("j", &own)];
    check(&sent(&own, &taken_back), &[(Check::ResultHash, 6)]).await;
}

#[tokio::test]
async fn a_dispatch_comes_after_its_request() {
    check(&[dispatched(1)], &[(Check::DispatchRequested, 1)]).await;
}

#[tokio::test]
async fn attempts_are_numbered_from_one_and_results_name_one_of_them() {
    check(&[requested(), dispatched(2)], &[(Check::Attempts, 2)]).await;
    check(&[requested(), dispatched(1), dispatched(1)], &[(Check::Attempts, 3)]).await;
    check(&[requested(), dispatched(1), result(2)], &[(Check::Attempts, 3)]).await;
}

#[tokio::test]
async fn arguments_and_outputs_have_the_hashes_recorded_for_them() {
    check(&[requested_with("another")], &[(Check::ResultHash, 1)]).await;
    check(&[requested(), dispatched(1), result_with(1, "another")], &[(Check::ResultHash, 3)]).await;
}

#[tokio::test]
async fn an_ack_comes_after_its_result() {
    check(&[requested(), dispatched(1), acked(), result(1)], &[(Check::AckAfterResult, 3)]).await;
}

#[tokio::test]
async fn a_final_status_is_never_overwritten() {
    check(&[requested(), dispatched(1), result(1), result(1)], &[(Check::FinalStatus, 4)]).await;
    check(&[requested(), denied(), dispatched(1)], &[(Check::FinalStatus, 3)]).await;
    check(&[requested(), dispatched(1), result(1), dispatched(2)], &[(Check::FinalStatus, 4)]).await;
}

#[tokio::test]
async fn a_ticket_is_consumed_at_most_once_and_only_where_it_was_issued() {
    let device = |event_type, payload| ("device", "ann/d", event_type, payload);
    let issued =
        device("DeviceTicketIssued", json!({ "ticket_hash": "h", "expires_at": "2026-01-01T00:00:00.000000Z" }));
    let consumed = || device("DeviceTicketConsumed", json!({ "ticket_hash": "h" }));
    check(&[issued, consumed(), consumed()], &[(Check::Ticket, 3)]).await;
    check(&[consumed()], &[(Check::Ticket, 1)]).await;
}

#[tokio::test]
async fn a_call_of_a_run_that_ended_well_has_an_outcome_or_a_stated_reason() {
    let open = || vec![prepared("r1"), claimed("r1"), requested(), dispatched(1)];
    let closed_by = |fact: Fact| open().into_iter().chain([fact, succeeded("r1")]).collect::<Vec<_>>();
    let mut left = open();
    left.push(succeeded("r1"));
    check(&left, &[(Check::Outcome, 3)]).await;
    let disconnected = json!({ "connection_id": "s", "code": 1006, "reason": "gone" });
    let observed = json!({ "tool_call_id": "g:call", "ok": false, "content": "c", "error": "DEVICE_BUSY" });
    for reason in [
        result(1),
        call("ToolWaitTimedOut", json!({ "attempt_no": 1, "after_ms": 1 })),
        call("ToolCancelRequested", json!({ "attempt_no": 1, "reason": "RUN_CANCELLED" })),
        ("device", "ann/d", "DeviceDisconnected", disconnected),
        ("node", "n", "NodeStarted", json!({ "node_id": "n", "epoch": 2, "version": "1" })),
        ("thread", "g", "ToolResultObserved", observed),
    ] {
        check(&closed_by(reason), &[]).await;
    }
    let mut failed_run = open();
    failed_run.push(failed("r1"));
    check(&failed_run, &[]).await;
}

//! Interrupts as clients see them, and how they are found.

use super::*;
use devmind_domain::Timestamp;

/// The columns that say how an interrupt ended.
async fn ends(facts: &[Fact], interrupt: &str) -> Value {
    let store = store_of(&recorded(facts), 99).await;
    let rest = format!("interrupts WHERE interrupt_id = '{interrupt}'");
    row(&store, "status, approved, resolved_by, reason, closed_at", &rest).await
}
fn with(facts: &[Fact]) -> Vec<Fact> {
    [&interrupted(), facts].concat()
}

#[tokio::test]
async fn open_interrupts_are_pending_approvals_until_they_are_answered_cancelled_or_expired() {
    let approval = |id: &str| json!({"interrupt_id": id, "tool": "demo_text", "arguments": {"n": 1}, "message": "May it?", "expires_at": at(9)});
    let stopped = InterruptCancelReason::RunStopped;
    for (facts, open) in [
        (interrupted(), vec!["i1", "i2"]),
        (with(&[resolved("c1", "i1", true)]), vec!["i2"]),
        (with(&[resolved("c1", "i1", false)]), vec!["i2"]),
        (with(&[withdrawn("c1", "i2", stopped)]), vec!["i1"]),
        (with(&[expired("c1", "i1")]), vec!["i2"]),
        (with(&[expired("c1", "i1"), resolved("c1", "i2", true)]), vec![]),
    ] {
        let open: Vec<_> = open.into_iter().map(approval).collect();
        assert_eq!(turns(&facts, &["pending_approvals"]).await, json!([{ "pending_approvals": open }]));
    }
}

#[tokio::test]
async fn an_approval_without_a_deadline_has_none_and_each_stands_with_its_own_turn() {
    let second = [asked("c1", "t2", 2), prepared("c1", "r2", "t2", RunKind::Normal), claimed("c1", "r2")];
    let stopped =
        [withdrawn("c1", "i2", InterruptCancelReason::RunStopped), cancelled("c1", "r1", RunCancelReason::Stopped, "")];
    let facts = with(&[resolved("c1", "i1", true)]);
    let facts =
        [facts, stopped.to_vec(), second.to_vec(), vec![raised("c1", "i3", "r2", "t2", None), paused("c1", "r2")]];
    let seen = turns(&facts.concat(), &["status", "pending_approvals"]).await;
    let pending = json!([{"interrupt_id": "i3", "tool": "demo_text", "arguments": {"n": 1}, "message": "May it?", "expires_at": null}]);
    assert_eq!(
        seen,
        json!([
            {"status": "cancelled", "pending_approvals": []},
            {"status": "interrupted", "pending_approvals": pending}
        ])
    );
}

#[tokio::test]
async fn the_end_of_an_interrupt_is_on_record_with_who_and_why_and_the_first_end_counts() {
    let position = u64::try_from(interrupted().len()).expect("few") + 1;
    let moment = i64::try_from(position * 1_000).expect("small");
    let ended = |status: &str, approved: Value, by: Value, reason: Value| json!({"status": status, "approved": approved, "resolved_by": by, "reason": reason, "closed_at": moment});
    let cancelled =
        |reason, word: &str| (withdrawn("c1", "i1", reason), ended("cancelled", Value::Null, Value::Null, word.into()));
    for (end, expected) in [
        (resolved("c1", "i1", true), ended("resolved", 1.into(), "ann".into(), Value::Null)),
        (resolved("c1", "i1", false), ended("resolved", 0.into(), "ann".into(), Value::Null)),
        (expired("c1", "i1"), ended("expired", Value::Null, Value::Null, Value::Null)),
        cancelled(InterruptCancelReason::Edited, "EDITED"),
        cancelled(InterruptCancelReason::RunStopped, "RUN_STOPPED"),
        cancelled(InterruptCancelReason::ConversationDeleted, "CONVERSATION_DELETED"),
    ] {
        let facts = with(&[end]);
        assert_eq!(ends(&facts, "i1").await, expected);
        for later in [
            resolved("c1", "i1", true),
            resolved("c1", "i1", false),
            expired("c1", "i1"),
            withdrawn("c1", "i1", InterruptCancelReason::RunStopped),
            raised("c1", "i1", "r1", "t1", None),
        ] {
            assert_eq!(ends(&[facts.clone(), vec![later.clone()]].concat(), "i1").await, expected, "{later:?}");
        }
    }
}

#[tokio::test]
async fn conversation_and_run_of_turns_and_interrupts_are_found_whatever_became_of_them() {
    let mut bench = Bench::new().await;
    bench.append(with(&[resolved("c1", "i1", true), expired("c1", "i2")])).await;
    bench.append([followed("c1", "r2", "r1", "t1", RunKind::Resume), claimed("c1", "r2")]).await;
    bench.append([raised("c1", "i3", "r2", "t1", None), paused("c1", "r2")]).await;
    bench.append([started("c2", "bob"), asked("c2", "t2", 1), conversation("c2", ConversationDeleted {})]).await;
    let views = bench.views().await;
    for (turn, expected) in [("t1", Some("c1")), ("t2", Some("c2")), ("t9", None), ("i1", None)] {
        let found = views.conversation_of_turn(&turn.into()).await.expect("a query");
        assert_eq!(found.as_ref().map(|id| id.as_str()), expected, "{turn}");
    }
    let expected = [("i1", Some("r1")), ("i2", Some("r1")), ("i3", Some("r2")), ("i9", None), ("t1", None)];
    for (interrupt, run) in expected {
        let found = views.conversation_of_interrupt(&interrupt.into()).await.expect("a query");
        assert_eq!(found.as_ref().map(|id| id.as_str()), run.map(|_| "c1"), "{interrupt}");
        let found = views.run_of_interrupt(&interrupt.into()).await.expect("a query");
        assert_eq!(found.as_ref().map(|row| row.run_id.as_str()), run, "{interrupt}");
        if let Some(row) = found {
            assert_eq!(Some(row.clone()), views.find_run(&row.run_id).await.expect("a query"), "the same row");
        }
    }
}

#[tokio::test]
async fn a_resumed_run_names_the_run_it_continues_and_stays_in_its_thread() {
    let mut bench = Bench::new().await;
    bench.append(with(&[resolved("c1", "i1", true), resolved("c1", "i2", false)])).await;
    bench.append([followed("c1", "r2", "r1", "t1", RunKind::Resume)]).await;
    let views = bench.views().await;
    let row = views.find_run(&"r2".into()).await.expect("a query").expect("r2");
    assert_eq!((row.parent_run_id, row.kind.as_str(), row.status.as_str()), (Some("r1".into()), "resume", "queued"));
    assert_eq!(row.graph_thread_id.as_str(), "thread-r1");
    let first = views.find_run(&"r1".into()).await.expect("a query").expect("r1");
    assert_eq!((first.parent_run_id, first.status.as_str()), (None, "interrupted"), "it waits for nobody any more");
    assert_eq!(views.runs_running_on(&"n1".into()).await.expect("runs"), [], "nobody executes either");
}

#[tokio::test]
async fn overdue_are_the_conversations_with_an_open_interrupt_whose_time_is_over_longest_first() {
    let mut bench = Bench::new().await;
    for (c, interrupt, deadline) in
        [("c1", "i1", Some(20)), ("c2", "i2", Some(10)), ("c3", "i3", None), ("c4", "i4", Some(15))]
    {
        bench.append([started(c, "ann"), raised(c, interrupt, "r", "t", deadline.map(at))]).await;
    }
    bench.append([raised("c1", "i5", "r", "t", Some(at(30))), raised("c1", "i6", "r", "t", Some(at(12)))]).await;
    bench.append([raised("c2", "i7", "r", "t", Some(at(11)))]).await;
    let just_before = Timestamp::from_micros(at(10).as_micros() - 1);
    for (now, expected) in
        [(just_before, vec![]), (at(10), vec!["c2"]), (at(12), vec!["c2", "c1"]), (at(99), vec!["c2", "c1", "c4"])]
    {
        let overdue = bench.views().await.conversations_with_overdue_interrupts(now).await.expect("a query");
        assert_eq!(overdue.iter().map(|id| id.as_str()).collect::<Vec<_>>(), expected);
    }
    let stopped = InterruptCancelReason::RunStopped;
    bench.append([expired("c2", "i2"), resolved("c2", "i7", true), withdrawn("c4", "i4", stopped)]).await;
    let overdue = bench.views().await.conversations_with_overdue_interrupts(at(99)).await.expect("a query");
    assert_eq!(overdue.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["c1"], "what has ended is not overdue");
}

#[tokio::test]
async fn the_list_of_overdue_conversations_is_bounded() {
    let mut bench = Bench::new().await;
    let ids: Vec<&'static str> = (0..105).map(|n| &*format!("c{n:03}").leak()).collect();
    bench.append((1..).zip(&ids).map(|(n, id)| raised(id, id, "r", "t", Some(at(n))))).await;
    let overdue = bench.views().await.conversations_with_overdue_interrupts(at(999)).await.expect("a query");
    assert_eq!(overdue.len(), MAX_LISTED_CONVERSATIONS as usize);
    assert_eq!(overdue.first().map(|id| id.as_str()), Some("c000"));
}

//! Given events, the rows that clients see.

use crate::testing::*;
use devmind_domain::agent::{HistoryTurn, TurnEnd};
use devmind_domain::conversation::*;
use devmind_domain::limits::MAX_LISTED_CONVERSATIONS;
use serde_json::{Value, json};

/// The turns of conversation c1, as JSON, each cut to the named fields.
async fn turns(facts: &[Fact], fields: &[&str]) -> Value {
    let mut bench = Bench::new().await;
    bench.append(facts.to_vec()).await;
    let turns = bench.views().await.turns(&"c1".into()).await.expect("turns");
    let cut = |turn| {
        let turn = serde_json::to_value(turn).expect("JSON");
        fields.iter().map(|field| ((*field).to_owned(), turn[field].clone())).collect::<serde_json::Map<_, _>>()
    };
    turns.iter().map(cut).map(Value::Object).collect()
}

fn begun() -> Vec<Fact> {
    vec![started("c1", "ann"), asked("c1", "t1", 1), prepared("c1", "r1", "t1", RunKind::Normal)]
}
fn running() -> Vec<Fact> {
    [begun(), vec![claimed("c1", "r1")]].concat()
}
fn raised(interrupt: &str) -> Fact {
    conversation(
        "c1",
        InterruptRaised {
            interrupt_id: interrupt.into(),
            run_id: "r1".into(),
            turn_id: "t1".into(),
            kind: InterruptKind::ToolApproval,
            tool_call_id: "k".into(),
            tool: "demo_text".into(),
            arguments: json!({"n": 1}),
            arguments_hash: "hash".into(),
            message: "May it?".into(),
            expires_at: Some(at(9)),
        },
    )
}
fn interrupted() -> Vec<Fact> {
    let paused = conversation("c1", RunInterrupted { run_id: "r1".into() });
    [running(), vec![raised("i1"), raised("i2"), paused]].concat()
}
fn resolved(interrupt: &str) -> Fact {
    let (resolved_by, arguments_hash) = ("ann".into(), "hash".into());
    conversation(
        "c1",
        InterruptResolved { interrupt_id: interrupt.into(), approved: true, resolved_by, arguments_hash },
    )
}
fn rerun(message: &str, content: &str, replaced: &[&str]) -> Fact {
    conversation(
        "c1",
        TurnRerunPrepared {
            turn_id: "t1".into(),
            message_id: message.into(),
            content: content.into(),
            previous_message_id: "q-t1".into(),
            edited: message != "q-t1",
            replaced_message_ids: replaced.iter().map(|id| (*id).into()).collect(),
        },
    )
}

#[tokio::test]
async fn a_turn_has_exactly_the_fields_of_the_specification() {
    let facts = [running(), vec![requested("k", "r1"), succeeded("c1", "r1", "42")]].concat();
    let mut bench = Bench::new().await;
    bench.append(facts).await;
    let turns = bench.views().await.turns(&"c1".into()).await.expect("turns");
    assert_eq!(
        serde_json::to_value(turns).expect("JSON"),
        json!([{
            "id": "t1", "sequence_no": 1, "status": "completed", "question": "question t1", "answer": "42",
            "partial": false, "error_code": null, "error_message": null, "pending_approvals": [],
            "tool_calls": [{
                "tool_call_id": "k", "tool": "workspace.read_file", "status": "created", "error_code": null,
                "summary": "path: README.md"
            }],
            "is_latest": true, "can_rerun": true,
            "active_run": {"run_id": "r1", "kind": "normal", "status": "succeeded"}
        }])
    );
}

#[tokio::test]
async fn a_turns_status_follows_the_run_that_counts_for_it() {
    let stopped = |partial| cancelled("c1", "r1", RunCancelReason::Stopped, partial);
    let resumed = [interrupted(), vec![resolved("i1"), prepared("c1", "r2", "t1", RunKind::Resume)]].concat();
    let with = |history: &[Fact], facts: &[Fact]| [history, facts].concat();
    for (facts, status, answer, partial, code, can_rerun) in [
        (begun(), "pending", None, false, None, true),
        (running(), "running", None, false, None, false),
        (interrupted(), "interrupted", None, false, None, true),
        (resumed.clone(), "pending", None, false, None, true),
        (with(&resumed, &[claimed("c1", "r2")]), "running", None, false, None, false),
        (with(&resumed, &[claimed("c1", "r2"), succeeded("c1", "r2", "x")]), "completed", Some("x"), false, None, true),
        (with(&running(), &[succeeded("c1", "r1", "")]), "completed", Some(""), false, None, true),
        (with(&running(), &[failed("c1", "r1", "half")]), "failed", Some("half"), true, Some("MODEL_TIMEOUT"), true),
        (with(&running(), &[failed("c1", "r1", "")]), "failed", None, false, Some("MODEL_TIMEOUT"), true),
        (with(&running(), &[stopped("half")]), "cancelled", Some("half"), true, Some("STOPPED"), true),
        (with(&begun(), &[stopped("")]), "cancelled", None, false, Some("STOPPED"), true),
    ] {
        let seen = turns(&facts, &["status", "answer", "partial", "error_code", "can_rerun"]).await;
        let expected = json!([{
            "status": status, "answer": answer, "partial": partial, "error_code": code, "can_rerun": can_rerun
        }]);
        assert_eq!(seen, expected, "{facts:?}");
    }
}

#[tokio::test]
async fn a_run_that_has_ended_never_changes_again() {
    let ended = [running(), vec![succeeded("c1", "r1", "first")]].concat();
    let paused = conversation("c1", RunInterrupted { run_id: "r1".into() });
    for later in [
        succeeded("c1", "r1", "second"),
        failed("c1", "r1", "late"),
        cancelled("c1", "r1", RunCancelReason::Stopped, "late"),
        claimed("c1", "r1"),
        paused,
        prepared("c1", "r1", "t1", RunKind::Retry),
    ] {
        let before = dump(&store_of(&recorded(&ended), 9).await.read).await;
        let after = dump(&store_of(&recorded(&[ended.clone(), vec![later.clone()]].concat()), 9).await.read).await;
        assert_eq!(after, before, "{later:?}");
    }
}

#[tokio::test]
async fn a_newer_question_makes_the_unclaimed_one_cancelled_and_only_the_latest_can_be_rerun() {
    let abandoned = cancelled("c1", "r1", RunCancelReason::Abandoned, "");
    let facts = [begun(), vec![abandoned, asked("c1", "t2", 2), prepared("c1", "r2", "t2", RunKind::Normal)]].concat();
    let seen = turns(&facts, &["id", "status", "error_code", "is_latest", "can_rerun"]).await;
    assert_eq!(
        seen,
        json!([
            {"id": "t1", "status": "cancelled", "error_code": "ABANDONED", "is_latest": false, "can_rerun": false},
            {"id": "t2", "status": "pending", "error_code": null, "is_latest": true, "can_rerun": true}
        ])
    );
}

#[tokio::test]
async fn open_interrupts_are_pending_approvals_until_they_are_answered_cancelled_or_expired() {
    let approval = |id: &str| json!({"interrupt_id": id, "tool": "demo_text", "arguments": {"n": 1}, "message": "May it?", "expires_at": at(9)});
    let ended = |event: ConversationEvent| [interrupted(), vec![conversation("c1", event)]].concat();
    let reason = InterruptCancelReason::RunStopped;
    for (facts, open) in [
        (interrupted(), vec!["i1", "i2"]),
        ([interrupted(), vec![resolved("i1")]].concat(), vec!["i2"]),
        (ended(InterruptCancelled { interrupt_id: "i2".into(), reason }.into()), vec!["i1"]),
        (ended(InterruptExpired { interrupt_id: "i1".into() }.into()), vec!["i2"]),
    ] {
        let open: Vec<_> = open.into_iter().map(approval).collect();
        assert_eq!(turns(&facts, &["pending_approvals"]).await, json!([{ "pending_approvals": open }]));
    }
    // The first answer counts.
    let twice =
        [interrupted(), vec![resolved("i1"), conversation("c1", InterruptExpired { interrupt_id: "i1".into() })]];
    let store = store_of(&recorded(&twice.concat()), 99).await;
    let seen = row(&store, "status, approved, resolved_by", "interrupts WHERE interrupt_id = 'i1'").await;
    assert_eq!(seen, json!({"status": "resolved", "approved": 1, "resolved_by": "ann"}));
}

#[tokio::test]
async fn an_edit_replaces_question_and_answer_and_a_retry_the_answer_alone() {
    let done = [running(), vec![succeeded("c1", "r1", "old")]].concat();
    let edited = [done.clone(), vec![rerun("q-new", "changed", &["a-r1"])]].concat();
    let retried = [done, vec![rerun("q-t1", "question t1", &["a-r1"])]].concat();
    for (facts, question, replaced, kept) in
        [(edited, "changed", vec!["a-r1", "q-t1"], vec!["q-new"]), (retried, "question t1", vec!["a-r1"], vec!["q-t1"])]
    {
        let seen = turns(&facts, &["status", "question", "answer", "partial", "error_code"]).await;
        let expected = json!([
            {"status": "pending", "question": question, "answer": null, "partial": false, "error_code": null}
        ]);
        assert_eq!(seen, expected);
        let store = store_of(&recorded(&facts), 99).await;
        for (which, expected) in [(true, replaced), (false, kept)] {
            let ids: Vec<String> =
                sqlx::query_scalar("SELECT message_id FROM messages WHERE replaced = $1 ORDER BY message_id")
                    .bind(which)
                    .fetch_all(&store.read)
                    .await
                    .expect("messages");
            assert_eq!(ids, expected);
        }
        // The next run answers the question as it stands now.
        let next = [facts, vec![prepared("c1", "r2", "t1", RunKind::Retry), claimed("c1", "r2")]].concat();
        let next = [next, vec![succeeded("c1", "r2", "new")]].concat();
        let seen = turns(&next, &["status", "answer", "active_run"]).await;
        let run = json!({"run_id": "r2", "kind": "retry", "status": "succeeded"});
        assert_eq!(seen, json!([{"status": "completed", "answer": "new", "active_run": run}]));
    }
}

#[tokio::test]
async fn conversations_are_a_users_own_newest_turn_first_without_deleted_ones() {
    let mut bench = Bench::new().await;
    bench
        .append([
            started("c1", "ann"),
            started("c2", "ann"),
            started("c3", "bob"),
            started("c4", "ann"),
            asked("c4", "t4", 1),
            conversation("c4", ConversationDeleted {}),
            asked("c2", "t2", 1),
            asked("c1", "t1", 1),
            conversation("c2", ConversationRenamed { title: "mine".into(), source: TitleSource::Manual }),
        ])
        .await;
    let views = bench.views().await;
    let rows = views.conversations(&"ann".into()).await.expect("conversations");
    let seen: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.title.as_str())).collect();
    assert_eq!(seen, [("c1", "title of c1"), ("c2", "mine")]);
    assert_eq!(rows[0].latest_turn_status.as_deref(), Some("pending"));
    let fields = serde_json::to_value(&rows[0]).expect("JSON");
    let mut fields: Vec<_> = fields.as_object().expect("an object").keys().cloned().collect();
    fields.sort();
    assert_eq!(fields, ["created_at", "id", "latest_turn_status", "title", "updated_at"]);

    assert_eq!(views.conversation_owner(&"c1".into()).await.expect("an owner"), Some("ann".into()));
    assert_eq!(views.conversation_owner(&"c4".into()).await.expect("deleted"), None);
    assert_eq!(views.conversation_owner(&"c9".into()).await.expect("unknown"), None);
    assert!(views.turns(&"c4".into()).await.expect("deleted").is_empty());
}

#[tokio::test]
async fn a_list_of_conversations_ends_after_the_hundred_newest() {
    let mut bench = Bench::new().await;
    let ids: Vec<&'static str> = (0..105).map(|n| &*format!("c{n:03}").leak()).collect();
    bench.append(ids.iter().map(|id| started(id, "ann"))).await;
    let rows = bench.views().await.conversations(&"ann".into()).await.expect("conversations");
    assert_eq!(rows.len(), MAX_LISTED_CONVERSATIONS as usize);
    assert_eq!((rows[0].id.as_str(), rows[99].id.as_str()), ("c104", "c005"));
}

#[tokio::test]
async fn a_run_is_found_with_the_question_it_was_prepared_for() {
    let mut bench = Bench::new().await;
    let edited = [rerun("q-new", "changed", &[]), prepared("c1", "r2", "t1", RunKind::Retry)].to_vec();
    bench.append([running(), edited].concat()).await;
    let views = bench.views().await;
    let first = views.find_run(&"r1".into()).await.expect("a run").expect("r1");
    assert_eq!(
        serde_json::to_value(&first).expect("JSON"),
        json!({
            "run_id": "r1", "conversation_id": "c1", "turn_id": "t1", "sequence_no": 1, "user_id": "ann",
            "graph_thread_id": "thread-r1", "kind": "normal", "status": "running", "device_id": "d1",
            "user_message_id": "q-t1", "content": "question t1", "title": "title of c1", "node_id": "n1", "epoch": 1
        })
    );
    let second = views.find_run(&"r2".into()).await.expect("a run").expect("r2");
    assert_eq!((second.user_message_id.as_str(), second.content.as_str()), ("q-new", "changed"));
    assert_eq!(views.find_run(&"r9".into()).await.expect("none"), None);
    assert_eq!(views.runs_running_on(&"n1".into()).await.expect("runs"), [first]);
    assert_eq!(views.runs_running_on(&"n2".into()).await.expect("runs"), []);
}

#[tokio::test]
async fn history_is_the_last_ended_turns_before_one_in_order() {
    let mut bench = Bench::new().await;
    bench.append([started("c1", "ann")]).await;
    for (turn, run, sequence_no) in [("t1", "r1", 1), ("t2", "r2", 2), ("t3", "r3", 3), ("t4", "r4", 4)] {
        let next = [asked("c1", turn, sequence_no), prepared("c1", run, turn, RunKind::Normal), claimed("c1", run)];
        bench.append(next).await;
    }
    let stopped = cancelled("c1", "r2", RunCancelReason::Stopped, "half");
    bench.append([succeeded("c1", "r1", "one"), stopped, failed("c1", "r3", "")]).await;
    let views = bench.views().await;
    let turn = |n: u32, answer: Option<&str>, end| HistoryTurn {
        question: format!("question t{n}"),
        answer: answer.map(Into::into),
        end,
    };
    let all = [
        turn(1, Some("one"), TurnEnd::Completed),
        turn(2, Some("half"), TurnEnd::Cancelled),
        turn(3, None, TurnEnd::Failed),
    ];
    for (before, limit, expected) in [(5, 20, &all[..]), (4, 2, &all[1..]), (3, 20, &all[..2]), (1, 20, &[])] {
        assert_eq!(views.history(&"c1".into(), before, limit).await.expect("history"), expected);
    }
}

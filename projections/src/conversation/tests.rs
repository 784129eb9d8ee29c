//! Given events, the rows that clients see.

mod approvals;
mod reruns;

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
fn interrupted() -> Vec<Fact> {
    let asked = ["i1", "i2"].map(|interrupt| raised("c1", interrupt, "r1", "t1", Some(at(9))));
    [running(), asked.to_vec(), vec![paused("c1", "r1")]].concat()
}
/// A rerun of turn t1; another message than its own is an edit.
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
    let resumed =
        [interrupted(), vec![resolved("c1", "i1", true), prepared("c1", "r2", "t1", RunKind::Resume)]].concat();
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
    for later in [
        succeeded("c1", "r1", "second"),
        failed("c1", "r1", "late"),
        cancelled("c1", "r1", RunCancelReason::Stopped, "late"),
        claimed("c1", "r1"),
        paused("c1", "r1"),
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
            "graph_thread_id": "thread-r1", "kind": "normal", "parent_run_id": null, "status": "running", "device_id": "d1",
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

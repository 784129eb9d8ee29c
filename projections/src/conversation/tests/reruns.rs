//! Edited and retried turns: what is replaced, what is kept, and which run counts.

use super::*;
use crate::db::values;
use crate::row::Columns;

/// Ids of the messages that count, or of those that do not.
async fn messages(facts: &[Fact], replaced: bool) -> Vec<String> {
    let store = store_of(&recorded(facts), 99).await;
    let sql = "SELECT message_id FROM messages WHERE replaced = $1 ORDER BY message_id";
    let rows = store.read.rows(sql, &values![replaced]).await.expect("messages");
    rows.iter().map(|row| Columns(row).text("message_id").expect("an id")).collect()
}
fn done() -> Vec<Fact> {
    [running(), vec![succeeded("c1", "r1", "old")]].concat()
}
fn renamed(title: &str) -> Fact {
    conversation("c1", ConversationRenamed { title: title.into(), source: TitleSource::Derived })
}

#[tokio::test]
async fn an_edit_replaces_question_and_answer_and_a_retry_the_answer_alone() {
    let edited = [done(), vec![rerun("q-new", "changed", &["a-r1"])]].concat();
    let retried = [done(), vec![rerun("q-t1", "question t1", &["a-r1"])]].concat();
    for (facts, question, replaced, kept) in
        [(edited, "changed", vec!["a-r1", "q-t1"], vec!["q-new"]), (retried, "question t1", vec!["a-r1"], vec!["q-t1"])]
    {
        let seen = turns(&facts, &["status", "question", "answer", "partial", "error_code"]).await;
        let expected = json!([
            {"status": "pending", "question": question, "answer": null, "partial": false, "error_code": null}
        ]);
        assert_eq!(seen, expected);
        assert_eq!(messages(&facts, true).await, replaced);
        assert_eq!(messages(&facts, false).await, kept);
        // The next run answers the question as it stands now.
        let next = [facts, vec![prepared("c1", "r2", "t1", RunKind::Retry), claimed("c1", "r2")]].concat();
        let next = [next, vec![succeeded("c1", "r2", "new")]].concat();
        let seen = turns(&next, &["status", "answer", "active_run"]).await;
        let run = json!({"run_id": "r2", "kind": "retry", "status": "succeeded"});
        assert_eq!(seen, json!([{"status": "completed", "answer": "new", "active_run": run}]));
    }
}

#[tokio::test]
async fn a_partial_answer_is_replaced_like_a_whole_one() {
    let stopped = cancelled("c1", "r1", RunCancelReason::ClientDisconnected, "half");
    for end in [failed("c1", "r1", "half"), stopped] {
        let before = [running(), vec![end]].concat();
        assert_eq!(messages(&before, false).await, ["a-r1", "q-t1"]);
        let facts = [before, vec![rerun("q-t1", "question t1", &["a-r1"])]].concat();
        assert_eq!(messages(&facts, true).await, ["a-r1"]);
        let seen = turns(&facts, &["status", "answer", "partial", "error_code", "error_message"]).await;
        let expected = json!([
            {"status": "pending", "answer": null, "partial": false, "error_code": null, "error_message": null}
        ]);
        assert_eq!(seen, expected, "nothing of the earlier end is left");
    }
}

#[tokio::test]
async fn an_edit_of_an_interrupted_turn_leaves_nothing_to_approve_and_the_new_run_counts() {
    let edited = InterruptCancelReason::Edited;
    let rerun = [rerun("q-new", "changed", &["q-t1"]), followed("c1", "r2", "r1", "t1", RunKind::Retry)];
    let facts = [interrupted(), vec![withdrawn("c1", "i1", edited), withdrawn("c1", "i2", edited)], rerun.to_vec()];
    let facts = facts.concat();
    let expected = json!([{
        "status": "pending", "question": "changed", "pending_approvals": [],
        "active_run": {"run_id": "r2", "kind": "retry", "status": "queued"}
    }]);
    let fields = ["status", "question", "pending_approvals", "active_run"];
    assert_eq!(turns(&facts, &fields).await, expected);
    // What comes late about the run that was left changes nothing that is seen.
    for late in [succeeded("c1", "r1", "late"), failed("c1", "r1", "late"), paused("c1", "r1")] {
        assert_eq!(turns(&[facts.clone(), vec![late]].concat(), &fields).await, expected);
    }
}

#[tokio::test]
async fn a_retry_names_its_parent_and_has_a_thread_of_its_own() {
    let mut bench = Bench::new().await;
    bench.append(done()).await;
    bench.append([rerun("q-new", "changed", &["a-r1"]), followed("c1", "r2", "r1", "t1", RunKind::Retry)]).await;
    let row = bench.views().await.find_run(&"r2".into()).await.expect("a query").expect("r2");
    assert_eq!((row.kind.as_str(), row.parent_run_id), ("retry", Some("r1".into())));
    assert_eq!((row.graph_thread_id.as_str(), row.content.as_str()), ("thread-r2", "changed"));
}

#[tokio::test]
async fn the_list_shows_the_title_and_the_status_that_an_edit_of_the_first_turn_brought() {
    let mut bench = Bench::new().await;
    bench.append([done(), vec![started("c2", "ann"), asked("c2", "t2", 1)]].concat()).await;
    let listed = |rows: Vec<crate::ConversationRow>| {
        rows.into_iter().map(|row| (row.id.0, row.title, row.latest_turn_status)).collect::<Vec<_>>()
    };
    let line = |id: &str, title: &str, status: &str| (id.to_owned(), title.to_owned(), Some(status.to_owned()));
    let rows = bench.views().await.conversations(&"ann".into()).await.expect("conversations");
    assert_eq!(listed(rows), [line("c2", "title of c2", "pending"), line("c1", "title of c1", "completed")]);
    bench
        .append([
            renamed("changed"),
            rerun("q-new", "changed", &["q-t1", "a-r1"]),
            followed("c1", "r2", "r1", "t1", RunKind::Retry),
        ])
        .await;
    let rows = bench.views().await.conversations(&"ann".into()).await.expect("conversations");
    assert_eq!(listed(rows), [line("c1", "changed", "pending"), line("c2", "title of c2", "pending")]);
}

#[tokio::test]
async fn the_model_is_told_of_a_rerun_turn_as_it_stands_now() {
    let mut bench = Bench::new().await;
    bench.append(done()).await;
    bench
        .append([rerun("q-new", "changed", &["q-t1", "a-r1"]), followed("c1", "r2", "r1", "t1", RunKind::Retry)])
        .await;
    assert_eq!(bench.views().await.history(&"c1".into(), 2, 20).await.expect("history"), []);
    bench.append([claimed("c1", "r2"), succeeded("c1", "r2", "new")]).await;
    let told = HistoryTurn { question: "changed".into(), answer: Some("new".into()), end: TurnEnd::Completed };
    assert_eq!(bench.views().await.history(&"c1".into(), 2, 20).await.expect("history"), [told]);
}

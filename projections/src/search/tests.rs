//! What is found, by whom, and what no longer is.

use crate::check::check_one;
use crate::testing::*;
use crate::views::Views;
use devmind_domain::conversation::*;

/// What a search of a person finds: role, turn and snippet.
async fn found(views: &Views, user: &str, query: &str) -> Vec<String> {
    let hits = views.search(&user.into(), query).await.expect("a search").expect("words");
    let shown = |hit: &crate::SearchHit| {
        format!("{} {} {}", hit.role, hit.turn_id.as_ref().map_or("-", |turn| turn.as_str()), hit.snippet)
    };
    hits.iter().map(shown).collect()
}

fn asked_this(id: &'static str, turn: &str, content: &str) -> Fact {
    let (_, event) = asked(id, turn, 1);
    let devmind_domain::event::DomainEvent::Conversation(ConversationEvent::TurnPrepared(mut event)) = event else {
        panic!("a question")
    };
    event.content = content.to_owned();
    conversation(id, event)
}

on_both_stores! {
    #[tokio::test]
    async fn titles_questions_and_answers_are_found_by_beginnings_of_all_their_words_newest_first(bench: Bench) {
        let mut bench = bench;
        let served = bench.serve().await;
        let head = bench
            .append([
                started("c1", "ann"),
                asked_this("c1", "t1", "Where is the LEDGER's head? (in src/ledger.rs)"),
                prepared("c1", "r1", "t1", RunKind::Normal),
                claimed("c1", "r1"),
                succeeded("c1", "r1", "The ledger has its head in a row of 数据库 tables."),
                started("c2", "bob"),
                asked_this("c2", "t2", "my ledger"),
            ])
            .await;
        served.views.wait_for(head).await.expect("caught up");
        let views = &served.views;
        let (question, answer) = ("user t1 Where is the LEDGER's head? (in src/ledger.rs)", "assistant t1 The ledger has its head in a row of 数据库 tables.");
        for (query, expected) in [
            ("ledger", vec![answer, question]),
            ("LEDG hea", vec![answer, question]),
            ("ledger.rs", vec![question]),
            ("据库", vec![answer]),
            ("title c1", vec!["title - title of c1"]),
            ("edger", vec![]),
            ("head nowhere", vec![]),
            ("\"ledger\" & head:* | (x' OR", vec![]),
        ] {
            assert_eq!(found(views, "ann", query).await, expected, "{query}");
        }
        assert_eq!(found(views, "bob", "ledger").await, ["user t2 my ledger"], "one's own alone");
        assert_eq!(views.search(&"ann".into(), " '*:&\" ").await.expect("a search"), None);
        let checked = check_one(bench.views_place(), bench.ledger.reader(), "search", |_, _| {}).await.expect("checked");
        assert!(checked.is_equal(), "{checked}");
        served.stop().await;
    }

    #[tokio::test]
    async fn what_was_replaced_renamed_or_deleted_is_no_longer_found_also_after_a_rebuild(bench: Bench) {
        let mut bench = bench;
        let served = bench.serve().await;
        let rerun = TurnRerunPrepared {
            turn_id: "t1".into(),
            message_id: "q-new".into(),
            content: "edited question".into(),
            previous_message_id: "q-t1".into(),
            edited: true,
            replaced_message_ids: vec!["a-r1".into()],
        };
        let head = bench
            .append([
                started("c1", "ann"),
                asked_this("c1", "t1", "first question"),
                prepared("c1", "r1", "t1", RunKind::Normal),
                succeeded("c1", "r1", "first answer"),
                // A second end of the same run says nothing.
                succeeded("c1", "r1", "second answer"),
                conversation("c1", rerun),
                conversation("c1", ConversationRenamed { title: "better".into(), source: TitleSource::Manual }),
                started("c2", "ann"),
                asked_this("c2", "t2", "gone question"),
                conversation("c2", ConversationDeleted {}),
                asked_this("c2", "t3", "late question"),
            ])
            .await;
        served.views.wait_for(head).await.expect("caught up");
        for rebuilt in [false, true] {
            if rebuilt {
                crate::rebuild(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("rebuilt");
            }
            for (query, expected) in [
                ("question", vec!["user t1 edited question"]),
                ("first", vec![]),
                ("second", vec![]),
                ("title", vec![]),
                ("better", vec!["title - better"]),
                ("gone", vec![]),
            ] {
                assert_eq!(found(&served.views, "ann", query).await, expected, "{query}, rebuilt: {rebuilt}");
            }
        }
        served.stop().await;
    }
}

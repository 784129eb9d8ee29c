//! An event that a projection cannot apply: it stops alone, after a few attempts, and an operator helps.

use crate::apply::{Applied, Begun, Failure, MAX_ATTEMPTS, apply, begin};
use crate::check::check_these;
use crate::operate::resume_this;
use crate::rebuild::rebuild_these;
use crate::registry::PROJECTIONS;
use crate::row::Columns;
use crate::store::Store;
use crate::testing::*;
use crate::tests::fragile::*;
use crate::tool_call::ToolCalls;
use crate::views::ProjectionStatus;
use devmind_domain::ErrorCode;
use devmind_domain::event::{Actor, DomainEvent, Metadata};
use devmind_domain::projection::{ProjectionCommand, ProjectionEventSkipped, ProjectionSkips};
use devmind_domain::tool_call::ToolCallEvent;
use devmind_ledger::execute;
use std::collections::BTreeSet;

const EVENTS: u32 = 100;
const POISONED: u64 = 50;

/// One conversation of as many events.
async fn append_events(bench: &mut Bench) -> u64 {
    bench.append([started("c1", "ann")]).await;
    let mut head = 0;
    for number in 1..EVENTS {
        head = bench.append([asked("c1", &format!("t{number}"), number)]).await;
    }
    assert_eq!(head, u64::from(EVENTS));
    head
}

async fn fragile_status(served: &Served) -> ProjectionStatus {
    served.views.status().await.expect("status").into_iter().find(|status| status.name == "fragile").expect("there")
}

/// Waits until nobody tries any more.
async fn halted(served: &Served) -> Failure {
    let mut progress = served.views.progress_of("fragile");
    let now = progress.wait_for(|now| now.failed.as_ref().is_some_and(|failed| failed.halted)).await;
    now.expect("the runner lives").failed.clone().expect("failed")
}

async fn skip(bench: &Bench, position: u64) {
    let event = bench.ledger.reader().read(position - 1, 1).await.expect("read").remove(0);
    let asked = ProjectionEventSkipped {
        version: 1,
        position,
        event_id: event.event_id.clone(),
        event_type: event.event_type.clone(),
        failure: "poison".to_owned(),
        reason: "the hook is broken".to_owned(),
    };
    let metadata = Metadata::new(Actor::operator("olga"), "n1".into());
    let skipped = execute::<ProjectionSkips>(&bench.ledger, "fragile", &metadata, ProjectionCommand::Skip(asked), None);
    skipped.await.expect("recorded");
}

/// Up to the halt, and through a restart that changes nothing.
async fn b34_up_to_the_halt(bench: &mut Bench, poison: Poison) {
    let poisoned = || with_fragile(Some((POISONED, poison)));
    let head = append_events(bench).await;
    let served = bench.serve_with(poisoned()).await;
    served.views.wait_for_one("conversation", head).await.expect("others go on");
    let failed = halted(&served).await;
    assert_eq!((failed.position, failed.attempts), (POISONED, MAX_ATTEMPTS), "{failed:?}");
    assert!(!failed.reason.is_empty());
    let error = served.views.wait_for_one("fragile", head).await.expect_err("it does not get there");
    assert_eq!(error.code(), ErrorCode::NotReady);
    assert!(error.to_string().contains("event 50"), "{error}");
    served.views.wait_for_one("fragile", POISONED - 1).await.expect("what it applied before is readable");
    assert_eq!(counted(&served.views).await, 49, "nothing of the failed event is left: {poison:?}");
    served.stop().await;

    // A start does not begin all over; appends and the others go on.
    let served = bench.serve_with(poisoned()).await;
    let head = bench.append([asked("c1", "late", EVENTS)]).await;
    served.views.wait_for_one("conversation", head).await.expect("others go on");
    assert_eq!(halted(&served).await, failed);
    let status = fragile_status(&served).await;
    assert_eq!((status.position, status.lag, status.failed), (POISONED - 1, 52, Some(failed)));
    served.stop().await;
}

on_both_stores! {
    #[tokio::test]
    async fn b34_a_failing_event_halts_its_projection_alone_and_after_a_fix_and_a_resume_it_goes_on_from_there(bench: Bench) {
        let mut bench = bench;
        b34_up_to_the_halt(&mut bench, Poison::BadStatement).await;
        let served = bench.serve_with(with_fragile(None)).await;
        assert!(halted(&served).await.halted, "a fix alone is not asked for what it did not do");
        let was = resume_this(&bench.views_place(), "fragile").await.expect("resumed");
        assert_eq!(was.map(|failed| failed.position), Some(POISONED));
        served.views.progress_of("fragile").wait_for(|now| now.position == 101).await.expect("it goes on");
        assert_eq!(counted(&served.views).await, 101, "each event once");
        assert_eq!(fragile_status(&served).await.failed, None);
        served.stop().await;
    }

    #[tokio::test]
    async fn b34_an_event_that_panics_is_passed_over_where_an_operator_said_so_and_a_rebuild_does_the_same(bench: Bench) {
        let mut bench = bench;
        b34_up_to_the_halt(&mut bench, Poison::Panic).await;
        let poisoned = || with_fragile(Some((POISONED, Poison::Panic)));
        let served = bench.serve_with(poisoned()).await;
        assert!(halted(&served).await.halted);
        let checked = check_these(bench.views_place(), bench.ledger.reader(), poisoned(), |_, _| {}).await;
        let checked = checked.expect("up to where they stand");
        let stopped = checked.projections.iter().filter_map(|found| Some((&*found.name, found.stopped.as_ref()?.position)));
        assert_eq!(stopped.collect::<Vec<_>>(), [("fragile", POISONED)], "{checked}");
        assert!(checked.is_equal() && checked.to_string().contains("stopped: event 50: panicked"), "{checked}");
        skip(&bench, POISONED).await;
        resume_this(&bench.views_place(), "fragile").await.expect("resumed");
        // 101 events and the one that says so.
        served.views.progress_of("fragile").wait_for(|now| now.position == 102).await.expect("it goes on");
        assert_eq!(counted(&served.views).await, 101, "all but one");
        let checked = check_these(bench.views_place(), bench.ledger.reader(), vec![poisoned()[2]], |_, _| {}).await;
        let checked = checked.expect("a rebuild gets past it");
        assert!(checked.is_equal(), "{checked}");
        served.stop().await;
        rebuild_these(bench.views_place(), bench.ledger.reader(), poisoned(), |_, _| {}).await.expect("rebuilt");
        let served = bench.serve_with(poisoned()).await;
        served.views.wait_for(102).await.expect("caught up");
        assert_eq!(counted(&served.views).await, 101, "all but one");
        served.stop().await;
    }

    #[tokio::test]
    async fn b34_attempts_that_end_the_process_count_and_the_event_is_found_alone(bench: Bench) {
        let mut bench = bench;
        let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1), asked("c1", "t2", 2)]).await;
        let projections = with_fragile(None);
        let store = Store::open(&bench.views_place(), bench.ledger.reader(), &projections).await.expect("a store");
        for attempt in 1..=MAX_ATTEMPTS {
            // What a process leaves that dies of the event.
            let begun = begin(&store.write, projections[2], 0).await.expect("recorded");
            assert_eq!(begun, Begun::Attempt(attempt));
        }
        store.close().await;
        let served = bench.serve_with(projections).await;
        served.views.wait_for_one("conversation", head).await.expect("others go on");
        let failed = halted(&served).await;
        assert_eq!((failed.position, failed.attempts), (1, MAX_ATTEMPTS));
        assert!(failed.reason.contains("ended during each of 3 attempts"), "{failed:?}");
        assert_eq!(counted(&served.views).await, 0, "it was not tried again");
        resume_this(&bench.views_place(), "fragile").await.expect("resumed");
        served.views.progress_of("fragile").wait_for(|now| now.position == head).await.expect("it goes on");
        assert_eq!(counted(&served.views).await, 3);
        served.stop().await;
    }

    #[tokio::test]
    async fn an_attempt_that_did_not_come_back_is_followed_by_single_events_and_their_success_is_forgotten(bench: Bench) {
        let mut bench = bench;
        let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1), asked("c1", "t2", 2)]).await;
        let poisoned = || with_fragile(Some((3, Poison::Panic)));
        let projections = poisoned();
        let store = Store::open(&bench.views_place(), bench.ledger.reader(), &projections).await.expect("a store");
        begin(&store.write, projections[2], 0).await.expect("recorded");
        store.close().await;
        let served = bench.serve_with(poisoned()).await;
        let failed = halted(&served).await;
        assert_eq!((failed.position, failed.attempts), (head, MAX_ATTEMPTS), "the attempts are those at this event");
        assert_eq!(fragile_status(&served).await.position, 2);
        served.stop().await;
    }
}

#[tokio::test]
async fn a_change_that_postgres_refuses_among_many_of_one_statement_is_found_and_those_before_it_are_made() {
    let (bench, projections) = (Bench::postgres().await, PROJECTIONS.to_vec());
    let store = Store::open(&bench.views_place(), bench.ledger.reader(), &projections).await.expect("a store");
    let (id, DomainEvent::ToolCall(ToolCallEvent::ToolCallRequested(mut refused))) = requested("k3", "r1") else {
        panic!("a call is requested")
    };
    // An index takes no such value, and it cannot be pressed into less.
    refused.conversation_id = (0..10_000).map(|n| format!("{:x}", n * 2_654_435_761_u64)).collect::<String>().into();
    let facts = [requested("k1", "r1"), requested("k2", "r1"), tool_call(id, refused), requested("k4", "r1")];
    let applied = apply(&store.write, &ToolCalls, &BTreeSet::new(), 0, &recorded(&facts)).await.expect("a database");
    let Applied::Now(now) = applied else { panic!("{applied:?}") };
    let failed = now.failed.expect("it is refused");
    assert_eq!((now.position, failed.position), (2, 3), "{failed:?}");
    assert!(failed.reason.contains("index row"), "{failed:?}");
    let row = store.read.row("SELECT count(*) AS number FROM tool_calls", &[]).await.expect("a count").expect("a row");
    assert_eq!(Columns(&row).count("number").expect("a number"), 2);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_one_projection_is_in_a_counted_attempt_no_other_is_so_a_crash_counts_for_one() {
    let mut bench = Bench::new().await;
    append_events(&mut bench).await;
    let served = bench.serve().await;
    served.views.wait_for(u64::from(EVENTS)).await.expect("caught up");
    served.stop().await;
    bench
        .meddle(
            "CREATE TABLE two_at_risk (name TEXT);
             CREATE TRIGGER watch AFTER UPDATE ON projection_position WHEN NEW.attempts > 0 AND EXISTS
               (SELECT 1 FROM projection_position AS other WHERE other.name <> NEW.name AND other.attempts > 0)
             BEGIN INSERT INTO two_at_risk VALUES (NEW.name); END;
             CREATE TABLE attempts (name TEXT);
             CREATE TRIGGER counted AFTER UPDATE ON projection_position WHEN NEW.attempts > OLD.attempts
             BEGIN INSERT INTO attempts VALUES (NEW.name); END;",
        )
        .await;
    // Every projection has its first batch after a start before it, and they all start at once.
    let head = bench
        .append((0..50).map(|number| asked("c1", &format!("late{number}"), EVENTS + number)).collect::<Vec<_>>())
        .await;
    let served = bench.serve().await;
    served.views.wait_for(head).await.expect("caught up");
    let number = async |table: &str| {
        let row = served.views.read_pool().row(&format!("SELECT count(*) AS number FROM {table}"), &[]).await;
        Columns(&row.expect("a count").expect("a row")).count("number").expect("a number")
    };
    assert_eq!(number("attempts").await, PROJECTIONS.len() as u64, "each counted its first attempt");
    assert_eq!(number("two_at_risk").await, 0);
    served.stop().await;
}

//! Rows that are made in a draft are those that the runner makes, and what is wrong with one event is told of it.

use super::fragile::{Poison, with_fragile};
use super::rebuild::skipped;
use crate::beside::{Beside, forget_unfinished};
use crate::build::{Wanted, drafts, write};
use crate::check::check;
use crate::draft::Draft;
use crate::projection::Projection;
use crate::rebuild::{fill, rebuild, rebuild_these, swap_draft};
use crate::registry::PROJECTIONS;
use crate::store::Store;
use crate::testing::*;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::conversation::RunKind;
use devmind_ledger::MAX_PAGE_EVENTS;

/// Text in which every character that a copy gives a meaning of its own stands.
const HARD: &str = "a\tb\\N\\.\r\nc\\\u{0}\u{1F600}";

on_both_stores! {
    #[tokio::test]
    async fn rows_made_in_a_draft_over_several_pages_are_those_that_the_runner_made(bench: Bench) {
        let mut bench = bench;
        bench.append([started("c1", HARD), started("c2", "bob"), asked("c1", HARD, 1)]).await;
        bench.append([prepared("c1", "r1", HARD, RunKind::Normal), claimed("c1", "r1"), succeeded("c1", "r1", HARD)]).await;
        bench.append([requested("k", "r1"), dispatched("k", 1, 1, None)]).await;
        let many = MAX_PAGE_EVENTS + 10;
        let head = bench.append((2..many).map(|number| asked("c2", &format!("t{number}"), number))).await;
        let served = bench.serve().await;
        served.views.wait_for(head).await.expect("caught up");
        served.stop().await;
        let report = check(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("checked");
        assert!(report.is_equal(), "{report}");
        let rows = |table: &str| {
            report.projections.iter().flat_map(|one| &one.tables).find(|one| one.table == table).map(|one| one.rows)
        };
        assert_eq!((rows("turns"), rows("tool_attempts")), (Some(u64::from(many) - 1), Some(1)));
    }

    #[tokio::test]
    async fn a_view_of_which_a_change_is_refused_is_named_with_the_event_and_the_others_are_rebuilt(bench: Bench) {
        let mut bench = bench;
        let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1), asked("c1", "t2", 2)]).await;
        let projections = with_fragile(Some((2, Poison::BadStatement)));
        let report = rebuild_these(bench.views_place(), bench.ledger.reader(), projections, |_, _| {}).await;
        let report = report.expect("the others are");
        let failed: Vec<_> = report.failed.iter().map(|failed| (failed.name, failed.position)).collect();
        assert_eq!(failed, [("fragile", 2)]);
        assert_eq!(report.projections, [("conversation".to_owned(), head), ("tool_call".to_owned(), head)]);
    }
}

#[tokio::test]
async fn a_value_that_postgres_alone_refuses_is_told_with_its_event_although_the_draft_took_it() {
    let mut bench = Bench::postgres().await;
    bench.append([started("c1", "ann"), asked("c1", "t1", 1)]).await;
    // Beyond what an entry of an index can hold, and nothing that can be compressed to less.
    let long: String = (0..100_u8).map(|number| sha256_hex(&[number])).collect();
    let head = bench.append([started("c2", &long), asked("c1", "t2", 2)]).await;
    let report = rebuild(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("the others are");
    let failed: Vec<_> = report.failed.iter().map(|failed| (failed.name, failed.position)).collect();
    assert_eq!(failed, [("conversation", 3)]);
    assert!(report.failed[0].reason.contains("index"), "{report:?}");
    assert!(report.projections.iter().any(|one| *one == ("search".to_owned(), head)), "{report:?}");
}

#[tokio::test]
async fn an_interrupted_rebuild_on_postgres_goes_on_with_its_drafts_unless_other_rows_would_come_of_it_now() {
    let mut bench = Bench::postgres().await;
    let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1), asked("c1", "t2", 2)]).await;
    let (log, place, projections) = (bench.ledger.reader().clone(), bench.views_place(), PROJECTIONS.to_vec());
    // As far as the second event, and not copied.
    let interrupted = async || {
        let beside = Beside::kept(&place, &log, &projections).await.expect("beside");
        let wanted = |projection: &&'static dyn Projection| Wanted { projection: *projection, from: 0, to: 2 };
        let mut wanted: Vec<_> = projections.iter().map(wanted).collect();
        let drafts = drafts(&beside, &mut wanted).expect("drafts");
        write(drafts, &log, &wanted, &mut |_| {}).await.expect("written");
        beside.let_go().await;
    };
    let resumed = async || rebuild(&place, &log, |_, _| {}).await.expect("rebuilt").resumed;
    interrupted().await;
    let done = rebuild(&place, &log, |_, _| {}).await.expect("rebuilt");
    let views = PROJECTIONS.len() as u64;
    assert_eq!((done.resumed, done.events), (views * 2, views * (head - 2)));
    assert!(check(&place, &log, |_, _| {}).await.expect("checked").is_equal());
    assert_eq!(resumed().await, 0, "nothing was left");
    interrupted().await;
    bench.append([skipped(1)]).await;
    assert_eq!(resumed().await, 0, "an event is passed over now");
    assert!(check(&place, &log, |_, _| {}).await.expect("checked").is_equal());
    interrupted().await;
    forget_unfinished(&place).await.expect("forgotten");
    assert_eq!(resumed().await, 0, "forgotten");
}

#[tokio::test]
async fn a_draft_that_the_live_rows_have_left_behind_catches_up_before_it_is_swapped_in() {
    let mut bench = Bench::postgres().await;
    let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1), asked("c1", "t2", 2)]).await;
    let served = bench.serve().await;
    served.views.wait_for(head).await.expect("caught up");
    served.stop().await;
    let (log, place, projections) = (bench.ledger.reader(), bench.views_place(), PROJECTIONS.to_vec());
    let live = Store::open(&place, log, &projections).await.expect("open");
    for projection in projections {
        let wanted = [Wanted { projection, from: 0, to: 2 }];
        let draft = Draft::unnamed(projection).expect("a draft");
        let (mut drafts, _) = write(vec![(draft, vec![projection])], log, &wanted, &mut |_| {}).await.expect("written");
        let swapped = swap_draft(&live.write, drafts.remove(0), log, projection).await.expect("swapped");
        assert_eq!(swapped, Some(head), "{}", projection.name());
    }
    live.close().await;
    assert!(check(&place, log, |_, _| {}).await.expect("checked").is_equal());
}

#[tokio::test]
async fn rows_that_were_refused_from_a_draft_and_interrupted_go_on_where_they_stand_not_where_the_draft_does() {
    let mut bench = Bench::postgres().await;
    let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1), asked("c1", "t2", 2)]).await;
    let (log, place, projections) = (bench.ledger.reader().clone(), bench.views_place(), PROJECTIONS.to_vec());
    let beside = Beside::kept(&place, &log, &projections).await.expect("beside");
    let mut wanted: Vec<_> = projections.iter().map(|one| Wanted { projection: *one, from: 0, to: head }).collect();
    let drafts = drafts(&beside, &mut wanted).expect("drafts");
    write(drafts, &log, &wanted, &mut |_| {}).await.expect("written");
    fill(&beside.store, projections[0], &log, 0, 1, &mut |_| {}).await.expect("filled");
    beside.let_go().await;
    let head = bench.append([asked("c1", "t3", 3)]).await;
    let report = rebuild(&place, &log, |_, _| {}).await.expect("rebuilt").whole().expect("all of them");
    assert!(report.projections.iter().all(|(_, position)| *position == head), "{report:?}");
    assert!(check(&place, &log, |_, _| {}).await.expect("checked").is_equal());
}

//! Check finds every difference, rebuild mends them while a server keeps serving, and an earlier
//! position shows nothing later.

use crate::beside::{Beside, forget_unfinished};
use crate::check::{check, check_one};
use crate::rebuild::{fill, rebuild, rebuild_one, swap};
use crate::registry::PROJECTIONS;
use crate::store::Store;
use crate::testing::*;
use crate::views::Views;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::RunKind;
use devmind_domain::event::DomainEvent;
use devmind_domain::projection::ProjectionEventSkipped;
use std::collections::BTreeSet;

async fn filled(mut bench: Bench) -> (Bench, u64) {
    let head = bench
        .append([
            started("c1", "ann"),
            asked("c1", "t1", 1),
            prepared("c1", "r1", "t1", RunKind::Normal),
            claimed("c1", "r1"),
            succeeded("c1", "r1", "42"),
            asked("c1", "t2", 2),
            requested("k", "r1"),
            dispatched("k", 1, 1, None),
        ])
        .await;
    (bench, head)
}

/// An operator has the first projection pass over an event.
pub(super) fn skipped(position: u64) -> Fact {
    let of = PROJECTIONS[0];
    let event = ProjectionEventSkipped {
        version: of.version(),
        position,
        event_id: "e".to_owned(),
        event_type: "RunPrepared".to_owned(),
        failure: "f".to_owned(),
        reason: "r".to_owned(),
    };
    (of.name(), DomainEvent::Projection(event.into()))
}

/// Changes one row, removes one and adds one, in two projections.
async fn tamper(bench: &Bench) {
    bench
        .meddle(
            "UPDATE turns SET answer = '43' WHERE turn_id = 't1'; DELETE FROM turns WHERE turn_id = 't2'; \
             INSERT INTO tool_attempts VALUES ('k', 2, 'r', 'n', 1, NULL, NULL, 'unknown', NULL, NULL, 1, 1, 1, NULL)",
        )
        .await;
}

on_both_stores! {
    #[tokio::test]
    async fn a_check_finds_changed_missing_and_surplus_rows_and_a_rebuild_mends_them(bench: Bench) {
        let (bench, head) = filled(bench).await;
        let served = bench.serve().await;
        served.views.wait_for(head).await.expect("caught up");
        served.stop().await;
        let (file, log) = (bench.views_place(), bench.ledger.reader());
        let mut told = Vec::new();
        let report = check(&file, log, |done, all| told.push((done, all))).await.expect("checked");
        assert!(report.is_equal(), "{report}");
        let all = PROJECTIONS.len() as u64 * head;
        assert_eq!((report.events, told.last()), (all, Some(&(all, all))));

        tamper(&bench).await;
        let report = check(&file, log, |_, _| {}).await.expect("checked");
        let differences: Vec<_> = report
            .projections
            .iter()
            .flat_map(|projection| &projection.tables)
            .flat_map(|table| table.shown.iter().map(|shown| (table.table.as_str(), shown)))
            .map(|(table, shown)| (table, shown.key.as_str(), shown.live.is_some(), shown.rebuilt.is_some()))
            .collect();
        assert_eq!(
            differences,
            [
                ("turns", r#"["t1"]"#, true, true),
                ("turns", r#"["t2"]"#, false, true),
                ("tool_attempts", r#"["k",2]"#, true, false)
            ]
        );
        assert!(report.to_string().contains(r#""answer":"43""#), "{report}");
        assert!(check_one(&file, log, "device", |_, _| {}).await.expect("checked").is_equal());

        rebuild_one(&file, log, "conversation", |_, _| {}).await.expect("rebuilt");
        assert!(check_one(&file, log, "conversation", |_, _| {}).await.expect("checked").is_equal());
        assert!(!check_one(&file, log, "tool_call", |_, _| {}).await.expect("checked").is_equal());
        let done = rebuild(&file, log, |_, _| {}).await.expect("rebuilt");
        assert!(done.projections.iter().all(|(_, position)| *position == head), "{done:?}");
        assert!(check(&file, log, |_, _| {}).await.expect("checked").is_equal());

        let names: BTreeSet<_> = std::fs::read_dir(bench.folder.path())
            .expect("a folder")
            .flatten()
            .collect::<Vec<_>>()
            .iter()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        assert!(!names.iter().any(|name| name.starts_with("views-rebuild-")), "{names:?}");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_rebuild_swaps_under_a_serving_runner_and_neither_loses_an_event(bench: Bench) {
        let (mut bench, head) = filled(bench).await;
        let served = bench.serve().await;
        served.views.wait_for(head).await.expect("caught up");
        tamper(&bench).await;
        let (file, log) = (bench.views_place(), bench.ledger.reader().clone());
        let rebuilding = tokio::spawn({
            let (file, log) = (file.clone(), log.clone());
            async move {
                for _ in 0..5 {
                    rebuild(&file, &log, |_, _| {}).await.expect("rebuilt");
                }
            }
        });
        let mut position = head;
        for number in 3..60 {
            position = bench.append([asked("c1", &format!("t{number}"), number)]).await;
            served.views.wait_for(position).await.expect("caught up");
        }
        rebuilding.await.expect("rebuilt");
        position = position.max(bench.append([asked("c1", "t60", 60)]).await);
        served.views.wait_for(position).await.expect("caught up");
        let turns = served.views.turns(&"c1".into()).await.expect("turns");
        assert_eq!(turns.iter().map(|turn| turn.sequence_no).collect::<Vec<_>>(), (1..=60).collect::<Vec<_>>());
        assert_eq!(turns[0].answer.as_deref(), Some("42"));
        // Under the eyes of the runner.
        let report = check(&file, &log, |_, _| {}).await.expect("checked");
        assert!(report.is_equal(), "{report}");
        served.stop().await;
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_runner_notices_a_swap_that_took_its_rows_further(bench: Bench) {
        let (mut bench, head) = filled(bench).await;
        let opened = Views::open(bench.views_place(), bench.ledger.reader().clone()).await;
        let (views, runner) = opened.expect("views");
        // The runner has read position 0 and has not begun: the swap comes first.
        rebuild(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("rebuilt");
        let served = Served::start(views, runner);
        served.views.wait_for(head).await.expect("caught up");
        let head = bench.append([asked("c1", "t3", 3)]).await;
        served.views.wait_for(head).await.expect("caught up");
        served.stop().await;
        let report = check(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("checked");
        assert!(report.is_equal(), "{report}");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_swap_never_takes_live_rows_back(bench: Bench) {
        let (bench, head) = filled(bench).await;
        let served = bench.serve().await;
        served.views.wait_for(head).await.expect("caught up");
        served.stop().await;
        let (log, projections) = (bench.ledger.reader(), PROJECTIONS.to_vec());
        let live = Store::open(&bench.views_place(), log, &projections).await.expect("open");
        let beside = Beside::new(&bench.views_place(), &projections).await.expect("beside");
        beside.attach(&live.write).await.expect("attached");
        for projection in projections {
            // The live rows went on after the rebuild had looked where the log ends.
            fill(&beside.store, projection, log, 0, 2, &mut |_| {}).await.expect("built");
            let position = swap(&live.write, &beside, log, projection).await.expect("swapped");
            assert_eq!(position, head, "{}", projection.name());
        }
        live.close().await;
        beside.remove().await.expect("removed");
        let report = check(bench.views_place(), log, |_, _| {}).await.expect("checked");
        assert!(report.is_equal(), "{report}");
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_rebuild_goes_on_with_what_an_interrupted_one_left_unless_other_rows_would_come_of_it_now(bench: Bench) {
        let (mut bench, head) = filled(bench).await;
        let (log, place, projections) = (bench.ledger.reader().clone(), bench.views_place(), PROJECTIONS.to_vec());
        let interrupted = async || {
            let beside = Beside::kept(&place, &log, &projections).await.expect("beside");
            fill(&beside.store, projections[0], &log, 0, 4, &mut |_| {}).await.expect("built");
            beside
        };
        // Nobody takes over what is under way.
        let under_way = interrupted().await;
        assert_eq!(rebuild(&place, &log, |_, _| {}).await.expect("rebuilt").resumed, 0);
        under_way.let_go().await;
        let mut told = Vec::new();
        let done = rebuild(&place, &log, |done, all| told.push((done, all))).await.expect("rebuilt");
        let all = PROJECTIONS.len() as u64 * head;
        assert_eq!((done.resumed, done.events), (4, all - 4));
        assert_eq!((told.first(), told.last()), (Some(&(4, all)), Some(&(all, all))));
        assert!(check(&place, &log, |_, _| {}).await.expect("checked").is_equal());
        assert_eq!(rebuild(&place, &log, |_, _| {}).await.expect("rebuilt").resumed, 0, "nothing was left");

        interrupted().await.let_go().await;
        bench.append([skipped(3)]).await;
        assert_eq!(rebuild(&place, &log, |_, _| {}).await.expect("rebuilt").resumed, 0, "an event is passed over now");
        assert!(check(&place, &log, |_, _| {}).await.expect("checked").is_equal());
        interrupted().await.let_go().await;
        forget_unfinished(&place).await.expect("forgotten");
        assert_eq!(rebuild(&place, &log, |_, _| {}).await.expect("rebuilt").resumed, 0, "forgotten");
    }
}

#[tokio::test]
async fn a_check_of_no_file_or_of_another_versions_rows_is_an_error() {
    let (bench, _) = filled(Bench::new().await).await;
    let (file, log) = (bench.views_file(), bench.ledger.reader());
    check(&file, log, |_, _| {}).await.expect_err("no file");
    assert!(!file.exists(), "a check writes nothing");
    rebuild(&file, log, |_, _| {}).await.expect("made");
    bench.meddle("UPDATE projection_position SET version = 99").await;
    let error = check(&file, log, |_, _| {}).await.expect_err("another version");
    assert!(error.to_string().contains("version 99"), "{error}");
    let error = check_one(&file, log, "nothing", |_, _| {}).await.expect_err("no such view");
    assert_eq!(error.code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn the_views_at_a_position_show_nothing_later_and_write_nothing() {
    let (bench, head) = filled(Bench::new().await).await;
    for (position, status, answer) in [(2, "pending", None), (4, "running", None), (5, "completed", Some("42"))] {
        let views = bench.views_at(position).await;
        let turns = views.turns(&"c1".into()).await.expect("turns");
        assert_eq!((turns.len(), turns[0].status.as_str(), turns[0].answer.as_deref()), (1, status, answer));
        views.wait_for(position).await.expect("it is there");
        views.wait_for(position + 1).await.expect_err("it never comes");
    }
    let views = bench.views_at(head).await;
    assert_eq!(views.turns(&"c1".into()).await.expect("turns").len(), 2);
    assert!(!bench.views_file().exists());
}

#[tokio::test]
async fn what_a_check_that_was_killed_left_beside_the_file_is_removed_by_the_next_that_comes_unless_it_is_in_use() {
    let bench = filled(Bench::new().await).await.0;
    let devmind_ledger::Place::File(file) = bench.views_place() else { panic!("a file") };
    let folder = file.parent().expect("a folder").to_owned();
    let beside = || -> Vec<String> {
        let entries = std::fs::read_dir(&folder).expect("read").map(|entry| entry.expect("an entry").file_name());
        entries
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with("views-rebuild"))
            .collect()
    };
    let in_use = Beside::new(&bench.views_place(), &PROJECTIONS.to_vec()).await.expect("made");
    let used = beside();
    assert_eq!(used.len(), 1);
    let log = bench.ledger.reader();
    for way in ["rebuild", "check", "start"] {
        // As the end of its process leaves it: the files are there, and nobody has the lock.
        for (name, files) in [("views-rebuild-dead", &["lock", "views.sqlite"][..]), ("views-rebuild-early", &[])] {
            std::fs::create_dir(folder.join(name)).expect("made");
            files.iter().for_each(|file| std::fs::write(folder.join(name).join(file), "rows").expect("written"));
        }
        match way {
            "rebuild" => drop(rebuild(bench.views_place(), log, |_, _| {}).await.expect("rebuilt")),
            "check" => drop(check(bench.views_place(), log, |_, _| {}).await.expect("checked")),
            _ => {
                crate::store::Store::open(&bench.views_place(), log, &PROJECTIONS.to_vec())
                    .await
                    .expect("open")
                    .close()
                    .await
            }
        }
        assert_eq!(beside(), used, "{way}");
    }
    in_use.remove().await.expect("it was left alone");
    assert!(beside().is_empty());
}

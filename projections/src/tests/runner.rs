//! Following the log: reading one's own write, unknown events, several writers and processes.

use crate::apply::{Applied, apply, begin, stored};
use crate::rebuild::rebuild_these;
use crate::registry::PROJECTIONS;
use crate::store::{Projections, Store};
use crate::testing::*;
use crate::tests::fragile::*;
use crate::views::Views;
use devmind_domain::ErrorCode;
use devmind_domain::conversation::RunKind;
use devmind_domain::tool_call::ResultStatus;
use std::collections::BTreeSet;
use std::sync::Arc;

on_both_stores! {
    #[tokio::test]
    async fn whoever_waited_for_an_append_reads_it(bench: Bench) {
        let mut bench = bench;
        let served = bench.serve().await;
        bench.append([started("c1", "ann")]).await;
        for number in 1..=50 {
            let turn = format!("t{number}");
            let position = bench.append([asked("c1", &turn, number), prepared("c1", &turn, &turn, RunKind::Normal)]).await;
            served.views.wait_for(position).await.expect("caught up");
            let turns = served.views.turns(&"c1".into()).await.expect("turns");
            assert_eq!(turns.last().and_then(|turn| turn.active_run.as_ref()).map(|run| run.run_id.0.clone()), Some(turn));
        }
        let status = served.views.status().await.expect("status");
        assert!(status.iter().all(|status| (status.position, status.lag) == (101, 0)), "{status:?}");
        served.stop().await;
    }
}

on_both_stores! {
    #[tokio::test]
    async fn a_wait_is_bounded_and_names_the_projection(bench: Bench) {
        let opened = Views::open(bench.views_place(), bench.ledger.reader().clone()).await;
        let (views, idle_runner) = opened.expect("views");
        // From here on nothing but the wait itself is asked of the clock.
        tokio::time::pause();
        let error = views.wait_for(1).await.expect_err("nobody applies anything");
        assert_eq!(error.code(), ErrorCode::NotReady);
        assert!(error.to_string().contains("conversation") && error.to_string().contains("position 1"), "{error}");
        drop(idle_runner);
        let error = views.wait_for(1).await.expect_err("nobody ever will");
        assert!(error.to_string().contains("has ended"), "{error}");
        let error = views.wait_for_one("nothing", 1).await.expect_err("there is none");
        assert_eq!(error.code(), ErrorCode::NotFound);
    }
}

on_both_stores! {
    #[tokio::test]
    async fn the_runner_ends_when_the_ledger_is_closed(bench: Bench) {
        let (_views, runner) = Views::open(bench.views_place(), bench.ledger.reader().clone()).await.expect("views");
        let running = tokio::spawn(runner.run(tokio_util::sync::CancellationToken::new()));
        bench.ledger.close().await;
        running.await.expect("it ended by itself");
    }
}

#[tokio::test]
async fn an_unknown_event_is_skipped_on_purpose_and_counted_by_those_it_may_concern() {
    let mut events =
        recorded(&[started("c1", "ann"), started("c1", "ann"), started("c1", "ann"), asked("c1", "t1", 1)]);
    // A newer program's event of a known stream, and one of a stream of an unknown kind.
    Arc::get_mut(&mut events[1]).expect("unshared").event_type = "ConversationFrozen".into();
    Arc::get_mut(&mut events[2]).expect("unshared").stream.aggregate_type = "galaxy".into();
    let store = Store::in_memory(&PROJECTIONS.to_vec()).await.expect("in memory");
    let mut skipped = Vec::new();
    for projection in PROJECTIONS {
        let before = applied(&store, projection, 0, &events[..2]).await;
        let now = applied(&store, projection, before.position, &events[2..]).await;
        assert_eq!(now.position, 4);
        skipped.push((projection.name(), now.skipped_unknown));
    }
    assert_eq!(skipped, [("conversation", 2), ("tool_call", 2), ("device", 1), ("usage", 1), ("search", 2)]);
    assert_eq!(row(&store, "turn_id", "turns").await["turn_id"], "t1");
}

#[tokio::test]
async fn a_known_event_with_an_unreadable_payload_stops_those_that_read_it() {
    let mut events = recorded(&[started("c1", "ann"), asked("c1", "t1", 1)]);
    Arc::get_mut(&mut events[1]).expect("unshared").payload = "{}".into();
    let store = Store::in_memory(&PROJECTIONS.to_vec()).await.expect("in memory");
    let mut stopped = Vec::new();
    for projection in PROJECTIONS {
        match apply(&store.write, projection, &BTreeSet::new(), 0, &events).await.expect("the store works") {
            Applied::Now(now) => stopped.push((now.position, now.failed.map(|failure| failure.position))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stopped, [(1, Some(2)), (1, Some(2)), (2, None), (2, None), (1, Some(2))]);
}

#[tokio::test]
async fn a_batch_is_written_only_from_the_position_it_starts_at() {
    let events = recorded(&[started("c1", "ann"), asked("c1", "t1", 1)]);
    let store = Store::in_memory(&PROJECTIONS.to_vec()).await.expect("in memory");
    applied(&store, PROJECTIONS[0], 0, &events[..1]).await;
    let before = dump(&store.read).await;
    for from in [0, 2] {
        let outcome =
            apply(&store.write, PROJECTIONS[0], &BTreeSet::new(), from, &events[1..]).await.expect("the store works");
        assert!(matches!(&outcome, Applied::Moved(now) if now.position == 1), "{outcome:?}");
    }
    assert_eq!(dump(&store.read).await, before);
    applied(&store, PROJECTIONS[0], 1, &events[1..]).await;
}

#[tokio::test]
async fn events_that_mean_nothing_to_a_projection_are_passed_only_from_where_it_stands() {
    let mut events = recorded(&[connected("ann/d1", "x1", 1), synced("ann/d1", "x1"), started("c1", "ann")]);
    Arc::get_mut(&mut events[2]).expect("unshared").event_type = "ConversationFrozen".into();
    let store = Store::in_memory(&PROJECTIONS.to_vec()).await.expect("in memory");
    begin(&store.write, PROJECTIONS[0], 0).await.expect("counted");
    let now = applied(&store, PROJECTIONS[0], 0, &events[..1]).await;
    assert_eq!((now.position, now.attempts), (1, 0), "what was counted is over");
    let again = apply(&store.write, PROJECTIONS[0], &BTreeSet::new(), 0, &events[..1]).await.expect("the store works");
    assert_eq!(again, Applied::Moved(now));
    let now = applied(&store, PROJECTIONS[0], 1, &events[1..]).await;
    assert_eq!((now.position, now.skipped_unknown), (3, 1));
    let (_, stored) = stored(&store.write, PROJECTIONS[0].name()).await.expect("stored");
    assert_eq!(stored, now);
}

on_both_stores! {
    #[tokio::test]
    async fn a_failed_projection_goes_on_when_a_rebuild_by_another_process_has_helped_it(bench: Bench) {
        let mut bench = bench;
        let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1)]).await;
        let served = bench.serve_with(with_fragile(Some((2, Poison::Panic)))).await;
        served.views.wait_for(head).await.expect_err("failed");
        rebuild_these(bench.views_place(), bench.ledger.reader(), with_fragile(None), |_, _| {}).await.expect("rebuilt");
        served.views.progress_of("fragile").wait_for(|now| now.failed.is_none()).await.expect("noticed");
        let head = bench.append([asked("c1", "t2", 2)]).await;
        served.views.wait_for(head).await.expect("caught up");
        assert_eq!(counted(&served.views).await, 3);
        served.stop().await;
    }
}

on_both_stores! {
    #[tokio::test]
    async fn rows_that_another_version_of_the_program_keeps_are_left_alone(bench: Bench) {
        let mut bench = bench;
        let head = bench.append([started("c1", "ann")]).await;
        let older = bench.serve_with(vec![fragile(None)]).await;
        older.views.wait_for(head).await.expect("caught up");
        let newer = bench.serve_with(vec![fragile_of_version(2)]).await;
        newer.views.wait_for(head).await.expect("caught up");
        // Until its own rows are built, those of the older one are served, and kept by it.
        while newer.views.status().await.expect("status").iter().any(|status| status.version != 2) {
            tokio::task::yield_now().await;
        }
        let head = bench.append([asked("c1", "t1", 1)]).await;
        newer.views.wait_for(head).await.expect("caught up");
        let error = older.views.wait_for(head).await.expect_err("they are not its own any more");
        assert!(error.to_string().contains("version 2"), "{error}");
        assert_eq!(counted(&newer.views).await, 2, "each event once");
        older.stop().await;
        newer.stop().await;
    }
}

/// Eight writers at once, each a conversation of its own with `TURNS` turns; answers the head.
async fn eight_writers(ledgers: &[devmind_ledger::Ledger]) -> u64 {
    const TURNS: u32 = 25;
    let writers = (0..8_usize).map(|writer| {
        let ledger = ledgers[writer % ledgers.len()].clone();
        tokio::spawn(async move {
            let id: &'static str = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"][writer];
            let turns = (1..=TURNS).map(|number| asked(id, &format!("{id}-t{number}"), number));
            let mut position = 0;
            for (version, (id, event)) in std::iter::once(started(id, "ann")).chain(turns).enumerate() {
                let append = devmind_ledger::StreamAppend {
                    stream: stream(id, &event),
                    expected_version: version as u64,
                    events: vec![devmind_domain::event::NewEvent {
                        event_id: uuid::Uuid::now_v7().to_string(),
                        event,
                        metadata: metadata(),
                    }],
                };
                let append = devmind_ledger::Append { streams: vec![append], idempotency: None };
                position = ledger.append(append).await.expect("appended").position();
            }
            position
        })
    });
    let mut head = 0;
    for writer in writers.collect::<Vec<_>>() {
        head = head.max(writer.await.expect("no panic"));
    }
    assert_eq!(head, 8 * u64::from(TURNS + 1));
    head
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread")]
    async fn no_update_of_a_view_is_lost_under_eight_writers(bench: Bench) {
        let served = bench.serve().await;
        let head = eight_writers(std::slice::from_ref(&bench.ledger)).await;
        served.views.wait_for(head).await.expect("caught up");
        for conversation in served.views.conversations(&"ann".into()).await.expect("conversations") {
            assert_eq!(served.views.turns(&conversation.id).await.expect("turns").len(), 25);
        }
        let report = crate::check::check(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("checked");
        assert!(report.is_equal() && report.projections.iter().all(|found| found.position == head), "{report}");
        served.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_keep_the_same_views_apply_each_event_once() {
    let bench = Bench::postgres().await;
    let other = bench.another_process().await;
    let projections = || -> Projections { with_fragile(None) };
    let (one, two) = (bench.serve_with(projections()).await, other.serve_with(projections()).await);
    let head = eight_writers(&[bench.ledger.clone(), other.ledger.clone()]).await;
    for served in [&one, &two] {
        served.views.wait_for(head).await.expect("both see everything");
        assert_eq!(counted(&served.views).await, i64::try_from(head).expect("small"), "each event once");
    }
    let report = crate::check::check_one(bench.views_place(), bench.ledger.reader(), "conversation", |_, _| {}).await;
    assert!(report.expect("checked").is_equal());
    two.stop().await;
    one.stop().await;
}

#[tokio::test]
async fn a_rebuild_that_was_interrupted_leaves_nothing_that_the_next_one_or_a_start_does_not_remove() {
    let mut bench = Bench::postgres().await;
    bench.append([started("c1", "ann")]).await;
    let place = bench.views_place();
    let schemas = || async {
        let devmind_ledger::Place::Postgres(url) = bench.views_place() else { panic!("PostgreSQL") };
        let pool = crate::store::postgres::pool(&url, "views", 1);
        let sql = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'views_rebuild_%'";
        let mut connection = pool.take().await.expect("a connection");
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut *connection).await.expect("counted")
    };
    let alive = crate::beside::Beside::new(&place, &PROJECTIONS.to_vec()).await.expect("made");
    for by_a_start in [false, true] {
        let died = crate::beside::Beside::new(&place, &PROJECTIONS.to_vec()).await.expect("made");
        died.store.close().await;
        drop(died);
        assert_eq!(schemas().await, 2);
        // The server notices the end of the dead one's connection a moment later.
        while schemas().await != 1 {
            let log = bench.ledger.reader();
            if by_a_start {
                crate::store::Store::open(&place, log, &PROJECTIONS.to_vec()).await.expect("open").close().await;
            } else {
                crate::rebuild::rebuild(&place, log, |_, _| {}).await.expect("rebuilt");
            }
        }
    }
    alive.remove().await.expect("the one under way was left alone");
    assert_eq!(schemas().await, 0);
}

#[tokio::test]
async fn the_cost_of_an_event_does_not_grow_with_the_rows_though_its_statements_were_planned_on_almost_none() {
    const ROUNDS: i64 = 100;
    const ROWS_A_ROUND: i64 = 30;
    let mut bench = Bench::postgres().await;
    let served = bench.serve().await;
    for n in 0..ROUNDS {
        let id = |kind: &str| -> &'static str { format!("{kind}{n}").leak() };
        let (c, turn, run, call) = (id("c"), id("t"), id("r"), id("k"));
        let asking = [started(c, "ann"), asked(c, turn, 1), prepared(c, run, turn, RunKind::Normal), claimed(c, run)];
        bench.append(asking).await;
        let done = ResultStatus::Succeeded;
        let calling = [requested(call, run), dispatched(call, 1, 1, Some("x")), result(call, 1, done)];
        bench.append(calling).await;
        let head = bench.append([succeeded(c, run, "done")]).await;
        served.views.wait_for(head).await.expect("caught up");
        assert_eq!(served.views.turns(&c.into()).await.expect("turns").len(), 1);
        if n == 3 {
            // What is planned from here on knows of a handful of rows.
            bench.meddle("ANALYZE turns, runs, messages, conversations, tool_calls, tool_attempts, search_texts").await;
        }
    }
    served.stop().await;
    bench.ledger.close().await;
    let devmind_ledger::Place::Postgres(url) = bench.views_place() else { panic!("PostgreSQL") };
    let pool = crate::store::postgres::pool(&url, "views", 1);
    let mut connection = pool.take().await.expect("a connection");
    // A connection tells what it did when it ends.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = \
                  'client backend' AND pid <> pg_backend_pid()";
    while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut *connection).await.expect("counted") > 0 {
        tokio::task::yield_now().await;
    }
    let read: Vec<(String, i64)> = sqlx::query_as(
        "SELECT relname::text, (seq_tup_read + (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i \
         WHERE i.relid = t.relid))::bigint FROM pg_stat_user_tables t WHERE schemaname = 'views'",
    )
    .fetch_all(&mut *connection)
    .await
    .expect("counted");
    let rows = |table: &str| read.iter().find(|(name, _)| name == table).map_or(0, |(_, rows)| *rows);
    assert!(rows("turns") >= ROUNDS && rows("tool_calls") >= ROUNDS, "nothing was counted: {read:?}");
    let many: Vec<_> = read.iter().filter(|(_, rows)| *rows > ROWS_A_ROUND * ROUNDS).collect();
    assert!(many.is_empty(), "{many:?} rows were read in {ROUNDS} rounds");
}

//! Random histories, most of them impossible: a projection has to hold for all of them, and the
//! rows must not depend on how the log was cut into batches.

use crate::apply::reset;
use crate::check::check;
use crate::registry::PROJECTIONS;
use crate::store::Store;
use crate::testing::*;
use crate::together::for_many;
use devmind_domain::conversation::*;
use devmind_domain::tool_call::*;

/// Numbers from a seed (Knuth's MMIX generator); a failure names its seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
    fn small(&mut self) -> u32 {
        self.of(&[1, 2, 3])
    }
}

fn fact(n: &mut Numbers) -> Fact {
    let c = n.of(&["c1", "c2"]);
    let (turn, run) = (n.of(&["t1", "t2", "t3"]), n.of(&["r1", "r2", "r3", "r4"]));
    // Calls that interrupts are about, and calls in general: seldom one of those, so that some wait for long.
    let waiting = n.of(&["thread-r1:i1", "thread-r1:i2", "thread-r2:i1", "thread-r2:i3"]);
    let k = n.of(&["k1", "k2", "k3", "k1", "k2", "k3", waiting]);
    let d = n.of(&["ann/d1", "bob/d1"]);
    let (x, y) = (n.of(&["x1", "x2", "x3"]), n.of(&["x1", "x2", "x3"]));
    let text = n.of(&["", "half"]);
    let (interrupt, approved) = (n.of(&["i1", "i2", "i3"]), n.below(2) == 0);
    match n.below(36) {
        0 => started(c, n.of(&["ann", "bob"])),
        1 => asked(c, turn, n.small()),
        2 => prepared(c, run, turn, n.of(&[RunKind::Normal, RunKind::Resume, RunKind::Retry])),
        3 => claimed(c, run),
        4 => succeeded(c, run, text),
        5 => failed(c, run, text),
        6 => cancelled(c, run, n.of(&[RunCancelReason::Stopped, RunCancelReason::Abandoned]), text),
        7 => paused(c, run),
        8 => conversation(c, ConversationDeleted {}),
        9 => conversation(
            c,
            TurnRerunPrepared {
                turn_id: turn.into(),
                message_id: n.of(&["q-t1", "q-new"]).into(),
                content: "again".into(),
                previous_message_id: "q-t1".into(),
                edited: true,
                replaced_message_ids: vec![n.of(&["a-r1", "a-r2"]).into()],
            },
        ),
        10 => conversation(c, ConversationRenamed { title: text.into(), source: TitleSource::Manual }),
        11 => expired(c, interrupt),
        12 | 32 => requested(n.of(&[k, waiting]), run),
        13..=15 => dispatched(k, n.small(), u64::from(n.small()), n.of(&[None, Some("x1"), Some("x2")])),
        16 => tool_call(k, ToolReceived { attempt_no: n.small(), phase: n.of(&[Phase::Reserved, Phase::Executing]) }),
        17 => tool_call(
            k,
            ToolCancelRequested {
                attempt_no: n.small(),
                reason: n.of(&[CancelReason::RunCancelled, CancelReason::WaitTimedOut]),
            },
        ),
        18 => tool_call(k, ToolWaitTimedOut { attempt_no: n.small(), after_ms: 1 }),
        19 => result(k, n.small(), n.of(&[ResultStatus::Succeeded, ResultStatus::Indeterminate])),
        20 => tool_call(
            k,
            ToolResultAcked {
                connection_id: x.into(),
                disposition: n.of(&[Disposition::Stored, Disposition::Duplicate]),
            },
        ),
        21 => connected(d, x, u64::from(n.small())),
        22 => synced(d, x),
        23 => disconnected(d, x),
        24 => replaced(d, x, y),
        25 | 26 => raised(c, interrupt, run, turn, n.of(&[None, Some(at(9))])),
        27 => resolved(c, interrupt, approved),
        28 | 33 | 34 => withdrawn(
            c,
            interrupt,
            n.of(&[
                InterruptCancelReason::Edited,
                InterruptCancelReason::RunStopped,
                InterruptCancelReason::ConversationDeleted,
            ]),
        ),
        29 | 30 => followed(c, run, n.of(&["r1", "r2"]), turn, n.of(&[RunKind::Resume, RunKind::Retry])),
        _ => n.of(&[node_started, node_stopped, node_lost])(u64::from(n.small())),
    }
}

pub(super) fn history(seed: u64, length: usize) -> Vec<Fact> {
    let mut numbers = Numbers(seed);
    (0..length).map(|_| fact(&mut numbers)).collect()
}

#[tokio::test]
async fn the_rows_do_not_depend_on_how_the_log_was_cut_into_batches() {
    let mut seen = String::new();
    for seed in 0..10 {
        let events = recorded(&history(seed, 300));
        let at_once = dump(&store_of(&events, events.len()).await.read).await;
        assert!(at_once.len() > 10, "seed {seed} makes too little: {at_once:?}");
        for size in [1, 7] {
            assert_eq!(dump(&store_of(&events, size).await.read).await, at_once, "seed {seed}, batches of {size}");
        }
        seen.extend(at_once);
    }
    for code in ["APPROVAL_CANCELLED", "APPROVAL_EXPIRED", "ABORTED_BEFORE_DISPATCH"] {
        assert!(seen.contains(code), "the histories explore too little: no call is {code}");
    }
}

#[tokio::test]
async fn what_postgres_writes_with_one_statement_is_what_it_would_write_change_by_change() {
    let (bench, projections) = (Bench::postgres().await, PROJECTIONS.to_vec());
    let store = Store::open(&bench.views_place(), bench.ledger.reader(), &projections).await.expect("a store");
    for seed in 200..205 {
        let events = recorded(&history(seed, 300));
        let mut work = store.write.begin().await.expect("begun");
        for projection in projections.iter().copied() {
            reset(&mut work, projection).await.expect("empty");
        }
        work.commit().await.expect("committed");
        for projection in projections.iter().copied() {
            applied(&store, projection, 0, &events).await;
        }
        assert_eq!(dump(&store.read).await, dump(&store_of(&events, 1).await.read).await, "seed {seed}");
    }
    store.close().await;
}

#[test]
fn every_change_of_an_independent_stream_can_be_made_for_many_rows_at_once() {
    let mut seen = 0;
    for event in recorded(&history(300, 600)) {
        let [fact] = &event.decode().expect("readable")[..] else { panic!("one fact") };
        for projection in PROJECTIONS {
            let independent = projection.independent().iter().any(|kind| kind.as_str() == event.stream.aggregate_type);
            for change in projection.changes(&event, fact).iter().filter(|_| independent) {
                assert!(for_many(change.sql, &change.values).is_some(), "{}", change.sql);
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "the histories explore too little: {seen}");
}

#[tokio::test]
async fn rows_kept_through_restarts_equal_rows_rebuilt_from_the_log_and_those_of_the_other_store() {
    for seed in 100..104 {
        let mut bench = if seed % 2 == 0 { Bench::new().await } else { Bench::postgres().await };
        let mut numbers = Numbers(seed);
        let mut facts = history(seed, 200).into_iter();
        while facts.len() > 0 {
            let served = bench.serve().await;
            let size = 1 + numbers.below(80);
            let head = bench.append(facts.by_ref().take(size)).await;
            // Sometimes the runner is stopped before it has seen everything.
            if numbers.below(2) == 0 {
                served.views.wait_for(head).await.expect("caught up");
            }
            served.stop().await;
        }
        let served = bench.serve().await;
        served.views.wait_for(200).await.expect("caught up");
        let report = check(bench.views_place(), bench.ledger.reader(), |_, _| {}).await.expect("checked");
        assert!(report.is_equal(), "seed {seed}: {report}");
        assert!(report.projections.iter().all(|projection| projection.position == 200), "{report}");
        let in_memory = bench.views().await;
        assert_eq!(dump(served.views.read_pool()).await, dump(in_memory.read_pool()).await, "seed {seed}");
        served.stop().await;
    }
}

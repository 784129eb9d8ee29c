//! A conversation at every position of a log is what the fold of that prefix gives.

use super::random::history;
use crate::conversation_at;
use crate::past::state;
use crate::rebuild::fill;
use crate::registry::PROJECTIONS;
use crate::store::Store;
use crate::testing::*;
use crate::views::Views;
use devmind_domain::conversation::RunKind;

/// Events of the log.
const EVENTS: usize = 300;

/// Two conversations side by side: everything that can happen to one, and one that runs its course. Ids are not
/// shared between conversations or devices, as in every log that a server wrote.
fn of_two_conversations(seed: u64) -> Vec<Fact> {
    let other = [
        started("c2", "bob"),
        asked("c2", "u1", 1),
        prepared("c2", "s1", "u1", RunKind::Normal),
        claimed("c2", "s1"),
        succeeded("c2", "s1", "42"),
        connected("bob/d1", "z1", 1),
        synced("bob/d1", "z1"),
        disconnected("bob/d1", "z1"),
        asked("c2", "u2", 2),
    ];
    let mut other = other.into_iter();
    let one = history(seed, 3 * EVENTS).into_iter().filter(|(id, _)| *id != "c2" && *id != "bob/d1");
    let mut facts = vec![started("c1", "ann"), asked("c1", "t1", 1), requested("k1", "r1")];
    for (index, fact) in one.enumerate() {
        facts.push(fact);
        facts.extend(if index % 25 == 0 { other.next() } else { None });
    }
    facts.truncate(EVENTS);
    facts
}

#[tokio::test]
async fn a_conversation_at_every_position_of_a_log_equals_the_fold_of_that_prefix() {
    let (mut seen, mut called) = (0, 0);
    let seed = 7;
    let mut bench = Bench::new().await;
    bench.append(of_two_conversations(seed)).await;
    let log = bench.ledger.reader();
    // The other way: one store, moved on event by event over everything that the log holds.
    let rows = Store::in_memory(&PROJECTIONS.to_vec()).await.expect("a store");
    let folded = Views::of_rows(rows.clone(), &PROJECTIONS, log.clone());
    let mut last = None;
    for position in 0..=EVENTS as u64 {
        for projection in PROJECTIONS {
            let from = position.saturating_sub(1);
            fill(&rows, projection, log, from, position, &mut |_| {}).await.expect("filled");
        }
        // The other conversation has few events: a look now and then sees all of its states.
        for id in if position % 5 == 0 { &["c1", "c2"][..] } else { &["c1"] } {
            let expected = state(&folded, &(*id).into(), position).await.expect("the fold");
            let got = conversation_at(log, &(*id).into(), position).await.expect("read");
            assert_eq!(got, expected, "seed {seed}, {id} at {position}");
            if let Some(state) = got {
                seen += usize::from(last.as_ref() != Some(&state.turns));
                called += state.tool_calls.len();
                last = Some(state.turns);
            }
        }
    }
    folded.close().await;
    assert_eq!(log.head().await.expect("a head").position, EVENTS as u64, "nothing was written");
    assert!(seen > 100 && called > 1_000, "the histories explore too little: {seen} states, {called} calls");
}

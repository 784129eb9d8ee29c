//! PostgreSQL that ends at once, again and again, under load: nothing that was acknowledged is lost, and
//! every commit whose answer was lost is settled once.

use super::support::*;
use crate::*;
use devmind_test_postgres::Cluster;
use futures::future::join_all;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const RESTARTS: usize = 25;
const WRITERS: usize = 8;
/// Chooses how much is written between two restarts.
const SEED: u64 = 20_260;

#[tokio::test(flavor = "multi_thread")]
async fn immediate_restarts_of_the_database_under_load_lose_no_acknowledged_event_and_settle_every_doubt_once() {
    let cluster = Arc::new(Cluster::start(&[]));
    let database = cluster.database();
    let place: Place = Place::Postgres(database.url().parse().expect("a URL"));
    // Two processes' worth: each settles its own doubts while the other appends.
    let ledgers = [Ledger::open(&place).await.expect("opens"), Ledger::open(&place).await.expect("opens")];
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writers = (0..WRITERS).map(|writer| {
        let (ledger, stop, count) = (ledgers[writer % 2].clone(), stop.clone(), acknowledged.clone());
        tokio::spawn(async move {
            let (mut stored, mut refused, mut doubts, mut version) = (Vec::new(), Vec::new(), 0, 0);
            while !stop.load(Ordering::Relaxed) {
                let command =
                    with_key(append(&format!("s{writer}"), version, "x"), &format!("{writer}-{version}"), "h");
                let id = command.streams[0].events[0].event_id.clone();
                match ledger.append(command).await {
                    Ok(appended) => {
                        stored.push(appended.events[0].event_id.clone());
                        version += 1;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    // A doubt that could not be settled is settled by the next try under the same key.
                    Err(AppendError::KeySeen { same_request: true, events }) => {
                        stored.push(events[0].event_id.clone());
                        version += 1;
                    }
                    Err(AppendError::InDoubt(_)) => doubts += 1,
                    Err(AppendError::Storage(error)) => {
                        assert_eq!(error.code(), devmind_domain::ErrorCode::LedgerUnavailable, "{error}");
                        refused.push(id);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            (stored, refused, doubts)
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut numbers = SEED;
    for _ in 0..RESTARTS {
        numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let wanted = acknowledged.load(Ordering::Relaxed) + 20 + usize::try_from(numbers >> 57).expect("7 bits");
        while acknowledged.load(Ordering::Relaxed) < wanted {
            tokio::task::yield_now().await;
        }
        let cluster = cluster.clone();
        tokio::task::spawn_blocking(move || cluster.restart_immediately()).await.expect("restarted");
    }
    stop.store(true, Ordering::Relaxed);
    let (mut stored, mut refused, mut doubts) = (Vec::new(), Vec::new(), 0);
    for writer in join_all(writers).await {
        let (own, not, open) = writer.expect("no panic");
        stored.extend(own);
        refused.extend(not);
        doubts += open;
    }
    let reader = LedgerReader::open(&place).await.expect("opens");
    let log = all(&reader).await;
    assert_gapless(&log);
    let ids: HashSet<&str> = log.iter().map(|event| event.event_id.as_str()).collect();
    let lost = stored.iter().filter(|id| !ids.contains(id.as_str())).count();
    let undead = refused.iter().filter(|id| ids.contains(id.as_str())).count();
    let settled = ledgers.each_ref().map(|ledger| ledger.faults.counts());
    let were_stored: u32 = settled.iter().map(|settled| settled.stored).sum();
    let were_not: u32 = settled.iter().map(|settled| settled.not_stored).sum();
    println!(
        "seed {SEED}: {RESTARTS} immediate restarts, {} events, {} acknowledged, {lost} of them lost, {} refused, \
         {undead} of them stored; batches in doubt: {were_stored} found stored, {were_not} found not stored, \
         {doubts} commands answered as in doubt",
        log.len(),
        stored.len(),
        refused.len()
    );
    assert!(were_stored + were_not > 0, "the restarts hit no commit");
    assert_eq!((lost, undead), (0, 0));
    let unique: HashSet<&String> = stored.iter().collect();
    assert_eq!((unique.len(), log.len()), (stored.len(), stored.len()), "each command is in the log once");
    assert!(verify::verify(&reader, verify::Published::default(), |_, _| {}).await.expect("verified").is_sound());
}

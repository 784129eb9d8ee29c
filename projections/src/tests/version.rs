//! A new version of a projection: built beside the rows of the old one, which are served meanwhile.

use crate::apply::{MAX_ATTEMPTS, begin_rebuild};
use crate::change::Change;
use crate::operate::resume_this;
use crate::projection::Projection;
use crate::store::Store;
use crate::testing::*;
use crate::tests::fragile::*;
use crate::views::Views;
use devmind_domain::event::{AggregateType, DomainEvent, RecordedEvent};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

/// The second version, which applies nothing before the other end of its channel is gone.
struct Gated(&'static dyn Projection, Mutex<Receiver<()>>);

impl Projection for Gated {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn version(&self) -> u32 {
        self.0.version()
    }
    fn tables(&self) -> &'static [&'static str] {
        self.0.tables()
    }
    fn reads(&self) -> &'static [AggregateType] {
        self.0.reads()
    }
    fn changes(&self, event: &RecordedEvent, decoded: &DomainEvent) -> Vec<Change> {
        self.1.lock().expect("not poisoned").recv().expect_err("nothing is sent");
        self.0.changes(event, decoded)
    }
}

on_both_stores! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_new_version_is_built_beside_the_old_rows_which_are_served_until_the_swap(bench: Bench) {
        let mut bench = bench;
        let old = bench.serve_with(with_fragile(None)).await;
        let before = bench.append([started("c1", "ann"), asked("c1", "t1", 1)]).await;
        old.views.wait_for(before).await.expect("caught up");
        old.stop().await;
        let head = bench.append([asked("c1", "t2", 2)]).await;

        let (shut, gate) = channel();
        let second: &'static dyn Projection = Box::leak(Box::new(Gated(fragile_of_version(2), Mutex::new(gate))));
        let mut projections = with_fragile(None);
        projections[2] = second;
        let served = bench.serve_with(projections).await;
        served.views.wait_for_one("conversation", head).await.expect("others go on");
        let status = served.views.status().await.expect("status").remove(2);
        assert_eq!((status.version, status.program_version), (1, 2));
        assert_eq!((status.position, status.lag, status.failed), (before, 1, None));
        served.views.wait_for_one("fragile", before).await.expect("what is there is served");
        assert_eq!(counted(&served.views).await, 2, "the old rows are there");
        let head = bench.append([asked("c1", "t3", 3)]).await;
        drop(shut);
        served.views.wait_for_one("fragile", head).await.expect("swapped and caught up");
        let status = served.views.status().await.expect("status").remove(2);
        assert_eq!((status.version, status.program_version, status.lag), (2, 2, 0));
        assert_eq!(counted(&served.views).await, 4, "each event once");
        served.stop().await;
    }

    #[tokio::test]
    async fn a_new_version_that_ends_the_process_while_it_is_built_leaves_the_old_rows_and_waits_for_an_operator(bench: Bench) {
        let mut bench = bench;
        let old = bench.serve_with(with_fragile(None)).await;
        let head = bench.append([started("c1", "ann"), asked("c1", "t1", 1)]).await;
        old.views.wait_for(head).await.expect("caught up");
        old.stop().await;
        let second = || vec![fragile_of_version(2)];
        let store = Store::open(&bench.views_place(), bench.ledger.reader(), &second()).await.expect("a store");
        for _ in 0..MAX_ATTEMPTS {
            begin_rebuild(&store.write, second()[0]).await.expect("recorded");
        }
        store.close().await;
        let served = bench.serve_with(second()).await;
        let mut progress = served.views.progress_of("fragile");
        let failed = progress.wait_for(|now| now.failed.is_some()).await.expect("the runner lives").failed.clone();
        assert!(failed.expect("failed").reason.contains("to build version 2"));
        assert_eq!(counted(&served.views).await, 2, "the old rows are there");
        resume_this(&bench.views_place(), "fragile").await.expect("resumed");
        let version = async |views: &Views| views.status().await.expect("status").remove(0).version;
        while version(&served.views).await != 2 {
            progress.changed().await.expect("the runner lives");
        }
        assert_eq!(counted(&served.views).await, 2);
        served.stop().await;
    }
}

//! The rows on PostgreSQL, with the settings it comes with: `fsync`, `synchronous_commit` and
//! `full_page_writes` on.

pub mod peers;

use crate::load::{self, Callers, Measure, Work};
use crate::ours;
use crate::table::Table;
use devmind_ledger::{Ledger, PostgresUrl};
use devmind_test_postgres::Cluster;
use peers::{Pgbench, Unnest};
use tokio::runtime::Handle;

/// What is to be reached at so many callers: the peer's name, its place in the measured rates, the
/// least ratio.
type Goals = [(&'static str, usize, f64)];

/// Our append beside postgres-es, beside prepared inserts by pgbench, and beside bulk inserts.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants("postgres append") && !table.wants("postgres hot") {
        return;
    }
    let cluster = Cluster::shared();
    let (own, peers, raw) = (cluster.database(), cluster.database(), cluster.database());
    let url: PostgresUrl = own.url().parse().expect("a URL");
    let ledger = Ledger::open(&url).await.expect("the ledger opens");
    let peers_url = peers.url().to_owned();
    let opening = load::peers().spawn(async move { peers::postgres_es(&peers_url).await });
    let framework = opening.await.expect("it opens");
    let raw_url = raw.url().to_owned();
    peers::raw_table(&raw_url).await;

    let (in_64, in_16, in_1): (&Goals, &Goals, &Goals) = (
        &[("postgres-es", 1, 7.0), ("pgbench", 2, 1.5), ("UNNEST ×100", 3, 0.45)],
        &[("postgres-es", 1, 4.0)],
        &[("postgres-es", 1, 2.0), ("pgbench", 2, 0.6)],
    );
    for (callers, goals) in [(64, in_64), (16, in_16), (1, in_1)] {
        if !table.wants("postgres append") {
            break;
        }
        let (store, metadata) = (ledger.clone(), ours::metadata());
        let our_own = Callers {
            callers,
            on: Handle::current(),
            call: move |caller, n| {
                ours::carry_out(store.clone(), metadata.clone(), ours::stream(caller, n), ours::key(caller, n))
            },
        };
        let family = framework.clone();
        let peer = Callers {
            callers,
            on: load::peers().clone(),
            call: move |caller, n| crate::family::carry_out(family.clone(), ours::stream(caller, n)),
        };
        let pgbench = Pgbench { url: raw_url.clone(), clients: callers };
        let unnest = Unnest { url: raw_url.clone() };
        let works: [&dyn Work; 4] = [&our_own, &peer, &pgbench, &unnest];
        let rates = measure.side_by_side(&works).await;
        let name = |who: &str| format!("postgres append, {callers} callers: {who}");
        table.figure(&name("postgres-es execute"), rates[1], "events/s");
        table.figure(&name("pgbench, 1 insert a transaction"), rates[2], "events/s");
        if callers == 64 {
            table.figure("postgres append: UNNEST ×100, 1 connection", rates[3], "events/s");
        }
        for (who, place, goal) in goals {
            let row = format!("postgres append, {callers} callers");
            table.at_least(&row, rates[0], "events/s", (who, rates[*place]), *goal);
        }
    }
    if table.wants("postgres hot") {
        hot_stream(measure, table, &ledger, &framework).await;
    }
    ledger.close().await;
}

/// Everybody at one stream that has 200 events already.
async fn hot_stream(measure: &Measure, table: &mut Table, ledger: &Ledger, framework: &peers::PostgresEs) {
    const STREAM: &str = "hot/stream";
    let metadata = ours::metadata();
    for n in 0..200 {
        ours::carry_out(ledger.clone(), metadata.clone(), STREAM.to_owned(), format!("hot {n}")).await;
        crate::family::carry_out(framework.clone(), STREAM.to_owned()).await;
    }
    let (store, family) = (ledger.clone(), framework.clone());
    let our_own = Callers {
        callers: 64,
        on: Handle::current(),
        call: move |caller, n| {
            ours::carry_out(store.clone(), metadata.clone(), STREAM.to_owned(), ours::key(caller, n))
        },
    };
    let peer = Callers {
        callers: 64,
        on: load::peers().clone(),
        call: move |_, _| crate::family::carry_out(family.clone(), STREAM.to_owned()),
    };
    let rates = measure.side_by_side(&[&our_own, &peer]).await;
    table.figure("postgres hot stream, 64 callers: postgres-es", rates[1], "events/s");
    table.at_least("postgres hot stream, 64 callers", rates[0], "events/s", ("postgres-es", rates[1]), 400.0);
}

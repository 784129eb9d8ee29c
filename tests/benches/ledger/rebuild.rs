//! What a rebuild of all views costs in a long log, beside the same in a short one: rows and events a second, and the
//! memory of the process at its peak, which is not to follow the length of the log. On SQLite, where the process does
//! all of the work itself.

use crate::load::Measure;
use crate::read;
use crate::table::Table;
use devmind_ledger::{Append, Ledger, LedgerReader, Place};
use devmind_projections::{held, rebuild};
use futures::{StreamExt, stream};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How many times longer the long log is.
const TIMES: u64 = 10;
/// Callers that fill a log.
const CALLERS: usize = 64;

struct Rebuilt {
    events_per_second: f64,
    rows_per_second: f64,
    peak_mib: f64,
}

/// Rebuilds the views of both.
pub async fn rows(measure: &Measure, table: &mut Table) {
    if !table.wants("rebuild growth") {
        return;
    }
    let (short, long) = (measure.events / TIMES, measure.events);
    // Both are filled before either is rebuilt, so that what filling leaves in memory is the same for both.
    let (early, late) = (filled(short).await, filled(long).await);
    let (early, late) = (rebuilt(early.path()).await, rebuilt(late.path()).await);
    for (events, of) in [(short, &early), (long, &late)] {
        table.figure(&format!("rebuild growth, SQLite: of {events} events"), of.events_per_second, "events/s");
        table.figure(&format!("rebuild growth, SQLite: of {events} events"), of.rows_per_second, "rows/s");
        table.figure(&format!("rebuild growth, SQLite: of {events} events, peak memory"), of.peak_mib, "MiB");
    }
    let name = format!("rebuild growth, SQLite: an event of {long} ÷ of {short}");
    table.at_most(&name, 1e6 / late.events_per_second, 1e6 / early.events_per_second, "µs", 1.3);
    let name = format!("rebuild growth, SQLite: peak memory at {long} events ÷ at {short}");
    table.at_most(&name, late.peak_mib, early.peak_mib, "MiB", 1.2);
}

fn ledger_file(folder: &Path) -> PathBuf {
    folder.join("ledger.sqlite")
}

/// A log of about so many events, of which every one leads to rows.
async fn filled(events: u64) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ledger = Ledger::open(&ledger_file(folder.path())).await.expect("the ledger opens");
    let appending = stream::iter(0..events / read::STREAM)
        .map(|n| ledger.append(Append { streams: read::conversations(n), idempotency: None }));
    appending.buffer_unordered(CALLERS).for_each(|done| async { drop(done.expect("appended")) }).await;
    ledger.close().await;
    folder
}

async fn rebuilt(folder: &Path) -> Rebuilt {
    let reader = LedgerReader::open(Place::File(ledger_file(folder))).await.expect("the ledger opens");
    let views = Place::File(folder.join("views.sqlite"));
    reset_peak();
    let report = rebuild(&views, &reader, |_, _| {}).await.expect("rebuilt");
    let peak_mib = peak_mib();
    assert!(report.failed.is_empty(), "a view that is not built is not measured");
    let rows: u64 = held(&views, None).await.expect("read").iter().map(|view| view.rows).sum();
    let seconds = report.elapsed_ms as f64 / 1e3;
    Rebuilt { events_per_second: report.events as f64 / seconds, rows_per_second: rows as f64 / seconds, peak_mib }
}

/// Has the kernel forget the peak so far (proc_pid_clear_refs(5)).
fn reset_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be reset");
}

/// The most memory that the process had since then.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1024.0
}

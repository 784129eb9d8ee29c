//! How long the disk takes to make one page durable: every durable commit pays it.

use crate::table::Table;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

/// Rewrites and flushes one 8 KiB page.
const FLUSHES: u32 = 200;

/// Prints the mean time of a write of one page with its flush.
pub fn flush_time(table: &mut Table) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut file = File::create(folder.path().join("page")).expect("a file");
    let page = [7; 8192];
    let started = Instant::now();
    for _ in 0..FLUSHES {
        file.seek(SeekFrom::Start(0)).expect("the file can be sought");
        file.write_all(&page).expect("the disk takes a page");
        file.sync_data().expect("the disk flushes");
    }
    table.time("disk: write and flush of 8 KiB", started.elapsed() / FLUSHES, None);
}

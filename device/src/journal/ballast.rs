//! Room kept for the end of calls that have begun: a file that is shortened when the disk is full.
//!
//! A call that ran must be settled even if somebody filled the disk meanwhile. The first half of the
//! ballast is for its output, the rest for the bare fact of how it ended.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file in the state folder.
const FILE: &str = "ballast";
/// Bytes of it.
const BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Ballast(PathBuf);

impl Ballast {
    pub(super) fn of(state_folder: &Path) -> Self {
        Self(state_folder.join(FILE))
    }

    /// Makes it whole again where there is room for it and as much again.
    pub(super) fn fill(&self, free_bytes: u64) {
        if self.bytes() == BYTES || free_bytes < 2 * BYTES {
            return;
        }
        if let Err(error) = self.write() {
            tracing::warn!(%error, "no room can be kept for results on a full disk");
        }
    }

    /// Gives room for an output, once.
    pub(super) fn give_half(&self) -> bool {
        self.bytes() > BYTES / 2 && self.shorten(BYTES / 2)
    }

    /// Gives all there is left.
    pub(super) fn give_rest(&self) -> bool {
        self.bytes() > 0 && self.shorten(0)
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(&self.0).map_or(0, |metadata| metadata.len())
    }

    fn shorten(&self, bytes: u64) -> bool {
        let shortened = OpenOptions::new().write(true).open(&self.0).and_then(|file| file.set_len(bytes));
        if let Err(error) = &shortened {
            tracing::error!(%error, "the room kept for results cannot be given");
        }
        shortened.is_ok()
    }

    /// Random bytes: a file system that compresses must not make it smaller.
    fn write(&self) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.0)?;
        let mut block = vec![0; 1 << 20];
        for _ in 0..BYTES >> 20 {
            getrandom::fill(&mut block).map_err(io::Error::other)?;
            file.write_all(&block)?;
        }
        file.sync_all()
    }
}

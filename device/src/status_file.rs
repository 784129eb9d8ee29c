//! How a running device stands, for `devmind-device status` to read.
//!
//! A small file in the state folder, replaced whole with every change. Whether it is still true is told
//! by the folder's lock: without a running device it is history.

use crate::error::DeviceError;
use crate::state_dir::write_private;
use devmind_domain::{ErrorCode, Timestamp};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The file in the state folder.
const FILE: &str = "status.json";

/// How a device stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// When this was written.
    pub written_at: Timestamp,
    /// The process.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// The device.
    pub device_id: String,
    /// Its workspace, links resolved.
    pub workspace: PathBuf,
    /// Its server.
    pub server: String,
    /// For whom, never the token.
    pub user: String,
    /// The connection, in words.
    pub connection: String,
    /// How its user is asked.
    pub confirm: String,
    /// Where the local page is, without its token.
    pub page: Option<String>,
    /// What the kernel forbids the program.
    pub sandbox: String,
    /// How far the server's clock is ahead of this computer's (milliseconds), as far as is known.
    pub clock_offset_ms: Option<i64>,
    /// Whether the workspace's path leads somewhere else by now, so that calls are refused.
    pub workspace_replaced: bool,
}

impl DeviceStatus {
    /// Replaces the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, state_folder: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        write_private(&state_folder.join(FILE), &text)
    }

    /// What was written last; `None` when no device has run with this folder.
    ///
    /// # Errors
    /// `CONFIG_INVALID` when the file cannot be understood.
    pub fn read(state_folder: &Path) -> Result<Option<Self>, DeviceError> {
        let file = state_folder.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(invalid(&file, error)),
        };
        serde_json::from_str(&text).map(Some).map_err(|error| invalid(&file, error))
    }
}

fn invalid(file: &Path, error: impl std::error::Error + Send + Sync + 'static) -> DeviceError {
    DeviceError::new(ErrorCode::ConfigInvalid, format!("{} cannot be read", file.display())).caused_by(error)
}

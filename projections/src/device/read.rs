//! Reading the device view.

use super::rows::DeviceRow;
use crate::db::{Row, values};
use crate::error::ViewError;
use crate::row::Columns;
use crate::views::Views;
use devmind_domain::ids::UserId;

/// Devices in one answer, at most: those seen last.
pub const MAX_LISTED_DEVICES: u32 = 100;

impl Views {
    /// A user's devices, those seen last first, at most [`MAX_LISTED_DEVICES`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn devices(&self, user: &UserId) -> Result<Vec<DeviceRow>, ViewError> {
        let sql = "SELECT * FROM devices WHERE user_id = $1 ORDER BY last_seen DESC, device_id LIMIT $2";
        let rows = self.read_pool().rows(sql, &values![user.as_str(), MAX_LISTED_DEVICES]).await?;
        Ok(rows.iter().map(device).collect::<Result<_, _>>()?)
    }

    /// Everybody's devices, those seen last first, at most [`MAX_LISTED_DEVICES`].
    ///
    /// # Errors
    /// [`ViewError::Storage`].
    pub async fn all_devices(&self) -> Result<Vec<DeviceRow>, ViewError> {
        let sql = "SELECT * FROM devices ORDER BY last_seen DESC, user_id, device_id LIMIT $1";
        let rows = self.read_pool().rows(sql, &values![MAX_LISTED_DEVICES]).await?;
        Ok(rows.iter().map(device).collect::<Result<_, _>>()?)
    }
}

fn device(row: &Row) -> Result<DeviceRow, sqlx::Error> {
    let row = Columns(row);
    Ok(DeviceRow {
        device_id: row.text("device_id")?,
        user_id: row.text("user_id")?,
        online: row.truth("online")?,
        connection_id: row.maybe_text("connection_id")?,
        connection_epoch: row.count("connection_epoch")?,
        node_id: row.maybe_text("node_id")?,
        version: row.text("version")?,
        remote: row.text("remote")?,
        computer: row.maybe_text("computer")?,
        workspace: row.maybe_text("workspace")?,
        tools: row.maybe_json("tools")?.unwrap_or_default(),
        last_seen: row.moment("last_seen")?,
        connected_at: row.moment("connected_at")?,
        disconnected_at: row.maybe_moment("disconnected_at")?,
        close_code: row.maybe_small("close_code")?,
        close_reason: row.maybe_text("close_reason")?,
    })
}

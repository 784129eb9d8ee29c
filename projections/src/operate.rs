//! What an operator sees of the projections and does about one that stopped, while a server keeps them or not.
//!
//! The decision to pass over an event is one of the log ([`devmind_domain::projection`]) and left to the
//! caller; that the projection then goes on is done here.

use crate::apply::{Failure, Progress, forgive, locked, stored};
use crate::db::{Pool, is_the_statements_fault};
use crate::error::ViewError;
use crate::rebuild::named;
use crate::registry::PROJECTIONS;
use crate::row::Columns;
use crate::store::{existing, postgres};
use crate::views::{self, ProjectionStatus, standing};
use devmind_ledger::{LedgerReader, Place};
use serde::Serialize;

/// How every projection stands, as stored with its rows. Writes nothing.
///
/// # Errors
/// When views or log cannot be read, or the views are of an older program that did not have all of them.
pub async fn status(place: impl Into<Place>, ledger: &LedgerReader) -> Result<Vec<ProjectionStatus>, ViewError> {
    let pool = open(&place.into(), true).await?;
    let list = standing(&pool, ledger, &views::named(&PROJECTIONS)).await;
    pool.close().await;
    list
}

/// Where a projection stopped, and its version; `None` while it goes on.
///
/// # Errors
/// As [`status`]; [`ViewError::UnknownProjection`].
pub async fn stopped(views: impl Into<Place>, name: &str) -> Result<Option<(u32, Failure)>, ViewError> {
    let name = named(name)?.name();
    let pool = open(&views.into(), true).await?;
    let found = stored(&pool, name).await;
    pool.close().await;
    let (version, Progress { failed, .. }) = found?;
    Ok(failed.map(|failure| (version, failure)))
}

/// Lets a stopped projection be tried again from where it stands, as often as the first time. A server that
/// keeps it notices by itself. Answers what it was stopped by; `None` where it was not.
///
/// # Errors
/// When the views cannot be written; [`ViewError::UnknownProjection`].
pub async fn resume(views: impl Into<Place>, name: &str) -> Result<Option<Failure>, ViewError> {
    resume_this(&views.into(), named(name)?.name()).await
}

pub(crate) async fn resume_this(views: &Place, name: &str) -> Result<Option<Failure>, ViewError> {
    let pool = open(views, false).await?;
    let mut work = pool.begin().await?;
    let (_, Progress { failed, .. }) = locked(&mut work, name).await?;
    forgive(&mut work, name).await?;
    work.commit().await?;
    pool.close().await;
    Ok(failed)
}

/// Rows that are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldView {
    /// The projection.
    pub name: &'static str,
    /// The version that they are of.
    pub version: u32,
    /// The last event that is in them.
    pub position: u64,
    /// How many there are in all of its tables.
    pub rows: u64,
}

/// What a rebuild would replace: of all projections, or of one; none where there are no rows yet. Writes nothing.
///
/// # Errors
/// When the views cannot be read; [`ViewError::UnknownProjection`].
pub async fn held(views: impl Into<Place>, name: Option<&str>) -> Result<Vec<HeldView>, ViewError> {
    let projections = match name {
        None => PROJECTIONS.to_vec(),
        Some(name) => vec![named(name)?],
    };
    let views = views.into();
    if matches!(&views, Place::File(file) if !file.exists()) {
        return Ok(Vec::new());
    }
    let pool = open(&views, true).await?;
    let mut held = Vec::new();
    for projection in projections {
        let (version, Progress { position, .. }) = match stored(&pool, projection.name()).await {
            Ok(found) => found,
            // It has none yet: an older program made the views, or they are about to be made.
            Err(error) if matches!(error, sqlx::Error::RowNotFound) || is_the_statements_fault(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        let mut rows = 0;
        for table in projection.tables() {
            let counted = pool.row(&format!("SELECT count(*) AS number FROM {table}"), &[]).await?;
            rows += counted.map_or(Ok(0), |row| Columns(&row).count("number"))?;
        }
        held.push(HeldView { name: projection.name(), version, position, rows });
    }
    pool.close().await;
    Ok(held)
}

async fn open(views: &Place, read_only: bool) -> Result<Pool, ViewError> {
    Ok(match views {
        Place::File(file) => existing(file, read_only).await?,
        Place::Postgres(url) => Pool::Postgres(postgres::pool(url, postgres::SCHEMA, 1)),
    })
}

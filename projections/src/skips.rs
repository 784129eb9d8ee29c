//! Which events a projection passes over because an operator said so.
//!
//! Read from the log whenever a projection begins to apply events, wherever it does: live rows, rebuilt
//! rows and the rows of an earlier position pass over the same ones.

use crate::projection::Projection;
use devmind_domain::projection::ProjectionSkips;
use devmind_ledger::{LedgerError, LedgerReader, load};
use std::collections::BTreeSet;

/// The positions that this version of the projection passes over.
pub(crate) async fn of(ledger: &LedgerReader, projection: &dyn Projection) -> Result<BTreeSet<u64>, LedgerError> {
    let (skips, _) = load::<ProjectionSkips>(ledger, projection.name()).await?;
    Ok(skips.of_version(projection.version()))
}

//! What a projection's state hashes to at a position, so that two people can tell whether they look at
//! the same rows without showing them to each other. The root of the log at that position, which
//! completes the statement, is left to the caller.
//!
//! The hash is SHA-256 over the tables in their order: the table's name, then its rows as JSON objects
//! with sorted keys, truth values as 0 and 1, in the order of their texts, each with a line break. So
//! it is the same whichever database keeps the rows. The rows of one table are held in memory.

use crate::apply::stored_in;
use crate::beside::Beside;
use crate::build::{Wanted, build};
use crate::compare::columns;
use crate::db::Work;
use crate::error::ViewError;
use crate::projection::Projection;
use crate::rebuild::{Counter, Unbuilt, named};
use crate::registry::PROJECTIONS;
use crate::row::Columns;
use crate::store::Projections;
use devmind_ledger::{LedgerReader, Place};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The state of one projection at one position of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// Its name.
    pub projection: &'static str,
    /// Its version.
    pub version: u32,
    /// The log's size that its rows were made of.
    pub position: u64,
    /// The hash of its rows.
    pub state_hash: [u8; 32],
}

/// The live rows as they are, of all projections or one. Each may stand at a position of its own.
///
/// # Errors
/// When the file cannot be used, or was made by another version of the program.
pub async fn attest(views: impl Into<Place>, projection: Option<&str>) -> Result<Vec<Attestation>, ViewError> {
    let (views, projections) = (views.into(), these(projection)?);
    let beside = Beside::new(&views, &projections).await?;
    let live = beside.live_for_reading(&views).await?;
    // One look: rows and position of the same moment.
    let mut still = live.at_once().await?;
    let mut attested = Vec::new();
    for projection in projections {
        attested.push(state_of(&mut still, &beside.schemas.live, projection).await?);
    }
    still.commit().await?;
    live.close().await;
    beside.remove().await?;
    Ok(attested)
}

/// The rows that the log up to a position gives, rebuilt beside `views`, which need not be there; and the projections
/// that cannot be built, because they fail on an event.
///
/// # Errors
/// When the log cannot be read or does not go so far.
pub async fn attest_at(
    views: impl Into<Place>,
    ledger: &LedgerReader,
    position: u64,
    projection: Option<&str>,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<(Vec<Attestation>, Vec<Unbuilt>), ViewError> {
    let (views, projections) = (views.into(), these(projection)?);
    let beside = Beside::new(&views, &projections).await?;
    let mut counter = Counter::new(position * projections.len() as u64, progress);
    let (mut attested, mut failed) = (Vec::new(), Vec::new());
    let wanted: Vec<_> =
        projections.into_iter().map(|projection| Wanted { projection, from: 0, to: position }).collect();
    for (projection, built) in build(&beside, ledger, &wanted, &mut |events| counter.add(events)).await? {
        let built = match built {
            Ok(built) => built,
            Err(unbuilt) => {
                failed.push(unbuilt);
                continue;
            }
        };
        if built != position {
            let reason = format!("the log ends at {built}, before {position}");
            return Err(ViewError::NotReady { projection: projection.name(), reason });
        }
        let mut still = beside.store.write.begin().await?;
        // The store's own tables, not those beside it.
        let schema = if still.is_postgres() { beside.schemas.rebuilt.as_str() } else { "main" };
        attested.push(state_of(&mut still, schema, projection).await?);
        still.commit().await?;
    }
    beside.remove().await?;
    Ok((attested, failed))
}

fn these(projection: Option<&str>) -> Result<Projections, ViewError> {
    projection.map_or_else(|| Ok(PROJECTIONS.to_vec()), |name| Ok(vec![named(name)?]))
}

async fn state_of(work: &mut Work, schema: &str, projection: &dyn Projection) -> Result<Attestation, ViewError> {
    let (version, progress) = stored_in(work, projection.name()).await?;
    if version != projection.version() {
        let reason = format!("its rows are of version {version}, this program has {}", projection.version());
        return Err(ViewError::NotReady { projection: projection.name(), reason });
    }
    let (object, text) = if work.is_postgres() { ("json_build_object", "::text") } else { ("json_object", "") };
    let mut hash = Sha256::new();
    for table in projection.tables() {
        hash.update(table);
        hash.update("\n");
        let (all, _) = columns(work, schema, table).await?;
        // Names come from our own migrations, never from a request.
        let row = all.iter().map(|name| format!("'{name}', {name}")).collect::<Vec<_>>().join(", ");
        let rows = work.rows(&format!("SELECT {object}({row}){text} AS row FROM {schema}.{table}"), &[]).await?;
        let texts = rows.iter().map(|row| Columns(row).text::<String>("row").map(in_one_spelling));
        let mut texts = texts.collect::<Result<Vec<String>, _>>()?;
        texts.sort_unstable();
        for text in texts {
            hash.update(text);
            hash.update("\n");
        }
    }
    let (projection, position) = (projection.name(), progress.position);
    Ok(Attestation { projection, version, position, state_hash: hash.finalize().into() })
}

/// One spelling of a row, whichever database wrote it.
fn in_one_spelling(row: String) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(&row) else { return row };
    for value in fields.values_mut() {
        if let Value::Bool(truth) = value {
            *value = u8::from(*truth).into();
        }
    }
    Value::Object(fields).to_string()
}

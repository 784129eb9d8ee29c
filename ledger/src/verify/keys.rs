//! Idempotency keys stand in a table of their own and in the metadata of the events they caused:
//! each says what the other must hold.

use super::report::{Check, Report};
use crate::store::KeyRow;
use devmind_domain::event::RecordedEvent;
use serde::Deserialize;
use std::collections::HashMap;

/// The part of the metadata that matters here; read leniently, since the metadata of an event of
/// an unknown kind is checked too.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Keyed {
    idempotency_key: Option<String>,
    request_hash: Option<String>,
}

/// `keys` are the rows whose positions touch those from `first` to `last`.
pub(super) fn check(events: &[RecordedEvent], keys: &[KeyRow], first: u64, last: u64, report: &mut Report) {
    let owners: HashMap<u64, &KeyRow> = keys
        .iter()
        .flat_map(|row| {
            let (from, to) = row.range();
            (from.max(first)..=to.min(last)).map(move |position| (position, row))
        })
        .collect();
    for event in events {
        let keyed: Keyed = match serde_json::from_str(&event.metadata) {
            Ok(keyed) => keyed,
            Err(error) => {
                report.find(Check::Decoding, event.position, format!("its metadata cannot be read: {error}"));
                continue;
            }
        };
        match (&keyed.idempotency_key, owners.get(&event.position)) {
            (None, None) => {}
            (Some(key), None) => {
                report.find(Check::Keys, event.position, format!("its key {key:?} is not in the table of keys"));
            }
            (own, Some(row))
                if own.as_ref() != Some(&row.key) || keyed.request_hash.as_ref() != Some(&row.request_hash) =>
            {
                let reason = format!("the table of keys says that {:?} caused it, the event does not", row.key);
                report.find(Check::Keys, event.position, reason);
            }
            (Some(_), Some(_)) | (None, Some(_)) => {}
        }
    }
    for row in keys.iter().filter(|row| (first..=last).contains(&row.range().0)) {
        let (from, to) = row.range();
        if row.first_position < 1 || row.last_position < row.first_position - 1 {
            report.find(Check::Keys, from, format!("the key {:?} names positions {from} to {to}", row.key));
        }
    }
}

//! Columns that a store keeps beside the metadata for its filters say what the metadata says: else a
//! filter would hide events, or show other people's.

use super::report::{Check, Report};
use crate::filed::Filed;
use crate::store::FiledRow;
use devmind_domain::event::RecordedEvent;
use std::collections::HashMap;

pub(super) fn check(events: &[RecordedEvent], rows: &[FiledRow], report: &mut Report) {
    let rows: HashMap<u64, &FiledRow> = rows.iter().map(|row| (row.position.unsigned_abs(), row)).collect();
    for event in events {
        let (Some(row), filed) = (rows.get(&event.position), Filed::of(event)) else { continue };
        let actor = filed.actor();
        let columns = [
            ("conversation_id", &row.conversation_id, filed.conversation_id.as_ref()),
            ("run_id", &row.run_id, filed.correlation_id.as_ref()),
            ("actor", &row.actor, actor.as_ref()),
        ];
        for (name, stored, said) in columns {
            if stored.as_ref() != said {
                let reason = format!("its column {name} is {stored:?}, its metadata say {said:?}");
                report.find(Check::Keys, event.position, reason);
            }
        }
    }
}

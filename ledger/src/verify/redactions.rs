//! Redacted or tampered: every erased payload is spoken of by one later event, and by that event's own
//! words nothing but the content is gone.

use super::report::{Check, Report};
use devmind_domain::event::{DomainEvent, RecordedEvent};
use devmind_domain::redaction::{PayloadRedacted, Redacted, RedactionEvent};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(super) struct Redactions {
    /// Markers that no event has spoken of so far.
    open: BTreeMap<u64, (String, Redacted)>,
}

impl Redactions {
    pub fn see(&mut self, event: &RecordedEvent, report: &mut Report) {
        if let Some(redacted) = Redacted::parse(&event.payload) {
            self.open.insert(event.position, (event.event_id.clone(), redacted));
        }
        for fact in event.decode().unwrap_or_default() {
            if let DomainEvent::Redaction(RedactionEvent::PayloadRedacted(told)) = fact {
                self.told(event, &told, report);
            }
        }
    }

    fn told(&mut self, event: &RecordedEvent, told: &PayloadRedacted, report: &mut Report) {
        let Some((event_id, redacted)) = self.open.remove(&told.position) else {
            let reason = format!(
                "it says that the payload of event {} was erased, and it is there: `devmind-replay redact` finishes it",
                told.position
            );
            report.find(Check::Redactions, event.position, reason);
            return;
        };
        let fits = redacted.by == event.position
            && event_id == told.event_id
            && redacted.payload_hash == told.payload_hash
            && redacted.kept_hash() == told.kept_hash;
        match fits {
            true => report.note(told.position, format!("redacted by event {}: {}", event.position, told.reason)),
            false => {
                let reason = format!("what is left of it is not what event {} says", event.position);
                report.find(Check::Redactions, told.position, reason);
            }
        }
    }

    pub fn end(&self, report: &mut Report) {
        for (position, (_, redacted)) in &self.open {
            let reason = format!("its payload is gone, and event {} does not say so", redacted.by);
            report.find(Check::Redactions, *position, reason);
        }
    }
}

//! What filters find an event by: parts of its metadata.

use devmind_domain::event::RecordedEvent;
use serde::Deserialize;

/// The parts of the metadata that filters ask for.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filed {
    pub conversation_id: Option<String>,
    pub correlation_id: Option<String>,
    actor: Option<FiledActor>,
}

#[derive(Deserialize)]
struct FiledActor {
    kind: String,
    id: String,
}

impl Filed {
    pub fn of(event: &RecordedEvent) -> Self {
        serde_json::from_str(&event.metadata).unwrap_or_default()
    }

    pub fn actor(&self) -> Option<String> {
        self.actor.as_ref().map(|actor| format!("{}:{}", actor.kind, actor.id))
    }
}

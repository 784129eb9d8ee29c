//! The words for threads, devices and server processes.

use super::{Told, quoted};
use devmind_domain::device::DeviceEvent;
use devmind_domain::history::HistoryEvent;
use devmind_domain::ids::ToolCallId;
use devmind_domain::node::NodeEvent;
use devmind_domain::projection::ProjectionEvent;
use devmind_domain::redaction::RedactionEvent;
use devmind_domain::thread::{ModelResponded, ThreadEvent};
use devmind_domain::tool_set::ToolSetEvent;

pub(super) fn thread(event: &ThreadEvent) -> Told {
    match event {
        ThreadEvent::ThreadStarted(_) => Told::new("the agent's journal began"),
        ThreadEvent::ModelRequested(e) => {
            let text = format!("model {} of {} asked, round {}", e.model, e.provider, e.round);
            Told::new(text).begins(format!("round {}", e.round))
        }
        ThreadEvent::AnswerProgressed(e) => Told::new(format!("streamed so far: {}", quoted(&e.text))),
        ThreadEvent::ModelResponded(e) => Told::new(responded(e)).ends(format!("round {}", e.round)),
        ThreadEvent::ModelFailed(e) => {
            Told::new(format!("model failed: {} {}", e.code, quoted(&e.message))).ends(format!("round {}", e.round))
        }
        ThreadEvent::ToolResultObserved(e) => {
            let (id, call) = (e.tool_call_id.as_str(), own_id(&e.tool_call_id));
            let outcome = e.error.as_deref().unwrap_or(if e.ok { "ok" } else { "failed" });
            let text = format!("{call}: the model is told {outcome}, {} bytes", e.content.len());
            Told::new(text).ends(format!("call {id}"))
        }
        ThreadEvent::ContextDeferred(e) => Told::new(format!(
            "{}: the model is told, after all results: {}",
            own_id(&e.tool_call_id),
            quoted(&e.message)
        )),
        ThreadEvent::TurnConcluded(e) => {
            Told::new(format!("{}: the turn ends with these results", own_id(&e.tool_call_id)))
        }
    }
}

/// The model's id of a call.
fn own_id(id: &ToolCallId) -> &str {
    id.as_str().split_once(':').map_or(id.as_str(), |(_, own)| own)
}

fn responded(e: &ModelResponded) -> String {
    let mut parts = Vec::new();
    if !e.content.is_empty() {
        parts.push(format!("said {}", quoted(&e.content)));
    }
    if !e.tool_calls.is_empty() {
        let calls: Vec<_> = e.tool_calls.iter().map(|call| format!("{} ({})", call.name, call.id)).collect();
        parts.push(format!("wants {}", calls.join(", ")));
    }
    if parts.is_empty() {
        parts.push("said nothing".to_owned());
    }
    if let (Some(input), Some(output)) = (e.usage.input, e.usage.output) {
        parts.push(format!("{input} tokens in, {output} out"));
    }
    format!("model {}", parts.join("; "))
}

pub(super) fn device(event: &DeviceEvent) -> Told {
    match event {
        DeviceEvent::DeviceTicketIssued(_) => Told::new("a ticket was given out"),
        DeviceEvent::DeviceTicketConsumed(_) => Told::new("a ticket was used"),
        DeviceEvent::DeviceRead(e) => Told::new(format!("{} {} read: {}", e.role.as_str(), e.by, e.what)),
        DeviceEvent::DeviceConnected(e) => {
            let id = &e.connection_id;
            Told::new(format!("device connected: connection {id} to server process {}", e.node_id))
                .begins(format!("connection {id}"))
        }
        DeviceEvent::DeviceDescribed(e) => {
            let name =
                |name: &Option<String>| name.as_deref().map_or_else(|| "a name it does not say".to_owned(), quoted);
            let (computer, workspace) = (name(&e.names.computer), name(&e.names.workspace));
            Told::new(format!("the device is the computer {computer}, its workspace the folder {workspace}"))
        }
        DeviceEvent::ToolRegistrySynced(e) => Told::new(format!("device offers {} tools", e.tools.len())),
        DeviceEvent::DeviceDisconnected(e) => {
            let text = format!("connection {} ended: {} {}", e.connection_id, e.code, quoted(&e.reason));
            Told::new(text).ends(format!("connection {}", e.connection_id))
        }
        DeviceEvent::DeviceReplaced(e) => {
            Told::new(format!("connection {} replaced by {}", e.old_connection_id, e.new_connection_id))
                .ends(format!("connection {}", e.old_connection_id))
        }
    }
}

pub(super) fn node(event: &NodeEvent) -> Told {
    match event {
        NodeEvent::NodeStarted(e) => {
            Told::new(format!("server process {} started (start {}); older starts are over", e.node_id, e.epoch))
        }
        NodeEvent::NodeStopped(e) => Told::new(format!("server process {} stopped (start {})", e.node_id, e.epoch)),
        NodeEvent::NodeLost(e) => Told::new(format!("server process {} was lost (start {})", e.node_id, e.epoch)),
    }
}

pub(super) fn redaction(event: &RedactionEvent) -> Told {
    match event {
        RedactionEvent::PayloadRedacted(e) => Told::new(format!(
            "the content of event {} ({}) was erased: {}",
            e.position,
            e.event_type,
            quoted(&e.reason)
        )),
    }
}

pub(super) fn projection(name: &str, event: &ProjectionEvent) -> Told {
    match event {
        ProjectionEvent::ProjectionEventSkipped(e) => Told::new(format!(
            "the view {name} (version {}) passes over event {} ({}): {}",
            e.version,
            e.position,
            e.event_type,
            quoted(&e.reason)
        )),
    }
}

pub(super) fn history(event: &HistoryEvent) -> Told {
    match event {
        HistoryEvent::ForeignRecordKept(e) => {
            Told::new(format!("line {} of the history of {} was kept: {}", e.line, quoted(&e.source), quoted(&e.kind)))
        }
        HistoryEvent::HistoryImported(e) => {
            Told::new(format!("the history of {} was imported up to line {}", quoted(&e.source), e.lines))
        }
    }
}

pub(super) fn tool_set(event: &ToolSetEvent) -> Told {
    match event {
        ToolSetEvent::ToolSetRecorded(e) => {
            let names: Vec<_> = e.tools.iter().map(|tool| tool.name.as_str()).collect();
            Told::new(format!("models are offered the tools {}", quoted(&names.join(", "))))
        }
    }
}

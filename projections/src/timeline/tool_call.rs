//! The words for what happens to a tool call. A call is named by the part of its id that the model
//! gave it.

use super::{Told, quoted};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::canonical_json;
use devmind_domain::tool_call::{
    CancelReason, Decision, Disposition, Phase, ResultOrigin, ResultStatus, Target, ToolCallEvent, ToolCallRequested,
    ToolDispatched, ToolResultRecorded,
};

pub(super) fn tell(id: &str, event: &ToolCallEvent) -> Told {
    let call = id.split_once(':').map_or(id, |(_, own)| own);
    let sent = format!("sent {id}");
    match event {
        ToolCallEvent::ToolCallRequested(e) => Told::new(requested(call, e)).begins(format!("call {id}")),
        ToolCallEvent::ToolCallDecided(e) => {
            let decision = match e.decision {
                Decision::Allow => "allowed",
                Decision::Deny => "denied",
                Decision::Ask => "needs a person",
            };
            let why = e.reason.as_ref().map(|reason| format!(", {}", quoted(reason))).unwrap_or_default();
            let text = format!("{call}: {decision} by {} at stage {}: {}{why}", e.by, e.stage, e.code);
            Told::new(text).ends(format!("call {id}"))
        }
        ToolCallEvent::ToolDispatched(e) => Told::new(dispatched(call, e)).begins(sent),
        ToolCallEvent::ToolReceived(e) => match e.phase {
            Phase::Reserved => Told::new(format!("{call}: the device has it in its journal")).ends(sent),
            Phase::Confirming => {
                Told::new(format!("{call}: a person at the device is asked")).begins(format!("asked {id}"))
            }
            // Where a person was asked, only an explicit yes leads here.
            Phase::Executing => Told::new(format!("{call}: the device runs it"))
                .ends(format!("asked {id}"))
                .if_it_ends(format!("{call}: the person at the device said yes; it runs")),
        },
        ToolCallEvent::ToolCancelRequested(e) => {
            let reason = match e.reason {
                CancelReason::RunCancelled => "the run was stopped",
                CancelReason::WaitTimedOut => "the wait was over",
            };
            Told::new(format!("{call}: taken back, up to attempt {}: {reason}", e.attempt_no))
        }
        ToolCallEvent::ToolWaitTimedOut(e) => {
            Told::new(format!("{call}: no longer waited for, after {} ms", e.after_ms)).ends(sent)
        }
        ToolCallEvent::ToolAttemptRefused(e) => {
            Told::new(format!("{call}: attempt {} refused by the device: {}", e.attempt_no, e.code)).ends(sent)
        }
        ToolCallEvent::ToolResultRecorded(e) => Told::new(result(call, e)).ends(sent).begins(format!("result {id}")),
        ToolCallEvent::ToolOutcomeRevised(e) => {
            Told::new(format!("{call}: what the model sees was changed by {}: {}", e.by, quoted(&e.reason)))
        }
        ToolCallEvent::ToolResultAcked(e) => {
            let disposition = match e.disposition {
                Disposition::Stored => "stored",
                Disposition::Duplicate => "known already",
                Disposition::Superseded => "another one was stored before",
                Disposition::UnknownCall => "no such call",
            };
            let text = format!("{call}: result acknowledged on connection {}: {disposition}", e.connection_id);
            Told::new(text).ends(format!("result {id}"))
        }
    }
}

fn requested(call: &str, e: &ToolCallRequested) -> String {
    let place = match (e.target, &e.device_id) {
        (Target::Server, _) => "in the server".to_owned(),
        (Target::Device, Some(device)) => format!("on device {device}"),
        (Target::Device, None) => "on a device".to_owned(),
    };
    format!("{call}: {} {place}, risk {}, with {}", e.tool, e.risk.as_str(), quoted(&canonical_json(&e.arguments)))
}

fn dispatched(call: &str, e: &ToolDispatched) -> String {
    match &e.connection_id {
        Some(connection) => format!("{call}: attempt {} sent on connection {connection}", e.attempt_no),
        None => format!("{call}: attempt {} begun in server process {}", e.attempt_no, e.node_id),
    }
}

fn result(call: &str, e: &ToolResultRecorded) -> String {
    let late = match e.origin {
        ResultOrigin::Live => "",
        ResultOrigin::Redelivered => ", delivered on a later connection",
    };
    let attempt = e.executed_attempt_no;
    let what = match (e.status, &e.error) {
        (ResultStatus::Succeeded, _) => {
            let bytes = e.output.as_ref().map_or(0, |output| canonical_json(output).len());
            format!("succeeded with {bytes} bytes")
        }
        (ResultStatus::Rejected, Some(error))
            if ErrorCode::parse(&error.code) == Some(ErrorCode::ConfirmationRejected) =>
        {
            format!("rejected: the person at the device said no ({})", error.code)
        }
        (ResultStatus::Rejected, Some(error))
            if ErrorCode::parse(&error.code) == Some(ErrorCode::ConfirmationExpired) =>
        {
            format!("rejected: nobody answered at the device ({})", error.code)
        }
        (status, Some(error)) => format!("{}: {} {}", status.as_str(), error.code, quoted(&error.message)),
        (status, None) => status.as_str().to_owned(),
    };
    format!("{call}: attempt {attempt} {what}{late}")
}

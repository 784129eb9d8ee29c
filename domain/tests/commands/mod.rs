//! Random commands over few ids, so that they often meet.

mod conversation;

use super::random::Random;
use devmind_domain::canonical::call_hash;
use devmind_domain::conversation::Claim;
use devmind_domain::device::{Device, DeviceCommand};
use devmind_domain::history::{History, HistoryCommand, HistoryImported};
use devmind_domain::ids::ToolCallId;
use devmind_domain::node::{Node, NodeCommand};
use devmind_domain::projection::{ProjectionCommand, ProjectionEventSkipped, ProjectionSkips};
use devmind_domain::protocol::{Names, RegisteredTool};
use devmind_domain::redaction::{PayloadRedacted, Redaction, RedactionCommand};
use devmind_domain::thread::*;
use devmind_domain::tool_call::*;
use devmind_domain::tool_set::{RecordToolSet, ToolSet, ToolSetRecorded};
use devmind_domain::{Decider, Timestamp};
use serde_json::json;

/// An aggregate whose commands can be drawn.
pub trait Domain: Decider {
    /// A command that may follow.
    fn command(&self, random: &mut Random) -> Self::Command;
}

impl Domain for Thread {
    fn command(&self, random: &mut Random) -> ThreadCommand {
        let round = 1 + random.below(4) as u32;
        let ids = ["a", "b", "", "a~1.1", "a~2.0", "~1.0", "b~1.1"];
        match random.below(7) {
            0 => ThreadCommand::Start(ThreadStarted {
                conversation_id: "c".into(),
                turn_id: "t".into(),
                run_id: "r".into(),
                user_id: "alice".into(),
            }),
            1 => ThreadCommand::RequestModel(ModelRequested {
                run_id: "r".into(),
                round,
                provider: "demo".into(),
                model: "demo".into(),
                parameters: json!({"temperature": 0.1}),
                request_hash: "h".into(),
                tools_hash: "h".into(),
                tool_set: None,
            }),
            2 => ThreadCommand::Progress(AnswerProgressed {
                run_id: "r".into(),
                message_id: random.of(&["m1", "m2"]).into(),
                text: "x".into(),
            }),
            3 => ThreadCommand::RecordResponse(ModelResponded {
                run_id: "r".into(),
                round,
                message_id: format!("m{round}").into(),
                content: "yes".into(),
                reasoning: random.one_in(2).then(|| "because".into()),
                tool_calls: (0..random.below(4))
                    .map(|_| ModelToolCall { id: random.of(&ids).into(), name: "add".into(), arguments: "{}".into() })
                    .collect(),
                finish_reason: "stop".into(),
                usage: TokenUsage { input: Some(random.of(&[1, u64::MAX])), ..TokenUsage::default() },
                served_model: "demo".into(),
                latency_ms: 1,
            }),
            4 => ThreadCommand::RecordFailure(ModelFailed {
                run_id: "r".into(),
                round,
                code: "MODEL_TIMEOUT".into(),
                message: "silent".into(),
                retriable: true,
            }),
            _ => {
                let result = ToolResultObserved {
                    tool_call_id: ToolCallId::of(&"g".into(), random.of(&["a", "b", "a~1.1", "~1.0", "~1.1", "b~1.1"])),
                    ok: random.one_in(2),
                    content: "{}".into(),
                    error: None,
                };
                let contexts = (0..random.below(3)).map(|n| format!("context {n}")).collect();
                ThreadCommand::ObserveResult(result, Deferred { contexts, concludes_turn: random.one_in(8) })
            }
        }
    }
}

fn request(random: &mut Random) -> ToolCallRequested {
    let arguments = json!({ "path": if random.one_in(8) { "b" } else { "a" } });
    ToolCallRequested {
        conversation_id: "c".into(),
        turn_id: "t".into(),
        run_id: "r".into(),
        user_id: "alice".into(),
        graph_thread_id: "g".into(),
        model_call_id: "call".into(),
        parent_tool_call_id: None,
        tool: "workspace.read_file".into(),
        tool_version: "1".into(),
        target: Target::Device,
        device_id: Some(random.of(&["laptop", "laptop", "laptop", "laptop", "desktop"]).into()),
        call_hash: call_hash("workspace.read_file", "1", &arguments),
        arguments,
        risk: Risk::Medium,
    }
}

fn result(random: &mut Random, executed_attempt_no: u32) -> ToolResultRecorded {
    ToolResultRecorded {
        executed_attempt_no,
        status: random.of(&[ResultStatus::Succeeded, ResultStatus::Failed, ResultStatus::Indeterminate]),
        output: random.one_in(2).then(|| json!({"content": "é\n\u{1F980}", "ratio": 0.1})),
        output_sha256: Some("h".into()),
        error: None,
        started_at: Some(Timestamp::from_micros(1_790_000_000_000_001)),
        finished_at: None,
        origin: ResultOrigin::Live,
        connection_id: Some("s1".into()),
    }
}

impl Domain for ToolCall {
    fn command(&self, random: &mut Random) -> ToolCallCommand {
        let attempt_no = random.below(5) as u32;
        match random.below(22) {
            0 | 20 | 21 => ToolCallCommand::Decide {
                request: Box::new(request(random)),
                decided: ToolCallDecided {
                    stage: "approval".into(),
                    decision: random.of(&[Decision::Allow, Decision::Allow, Decision::Deny, Decision::Ask]),
                    code: "CODE".into(),
                    by: "somebody".into(),
                    reason: None,
                },
            },
            1..=5 => ToolCallCommand::Dispatch(Box::new(Dispatch {
                request: request(random),
                run_id: "r".into(),
                node_id: "node-1".into(),
                epoch: 1,
                connection_id: Some("s1".into()),
                journal_id: Some(random.of(&["j1", "j1", "j1", "j2"]).into()),
                wait_ms: 120_000,
                ttl_ms: 105_000,
                attempt_is_live: random.one_in(3),
                age_ms: random.of(&[0, 0, i64::MAX]),
            })),
            6..=9 => ToolCallCommand::Receive {
                attempt_no,
                phase: random.of(&[Phase::Reserved, Phase::Confirming, Phase::Executing]),
            },
            10 | 11 => {
                ToolCallCommand::Cancel { reason: random.of(&[CancelReason::RunCancelled, CancelReason::WaitTimedOut]) }
            }
            18 => ToolCallCommand::Request(Box::new(request(random))),
            12 => ToolCallCommand::Refuse { attempt_no, code: "DEVICE_BUSY".into() },
            13..=16 => ToolCallCommand::TimeOut { attempt_no, after_ms: 120_000 },
            _ => ToolCallCommand::RecordResult {
                result: Box::new(result(random, attempt_no)),
                reporter: Reporter::Device {
                    user_id: random.of(&["alice", "alice", "mallory"]).into(),
                    device_id: "laptop".into(),
                    journal_id: "j1".into(),
                    connection_id: "s1".into(),
                },
            },
        }
    }
}

impl Domain for Device {
    fn command(&self, random: &mut Random) -> DeviceCommand {
        let ticket_hash = format!("ticket {}", random.below(9));
        let connection_id = random.of(&["s1", "s2", "s3"]).into();
        let tool = |version: &str| RegisteredTool {
            name: "workspace.list_files".into(),
            version: version.into(),
            risk: Risk::Low,
            schema: json!({"maxLength": 4096}),
            timeout_ms: 10_000,
            requires_confirmation: false,
        };
        match random.below(6) {
            0 | 1 => DeviceCommand::IssueTicket { ticket_hash, now: Timestamp::from_micros(1_790_000_000_000_000) },
            2 => DeviceCommand::ConsumeTicket { ticket_hash },
            3 => DeviceCommand::Connect {
                connection_id,
                holder: Claim { node_id: "node-1".into(), epoch: 1 },
                instance_id: "i".into(),
                journal_id: random.of(&["j1", "j2"]).into(),
                journal_epoch: random.below(6) as u64,
                version: "0.1.0".into(),
                remote: "127.0.0.1:5".into(),
                names: Names::new(None, Some(random.of(&["", "project"]).to_owned())),
            },
            4 => DeviceCommand::SyncRegistry { connection_id, tools: vec![tool(random.of(&["1", "2"]))] },
            _ => DeviceCommand::Disconnect { connection_id, code: 4408, reason: "silent".into() },
        }
    }
}

impl Domain for Node {
    fn command(&self, random: &mut Random) -> NodeCommand {
        match random.below(3) {
            0 => NodeCommand::Start { node_id: "n".into(), version: "0.1.0".into() },
            1 => NodeCommand::Lose { epoch: random.below(20) as u64 },
            _ => NodeCommand::Stop { epoch: random.below(20) as u64 },
        }
    }
}

impl Domain for Redaction {
    fn command(&self, random: &mut Random) -> RedactionCommand {
        RedactionCommand::Redact(PayloadRedacted {
            position: random.below(20) as u64,
            event_id: "e".to_owned(),
            event_type: "TurnPrepared".to_owned(),
            payload_hash: "p".to_owned(),
            kept_hash: "k".to_owned(),
            reason: if random.below(2) == 0 { String::new() } else { "asked for".to_owned() },
        })
    }
}

impl Domain for ProjectionSkips {
    fn command(&self, random: &mut Random) -> ProjectionCommand {
        ProjectionCommand::Skip(ProjectionEventSkipped {
            version: 1 + random.below(2) as u32,
            position: random.below(20) as u64,
            event_id: "e".to_owned(),
            event_type: "TurnPrepared".to_owned(),
            failure: "panicked".to_owned(),
            reason: if random.below(2) == 0 { String::new() } else { "not needed".to_owned() },
        })
    }
}

impl Domain for History {
    fn command(&self, random: &mut Random) -> HistoryCommand {
        HistoryCommand::End(HistoryImported { source: "codex".to_owned(), lines: random.below(5) as u64 })
    }
}

impl Domain for ToolSet {
    fn command(&self, _: &mut Random) -> RecordToolSet {
        RecordToolSet(ToolSetRecorded { tools: Vec::new() })
    }
}

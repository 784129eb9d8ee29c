//! The frames themselves.

use crate::ids::*;
use crate::limits::MAX_DEVICE_NAME_CHARS;
use crate::time::Timestamp;
use crate::tool_call::{CancelReason, Disposition, Phase, ResultStatus, Risk, ToolError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What every frame carries besides its own fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope<T> {
    /// UUIDv7; for tracing, never for deduplication.
    pub event_id: String,
    /// 1, 2, 3 … of this direction of this connection.
    pub sequence: u64,
    /// The frame.
    #[serde(flatten)]
    pub frame: T,
}

/// A tool as a device offers it. The server has its own catalogue: this only enables entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisteredTool {
    /// For example `workspace.read_file`.
    pub name: String,
    /// The version of its definition.
    pub version: String,
    /// How much harm it can do.
    pub risk: Risk,
    /// JSON Schema of its arguments.
    pub schema: Value,
    /// How long it may run.
    #[serde(deserialize_with = "crate::json::safe_u64")]
    pub timeout_ms: u64,
    /// Whether the device asks its user.
    pub requires_confirmation: bool,
}

/// Device to server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum DeviceFrame {
    /// The first frame.
    #[serde(rename = "device.register")]
    Register(Register),
    /// The full set of tools.
    #[serde(rename = "tool.registry.sync")]
    RegistrySync {
        /// The tools.
        tools: Vec<RegisteredTool>,
    },
    /// How far a call has got.
    #[serde(rename = "tool.call.received")]
    Received {
        /// The call.
        tool_call_id: ToolCallId,
        /// The attempt.
        attempt_no: u32,
        /// How far.
        phase: Phase,
    },
    /// A final report.
    #[serde(rename = "tool.call.result")]
    Result(Box<CallResult>),
    /// The wait may end with this code; the call is not settled by it.
    #[serde(rename = "tool.call.refused")]
    Refused {
        /// The call.
        tool_call_id: ToolCallId,
        /// The attempt.
        attempt_no: u32,
        /// A stable code.
        code: String,
    },
    /// Still there.
    #[serde(rename = "heartbeat")]
    Heartbeat {
        /// The sender's clock.
        time: Timestamp,
        /// The time in the peer's heartbeat that this one answers. The server answers each of the
        /// device's, which so learns how far their clocks are apart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answers: Option<Timestamp>,
    },
    /// The peer sent something that makes no sense.
    #[serde(rename = "protocol.error")]
    ProtocolError(ProtocolError),
}

/// Server to device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum ServerFrame {
    /// The answer to `device.register`.
    #[serde(rename = "device.registered")]
    Registered(Registered),
    /// A call to carry out.
    #[serde(rename = "tool.call.request")]
    Request(Box<CallRequest>),
    /// A report is stored (or was before, or belongs to nothing).
    #[serde(rename = "tool.call.ack")]
    Ack {
        /// The call.
        tool_call_id: ToolCallId,
        /// What became of the report.
        disposition: Disposition,
    },
    /// A report cannot be taken.
    #[serde(rename = "tool.call.nack")]
    Nack {
        /// The call.
        tool_call_id: ToolCallId,
        /// A stable code.
        code: String,
        /// Whether it never will be: the device parks it.
        permanent: bool,
    },
    /// Do not begin this attempt or an earlier one.
    #[serde(rename = "tool.call.cancel")]
    Cancel {
        /// The call.
        tool_call_id: ToolCallId,
        /// The newest attempt it is about.
        attempt_no: u32,
        /// Why.
        reason: CancelReason,
    },
    /// Still there.
    #[serde(rename = "heartbeat")]
    Heartbeat {
        /// The sender's clock.
        time: Timestamp,
        /// The time in the peer's heartbeat that this one answers. The server answers each of the
        /// device's, which so learns how far their clocks are apart.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answers: Option<Timestamp>,
    },
    /// The peer sent something that makes no sense.
    #[serde(rename = "protocol.error")]
    ProtocolError(ProtocolError),
}

impl DeviceFrame {
    /// Its `type`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Register(_) => "device.register",
            Self::RegistrySync { .. } => "tool.registry.sync",
            Self::Received { .. } => "tool.call.received",
            Self::Result(_) => "tool.call.result",
            Self::Refused { .. } => "tool.call.refused",
            Self::Heartbeat { .. } => "heartbeat",
            Self::ProtocolError(_) => "protocol.error",
        }
    }

    /// The call that it is about.
    pub const fn tool_call_id(&self) -> Option<&ToolCallId> {
        match self {
            Self::Received { tool_call_id, .. } | Self::Refused { tool_call_id, .. } => Some(tool_call_id),
            Self::Result(result) => Some(&result.tool_call_id),
            Self::Register(_) | Self::RegistrySync { .. } | Self::Heartbeat { .. } | Self::ProtocolError(_) => None,
        }
    }
}

impl ServerFrame {
    /// Its `type`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Registered(_) => "device.registered",
            Self::Request(_) => "tool.call.request",
            Self::Ack { .. } => "tool.call.ack",
            Self::Nack { .. } => "tool.call.nack",
            Self::Cancel { .. } => "tool.call.cancel",
            Self::Heartbeat { .. } => "heartbeat",
            Self::ProtocolError(_) => "protocol.error",
        }
    }
}

/// Who a device is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// The device.
    pub device_id: DeviceId,
    /// This start of its program.
    pub instance_id: String,
    /// Its journal.
    pub journal_id: String,
    /// Which opening of the journal.
    #[serde(deserialize_with = "crate::json::safe_u64")]
    pub journal_epoch: u64,
    /// The program's version.
    pub version: String,
    /// [`super::PROTOCOL_VERSION`].
    pub protocol_version: u32,
    /// What its user calls it, where the program says it.
    #[serde(flatten)]
    pub names: Names,
}

/// What a device is called, for its own user to tell it from others. Both are optional: a program that knows
/// neither loses nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// The computer's name in its network, at most [`crate::limits::MAX_DEVICE_NAME_CHARS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computer: Option<String>,
    /// The name of the workspace's folder, at most as long; never the path that leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
}

impl Names {
    /// Names that are not too long; what is longer is cut, and empty ones are none.
    pub fn new(computer: Option<String>, workspace: Option<String>) -> Self {
        let short = |name: Option<String>| {
            let name: String = name?.chars().take(MAX_DEVICE_NAME_CHARS).collect();
            Some(name).filter(|name| !name.is_empty())
        };
        Self { computer: short(computer), workspace: short(workspace) }
    }
}

/// What a registered device needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// The socket.
    pub connection_id: ConnectionId,
    /// 1, 2, 3 … with every socket of the device.
    pub connection_epoch: u64,
    /// The ledger behind the server: results go back only to the one that asked.
    pub server_id: String,
    /// A hash of the user: results go back only to the one that asked.
    pub user_hash: String,
    /// How often to send a heartbeat.
    pub heartbeat_interval_ms: u64,
    /// The largest frame the server takes.
    pub max_message_bytes: usize,
    /// The server's clock.
    pub server_time: Timestamp,
    /// The ledger's head.
    pub settled_position: u64,
    /// The newest signed head of the ledger: a device that saw an earlier one asks for the proof that this
    /// continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<ShownHead>,
}

/// A signed head of a ledger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShownHead {
    /// The signed note (C2SP tlog-checkpoint).
    pub checkpoint: String,
    /// The public key, as C2SP signed-note writes it.
    pub key: String,
}

/// A call to carry out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallRequest {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// The run, for the record only.
    pub run_id: RunId,
    /// 1, 2, 3 …
    pub attempt_no: u32,
    /// The tool.
    pub tool_name: String,
    /// The version of its definition.
    pub tool_version: String,
    /// The canonical JSON text that was hashed; the device hashes and parses these bytes.
    pub arguments_json: String,
    /// SHA-256 of tool, version and arguments.
    pub call_hash: String,
    /// Whether the server wants the user to be asked; the device's own definition may add to it.
    pub requires_confirmation: bool,
    /// How long it may run.
    pub execution_timeout_ms: u64,
    /// How long after receipt it may begin.
    pub ttl_ms: u64,
    /// When it may begin no more by the server's clock: it may have been long on its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When the call was first requested.
    pub call_created_at: Timestamp,
    /// The device it is for.
    pub device_id: DeviceId,
    /// What the user sees it is about.
    pub conversation_title: String,
}

/// A final report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallResult {
    /// The call.
    pub tool_call_id: ToolCallId,
    /// The attempt that ran it, or was judged.
    pub executed_attempt_no: u32,
    /// How it ended.
    pub status: ResultStatus,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// SHA-256 of the output's canonical text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_sha256: Option<String>,
    /// Whether the output is no longer kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_discarded: bool,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolError>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
}

/// A complaint about a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProtocolError {
    /// A stable code.
    pub code: String,
    /// Words.
    pub message: String,
    /// The frame it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about_event_id: Option<String>,
}

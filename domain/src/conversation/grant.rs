//! What a person allowed for the whole of a conversation: a tool in one version, for what was shown or a folder.
//!
//! A grant is given with the answer to an approval, covers nothing wider than its scope says, is revoked by its
//! owner, and ends with the conversation. Tools of high risk have none: each of their calls is asked about, unless a
//! configured rule allows it. What a grant does to a call is [`crate::tools::conclude`]'s to say; the device's own
//! confirmation stands whatever was granted here.

use super::error::ConversationError;
use crate::canonical::call_hash;
use crate::ids::*;
use crate::tool_call::{Risk, ToolCallRequested};
use crate::tools::{PolicyCall, is_within, plain_path};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Grants of one conversation at a time, at most.
pub const MAX_GRANTS: usize = 64;

/// Which calls of the tool are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum GrantScope {
    /// Every call.
    Tool,
    /// Calls whose argument `path` is this one.
    Path {
        /// The path, without detours.
        path: String,
    },
    /// Calls whose argument `path` is this folder, or below it.
    Folder {
        /// The folder, without detours; `.` is where relative paths begin.
        path: String,
    },
}

impl GrantScope {
    /// Whether arguments (with their defaults) are meant.
    pub fn covers(&self, arguments: &Value) -> bool {
        let path = arguments.get("path").and_then(Value::as_str).map(plain_path);
        match self {
            Self::Tool => true,
            Self::Path { path: only } => path.is_some_and(|path| path == *only),
            Self::Folder { path: folder } => path.is_some_and(|path| is_within(&path, folder)),
        }
    }
}

/// A grant that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    /// The grant.
    pub grant_id: GrantId,
    /// The approval that it was given with.
    pub interrupt_id: InterruptId,
    /// The tool.
    pub tool: String,
    /// The version of its definition; another one is another tool.
    pub tool_version: String,
    /// Which of its calls.
    pub scope: GrantScope,
}

impl Grant {
    /// Whether it allows a call.
    pub fn covers(&self, call: &PolicyCall) -> bool {
        let same_tool = self.tool == call.tool && self.tool_version == call.tool_version;
        same_tool && call.risk != Risk::High && self.scope.covers(&call.arguments)
    }
}

/// What a person wants to allow from now on, beside the one call that was shown.
#[derive(Clone, Debug)]
pub struct NewGrant {
    /// Its id.
    pub grant_id: GrantId,
    /// The approval that is answered.
    pub interrupt_id: InterruptId,
    /// The call that was shown.
    pub call: Box<ToolCallRequested>,
    /// Its arguments with the schema's defaults.
    pub arguments: Value,
    /// Which calls.
    pub scope: GrantScope,
}

impl NewGrant {
    /// Whether it can be given: for what was shown and no other tool, no high risk, and a scope that the shown call
    /// is within.
    pub(super) fn check(&self, shown_hash: &str) -> Result<(), ConversationError> {
        let refused = |why| Err(ConversationError::GrantRefused(why));
        let call = &self.call;
        if call.call_hash != shown_hash || call_hash(&call.tool, &call.tool_version, &call.arguments) != shown_hash {
            return refused("it is about another call than the one that was shown");
        }
        if call.risk == Risk::High {
            return refused("every call of a tool of high risk is asked about");
        }
        if !self.scope.covers(&self.arguments) {
            return refused("the call that was shown is not within its scope");
        }
        Ok(())
    }
}

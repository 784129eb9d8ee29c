//! The checks that need nothing but the request: 2 and 3.

use crate::tools::{LocalTool, ToolFailure};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::{call_hash, canonical_json};
use devmind_domain::json::parse_strict;
use devmind_domain::protocol::CallRequest;
use devmind_domain::tools::{ToolDefinition, catalogue};
use serde_json::Value;
use std::sync::Arc;

/// Check 2: the tool, in this version.
pub(super) fn known_tool<'a>(
    tools: &'a [Arc<dyn LocalTool>],
    request: &CallRequest,
) -> Result<(&'a Arc<dyn LocalTool>, &'static ToolDefinition), ToolFailure> {
    let named = tools.iter().find(|tool| tool.name() == request.tool_name);
    named
        .and_then(|tool| Some((tool, tool.definition()?)))
        .filter(|(_, definition)| definition.version == request.tool_version)
        .ok_or_else(|| {
            let message = "this device does not offer that tool in that version";
            ToolFailure::new(ErrorCode::ToolNotAvailable, message)
        })
}

/// Check 3: the arguments, in the very bytes that were hashed, match the schema and the hash.
pub(super) fn arguments(request: &CallRequest) -> Result<Value, ToolFailure> {
    let invalid = |message: String| ToolFailure::new(ErrorCode::InvalidArguments, message);
    let arguments = parse_strict(&request.arguments_json).map_err(invalid)?;
    catalogue().validate(&request.tool_name, &arguments).map_err(invalid)?;
    let hashed = call_hash(&request.tool_name, &request.tool_version, &arguments);
    if canonical_json(&arguments) != request.arguments_json || hashed != request.call_hash {
        return Err(invalid("the arguments are not the ones that were hashed".to_owned()));
    }
    Ok(arguments)
}

//! One call of a server's tool: sent once, cancelled when it is to end, and told as what is known of it.
//!
//! What was sent may have been done. So a call ends as failed only where the server answered, or where it is certain
//! that the server has not looked at it; everything else is unknown.

use super::http::was_not_looked_at;
use super::server::Server;
use super::words;
use crate::tools::{BodyEnd, ServerTool, ToolContext};
use devmind_domain::ErrorCode;
use devmind_domain::json::parse_strict;
use devmind_domain::tools::{ToolOutcome, mcp};
use futures::FutureExt;
use futures::future::BoxFuture;
use rmcp::ServiceError;
use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, ServerResult};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of a result's JSON, at most.
const MAX_RESULT_BYTES: usize = 256 << 10;
/// A cancellation may take this long to be sent.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);

/// The body of a tool: who carries it out, its name there, and the version that was registered.
pub(super) struct McpTool {
    pub server: Arc<Server>,
    pub name: String,
    pub version: String,
}

impl ServerTool for McpTool {
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'_, BodyEnd> {
        self.carry_out(arguments, context).boxed()
    }
}

impl McpTool {
    async fn carry_out(&self, arguments: Value, context: ToolContext) -> BodyEnd {
        let unavailable = |why: &str| {
            let message = format!("the MCP server {} {why}: nothing was sent", self.server.name);
            BodyEnd::from(ToolOutcome::failure(ErrorCode::McpUnavailable, message))
        };
        let Some(_place) = self.server.place() else { return unavailable("has too much to do") };
        let Some(peer) = self.server.peer() else { return unavailable("is away") };
        if !self.server.still_offers(&self.name, &self.version) {
            // The model was told, and a person allowed, what the tool was before.
            return ToolOutcome::failure(ErrorCode::ToolChanged, ErrorCode::ToolChanged.help()).into();
        }
        let mut params = CallToolRequestParams::new(self.name.clone());
        params.arguments = match arguments {
            Value::Object(arguments) => Some(arguments),
            _ => None,
        };
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let sent = tokio::select! {
            biased;
            sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()) => sent,
            () = context.cancel.cancelled() => return unknown("the call was taken back while it was being sent"),
        };
        let Ok(mut handle) = sent else { return unavailable("has just gone") };
        tokio::select! {
            biased;
            answer = &mut handle.rx => match answer {
                Ok(Ok(answer)) => self.answered(answer),
                Ok(Err(error)) => self.not_answered(error),
                Err(_gone) => unknown("the MCP server went away after the call was sent"),
            },
            () = context.cancel.cancelled() => {
                let cancelling = handle.cancel(Some("the caller no longer waits for it".to_owned()));
                if !matches!(timeout(CANCEL_WITHIN, cancelling).await, Ok(Ok(()))) {
                    tracing::warn!(mcp.server = self.server.name, "a cancellation was not sent");
                }
                unknown("the MCP server was told to cancel the call: how far it had got is not known")
            }
        }
    }

    fn not_answered(&self, error: ServiceError) -> BodyEnd {
        let failed = |code: ErrorCode, message: String| BodyEnd::from(ToolOutcome::failure(code, message));
        match error {
            ServiceError::McpError(error) => {
                failed(ErrorCode::ExecutionFailed, self.said(&format!("{} ({})", error.message, error.code.0)))
            }
            ServiceError::TransportSend(error) => {
                // Whatever it was, the next call had better go over a new connection.
                self.server.lost(&error.to_string());
                if was_not_looked_at(&error) {
                    let message = format!("the MCP server {} did not take the call", self.server.name);
                    return failed(ErrorCode::McpUnavailable, message);
                }
                unknown("the connection to the MCP server broke while the call was sent")
            }
            _ => unknown("the MCP server went away after the call was sent"),
        }
    }

    fn answered(&self, answer: ServerResult) -> BodyEnd {
        let failed = |code: ErrorCode, message: String| BodyEnd::from(ToolOutcome::failure(code, message));
        let not_a_result = || {
            let message = "the MCP server answered with something that is no result of a tool".to_owned();
            failed(ErrorCode::InvalidToolOutput, message)
        };
        let mut result = match answer {
            ServerResult::CallToolResult(result) => match serde_json::to_value(result) {
                Ok(result) => result,
                Err(_) => return not_a_result(),
            },
            // With content of a kind that the SDK does not know.
            ServerResult::CustomResult(result) => result.0,
            ServerResult::EmptyResult(_) => json!({}),
            ServerResult::InputRequiredResult(_) => {
                let message = "the MCP server wants more from a person, whom this program does not ask".to_owned();
                return failed(ErrorCode::ExecutionFailed, message);
            }
            _ => return not_a_result(),
        };
        let content = match result["content"].take() {
            Value::Null => json!([]),
            content @ Value::Array(_) => content,
            _ => return not_a_result(),
        };
        if result["isError"] == true {
            let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            let text = texts.join("\n");
            let message = if text.trim().is_empty() { "the tool failed and did not say why" } else { &text };
            return failed(ErrorCode::ExecutionFailed, self.said(message));
        }
        let structured = result.as_object_mut().and_then(|result| result.remove("structuredContent"));
        let mut value = mcp::value(content, structured);
        self.server.secrets.out_of(&mut value);
        let text = value.to_string();
        if text.len() > MAX_RESULT_BYTES {
            let message = format!("the tool gave {} bytes, more than {MAX_RESULT_BYTES}: ask for less", text.len());
            return failed(ErrorCode::ResultTooLarge, message);
        }
        // What is recorded must mean one thing to every reader, at any depth.
        match parse_strict(&text) {
            Ok(value) => ToolOutcome::success(value).into(),
            Err(reason) => failed(ErrorCode::InvalidToolOutput, format!("the tool gave what cannot be kept: {reason}")),
        }
    }

    fn said(&self, text: &str) -> String {
        words(&self.server.secrets.without(text))
    }
}

fn unknown(message: &str) -> BodyEnd {
    BodyEnd::unknown(ErrorCode::ResultUnknown, message)
}

//! The one-time pass that opens the socket. A fresh one for every connection, and never logged.

use super::lost::Lost;
use super::server::{Identity, Server};
use devmind_domain::ErrorCode;
use devmind_domain::ids::DeviceId;
use devmind_domain::protocol::TICKET_PATH;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The server answers a ticket's request within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Bytes of an answer that are looked at, at most.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// A ticket. It has no `Debug`, so that it cannot be printed by accident.
#[derive(Deserialize)]
pub(super) struct Ticket {
    pub(super) ticket: String,
    pub(super) ws_path: String,
}

/// An HTTP client for a server.
pub(super) fn client(server: &Server) -> Result<Client, reqwest::Error> {
    server.http_client().timeout(ANSWER_WITHIN).build()
}

/// Asks for a ticket.
pub(super) async fn fetch(
    client: &Client,
    server: &Server,
    identity: &Identity,
    device_id: &DeviceId,
) -> Result<Ticket, Lost> {
    let request = client.post(server.http(TICKET_PATH)).json(&json!({ "device_id": device_id }));
    let answer = identity.sign(request).send().await.map_err(|error| Lost::retry(unreachable(&error)))?;
    if answer.status() != StatusCode::OK {
        return Err(refusal(answer).await);
    }
    let ticket: Ticket = answer.json().await.map_err(|_| no_devmind("the answer is not a ticket"))?;
    if !ticket.ws_path.starts_with('/') {
        return Err(no_devmind("the ticket names no path"));
    }
    Ok(ticket)
}

/// The innermost cause says it best: "connection refused".
fn unreachable(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    format!("the server cannot be reached: {cause}")
}

fn no_devmind(why: &str) -> Lost {
    Lost::Final { code: ErrorCode::ConfigInvalid, reason: format!("this is no DevMind server: {why}") }
}

async fn refusal(answer: Response) -> Lost {
    let status = answer.status();
    let after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let small = answer.content_length().is_some_and(|length| length <= MAX_ANSWER_BYTES);
    let body: Value = if small { answer.json().await.unwrap_or_default() } else { Value::Null };
    // The error object itself, or one around it.
    let error = if body["error"].is_object() { &body["error"] } else { &body };
    let code = error["code"].as_str().and_then(ErrorCode::parse);
    let words = error["message"].as_str().or(error["detail"].as_str()).unwrap_or("no reason given");
    let reason = format!("the server gave no ticket ({status}): {words}");
    match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => no_devmind("it gives no tickets"),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => {
            Lost::Retry { reason, after: after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER)) }
        }
        StatusCode::UNAUTHORIZED => Lost::Final { code: code.unwrap_or(ErrorCode::Unauthenticated), reason },
        refused if refused.is_client_error() => Lost::Final { code: code.unwrap_or(ErrorCode::Forbidden), reason },
        redirect if redirect.is_redirection() => no_devmind("it sends the device somewhere else"),
        _ => Lost::retry(reason),
    }
}

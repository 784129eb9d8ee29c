//! One connection to a server, through the official SDK: the handshake, the list of its tools, its end.
//!
//! The handshake is the one of the protocol's versions up to 2025-11-25, which servers of every age answer.

use super::config::Address;
use super::process::{self, Lines, Process};
use super::secrets::Secrets;
use super::{MAX_MESSAGE_BYTES, http, words};
use devmind_domain::tools::mcp::Offered;
use futures::FutureExt;
use futures::future::BoxFuture;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientRequest, Implementation, ListRootsRequestMethod, ListToolsRequest,
    PaginatedRequestParams, PingRequest, ProtocolVersion, ServerResult,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, RoleClient, serve_client_with_ct};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ClientHandler, ErrorData};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Pages of a list of tools, at most.
const MAX_PAGES: usize = 50;
/// Tools that are looked at, at most.
const MAX_LISTED: usize = 1_000;
/// The SDK may take this long to close a connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A connection that stands.
pub(super) struct Connection {
    pub peer: Peer<RoleClient>,
    ended: BoxFuture<'static, ()>,
    close: CancellationToken,
    process: Option<Process>,
}

/// What this side answers a server: it has no folders, no model and no person to offer, and says so.
struct Client {
    /// Told when the server says that its tools are others now.
    changed: Arc<Notify>,
}

impl ClientHandler for Client {
    #[expect(deprecated, reason = "servers of the protocol's earlier versions ask for folders")]
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<rmcp::model::ListRootsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListRootsRequestMethod>())
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    fn get_info(&self) -> ClientConfig {
        let own = Implementation::new("devmind", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), own).with_protocol_version(ProtocolVersion::V_2025_11_25)
    }
}

impl Connection {
    /// Connects and lists the tools; within `start`, and not beyond `stop`. Nothing is left of what fails.
    ///
    /// # Errors
    /// Why it does not stand; a server's words may be in it.
    pub async fn open(
        name: &str,
        address: &Address,
        secrets: &Secrets,
        start: Duration,
        changed: Arc<Notify>,
        stop: &CancellationToken,
    ) -> Result<(Self, Vec<Offered>), String> {
        let client = Client { changed };
        match address {
            Address::Program { command, args, env, folder } => {
                let started = Process::start(command, args, env, folder.as_deref());
                let (process, output, input, log) = started.map_err(|error| format!("{command}: {error}"))?;
                tokio::spawn(process::log(name.to_owned(), secrets.clone(), log));
                let transport =
                    AsyncRwTransport::new_client(Lines::of(output), input).with_max_line_length(MAX_MESSAGE_BYTES);
                Self::over(transport, client, Some(process), start, stop).await
            }
            Address::Http { url, headers } => {
                let transport = http::transport(url, headers).map_err(|error| error.to_string())?;
                Self::over(transport, client, None, start, stop).await
            }
        }
    }

    async fn over<T: Transport<RoleClient> + 'static>(
        transport: T,
        client: Client,
        process: Option<Process>,
        start: Duration,
        stop: &CancellationToken,
    ) -> Result<(Self, Vec<Offered>), String> {
        let close = CancellationToken::new();
        let connecting = timeout(start, serve_client_with_ct(client, transport, close.clone()));
        let connected = tokio::select! {
            biased;
            () = stop.cancelled() => Err("this server is stopping".to_owned()),
            connected = connecting => match connected {
                Ok(connected) => connected.map_err(|error| error.to_string()),
                Err(_elapsed) => Err(format!("it did not answer within {} ms", start.as_millis())),
            },
        };
        let service = match connected {
            Ok(service) => service,
            Err(reason) => {
                if let Some(process) = process {
                    process.end().await;
                }
                return Err(reason);
            }
        };
        let peer = service.peer().clone();
        let connection = Self { peer: peer.clone(), ended: service.waiting().map(drop).boxed(), close, process };
        let listed = tokio::select! {
            biased;
            () = stop.cancelled() => Err("this server is stopping".to_owned()),
            listed = list_tools(&peer, start) => listed,
        };
        match listed {
            Ok(offered) => Ok((connection, offered)),
            Err(reason) => {
                connection.close().await;
                Err(reason)
            }
        }
    }

    /// Waits until the other side has ended it; to be asked once.
    pub async fn ended(&mut self) {
        (&mut self.ended).await;
    }

    /// Ends it, and the program with it.
    pub async fn close(mut self) {
        self.close.cancel();
        // It may have ended already: then there is nothing to wait for.
        if !self.peer.is_transport_closed() && timeout(CLOSE_WITHIN, &mut self.ended).await.is_err() {
            tracing::warn!("a connection to an MCP server did not close in {} s", CLOSE_WITHIN.as_secs());
        }
        drop(self.ended);
        if let Some(process) = self.process {
            process.end().await;
        }
    }
}

/// The tools that the server lists now.
///
/// # Errors
/// Why there is no list.
pub(super) async fn list_tools(peer: &Peer<RoleClient>, within: Duration) -> Result<Vec<Offered>, String> {
    match timeout(within, all_pages(peer)).await {
        Ok(listed) => listed,
        Err(_elapsed) => Err(format!("it did not list its tools within {} ms", within.as_millis())),
    }
}

/// Whether the server still answers.
pub(super) async fn answers(peer: &Peer<RoleClient>, within: Duration) -> bool {
    let ping = peer.send_request(ClientRequest::PingRequest(PingRequest::default()));
    matches!(timeout(within, ping).await, Ok(Ok(_)))
}

async fn all_pages(peer: &Peer<RoleClient>) -> Result<Vec<Offered>, String> {
    let info = peer.peer_info();
    if info.is_some_and(|info| info.capabilities.tools.is_none()) {
        return Ok(Vec::new());
    }
    let (mut offered, mut cursor) = (Vec::new(), None);
    for _ in 0..MAX_PAGES {
        let params = cursor.take().map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        let request = params.map_or_else(ListToolsRequest::default, ListToolsRequest::with_param);
        // Asked for by hand: the SDK would keep answers, and fail the whole list for one tool that it cannot read.
        let answer = peer.send_request(ClientRequest::ListToolsRequest(request)).await;
        let page = match answer.map_err(|error| error.to_string())? {
            ServerResult::ListToolsResult(list) => serde_json::to_value(list).map_err(|error| error.to_string())?,
            ServerResult::CustomResult(list) => list.0,
            _ => return Err("its list of tools is none".to_owned()),
        };
        let Value::Array(tools) = &page["tools"] else { return Err("its list of tools is none".to_owned()) };
        offered.extend(tools.iter().map(described));
        cursor = page["nextCursor"].as_str().map(str::to_owned);
        if cursor.is_none() || offered.len() > MAX_LISTED {
            offered.truncate(MAX_LISTED);
            return Ok(offered);
        }
    }
    Err(format!("its list of tools has more than {MAX_PAGES} pages"))
}

/// A tool as it is described; what is missing or of a wrong type is left to the rules of definitions.
fn described(tool: &Value) -> Offered {
    let text = |field: &str| tool[field].as_str().unwrap_or_default().to_owned();
    let description = match text("description") {
        empty if empty.is_empty() => text("title"),
        description => description,
    };
    Offered {
        name: words(&text("name")),
        description,
        parameters: tool.get("inputSchema").cloned().unwrap_or(Value::Object(Map::new())),
        output: tool.get("outputSchema").filter(|schema| !schema.is_null()).cloned(),
    }
}

//! MCP servers (<https://modelcontextprotocol.io/specification/2025-11-25>) as a source of tools.
//!
//! [`config`] says where they are, [`process`] and [`http`] reach them, [`connection`] speaks with one through the
//! official SDK, [`server`] keeps it connected and its tools registered, and [`call`] carries out one call. A tool
//! goes through the same pipeline as every other (`runs`); what it is called and what the model sees of it is pure
//! and left to `devmind_domain::tools::mcp`.
//!
//! A server is somebody else's program: everything it says has a limit, nothing it asks of this side (a sample of
//! the model, a person's input, folders) is answered, and no call is ever sent twice.

mod call;
pub mod config;
mod connection;
mod http;
mod process;
mod secrets;
mod server;

pub use config::McpConfig;
pub use server::{Servers, Status};

/// Bytes of one message of a server, at most.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Characters of a server's words that are shown or recorded beside a code, at most.
const MAX_WORDS_CHARS: usize = 1_000;

/// A server's words, as far as they are passed on.
fn words(text: &str) -> String {
    text.chars().take(MAX_WORDS_CHARS).collect()
}

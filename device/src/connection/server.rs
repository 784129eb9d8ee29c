//! Which server to connect to, and as whom.

use crate::error::DeviceError;
use devmind_domain::ErrorCode;
use reqwest::{Client, ClientBuilder, RequestBuilder, Url};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// The server takes a connection within this time.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Who the device's user is.
#[derive(Clone)]
pub enum Identity {
    /// A name that a server in development mode believes.
    DevUser(String),
    /// A token of the server's.
    Bearer(String),
}

impl Identity {
    /// A request as this user.
    pub(crate) fn sign(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::DevUser(name) => request.header("X-Dev-User", name),
            Self::Bearer(token) => request.bearer_auth(token),
        }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DevUser(name) => f.debug_tuple("DevUser").field(name).finish(),
            Self::Bearer(_) => f.write_str("Bearer(***)"),
        }
    }
}

/// For people: who it is, never the token.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DevUser(name) => f.write_str(name),
            Self::Bearer(_) => f.write_str("the token's owner"),
        }
    }
}

/// A server's address, checked.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    base: Url,
}

impl Server {
    /// Reads `http(s)://host:port`. Plain http goes no further than this computer, unless allowed.
    pub(crate) fn parse(text: &str, allow_plain_http: bool) -> Result<Self, DeviceError> {
        let invalid = |why: &str| {
            DeviceError::new(ErrorCode::ConfigInvalid, format!("the server {text} {why}"))
                .with_hint("give --server as http://127.0.0.1:8787 or https://HOST")
        };
        let base = Url::parse(text).map_err(|_| invalid("is not a URL"))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(invalid("is not an http or https URL"));
        }
        if !base.username().is_empty()
            || base.password().is_some()
            || base.query().is_some()
            || base.fragment().is_some()
        {
            return Err(invalid("must not carry a user, a query or a fragment"));
        }
        let server = Self { base };
        if server.is_plain() && !server.is_loopback() && !allow_plain_http {
            return Err(invalid("would be spoken to without encryption")
                .with_hint("use https://, or --insecure on a network that you trust"));
        }
        Ok(server)
    }

    pub(super) fn is_plain(&self) -> bool {
        self.base.scheme() == "http"
    }

    pub(super) fn is_loopback(&self) -> bool {
        let host = self.base.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// The URL of a path of its HTTP interface.
    pub(crate) fn http(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_str().trim_end_matches('/'))
    }

    /// Its origin, as a browser would name it.
    pub(crate) fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }

    /// An HTTP client for it.
    pub(crate) fn http_client(&self) -> ClientBuilder {
        let mut builder = Client::builder().connect_timeout(CONNECT_WITHIN).redirect(reqwest::redirect::Policy::none());
        if self.is_loopback() {
            // A proxy cannot reach this computer's own loopback.
            builder = builder.no_proxy();
        }
        if self.is_plain() {
            // Without TLS no authority is needed: a computer that has none installed can do this, too.
            builder = builder.tls_certs_only([]);
        }
        builder
    }

    /// The URL of its socket.
    pub(super) fn websocket(&self, path: &str) -> String {
        self.http(path).replacen("http", "ws", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_no_further_than_this_computer_unless_allowed() {
        for (text, allow, ok) in [
            ("http://127.0.0.1:8787", false, true),
            ("http://localhost:1", false, true),
            ("http://[::1]:8787/", false, true),
            ("https://example.org", false, true),
            ("http://example.org", false, false),
            ("http://192.168.1.2:8787", false, false),
            ("http://127.0.0.1.example.org", false, false),
            ("http://192.168.1.2:8787", true, true),
            ("ftp://127.0.0.1", false, false),
            ("127.0.0.1:8787", false, false),
            ("http://ada@127.0.0.1", false, false),
            ("nonsense", true, false),
        ] {
            assert_eq!(Server::parse(text, allow).is_ok(), ok, "{text}");
        }
        let server = Server::parse("https://example.org/devmind/", false).expect("valid");
        assert_eq!(server.websocket("/api/x"), "wss://example.org/devmind/api/x");
    }

    #[test]
    fn a_token_is_never_printed() {
        let token = Identity::Bearer("secret".into());
        assert!(!format!("{token:?} {token}").contains("secret"));
    }
}

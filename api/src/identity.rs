//! Who asks: a bearer token from the configuration, or the development header on a loopback bind.

use crate::error::ApiError;
use crate::state::App;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::request::Parts;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::ids::UserId;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The header that names the user in development mode.
pub const DEV_USER_HEADER: &str = "x-dev-user";
const MAX_USER_CHARS: usize = 64;

/// Who may ask.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    /// Users by the SHA-256 of their token.
    pub tokens: HashMap<String, UserId>,
    /// Whether the development header counts.
    pub development: bool,
}

impl Identities {
    /// Who a request comes from.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`.
    pub fn identify(&self, headers: &HeaderMap) -> Result<UserId, ApiError> {
        if let Some(value) = headers.get(AUTHORIZATION) {
            // Looked up by hash, so that the comparison's time tells nothing of the secret.
            return value
                .to_str()
                .ok()
                .and_then(|text| text.strip_prefix("Bearer "))
                .and_then(|token| self.tokens.get(&sha256_hex(token.trim().as_bytes())))
                .cloned()
                .ok_or_else(|| ApiError::new(ErrorCode::Unauthenticated, "the bearer token is not known"));
        }
        if !self.development || !host_is_loopback(headers) {
            let message = "send Authorization: Bearer TOKEN";
            return Err(ApiError::new(ErrorCode::Unauthenticated, message));
        }
        let name = headers.get(DEV_USER_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default().trim();
        if is_user_name(name) {
            Ok(name.into())
        } else {
            let message = format!("send X-Dev-User: NAME (1-{MAX_USER_CHARS} letters, digits, . _ @ -)");
            Err(ApiError::new(ErrorCode::Unauthenticated, message))
        }
    }
}

/// Whether the request was addressed to this machine by a loopback name. A page of another site that
/// rebinds its own name to a loopback address still sends that name (CVE-2025-66414 and its kind).
fn host_is_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(host, |(name, _)| name);
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A user's name has no slash: it is the first part of a device's stream id.
pub fn is_user_name(name: &str) -> bool {
    (1..=MAX_USER_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte))
}

/// The authenticated user of a request.
#[derive(Clone, Debug)]
pub struct User(pub UserId);

impl FromRequestParts<Arc<App>> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        app.identities.identify(&parts.headers).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let host = [("host", "127.0.0.1:8787")];
        let pairs =
            if pairs.iter().any(|(name, _)| *name == "host") { pairs.to_vec() } else { [&host, pairs].concat() };
        pairs.iter().map(|(name, value)| ((*name).parse().expect("name"), value.parse().expect("value"))).collect()
    }

    #[test]
    fn the_development_header_counts_only_in_development() {
        let mut identities = Identities { development: true, ..Identities::default() };
        assert_eq!(identities.identify(&headers(&[("x-dev-user", "ann")])).expect("known"), "ann".into());
        for bad in ["", "a/b", "a b", &"x".repeat(65)] {
            assert!(identities.identify(&headers(&[("x-dev-user", bad)])).is_err(), "{bad:?}");
        }
        for (host, known) in
            [("localhost:1", true), ("[::1]:1", true), ("127.0.0.1", true), ("evil.example:8787", false)]
        {
            assert_eq!(
                identities.identify(&headers(&[("host", host), ("x-dev-user", "ann")])).is_ok(),
                known,
                "{host}"
            );
        }
        identities.development = false;
        assert!(identities.identify(&headers(&[("x-dev-user", "ann")])).is_err());
    }

    #[test]
    fn a_wrong_token_is_refused_even_where_a_development_header_stands_beside_it() {
        let tokens = HashMap::from([(sha256_hex(b"secret"), UserId::from("bob"))]);
        let identities = Identities { tokens, development: true };
        let good = headers(&[("authorization", "Bearer secret"), ("x-dev-user", "ann")]);
        assert_eq!(identities.identify(&good).expect("known"), "bob".into());
        let bad = headers(&[("authorization", "Bearer wrong"), ("x-dev-user", "ann")]);
        assert!(identities.identify(&bad).is_err());
    }
}

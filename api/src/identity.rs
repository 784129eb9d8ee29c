//! Who asks, and in which role: a bearer token from the configuration, or the development headers on
//! a loopback bind.
//!
//! What a role may read is decided where it is read (`http::access`); that an auditor changes nothing
//! is decided here, before a request's body is looked at: a handler that changes something takes an
//! [`Author`], one that reads takes a [`Caller`].

use crate::error::ApiError;
use crate::state::App;
use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::request::Parts;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use devmind_domain::event::Role;
use devmind_domain::ids::UserId;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The header that names the user in development mode.
pub const DEV_USER_HEADER: &str = "x-dev-user";
/// The header that names the role in development mode; absent: a user.
pub const DEV_ROLE_HEADER: &str = "x-dev-role";
/// Characters of a user's name, at most.
pub const MAX_USER_CHARS: usize = 64;

/// Who may ask.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    /// People by the SHA-256 of their token.
    pub tokens: HashMap<String, Caller>,
    /// Whether the development headers count.
    pub development: bool,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name.
    pub user_id: UserId,
    /// What they may do.
    pub role: Role,
}

/// Somebody who may change what is theirs.
#[derive(Clone, Debug)]
pub struct Author(pub UserId);

impl Identities {
    /// Who a request comes from.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
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
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim());
        let name = text(DEV_USER_HEADER).unwrap_or_default();
        let role = text(DEV_ROLE_HEADER).map_or(Some(Role::User), role_of);
        match role {
            Some(role) if is_user_name(name) => Ok(Caller { user_id: name.into(), role }),
            Some(_) => {
                let message = format!("send X-Dev-User: NAME (1-{MAX_USER_CHARS} letters, digits, . _ @ -)");
                Err(ApiError::new(ErrorCode::Unauthenticated, message))
            }
            None => {
                let message = "X-Dev-Role is user, auditor or operator; leave it out for user";
                Err(ApiError::new(ErrorCode::Unauthenticated, message))
            }
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

/// The role of this name.
pub fn role_of(name: &str) -> Option<Role> {
    [Role::User, Role::Auditor, Role::Operator].into_iter().find(|role| role.as_str() == name)
}

/// A user's name has no slash: it is the first part of a device's stream id.
pub fn is_user_name(name: &str) -> bool {
    (1..=MAX_USER_CHARS).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte))
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        app.identities.identify(&parts.headers)
    }
}

impl FromRequestParts<Arc<App>> for Author {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = app.identities.identify(&parts.headers)?;
        if caller.role.changes() { Ok(Self(caller.user_id)) } else { Err(ApiError::of(ErrorCode::ReadOnlyRole)) }
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

    fn user(name: &str) -> Caller {
        Caller { user_id: name.into(), role: Role::User }
    }

    #[test]
    fn the_development_header_counts_only_in_development() {
        let mut identities = Identities { development: true, ..Identities::default() };
        assert_eq!(identities.identify(&headers(&[("x-dev-user", "ann")])).expect("known"), user("ann"));
        for (role, known) in [
            ("user", Some(Role::User)),
            ("auditor", Some(Role::Auditor)),
            ("operator", Some(Role::Operator)),
            ("root", None),
        ] {
            let caller = identities.identify(&headers(&[("x-dev-user", "ann"), ("x-dev-role", role)]));
            assert_eq!(caller.ok().map(|caller| caller.role), known, "{role}");
        }
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
        let tokens = HashMap::from([(sha256_hex(b"secret"), user("bob"))]);
        let identities = Identities { tokens, development: true };
        let good = headers(&[("authorization", "Bearer secret"), ("x-dev-user", "ann"), ("x-dev-role", "auditor")]);
        assert_eq!(identities.identify(&good).expect("known"), user("bob"), "the token alone counts");
        let bad = headers(&[("authorization", "Bearer wrong"), ("x-dev-user", "ann")]);
        assert!(identities.identify(&bad).is_err());
    }
}

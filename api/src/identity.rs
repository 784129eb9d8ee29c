//! Who asks, and in which role: a bearer token from the configuration, or the development headers on
//! a loopback bind; from a browser, either in a cookie of our pages.
//!
//! A cookie travels with every request to the server, whoever's page made it. So it counts only for reads, which
//! another site's page cannot see, and for requests of our own pages (`check_origin`).
//!
//! What a role may read is decided where it is read (`http::access`); that an auditor changes nothing
//! is decided here, before a request's body is looked at: a handler that changes something takes an
//! [`Author`], one that reads takes a [`Caller`].

use crate::error::ApiError;
use crate::state::App;
use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
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
/// The cookie that holds the token of somebody who signed in.
pub const TOKEN_COOKIE: &str = "devmind-token";
/// The cookie that names the user in development mode: `NAME` or `NAME:ROLE`.
pub const USER_COOKIE: &str = "devmind-user";
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
            return value
                .to_str()
                .ok()
                .and_then(|text| text.strip_prefix("Bearer "))
                .and_then(|token| self.of_token(token))
                .ok_or_else(|| ApiError::new(ErrorCode::Unauthenticated, "the bearer token is not known"));
        }
        let development = self.development && host_is_loopback(headers);
        if !(development && headers.contains_key(DEV_USER_HEADER))
            && let Some(caller) = self.of_cookies(headers, development)
        {
            return Ok(caller);
        }
        if !development {
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

impl Identities {
    fn of_cookies(&self, headers: &HeaderMap, development: bool) -> Option<Caller> {
        let signed_in = cookie(headers, TOKEN_COOKIE).and_then(|token| self.of_token(token));
        signed_in.or_else(|| cookie(headers, USER_COOKIE).filter(|_| development).and_then(development_caller))
    }

    /// Who has this token.
    pub fn of_token(&self, token: &str) -> Option<Caller> {
        // Looked up by hash, so that the comparison's time tells nothing of the secret.
        self.tokens.get(&sha256_hex(token.trim().as_bytes())).cloned()
    }

    /// Who a browser is that says nothing, in development mode on this machine: the person who started the server,
    /// under the name that their device has by default.
    pub fn local(&self, headers: &HeaderMap) -> Option<Caller> {
        let says_nothing = !headers.contains_key(AUTHORIZATION) && !headers.contains_key(DEV_USER_HEADER);
        let name = std::env::var("USER").ok().filter(|name| is_user_name(name)).unwrap_or_else(|| "dev".to_owned());
        let caller = Caller { user_id: name.as_str().into(), role: Role::User };
        (says_nothing && self.counts_names(headers)).then_some(caller)
    }

    /// Whether a name alone says who somebody is: in development mode, on this machine.
    pub fn counts_names(&self, headers: &HeaderMap) -> bool {
        self.development && host_is_loopback(headers)
    }
}

/// `NAME` or `NAME:ROLE`.
pub fn development_caller(text: &str) -> Option<Caller> {
    let (name, role) = text.split_once(':').unwrap_or((text, Role::User.as_str()));
    let role = role_of(role)?;
    is_user_name(name).then(|| Caller { user_id: name.into(), role })
}

/// The value of a cookie (RFC 6265, section 5.4).
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Lets through what changes something only where no other site's page can have caused it: the browser says that
/// our own page did (Fetch Metadata, or the origin), or it bears what a browser sends for nobody, a token or a name.
///
/// # Errors
/// `FORBIDDEN`.
pub fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    if method.is_safe() || headers.contains_key(AUTHORIZATION) || headers.contains_key(DEV_USER_HEADER) {
        return Ok(());
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let ours = match text("sec-fetch-site") {
        Some(site) => site == "same-origin",
        None => {
            let origin = text(ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
            origin.is_some_and(|(_, host)| text(HOST.as_str()) == Some(host))
        }
    };
    let message = "this came from a page of another site: open the page here and try again";
    if ours { Ok(()) } else { Err(ApiError::new(ErrorCode::Forbidden, message)) }
}

/// Whether the request was addressed to this machine by a loopback name. A page of another site that
/// rebinds its own name to a loopback address still sends that name (CVE-2025-66414 and its kind).
pub(crate) fn host_is_loopback(headers: &HeaderMap) -> bool {
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
        let caller = app.identities.identify(&parts.headers)?;
        check_origin(&parts.method, &parts.headers)?;
        Ok(caller)
    }
}

impl FromRequestParts<Arc<App>> for Author {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, app).await?;
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

    #[test]
    fn a_cookie_says_who_asks_unless_a_header_does() {
        let tokens = HashMap::from([(sha256_hex(b"secret"), user("bob"))]);
        let mut identities = Identities { tokens, development: true };
        let of = |identities: &Identities, pairs: &[(&'static str, &str)]| identities.identify(&headers(pairs)).ok();
        let signed_in = ("cookie", "a=b; devmind-token=secret");
        let named = ("cookie", "devmind-user=ann:auditor; devmind-token=of-another-server");
        assert_eq!(of(&identities, &[signed_in]), Some(user("bob")));
        assert_eq!(of(&identities, &[signed_in, ("x-dev-user", "eve")]), Some(user("eve")));
        assert_eq!(of(&identities, &[named]), Some(Caller { role: Role::Auditor, ..user("ann") }));
        assert_eq!(of(&identities, &[named, ("host", "evil.example")]), None);
        for bad in ["devmind-user=a/b", "devmind-user=ann:root", "xdevmind-token=secret", "devmind-token=wrong"] {
            assert_eq!(of(&identities, &[("cookie", bad)]), None, "{bad}");
        }
        assert!(identities.local(&headers(&[])).is_some());
        assert_eq!(identities.local(&headers(&[("host", "evil.example")])), None);
        identities.development = false;
        assert_eq!(of(&identities, &[named]), None);
        assert_eq!(of(&identities, &[signed_in]), Some(user("bob")));
        assert_eq!(identities.local(&headers(&[])), None);
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let check = |pairs: &[(&'static str, &str)]| check_origin(&Method::POST, &headers(pairs)).is_ok();
        assert!(check(&[("sec-fetch-site", "same-origin")]));
        assert!(check(&[("origin", "http://127.0.0.1:8787")]));
        assert!(check(&[("x-dev-user", "ann")]) && check(&[("authorization", "Bearer x")]));
        for bad in [
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "none"),
            ("origin", "http://127.0.0.1:3000"),
            ("origin", "null"),
            ("cookie", "devmind-token=secret"),
        ] {
            assert!(!check(&[bad]), "{bad:?}");
        }
        assert!(check_origin(&Method::GET, &headers(&[("sec-fetch-site", "cross-site")])).is_ok());
    }
}

//! How a browser is somebody: by the same rules as a client of the API, with what a client sends in a header kept
//! in a cookie that no script can read and no other site's request carries.

use super::error::{self, PageError};
use super::layout::{Page, Section};
use super::text;
use crate::error::ApiError;
use crate::identity::{
    Caller, MAX_USER_CHARS, TOKEN_COOKIE, USER_COOKIE, development_caller, host_is_loopback, role_of,
};
use crate::state::App;
use axum::Router;
use axum::extract::{Form, FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use devmind_domain::ErrorCode;
use devmind_domain::event::Role;
use devmind_domain::ids::DeviceId;
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;

/// Names the computer that a page is shown on, where its device program shows it.
const DEVICE_HEADER: &str = "x-devmind-device";

/// Who looks at a page.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// Who it is.
    pub caller: Caller,
    /// The computer whose device program shows the page, in a frame of its own page.
    pub device: Option<DeviceId>,
}

impl FromRequestParts<Arc<App>> for Viewer {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, PageError> {
        Self::of(app, &parts.headers).map_err(PageError)
    }
}

impl Viewer {
    fn of(app: &App, headers: &HeaderMap) -> Result<Self, ApiError> {
        let caller = app.identities.identify(headers).or_else(|error| app.identities.local(headers).ok_or(error))?;
        let device = headers.get(DEVICE_HEADER).and_then(|id| id.to_str().ok()).map(DeviceId::from);
        Ok(Self { caller, device })
    }
}

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/sign-in", get(show).post(sign_in)).route("/sign-out", post(sign_out))
}

/// Tells a browser who it is where nothing says so and nothing needs to (development mode), so that the requests
/// of its scripts are from the same person; and has somebody who must sign in come back to where they wanted.
pub(super) async fn introduce(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let unnamed = app.identities.identify(request.headers()).is_err();
    let local = unnamed.then(|| app.identities.local(request.headers())).flatten();
    let secure = !host_is_loopback(request.headers());
    let wanted = request.uri().path_and_query().map_or_else(String::new, |path| path.as_str().to_owned());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if let Some(caller) = local
        && !headers.contains_key(header::SET_COOKIE)
    {
        set(headers, USER_COOKIE, caller.user_id.as_str(), secure);
    }
    if response.status() == StatusCode::SEE_OTHER
        && response.headers().get(header::LOCATION).is_some_and(|to| to == "/sign-in")
        && wanted != "/sign-out"
    {
        let next = utf8_percent(&wanted);
        return to(&format!("/sign-in?next={next}"));
    }
    response
}

/// Where to go afterwards.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Afterwards {
    next: String,
    /// Set after a sign-in: the cookie should be there now.
    signed_in: Option<u8>,
}

async fn show(State(app): State<Arc<App>>, Query(query): Query<Afterwards>, headers: HeaderMap) -> Response {
    match (Viewer::of(&app, &headers), query.signed_in) {
        (Ok(_), Some(_)) => to(&within(&query.next)),
        (Err(_), Some(_)) => {
            let message = "your browser did not keep the sign-in: it needs cookies, and from another machine HTTPS";
            refused(&app, &headers, &query.next, &ApiError::new(ErrorCode::Unauthenticated, message))
        }
        (known, None) => form(&app, &headers, known.ok(), &query.next, html! {}).into_response(),
    }
}

/// A token, or in development mode a name and a role.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SignIn {
    token: String,
    name: String,
    role: String,
    next: String,
}

async fn sign_in(State(app): State<Arc<App>>, headers: HeaderMap, Form(form): Form<SignIn>) -> Response {
    let refuse =
        |message: &str| refused(&app, &headers, &form.next, &ApiError::new(ErrorCode::Unauthenticated, message));
    let (name, value) = if !form.token.is_empty() {
        let token = form.token.trim();
        if app.identities.of_token(token).is_none() || !is_cookie_value(token) {
            return refuse("this token is not known here: look for typing errors, or ask for a new one");
        }
        (TOKEN_COOKIE, token.to_owned())
    } else if app.identities.counts_names(&headers) {
        let role = role_of(&form.role).unwrap_or(Role::User);
        let text = format!("{}:{}", form.name.trim(), role.as_str());
        if development_caller(&text).is_none() {
            return refuse(&format!("a name has 1-{MAX_USER_CHARS} letters, digits, . _ @ -"));
        }
        (USER_COOKIE, text)
    } else {
        return refuse("give your token");
    };
    let mut response = to(&format!("/sign-in?signed_in=1&next={}", utf8_percent(&within(&form.next))));
    let secure = !host_is_loopback(&headers);
    // One of the two counts: the other is taken away.
    for other in [TOKEN_COOKIE, USER_COOKIE].into_iter().filter(|other| *other != name) {
        forget(response.headers_mut(), other, secure);
    }
    set(response.headers_mut(), name, &value, secure);
    response
}

async fn sign_out(headers: HeaderMap) -> Response {
    let mut response = to("/sign-in");
    for name in [TOKEN_COOKIE, USER_COOKIE] {
        forget(response.headers_mut(), name, !host_is_loopback(&headers));
    }
    response
}

fn refused(app: &App, headers: &HeaderMap, next: &str, error: &ApiError) -> Response {
    let problem = html! { div.card.bad role="alert" { p { (text::inline(&error.message)) } } };
    (StatusCode::UNAUTHORIZED, form(app, headers, Viewer::of(app, headers).ok(), next, problem)).into_response()
}

fn form(app: &App, headers: &HeaderMap, viewer: Option<Viewer>, next: &str, problem: Markup) -> Markup {
    let caller = viewer.as_ref().map(|viewer| &viewer.caller);
    // The device's program asks as its own user, whatever a browser would say.
    let framed = viewer.as_ref().is_some_and(|viewer| viewer.device.is_some());
    let names = app.identities.counts_names(headers) && !framed;
    let content = html! {
        h1 { "Who you are" }
        (problem)
        @if let Some(caller) = caller {
            p { "You are " strong { bdi { (caller.user_id.as_str()) } } ", " (role_words(caller.role)) "." }
        }
        @if framed { p { "This window shows the pages as the device's own user. To look as somebody else, open the server's address in a browser." } }
        @if !app.identities.tokens.is_empty() && !framed {
            form.card method="post" action="/sign-in" {
                h2 { "Sign in with your token" }
                input type="hidden" name="next" value=(next);
                label for="token" { "Token" }
                input #token type="password" name="token" autocomplete="current-password" required;
                p.hint { "Who runs the server makes one with " code { "devmind token --user NAME" } "." }
                button type="submit" { "Sign in" }
            }
        }
        @if names {
            form.card method="post" action="/sign-in" {
                h2 { "Be somebody else" }
                p { "This server runs for development on this machine, where a name is enough." }
                input type="hidden" name="next" value=(next);
                label for="name" { "Name" }
                input #name name="name" required maxlength=(MAX_USER_CHARS) pattern="[A-Za-z0-9._@\\-]+" autocomplete="username"
                    value=[caller.map(|caller| caller.user_id.as_str())];
                label for="role" { "Role" }
                select #role name="role" {
                    @for role in [Role::User, Role::Auditor, Role::Operator] {
                        option value=(role.as_str()) selected[caller.is_some_and(|caller| caller.role == role)] { (role_words(role)) }
                    }
                }
                button type="submit" { "Go on as this person" }
            }
        }
        @if caller.is_some() && !names && !framed {
            form method="post" action="/sign-out" { button.quiet type="submit" { "Sign out" } }
        }
    };
    let page = Page::new("Who you are", Section::None);
    match &viewer {
        Some(viewer) => page.show(viewer, content),
        None => page.nobody(content),
    }
}

fn role_words(role: Role) -> &'static str {
    match role {
        Role::User => "user: sees what is theirs",
        Role::Auditor => "auditor: reads everything, changes nothing",
        Role::Operator => "operator: reads everything, works like a user",
    }
}

/// A place on this server: never another host, however a link spells it.
fn within(next: &str) -> String {
    let here = next.starts_with('/')
        && !next.starts_with("//")
        && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if here { next.to_owned() } else { "/".to_owned() }
}

/// 303 See Other.
pub(super) fn to(place: &str) -> Response {
    match HeaderValue::from_str(place) {
        Ok(place) => (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response(),
        Err(_) => PageError(error::internal("a place that is no header")).into_response(),
    }
}

fn set(headers: &mut HeaderMap, name: &str, value: &str, secure: bool) {
    add(headers, &format!("{name}={value}; Max-Age=31536000"), secure);
}

fn forget(headers: &mut HeaderMap, name: &str, secure: bool) {
    add(headers, &format!("{name}=; Max-Age=0"), secure);
}

fn add(headers: &mut HeaderMap, cookie: &str, secure: bool) {
    let secure = if secure { "; Secure" } else { "" };
    let line = format!("{cookie}; Path=/; HttpOnly; SameSite=Strict{secure}");
    if let Ok(value) = HeaderValue::from_str(&line) {
        headers.append(header::SET_COOKIE, value);
    }
}

/// Octets of a cookie's value (RFC 6265, section 4.1.1).
fn is_cookie_value(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte))
}

/// A text as the value of a query's parameter.
pub fn utf8_percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_no_other_host() {
        for (next, place) in [
            ("/log?type=A", "/log?type=A"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example", "/"),
            ("", "/"),
            ("/a\nb", "/"),
        ] {
            assert_eq!(within(next), place, "{next:?}");
        }
    }
}

//! Refusals as pages: what happened, what to do about it, the stable code; who is nobody is asked to sign in.

use super::layout::{Page, Section};
use crate::error::ApiError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_ledger::LedgerError;
use devmind_projections::ViewError;
use maud::{Markup, html};

/// A refusal on its way to a browser.
#[derive(Debug)]
pub struct PageError(pub ApiError);

/// What pages return.
pub type PageResult<T = Markup> = Result<T, PageError>;

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let Self(error) = self;
        if error.code == ErrorCode::Unauthenticated {
            let mut away = StatusCode::SEE_OTHER.into_response();
            away.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/sign-in"));
            return away;
        }
        let status = StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let title = match status.as_u16() {
            404 => "There is no such thing here",
            403 => "This is not yours to see or to do",
            503 => "The server is not ready",
            400..500 => "This cannot be done",
            _ => "Something went wrong in the server",
        };
        let page = Page::new(title, Section::None).nobody(html! {
            h1 { (title) }
            (card(&error))
            div.buttons { a.button href="/" { "To the conversations" } a.button.quiet href="/log" { "To the log" } }
        });
        (status, page).into_response()
    }
}

/// A refusal within a page.
pub fn card(error: &ApiError) -> Markup {
    html! {
        div.card.bad role="alert" {
            p { strong { (super::text::cut(&error.message, 500)) } }
            @if error.message != error.code.help() { p { (error.code.help()) } }
            @if error.code.retriable() { p { "It may work when you try again." } }
            p.quiet { "Code " code { (error.code.as_str()) } }
        }
    }
}

impl From<ApiError> for PageError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<ViewError> for PageError {
    fn from(error: ViewError) -> Self {
        Self(error.into())
    }
}

impl From<LedgerError> for PageError {
    fn from(error: LedgerError) -> Self {
        Self(error.into())
    }
}

/// What should not happen, said in the log.
pub(super) fn internal(cause: &str) -> ApiError {
    ApiError::internal(ErrorCode::Internal, &cause)
}

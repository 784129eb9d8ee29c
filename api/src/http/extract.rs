//! Bodies and queries, read so that every refusal has a code and names its field.

use crate::error::ApiError;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use devmind_domain::ErrorCode;
use devmind_domain::json::parse_strict;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::time::Duration;
use tokio::time::timeout;

/// A body must be complete within this time; a drip of bytes would hold a connection for ever.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// A JSON body: strict JSON (no repeated keys), then `T`.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let read = timeout(BODY_WITHIN, Bytes::from_request(request, state)).await;
        let read = read.map_err(|_| {
            let message = format!("the body was not complete within {} s", BODY_WITHIN.as_secs());
            ApiError::new(ErrorCode::RequestTimeout, message)
        })?;
        let bytes = read.map_err(|rejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                ApiError::of(ErrorCode::BodyTooLarge)
            } else {
                ApiError::new(ErrorCode::MalformedJson, "the body broke off")
            }
        })?;
        let malformed =
            |reason: String| ApiError::new(ErrorCode::MalformedJson, format!("the body is not JSON: {reason}"));
        let text = std::str::from_utf8(&bytes).map_err(|error| malformed(error.to_string()))?;
        let value = parse_strict(text).map_err(malformed)?;
        serde_path_to_error::deserialize(value)
            .map(Self)
            .map_err(|error| unusable("body", &error.path().to_string(), &error.inner().to_string()))
    }
}

/// A query string as `T`.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        axum::extract::Query::<T>::try_from_uri(&parts.uri).map(|axum::extract::Query(query)| Self(query)).map_err(
            |rejection| {
                // "limit: invalid digit", or the problem alone where it is the whole query's.
                let text = rejection.source().map_or_else(|| rejection.body_text(), ToString::to_string);
                match text.split_once(": ") {
                    Some((field, problem)) if !field.contains(' ') => unusable("query", field, problem),
                    _ => unusable("query", ".", &text),
                }
            },
        )
    }
}

/// A refusal that names the field; `path` is serde's, `.` for the whole.
fn unusable(whole: &str, path: &str, problem: &str) -> ApiError {
    // serde puts a missing, repeated or unknown field's name into its words alone.
    let named = ["missing field `", "duplicate field `", "unknown field `"]
        .into_iter()
        .find_map(|words| problem.strip_prefix(words))
        .and_then(|rest| rest.split('`').next());
    let field = match (path, named) {
        (".", Some(name)) => name.to_owned(),
        (".", None) => whole.to_owned(),
        (at, Some(name)) if at.rsplit('.').next() == Some(name) => at.to_owned(),
        (within, Some(name)) => format!("{within}.{name}"),
        (at, None) => at.to_owned(),
    };
    ApiError::field(&field, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use serde_json::Value;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let begun = stream::iter([Ok::<_, std::io::Error>("{")]);
        let body = axum::body::Body::from_stream(futures::StreamExt::chain(begun, stream::pending()));
        let read = Body::<Value>::from_request(Request::new(body), &()).await;
        assert_eq!(read.err().map(|error| error.code), Some(ErrorCode::RequestTimeout));
    }
}

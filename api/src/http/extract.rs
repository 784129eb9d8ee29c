//! Bodies and queries, read so that every refusal has a code and names its field.

use crate::error::ApiError;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use devmind_domain::ErrorCode;
use devmind_domain::json::parse_strict;
use devmind_domain::limits::MAX_CLIENT_ID_CHARS;
use serde::de::DeserializeOwned;

/// A JSON body: strict JSON (no repeated keys), then `T`.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| {
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
        serde_path_to_error::deserialize(value).map(Self).map_err(|error| {
            let (path, problem) = (error.path().to_string(), error.inner().to_string());
            // serde puts a missing field's name into its words alone.
            let missing = problem.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
            let field = match (path.as_str(), missing) {
                (".", Some(name)) => name.to_owned(),
                (".", None) => "body".to_owned(),
                (within, Some(name)) => format!("{within}.{name}"),
                (at, None) => at.to_owned(),
            };
            ApiError::field(&field, problem)
        })
    }
}

/// A query string as `T`.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        axum::extract::Query::<T>::try_from_uri(&parts.uri)
            .map(|axum::extract::Query(query)| Self(query))
            .map_err(|rejection| ApiError::field("query", rejection.body_text()))
    }
}

/// An id that a client sent: not empty, not long.
///
/// # Errors
/// `VALIDATION_FAILED` naming the field.
pub fn checked_id(field: &str, id: &str) -> Result<(), ApiError> {
    let characters = id.chars().count();
    if (1..=MAX_CLIENT_ID_CHARS).contains(&characters) && !id.chars().any(char::is_control) {
        Ok(())
    } else {
        Err(ApiError::field(
            field,
            format!("must have 1-{MAX_CLIENT_ID_CHARS} characters, none of them control characters"),
        ))
    }
}

//! Styles and scripts, part of the program. Their address holds a hash of all of them, so that a browser may keep
//! them for ever and never mixes two versions; modules import each other by relative names.

use crate::error::ApiError;
use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use devmind_domain::ErrorCode;
use devmind_domain::canonical::sha256_hex;
use std::sync::LazyLock;

macro_rules! assets {
    ($($name:literal),* $(,)?) => {
        /// Every file, by its name in `api/ui`.
        const ASSETS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../ui/", $name)))),*];
    };
}

assets!["tokens.css", "page.css", "page.js", "chat.css", "chat.js", "icon.svg", "audit.css", "audit.js"];

/// Characters of the hash in an address.
const VERSION_CHARS: usize = 16;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let all: String = ASSETS.iter().flat_map(|(name, text)| [*name, "\0", *text, "\0"]).collect();
    let mut hash = sha256_hex(all.as_bytes());
    hash.truncate(VERSION_CHARS);
    hash
});

/// The address of a file of `api/ui`.
pub fn url(name: &str) -> String {
    debug_assert!(ASSETS.iter().any(|(known, _)| *known == name), "{name} is not in the list of assets");
    format!("/ui/{}/{name}", *VERSION)
}

/// A file. Of another version than this program's (a page that stayed open over an update) it is the file of
/// this one, and is not kept.
pub async fn serve(Path((version, name)): Path<(String, String)>) -> Response {
    let Some((name, text)) = ASSETS.iter().find(|(known, _)| *known == name) else {
        return ApiError::of(ErrorCode::NotFound).into_response();
    };
    let kind = match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "image/svg+xml",
    };
    let keep = if version == *VERSION { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)];
    (headers.map(|(name, value)| (name, HeaderValue::from_static(value))), *text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_loaded_from_another_host() {
        for (name, text) in ASSETS {
            let elsewhere = text.lines().find(|line| line.contains("http://") || line.contains("https://"));
            let allowed = elsewhere.is_none_or(|line| line.contains("xmlns=\"http://www.w3.org/"));
            assert!(allowed && !text.contains("@import"), "{name}: {elsewhere:?}");
        }
    }
}

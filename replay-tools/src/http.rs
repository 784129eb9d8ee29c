//! The HTTP client of these tools, for those few commands that are told an address: a collector, a witness, a
//! model. None of them reaches a server's or a device's tools.

use crate::failure::Failure;
use devmind_domain::ErrorCode;
use reqwest::{Client, Response, Url};
use std::time::Duration;

/// An address that was given, of a kind that can be spoken to.
pub(crate) fn address(text: &str, hint: &str) -> Result<Url, Failure> {
    let wrong = |reason: String| Failure::new(ErrorCode::ValidationFailed, format!("{text:?} is no address: {reason}"));
    let url = Url::parse(text).map_err(|error| wrong(error.to_string()).with_hint(hint))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        _ => Err(wrong("it is neither http nor https".to_owned()).with_hint(hint)),
    }
}

/// A client that follows no redirects, and gives up on a request after so long.
pub(crate) fn client(url: &Url, within: Duration) -> Result<Client, Failure> {
    // Another part of the program may have chosen it before: either is the same.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut builder = Client::builder().timeout(within).redirect(reqwest::redirect::Policy::none());
    if url.scheme() == "http" {
        // Without TLS no authority is needed: a computer that has none installed can do this, too.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(Failure::internal)
}

/// So much of an answer as is looked at.
pub(crate) async fn beginning(mut answer: Response, bytes: usize) -> Result<Vec<u8>, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() >= bytes {
            body.truncate(bytes);
            break;
        }
    }
    Ok(body)
}

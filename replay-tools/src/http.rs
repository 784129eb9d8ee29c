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

/// A server that gives the answers it is told, one a connection, and keeps what it was asked.
#[cfg(test)]
pub(crate) mod played {
    use std::sync::{Arc, Mutex};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Its address, and the requests, as they came.
    pub(crate) async fn server(answers: Vec<String>) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("its address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = Vec::new();
                let whole = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).to_lowercase();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
                    body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
                };
                while !whole(&request) {
                    let mut some = [0; 4_096];
                    let read = stream.read(&mut some).await.expect("a request");
                    request.extend_from_slice(&some[..read]);
                }
                kept.lock().expect("whole").push(String::from_utf8_lossy(&request).into_owned());
                // Who has read enough of it may be gone.
                drop(stream.write_all(answer.as_bytes()).await);
            }
        });
        (address, requests)
    }

    /// A whole answer; `more` are lines of its head.
    pub(crate) fn answer(status: &str, more: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{more}\r\n{body}")
    }
}

#[cfg(test)]
mod tests {
    use super::played::{answer, server};
    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    #[test]
    fn only_what_speaks_http_is_an_address() {
        for wrong in ["", "nowhere", "ftp://host/", "file:///etc/passwd"] {
            assert!(address(wrong, "hint").is_err(), "{wrong}");
        }
        assert!(address("https://host:1/base", "hint").is_ok());
    }

    #[tokio::test]
    async fn no_redirect_is_followed_and_of_an_answer_no_more_is_kept_than_was_asked_for() {
        let (elsewhere, reached) = server(vec![answer("200 OK", "", "the secret's new home")]).await;
        let moved = answer("307 Temporary Redirect", &format!("location: {elsewhere}\r\n"), "");
        let (at, _) = server(vec![moved, answer("200 OK", "", &"x".repeat(100_000))]).await;
        let url = address(&at, "hint").expect("an address");
        let client = client(&url, WITHIN).expect("a client");
        let first = client.post(url.clone()).body("the secret").send().await.expect("answered");
        assert!(first.status().is_redirection() && reached.lock().expect("whole").is_empty());
        let long = client.get(url).send().await.expect("answered");
        assert_eq!(beginning(long, 1_000).await.expect("read").len(), 1_000);
    }
}

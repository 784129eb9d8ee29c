//! `witness serve`: the HTTP side of a witness, `POST /add-checkpoint` and nothing else.

use super::memory::{Refused, Witness};
use super::now;
use crate::Verdict;
use crate::cli::WitnessServeArgs;
use crate::failure::Failure;
use crate::output::{Output, escaped, say};
use devmind_domain::ErrorCode;
use devmind_domain::proof::{MAX_SUBMISSION_BYTES, Uncosigned};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Connections at a time; others wait.
const MAX_CONNECTIONS: usize = 64;
/// The head of a request comes within this time.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// A request comes within this time.
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// A connection, busy or not, lasts so long.
const CONNECTION_LASTS: Duration = Duration::from_secs(300);
/// After a connection could not be taken (no file handles, for example).
const AFTER_A_FAILED_ACCEPT: Duration = Duration::from_millis(100);
/// The media type of a size, as the protocol has it.
pub(super) const SIZE_TYPE: &str = "text/x.tlog.size";

pub(super) async fn run(args: WitnessServeArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let WitnessServeArgs { listen, state, name, log } = args;
    let witness = Arc::new(Witness::open(&state, &name, log)?);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::new(ErrorCode::AddressInUse, format!("{listen}: {error}")),
        _ => Failure::new(ErrorCode::AddressInvalid, format!("{listen}: {error}")),
    };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let key = witness.key().to_string();
    if output.is_json() {
        let logs: Vec<_> =
            witness.watched().into_iter().map(|(origin, size)| json!({ "origin": origin, "position": size })).collect();
        output.json(&json!({ "listening": format!("http://{address}"), "key": key, "logs": logs }))?;
    } else {
        output.line(format_args!("witness http://{address}"))?;
        output.line(format_args!("key {key}"))?;
        for (origin, size) in witness.watched() {
            output.line(escaped(&format!("watches {origin}, seen to position {size}")))?;
        }
    }
    output.finish()?;
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut stop = std::pin::pin!(stopped());
    loop {
        let accepted = tokio::select! {
            // Every cosignature that was given out is on the disk: nothing has to be waited for.
            () = &mut stop => return Ok(Verdict::Holds),
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => drop(tokio::spawn(connection(witness.clone(), stream, place))),
            Err(error) => {
                say(format_args!("a connection could not be taken: {error}"));
                tokio::time::sleep(AFTER_A_FAILED_ACCEPT).await;
            }
        }
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn stopped() {
    #[cfg(unix)]
    if let Ok(mut terminate) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        tokio::select! {
            _ = terminate.recv() => return,
            _ = tokio::signal::ctrl_c() => return,
        }
    }
    drop(tokio::signal::ctrl_c().await);
}

async fn connection(witness: Arc<Witness>, stream: TcpStream, _place: OwnedSemaphorePermit) {
    let service = service_fn(move |request| {
        let witness = witness.clone();
        async move { Ok::<_, Infallible>(answer(witness, request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    // Whatever ends it, what was cosigned is kept: the client asks again.
    drop(timeout(CONNECTION_LASTS, http.serve_connection(TokioIo::new(stream), service)).await);
}

async fn answer(witness: Arc<Witness>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/add-checkpoint" {
        return told(StatusCode::NOT_FOUND, ErrorCode::NotFound, "a witness has only /add-checkpoint");
    }
    if request.method() != Method::POST {
        return told(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::ValidationFailed, "heads are posted");
    }
    let body = match timeout(BODY_WITHIN, Limited::new(request.into_body(), MAX_SUBMISSION_BYTES).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let text = format!("a request has at most {MAX_SUBMISSION_BYTES} bytes");
            return told(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge, &text);
        }
        Ok(Err(_)) | Err(_) => {
            return told(StatusCode::REQUEST_TIMEOUT, ErrorCode::ValidationFailed, "the request did not come whole");
        }
    };
    let Ok(text) = String::from_utf8(body.into()) else {
        return told(StatusCode::BAD_REQUEST, ErrorCode::ValidationFailed, "the request is no text");
    };
    // It waits for the disk.
    match tokio::task::spawn_blocking(move || witness.cosign(&text, now())).await {
        Ok(Ok(signature)) => plain(StatusCode::OK, format!("{signature}\n")),
        Ok(Err(Refused::Uncosigned(Uncosigned::Stale { size }))) => {
            let mut answer = plain(StatusCode::CONFLICT, format!("{size}\n"));
            answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(SIZE_TYPE));
            answer
        }
        Ok(Err(Refused::Uncosigned(refused))) => {
            if refused.code() == ErrorCode::LedgerForked {
                say(escaped(&format!("refused [{}]: {refused}", refused.code())));
            }
            let status = StatusCode::from_u16(refused.http_status()).unwrap_or(StatusCode::BAD_REQUEST);
            told(status, refused.code(), &refused.to_string())
        }
        Ok(Err(Refused::Unkept(error))) => {
            say(format_args!("refused [{}]: it cannot be kept: {error}", ErrorCode::IoError));
            told(
                StatusCode::INTERNAL_SERVER_ERROR,
                ErrorCode::IoError,
                "the head cannot be kept, so it is not cosigned",
            )
        }
        Err(error) => told(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, &error.to_string()),
    }
}

fn told(status: StatusCode, code: ErrorCode, text: &str) -> Response<Full<Bytes>> {
    plain(status, format!("{code}: {}\n", escaped(text)))
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

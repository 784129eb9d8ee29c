//! The device as a witness of its server's log: it keeps the last signed head that it was shown, and has
//! nothing to do with a log that does not continue it. Before that is settled no tool is offered and no
//! result sent.
//!
//! The head comes with `device.registered`; that it continues the one kept is asked for over HTTP. A server
//! that shows none and never did is one of an older version, and loses nothing.

use super::Link;
use super::lost::Lost;
use crate::journal::JournalError;
use devmind_domain::ErrorCode;
use devmind_domain::canonical::Hash;
use devmind_domain::proof::{Checkpoint, MAX_PROOF_HASHES, Note, NoteKey, continues, log_name};
use devmind_domain::protocol::{Registered, ShownHead};
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Bytes of an answer, at most.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The answer of `GET /api/ledger/consistency`, as far as it matters.
#[derive(Deserialize)]
struct Consistency {
    path: Vec<String>,
}

/// Judges the head that the server showed, and keeps it.
pub(super) async fn check(link: &Link, client: &Client, registered: &Registered) -> Result<(), Lost> {
    let origin = log_name(&registered.server_id);
    let seen = link.journal.seen_head(&origin).map_err(|error| Lost::retry(error.to_string()))?;
    let (mut shown, seen) = match (&registered.head, seen) {
        (None, None) => return Ok(()),
        (None, Some(_)) => return Err(Lost::retry("the server does not show the head of its log, as it did before")),
        (Some(shown), seen) => (shown.clone(), seen),
    };
    let mut head = read(&shown, &origin)?;
    if seen.as_ref().is_some_and(|seen| seen.size > head.size) {
        // Another process of this server may have shown a newer one: the newest there is counts.
        shown = ask(link, client, "/api/ledger/checkpoint").await?;
        head = read(&shown, &origin)?;
    }
    let proof = match &seen {
        Some(seen) if seen == &head => return Ok(()),
        Some(seen) if seen.size < head.size => {
            let path = format!("/api/ledger/consistency?from={}&to={}", seen.size, head.size);
            let Consistency { path } = ask(link, client, &path).await?;
            hashes(&path)?
        }
        Some(_) | None => Vec::new(),
    };
    if let Err(discontinuity) = continues(seen.as_ref(), &head, &proof) {
        note_full(link.journal.keep_refused_head(&origin, &shown.checkpoint).await)?;
        return Err(Lost::Final { code: discontinuity.code(), reason: discontinuity.to_string() });
    }
    note_full(link.journal.keep_head(&origin, &shown.checkpoint, &shown.key).await)
}

/// The head, signed by the key that came with it, of the log that the server says it has.
fn read(shown: &ShownHead, origin: &str) -> Result<Checkpoint, Lost> {
    let wrong =
        |reason: String| Lost::Protocol { reason: format!("the head that the server shows does not hold: {reason}") };
    let key = NoteKey::parse(&shown.key).map_err(|error| wrong(error.to_string()))?;
    let note = Note::parse(&shown.checkpoint).map_err(|error| wrong(error.to_string()))?;
    note.verify(&key).map_err(|error| wrong(error.to_string()))?;
    let head = Checkpoint::from_text(&note.text).map_err(|error| wrong(error.to_string()))?;
    if head.origin == origin { Ok(head) } else { Err(wrong(format!("it is of the log {}", head.origin))) }
}

fn hashes(path: &[String]) -> Result<Vec<Hash>, Lost> {
    let hash = |text: &String| hex::decode(text).ok()?.try_into().ok();
    let hashes: Option<Vec<Hash>> = path.iter().map(hash).collect();
    hashes
        .filter(|hashes| hashes.len() <= MAX_PROOF_HASHES)
        .ok_or_else(|| Lost::Protocol { reason: "the server's proof that its log only grew is none".to_owned() })
}

async fn ask<T: DeserializeOwned>(link: &Link, client: &Client, path: &str) -> Result<T, Lost> {
    let failed = |why: String| Lost::retry(format!("the server does not show that its log only grew: {why}"));
    let request = link.identity.sign(client.get(link.server.http(path)));
    let mut answer = request.send().await.map_err(|error| failed(error.without_url().to_string()))?;
    if answer.status() != StatusCode::OK {
        return Err(failed(answer.status().to_string()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| failed(error.without_url().to_string()))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER_BYTES {
            return Err(failed("its answer is too long".to_owned()));
        }
    }
    serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
}

/// On a full disk the head kept before stays good: results can still be brought.
fn note_full(kept: Result<(), JournalError>) -> Result<(), Lost> {
    match kept {
        Ok(()) => Ok(()),
        Err(error @ JournalError::Full) => {
            tracing::warn!(code = ErrorCode::DeviceJournalFull.as_str(), %error, "the server's newest head was not kept");
            Ok(())
        }
        Err(error @ (JournalError::TooOld | JournalError::Failed(_))) => Err(Lost::retry(error.to_string())),
    }
}

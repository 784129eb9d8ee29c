//! `witness ask`: has a witness cosign the newest checkpoint of a ledger, once or again and again beside a
//! server, and keeps what it signed.

use super::serve::SIZE_TYPE;
use super::{moment, now};
use crate::Verdict;
use crate::cli::WitnessAskArgs;
use crate::failure::{Failure, report};
use crate::http::{address, beginning, client};
use crate::output::{Output, escaped, say};
use crate::store::Source;
use devmind_domain::ErrorCode;
use devmind_domain::proof::{MAX_NOTE_BYTES, Note, NoteKey, NoteSignature, Submission};
use devmind_ledger::LedgerReader;
use devmind_ledger::bundle::BundleError;
use devmind_ledger::proof::{
    Prover, RecordError, RecordedCheckpoint, origin, read_checkpoints, read_cosigned, record_cosigned,
};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode, Url};
use serde_json::json;
use std::time::Duration;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests for one head: one that asks what the witness has seen, one that goes on from there, and one more
/// for somebody else who asked between the two.
const MAX_ATTEMPTS: u32 = 3;

/// How an attempt ended that did not fail.
enum Asked {
    Cosigned(RecordedCheckpoint, u64),
    /// The newest checkpoint has been cosigned before.
    Nothing(u64),
}

pub(super) async fn run(data: &Source, args: WitnessAskArgs, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let mut url = address(&args.witness, "give the witness's address, like http://127.0.0.1:8790")?;
    url.set_path(&format!("{}/add-checkpoint", url.path().trim_end_matches('/')));
    let http = client(&url, REQUEST_TIMEOUT)?;
    let asker = Asker { prover: Prover::new(reader.clone()), reader, data, url, http, key: args.key };
    loop {
        match asker.ask().await {
            Ok(asked) => tell(&asker.key, asked, output)?,
            // Whoever goes on after this hides it.
            Err(failure @ Failure::Error { code: ErrorCode::LedgerForked, .. }) => {
                report(&failure);
                return Ok(Verdict::Broken);
            }
            Err(failure) if args.every.is_none() => return Err(failure),
            Err(failure) => drop(report(&failure)),
        }
        output.finish()?;
        let Some(every) = args.every else { return Ok(Verdict::Holds) };
        tokio::time::sleep(Duration::from_secs(every)).await;
    }
}

fn tell(key: &NoteKey, asked: Asked, output: &mut Output) -> Result<(), Failure> {
    match asked {
        Asked::Cosigned(cosigned, seconds) => {
            let (size, root) = (cosigned.checkpoint.size, hex::encode(cosigned.checkpoint.root));
            let at = moment(seconds);
            match output.is_json() {
                true => output.json(
                    &json!({ "position": size, "root": root, "witness": key.name(), "cosigned_at": at, "note": cosigned.note }),
                ),
                false => output.line(format_args!("position {size}, root {root}, cosigned by {} at {at}", key.name())),
            }
        }
        Asked::Nothing(size) => {
            say(format_args!("the checkpoint of {size} events is cosigned by {} already", key.name()));
            match output.is_json() {
                true => output.json(&json!({ "position": size, "witness": key.name(), "cosigned_at": null })),
                false => Ok(()),
            }
        }
    }
}

/// Everything that asking takes.
struct Asker<'a> {
    prover: Prover,
    reader: LedgerReader,
    data: &'a Source,
    url: Url,
    http: Client,
    key: NoteKey,
}

/// What a witness answered.
enum Answer {
    Signed(String),
    Seen(u64),
    Contradicted(String),
}

impl Asker<'_> {
    async fn ask(&self) -> Result<Asked, Failure> {
        let own = origin(self.reader.ledger_id());
        let file = |error: RecordError| Failure::new(error.code(), error.to_string());
        let published = read_checkpoints(self.data.folder()).map_err(file)?;
        let newest = published.into_iter().rfind(|recorded| recorded.checkpoint.origin == own);
        let newest = newest.ok_or(BundleError::NoCheckpoint)?;
        let size = newest.checkpoint.size;
        let note = Note::parse(&newest.note).map_err(Failure::internal)?;
        let cosigned = read_cosigned(self.data.folder()).map_err(file)?;
        let by_this = |recorded: &RecordedCheckpoint| {
            recorded.checkpoint.origin == own
                && Note::parse(&recorded.note).is_ok_and(|note| note.verify(&self.key).is_ok())
        };
        let mut seen = cosigned.iter().filter(|one| by_this(one)).map(|one| one.checkpoint.size).max().unwrap_or(0);
        if cosigned.iter().any(|one| one.checkpoint == newest.checkpoint && by_this(one)) {
            return Ok(Asked::Nothing(size));
        }
        for _ in 0..MAX_ATTEMPTS {
            if seen > size {
                return self.has_seen_more(seen, size).await;
            }
            let proof = self.prover.consistency(seen, size).await?.path;
            match self.post(&Submission { old: seen, proof, note: newest.note.clone() }).await? {
                Answer::Signed(lines) => return self.keep(note, &newest, &lines),
                Answer::Seen(other) => seen = other,
                Answer::Contradicted(words) => {
                    let message = format!("the witness {} does not cosign {size} events: {words}", self.key.name());
                    return Err(Failure::new(ErrorCode::LedgerForked, message));
                }
            }
        }
        Err(self.refused("keeps seeing other heads".to_owned()))
    }

    /// The witness cosigned a later head. Either somebody else asked meanwhile, or this log lost events.
    async fn has_seen_more(&self, seen: u64, size: u64) -> Result<Asked, Failure> {
        let head = self.reader.head().await?.position;
        if head >= seen {
            return Ok(Asked::Nothing(size));
        }
        let message = format!("the witness {} has seen {seen} events of this log, which has {head}", self.key.name());
        Err(Failure::new(ErrorCode::LedgerForked, message))
    }

    async fn post(&self, submission: &Submission) -> Result<Answer, Failure> {
        let sent = self.http.post(self.url.clone()).header(CONTENT_TYPE, "text/plain").body(submission.to_text());
        let unreachable = |error: reqwest::Error| self.refused(format!("cannot be reached: {}", error.without_url()));
        let answer = sent.send().await.map_err(unreachable)?;
        let status = answer.status();
        let is_size =
            answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(SIZE_TYPE.as_bytes()));
        let body = beginning(answer, MAX_NOTE_BYTES).await.map_err(unreachable)?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let words = || escaped(text.trim_end());
        match status {
            StatusCode::OK => Ok(Answer::Signed(text)),
            StatusCode::CONFLICT if is_size => {
                let size = text.trim_end().parse();
                size.map(Answer::Seen).map_err(|_| self.refused("answered with a size that is none".to_owned()))
            }
            StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => Ok(Answer::Contradicted(words())),
            _ => Err(self.refused(format!("answered {status}: {:.200}", words()))),
        }
    }

    /// Keeps the cosignature, if it is one.
    fn keep(&self, mut note: Note, newest: &RecordedCheckpoint, lines: &str) -> Result<Asked, Failure> {
        let signatures = lines.lines().filter_map(|line| NoteSignature::parse(line).ok());
        note.signatures
            .extend(signatures.filter(|one| one.name == self.key.name() && one.key_id == self.key.id()).take(1));
        let seconds =
            note.verify(&self.key).map_err(|error| self.refused(format!("did not cosign it: {error}")))?.moment();
        let at = now();
        record_cosigned(self.data.folder(), at, &note)
            .map_err(|error| Failure::new(error.code(), error.to_string()))?;
        let cosigned = RecordedCheckpoint { at, note: note.to_string(), checkpoint: newest.checkpoint.clone() };
        Ok(Asked::Cosigned(cosigned, seconds.unwrap_or(0)))
    }

    fn refused(&self, reason: String) -> Failure {
        let address = self.url.origin().ascii_serialization();
        Failure::new(ErrorCode::WitnessRefused, format!("the witness at {address} {reason}"))
    }
}

//! Writing a bundle. What was begun and interrupted goes on where it stopped, under the same checkpoint.

use super::{BundleError, End, EventLine, FORMAT, Header, KeyLine, Line, Lines};
use crate::limits::MAX_PAGE_EVENTS;
use crate::proof::{Prover, RecordedCheckpoint};
use crate::reader::{EventFilter, LedgerReader};
use devmind_domain::canonical::Hash;
use devmind_domain::proof::NoteKey;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What goes into a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole log.
    Everything,
    /// Events that pass a filter, with its description for people.
    Some(Box<EventFilter>, String),
}

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The events in it.
    pub events: u64,
    /// The size of the log that its checkpoint speaks of.
    pub size: u64,
    /// The root at that size.
    pub root: Hash,
    /// The public key's fingerprint.
    pub fingerprint: String,
    /// The events that an interrupted export had written before.
    pub resumed: u64,
}

/// Writes a bundle to a file that is not there yet; until it is complete, it is `<file>.part`. That stays where the next
/// export can go on with it, and goes where the log itself is why there will be none.
///
/// `checkpoint` is the newest one of the ledger; events after it are left out. `progress` is told
/// positions (done, all), at first how far an interrupted export had come.
///
/// # Errors
/// [`BundleError`].
pub async fn export_bundle(
    reader: &LedgerReader,
    selection: &Selection,
    checkpoint: &RecordedCheckpoint,
    key: &NoteKey,
    file: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<Export, BundleError> {
    if file.exists() {
        return Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, "it is there already").into());
    }
    let header = Header {
        format: FORMAT.to_owned(),
        selection: match selection {
            Selection::Everything => "everything".to_owned(),
            Selection::Some(_, words) => words.clone(),
        },
        complete: matches!(selection, Selection::Everything),
        checkpoint: checkpoint.note.clone(),
        key: key.to_string(),
        fingerprint: key.fingerprint(),
    };
    let part = part_of(file);
    let done = write(reader, selection, header, &part, &mut progress).await;
    match &done {
        Ok(_) => std::fs::rename(&part, file)?,
        Err(error) if error.is_refusal() => drop(std::fs::remove_file(&part)),
        Err(_) => {}
    }
    done
}

/// Writes the part to its end.
async fn write(
    reader: &LedgerReader,
    selection: &Selection,
    header: Header,
    part: &Path,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Export, BundleError> {
    let prover = Prover::new(reader.clone());
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(part)?;
    let mut begun = Begun::read(&file, &header);
    if let Some(found) = &begun.header
        && !is_of_log(&prover, found).await
    {
        begun = Begun::default();
    }
    let mut writer = Writer::open(file, header, begun)?;
    let fingerprint = writer.header.fingerprint.clone();
    // An interrupted export goes on under the checkpoint that it began with.
    let (_, _, signed) = writer.header.checked().map_err(|reason| BundleError::Line { line: 1, reason })?;
    // Neither a log that lost events nor one that was rewritten is what was signed.
    let not_signed = || {
        BundleError::from(reader.corrupt(format!("it is not the log whose first {} events were signed", signed.size)))
    };
    if reader.head().await?.position < signed.size {
        return Err(not_signed());
    }
    let any = EventFilter::default();
    let resumed = writer.events;
    let mut after = writer.after;
    progress(after, signed.size);
    while after < signed.size {
        let page = match selection {
            Selection::Everything => reader.query(&any, after, MAX_PAGE_EVENTS).await?,
            Selection::Some(filter, _) => reader.query(filter, after, MAX_PAGE_EVENTS).await?,
        };
        let page: Vec<_> = page.into_iter().filter(|event| event.position <= signed.size).collect();
        let Some(last) = page.last().map(|event| event.position) else { break };
        let mut keys = Vec::new();
        if writer.header.complete {
            if let Some((place, _)) = (after + 1..).zip(&page).find(|(place, event)| event.position != *place) {
                return Err(reader.corrupt(format!("event {place} is not in the log")).into());
            }
            keys = keys_between(reader, after + 1, last).await?;
        }
        let mut keys = keys.into_iter().peekable();
        for event in &page {
            // What is wrong in the ledger is no better in a bundle, and nobody who gets that can mend it.
            if event.leaf_hash != event.expected_leaf_hash() {
                let reason = format!("event {} does not have the hash that was recorded for it", event.position);
                return Err(reader.corrupt(reason).into());
            }
            while let Some(key) = keys.next_if(|key| key.first <= event.position) {
                writer.line(&Line::Key(key))?;
            }
            let proof = match writer.header.complete {
                true => None,
                false => Some(prover.inclusion(event.position, signed.size).await?.path),
            };
            writer.line(&Line::Event(Box::new(EventLine::of(event, proof.as_deref()))))?;
            writer.events += 1;
        }
        after = last;
        progress(after, signed.size);
        kill_point::at(|| "export page".to_owned());
    }
    if writer.header.complete {
        // Requests that had nothing to change, at the very end.
        for key in keys_between(reader, signed.size + 1, signed.size + 1).await? {
            if key.last <= signed.size {
                writer.line(&Line::Key(key))?;
            }
        }
    }
    if prover.root(signed.size).await? != signed.root {
        return Err(not_signed());
    }
    let events = writer.finish()?;
    Ok(Export { events, size: signed.size, root: signed.root, fingerprint, resumed })
}

/// Whether what was begun is of the log as it is now.
async fn is_of_log(prover: &Prover, begun: &Header) -> bool {
    match begun.checked() {
        Ok((_, _, signed)) => prover.root(signed.size).await.is_ok_and(|root| root == signed.root),
        Err(_) => false,
    }
}

async fn keys_between(reader: &LedgerReader, first: u64, last: u64) -> Result<Vec<KeyLine>, BundleError> {
    let rows = reader.keys_of(first, last).await?;
    let lines = rows.into_iter().map(|row| {
        let (first, last) = row.range();
        KeyLine { scope: row.scope, key: row.key, request_hash: row.request_hash, first, last }
    });
    // Those that began on an earlier page are there already.
    Ok(lines.filter(|line| (first..=last).contains(&line.first)).collect())
}

fn part_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Lines to the file and through the hash.
struct Writer {
    header: Header,
    out: BufWriter<File>,
    hash: Sha256,
    events: u64,
    /// The position of the last event.
    after: u64,
}

impl Writer {
    /// A file that is written anew, or on from what was begun, cut to its last whole event.
    fn open(mut file: File, header: Header, begun: Begun) -> Result<Self, BundleError> {
        file.set_len(begun.bytes)?;
        file.seek(SeekFrom::Start(begun.bytes))?;
        let Begun { hash, events, after, header: found, .. } = begun;
        let is_new = found.is_none();
        let header = found.unwrap_or(header);
        let mut writer = Self { header: header.clone(), out: BufWriter::new(file), hash, events, after };
        if is_new {
            writer.line(&Line::Bundle(header))?;
        }
        Ok(writer)
    }

    fn line(&mut self, line: &Line) -> Result<(), BundleError> {
        let text = serde_json::to_string(line).map_err(std::io::Error::other)? + "\n";
        self.hash.update(&text);
        self.out.write_all(text.as_bytes())?;
        Ok(())
    }

    fn finish(mut self) -> Result<u64, BundleError> {
        let end = End { events: self.events, sha256: hex::encode(self.hash.clone().finalize()) };
        self.line(&Line::End(end))?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        Ok(self.events)
    }
}

/// What an interrupted export left.
#[derive(Default)]
struct Begun {
    header: Option<Header>,
    hash: Sha256,
    bytes: u64,
    events: u64,
    after: u64,
}

impl Begun {
    fn read(file: &File, wanted: &Header) -> Self {
        let (mut lines, mut begun) = (Lines::new(BufReader::new(file)), Self::default());
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        // What cannot be read is written anew.
        while let Ok(Some(line)) = lines.next() {
            hash.update(&lines.text);
            bytes += lines.text.len() as u64;
            match line {
                Line::Bundle(found) if begun.header.is_none() => {
                    let same = found.selection == wanted.selection && found.key == wanted.key;
                    if !same {
                        return Self::default();
                    }
                    begun.header = Some(found);
                }
                Line::Event(event) if begun.header.is_some() => {
                    begun.events += 1;
                    begun.after = event.position;
                }
                // Keys stand before their event: alone they are written again.
                Line::Key(_) => continue,
                Line::Bundle(_) | Line::Event(_) | Line::End(_) => return begun,
            }
            (begun.hash, begun.bytes) = (hash.clone(), bytes);
        }
        begun
    }
}

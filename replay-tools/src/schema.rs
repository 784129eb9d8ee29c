//! `schema check`: whether this program can read what is in a log: every version of every type that was ever written.

use crate::Verdict;
use crate::at::At;
use crate::failure::Failure;
use crate::output::{Output, Progress, escaped, say};
use crate::store::Source;
use devmind_domain::event::{DecodeError, RecordedEvent};
use devmind_ledger::MAX_PAGE_EVENTS;
use devmind_ledger::verify::stored_states;
use serde_json::json;
use std::collections::BTreeMap;

/// What can be said of one version of one type, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fits {
    /// Every event of it becomes an event of this program.
    Compatible,
    /// The type is known here, this version of it is not.
    NeedsUpcaster,
    /// The type is unknown here: a newer program wrote it, or it was kept from elsewhere.
    Unknown,
    /// The version is known, and an event of it cannot be read.
    Breaking,
}

impl Fits {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Compatible => "compatible",
            Self::NeedsUpcaster => "needs upcaster",
            Self::Unknown => "unknown type",
            Self::Breaking => "breaking",
        }
    }
}

struct Version {
    events: u64,
    fits: Fits,
    /// The first event that does not fit, and why.
    first: Option<(u64, String)>,
}

type Versions = BTreeMap<(String, String, u32), Version>;

pub(crate) async fn check(data: &Source, at: Option<At>, output: &mut Output) -> Result<Verdict, Failure> {
    let reader = data.open_ledger().await?;
    let position = data.position(&reader, at).await?;
    let mut versions = Versions::new();
    {
        let progress = Progress::new("reading", "events");
        let mut after = 0;
        while after < position {
            let page = reader.read(after, MAX_PAGE_EVENTS).await?;
            let Some(last) = page.last().map(|event| event.position) else { break };
            page.iter().filter(|event| event.position <= position).for_each(|event| see(&mut versions, event));
            after = last;
            progress.set(after.min(position), position);
        }
    }
    let states: Vec<_> = stored_states(&reader).await?.into_iter().filter(|found| found.position <= position).collect();
    let worst = versions.values().map(|version| version.fits).max().unwrap_or(Fits::Compatible);
    if output.is_json() {
        let of = |((kind, event_type, number), version): (&(String, String, u32), &Version)| {
            json!({
                "aggregate_type": kind, "event_type": event_type, "event_version": number, "events": version.events,
                "verdict": version.fits.as_str(),
                "first": version.first.as_ref().map(|(at, reason)| json!({ "position": at, "reason": reason })),
            })
        };
        let findings: Vec<_> =
            states.iter().map(|found| json!({ "position": found.position, "reason": found.reason })).collect();
        output.json(&json!({
            "position": position, "verdict": worst.as_str(), "stored_states_differ": findings,
            "versions": versions.iter().map(of).collect::<Vec<_>>(),
        }))?;
    } else {
        for ((kind, event_type, number), version) in &versions {
            let first =
                version.first.as_ref().map(|(at, reason)| format!(": event {at}: {reason}")).unwrap_or_default();
            let (events, fits) = (version.events, version.fits.as_str());
            output.line(escaped(&format!("{fits:<14} {events:>9}  {kind} {event_type} v{number}{first}")))?;
        }
        for found in &states {
            output.line(escaped(&format!("breaking: event {}: {}", found.position, found.reason)))?;
        }
        output.line(worst.as_str())?;
        output.finish()?;
        say(format_args!("read at position {position}"));
    }
    Ok(match worst {
        _ if !states.is_empty() => Verdict::Broken,
        Fits::Compatible => Verdict::Holds,
        Fits::NeedsUpcaster | Fits::Unknown => Verdict::Incomplete,
        Fits::Breaking => Verdict::Broken,
    })
}

fn see(versions: &mut Versions, event: &RecordedEvent) {
    let key = (event.stream.aggregate_type.clone(), event.event_type.clone(), event.event_version);
    let version = versions.entry(key).or_insert(Version { events: 0, fits: Fits::Compatible, first: None });
    version.events += 1;
    let Err(error) = event.decode() else { return };
    let fits = match &error {
        DecodeError::UnknownVersion { .. } => Fits::NeedsUpcaster,
        DecodeError::UnknownType { .. } => Fits::Unknown,
        DecodeError::Payload { .. } => Fits::Breaking,
    };
    if fits > version.fits {
        version.fits = fits;
        version.first = Some((event.position, error.to_string()));
    }
}

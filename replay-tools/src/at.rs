//! `--at`: a position of the log, or a time, which stands for the last event that was recorded until then.

use crate::failure::Failure;
use devmind_domain::{ErrorCode, Timestamp};
use devmind_ledger::LedgerReader;

/// A point of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Position(u64),
    Time(Timestamp),
}

impl std::str::FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(position) = text.parse() {
            return Ok(Self::Position(position));
        }
        let time = Timestamp::parse(text);
        time.map(Self::Time).map_err(|_| "neither a position nor a time like 2026-01-31T03:00:00Z".to_owned())
    }
}

/// The position that is meant; the head where nothing is said.
///
/// # Errors
/// When the log does not go so far, or cannot be read.
pub(crate) async fn position(reader: &LedgerReader, at: Option<At>) -> Result<u64, Failure> {
    let head = reader.head().await?.position;
    match at {
        None => Ok(head),
        Some(At::Time(moment)) => Ok(reader.position_at(moment).await?),
        Some(At::Position(position)) if position <= head => Ok(position),
        Some(At::Position(position)) => {
            Err(Failure::new(ErrorCode::NotFound, format!("the log ends at position {head}, before {position}"))
                .with_hint("name an earlier position, or none for the newest"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_or_a_time_is_understood_and_nothing_else() {
        assert_eq!("412".parse(), Ok(At::Position(412)));
        let time = At::Time(Timestamp::from_micros(1_000_000));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(time));
        assert!("yesterday".parse::<At>().is_err() && "-1".parse::<At>().is_err());
    }
}

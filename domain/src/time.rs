//! Moments: UTC with microseconds, as the ledger records them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A moment in UTC, in whole microseconds since the Unix epoch.
///
/// Its text is RFC 3339 with exactly six fractional digits, so that texts sort as moments do:
/// `2026-11-29T22:04:51.123456Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String, format = DateTime))]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment `micros` microseconds after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Milliseconds since the Unix epoch, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// This moment and `millis` milliseconds.
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }

    /// Milliseconds from `earlier` to this moment; negative when it lies before.
    pub const fn millis_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0).div_euclid(1_000)
    }

    /// Reads RFC 3339 text.
    ///
    /// # Errors
    /// When the text is not a moment of RFC 3339.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.parse::<jiff::Timestamp>().map(|moment| Self(moment.as_microsecond())).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(moment) => write!(f, "{moment:.6}"),
            // Outside jiff's years -9999 to 9999: a number is still better than a panic.
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_prints_six_digits_and_reads_them_back() {
        let moment = Timestamp::from_micros(1_790_000_000_000_100);
        assert_eq!(moment.to_string(), "2026-09-21T14:13:20.000100Z");
        assert_eq!(Timestamp::parse(&moment.to_string()), Ok(moment));
        assert_eq!(serde_json::to_string(&moment).expect("text"), "\"2026-09-21T14:13:20.000100Z\"");
    }

    #[test]
    fn text_that_is_no_moment_is_refused_and_other_offsets_are_read_as_utc() {
        for text in ["", "2026-09-21", "2026-09-21T14:13:20", "2026-13-21T14:13:20Z", "yesterday", "1790000000"] {
            assert!(Timestamp::parse(text).is_err(), "{text}");
        }
        let utc = Timestamp::parse("2026-09-21T14:13:20Z");
        assert_eq!(Timestamp::parse("2026-09-21T16:13:20+02:00"), utc);
    }

    #[test]
    fn differences_are_whole_milliseconds_and_extremes_do_not_overflow() {
        let at = Timestamp::from_micros;
        assert_eq!(at(5_000).millis_since(at(2_001)), 2);
        assert_eq!(at(2_001).millis_since(at(5_000)), -3);
        assert_eq!(at(-1).as_millis(), -1);
        assert_eq!(at(1).plus_millis(2).as_micros(), 2_001);
        assert!(at(i64::MAX).millis_since(at(i64::MIN)) > 0);
        assert_eq!(at(i64::MAX).plus_millis(1), at(i64::MAX));
        assert!(at(i64::MAX).to_string().ends_with("us"), "outside the calendar there is still a text");
    }
}

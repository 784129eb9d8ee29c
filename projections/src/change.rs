//! Row changes as data: what a projection's pure function answers, and what the runner executes.
//!
//! The SQL is static text with `$1 …` placeholders and unqualified table names, so the same change
//! runs on SQLite and PostgreSQL, on the live tables and on a rebuilt copy of them.

use devmind_domain::ids::*;
use devmind_domain::{Timestamp, canonical};

/// One statement with its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The statement.
    pub sql: &'static str,
    /// `$1`, `$2` …
    pub values: Vec<Value>,
}

/// One value. Absence keeps its type: PostgreSQL takes no text null for an integer column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A 64-bit integer; moments are microseconds since the Unix epoch.
    Int(Option<i64>),
    /// A text; JSON is canonical text.
    Text(Option<String>),
    /// A truth value.
    Bool(bool),
}

/// Makes a [`Change`]; every value is turned into a [`Value`].
macro_rules! change {
    ($sql:expr $(, $value:expr)* $(,)?) => {
        $crate::change::Change { sql: $sql, values: vec![$($crate::change::Value::from($value)),*] }
    };
}
pub(crate) use change;

/// A count as a database integer; beyond 2^63 it stays at the largest one.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}
impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Some(text))
    }
}
impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::Text(Some(text.clone()))
    }
}
impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(str::to_owned))
    }
}
impl From<Option<String>> for Value {
    fn from(text: Option<String>) -> Self {
        Self::Text(text)
    }
}
impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(Some(number))
    }
}
impl From<Option<u64>> for Value {
    fn from(number: Option<u64>) -> Self {
        Self::Int(number.map(int))
    }
}
impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(Some(number.into()))
    }
}
impl From<Option<u16>> for Value {
    fn from(number: Option<u16>) -> Self {
        Self::Int(number.map(i64::from))
    }
}
impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(Some(int(number)))
    }
}
impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}
impl From<Timestamp> for Value {
    fn from(moment: Timestamp) -> Self {
        Self::Int(Some(moment.as_micros()))
    }
}
impl From<Option<Timestamp>> for Value {
    fn from(moment: Option<Timestamp>) -> Self {
        Self::Int(moment.map(Timestamp::as_micros))
    }
}
impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        Self::Text(Some(canonical::canonical_json(json)))
    }
}
impl From<Option<&serde_json::Value>> for Value {
    fn from(json: Option<&serde_json::Value>) -> Self {
        Self::Text(json.map(canonical::canonical_json))
    }
}

macro_rules! ids {
    ($($id:ident),*) => {$(
        impl From<&$id> for Value {
            fn from(id: &$id) -> Self {
                Self::Text(Some(id.0.clone()))
            }
        }
        impl From<Option<&$id>> for Value {
            fn from(id: Option<&$id>) -> Self {
                Self::Text(id.map(|id| id.0.clone()))
            }
        }
    )*};
}
ids!(
    UserId,
    ConversationId,
    TurnId,
    RunId,
    MessageId,
    ThreadId,
    InterruptId,
    ToolCallId,
    DeviceId,
    ConnectionId,
    NodeId
);

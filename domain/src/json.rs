//! JSON from outside, read strictly (RFC 7493, I-JSON).
//!
//! What is hashed must mean one thing to every reader: a repeated key, an integer that a double
//! cannot hold, or nesting without end is refused instead of being folded silently.

use crate::limits::MAX_JSON_DEPTH;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The largest integer that every JSON reader keeps exactly: 2^53 - 1.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Reads JSON text strictly.
///
/// # Errors
/// On anything that is not I-JSON of at most [`MAX_JSON_DEPTH`] levels: bad syntax, a repeated key,
/// an integer beyond ±(2^53 − 1), negative zero, a lone surrogate.
pub fn parse_strict(text: &str) -> Result<Value, String> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: MAX_JSON_DEPTH }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| error.to_string())
}

/// Deserialises an integer from outside that will be recorded: canonical JSON writes every number as
/// a double, so one beyond 2^53 - 1 could not be read back from the log.
pub(crate) fn safe_u64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let value = <u64 as serde::Deserialize>::deserialize(deserializer)?;
    if value > MAX_SAFE_INTEGER {
        return Err(D::Error::custom(format!("integer {value} is beyond 2^53 - 1")));
    }
    Ok(value)
}

#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self { depth }),
            None => Err(E::custom(format!("nested deeper than {MAX_JSON_DEPTH} levels"))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("I-JSON (RFC 7493)")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        if value > MAX_SAFE_INTEGER {
            return Err(E::custom(format!("integer {value} is beyond 2^53 - 1")));
        }
        Ok(value.into())
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        if value.unsigned_abs() > MAX_SAFE_INTEGER {
            return Err(E::custom(format!("integer {value} is beyond -(2^53 - 1)")));
        }
        Ok(value.into())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        if value == 0.0 && value.is_sign_negative() {
            return Err(E::custom("negative zero"));
        }
        // serde_json hands over integers beyond 64 bits as doubles: they are not exact either.
        if value.fract() == 0.0 && value.abs() > MAX_SAFE_INTEGER as f64 {
            return Err(E::custom(format!("number {value} is beyond 2^53 - 1")));
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("key {key:?} comes twice")));
            }
            let value = entries.next_value_seed(inner)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_two_readers_could_read_differently_is_refused() {
        for (text, complaint) in [
            (r#"{"a":1,"a":2}"#, "comes twice"),
            (r#"{"x":{"a":1,"a":1}}"#, "comes twice"),
            ("9007199254740993", "beyond"),
            ("-9007199254740993", "beyond"),
            ("100000000000000000000000", "beyond"),
            ("-0.0", "negative zero"),
            ("[1] x", "trailing"),
            ("-0", "negative zero"),
            (r#""\ud800""#, "hex escape"),
            (r#""\ud800\u0041""#, "surrogate"),
            (r#""\udc00""#, "surrogate"),
            ("1e400", "out of range"),
        ] {
            let error = parse_strict(text).expect_err(text);
            assert!(error.contains(complaint), "{text}: {error}");
        }
        let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
        assert!(parse_strict(&deep).expect_err("deep").contains("levels"));
    }

    #[test]
    fn plain_json_is_read_as_it_stands() {
        let text = r#"{"path":"README.md","n":[1,-2,0.5,null,true],"o":{}}"#;
        assert_eq!(parse_strict(text), Ok(serde_json::from_str(text).expect("valid")));
    }
}

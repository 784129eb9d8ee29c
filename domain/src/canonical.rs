//! Canonical JSON and the hashes over it.
//!
//! The ledger stores the very bytes that were hashed: RFC 8785 (JSON Canonicalization Scheme) text.
//! Leaves follow RFC 6962 §2.1: `SHA-256(0x00 || data)`.

use serde::Serialize;
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// A SHA-256 digest.
pub type Hash = [u8; 32];

/// The largest whole number that RFC 8785, whose numbers are IEEE 754 doubles, writes with all its digits.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// RFC 8785 text of a value.
///
/// # Panics
/// Never for the types of this crate: they have string keys and no infinities or NaN, the only
/// things that canonicalisation refuses.
pub fn canonical_json<T: Serialize + ?Sized>(value: &T) -> String {
    let text = || match serde_json::to_value(value)? {
        plain if is_plain(&plain) => serde_json::to_string(&plain),
        other => serde_json_canonicalizer::to_string(&other),
    };
    #[allow(clippy::expect_used)]
    text().expect("domain values have string keys and finite numbers")
}

/// Whether the text of the value is canonical as serde_json writes it, at a third of a canonicaliser's cost: its maps
/// are sorted by bytes, which for ASCII is the order of UTF-16, and it writes texts and small whole numbers in the one
/// form there is.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => is_small_integer(number),
        Value::Array(values) => values.iter().all(is_plain),
        Value::Object(fields) => fields.iter().all(|(name, value)| name.is_ascii() && is_plain(value)),
    }
}

fn is_small_integer(number: &Number) -> bool {
    let integer = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
    integer.is_some_and(|integer| integer <= MAX_SAFE_INTEGER)
}

/// SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// SHA-256 of bytes as 64 lower-case hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(sha256(bytes))
}

/// SHA-256, in hexadecimal, of a value's canonical JSON.
pub fn hash_json<T: Serialize + ?Sized>(value: &T) -> String {
    sha256_hex(canonical_json(value).as_bytes())
}

/// The leaf hash of RFC 6962 §2.1.
pub fn leaf_hash(data: &[u8]) -> Hash {
    Sha256::new().chain_update([0]).chain_update(data).finalize().into()
}

/// The interior node hash of RFC 6962 §2.1.
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
}

/// The identity of what a tool call does: SHA-256 of `{arguments, tool, version}`.
///
/// Tool and version are part of it, so that one id cannot return another tool's result.
pub fn call_hash(tool: &str, version: &str, arguments: &serde_json::Value) -> String {
    hash_json(&serde_json::json!({ "tool": tool, "version": version, "arguments": arguments }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{hash_map, vec};
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn key_order_does_not_change_a_hash_but_tool_version_and_values_do() {
        let hash = call_hash("t", "1", &json!({"a": 1, "b": 2}));
        assert_eq!(hash, call_hash("t", "1", &json!({"b": 2, "a": 1})));
        assert_ne!(hash, call_hash("u", "1", &json!({"a": 1, "b": 2})));
        assert_ne!(hash, call_hash("t", "2", &json!({"a": 1, "b": 2})));
        assert_ne!(hash, call_hash("t", "1", &json!({"a": 1, "b": "2"})));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let number = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-3_i64..3).prop_map(|n| Value::from(MAX_SAFE_INTEGER as i64 + n)),
            (-3_i64..3).prop_map(|n| Value::from(n - MAX_SAFE_INTEGER as i64)),
            proptest::num::f64::NORMAL.prop_map(Value::from),
            Just(json!(-0.0)),
        ];
        let name = prop_oneof![
            any::<String>(),
            "[a-zA-Z_\\\\\"\n\u{7f}]{0,4}",
            "[\u{e000}-\u{ffff}\u{10000}-\u{10ffff}a]{0,3}"
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            number,
            name.clone().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 6, move |inner| {
            prop_oneof![
                vec(inner.clone(), 0..6).prop_map(Value::from),
                hash_map(name.clone(), inner, 0..6).prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_without_the_canonicaliser_is_what_it_writes(value in any_json()) {
            prop_assert_eq!(canonical_json(&value), serde_json_canonicalizer::to_string(&value).expect("canonical"));
        }
    }

    #[test]
    fn canonical_json_is_rfc_8785_text() {
        // From RFC 8785, section 3.2.2 and 3.2.3.
        let text = r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#;
        let value: serde_json::Value = serde_json::from_str(text).expect("valid");
        assert_eq!(
            canonical_json(&value),
            r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
        );
    }
}

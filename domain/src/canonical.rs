//! Canonical JSON and the hashes over it.
//!
//! The ledger stores the very bytes that were hashed: RFC 8785 (JSON Canonicalization Scheme) text.
//! Leaves follow RFC 6962 §2.1: `SHA-256(0x00 || data)`.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// A SHA-256 digest.
pub type Hash = [u8; 32];

/// RFC 8785 text of a value.
///
/// # Panics
/// Never for the types of this crate: they have string keys and no infinities or NaN, the only
/// things that canonicalisation refuses.
pub fn canonical_json<T: Serialize + ?Sized>(value: &T) -> String {
    #[allow(clippy::expect_used)]
    serde_json_canonicalizer::to_string(&value).expect("domain values have string keys and finite numbers")
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
    use serde_json::json;

    #[test]
    fn key_order_does_not_change_a_hash_but_tool_version_and_values_do() {
        let hash = call_hash("t", "1", &json!({"a": 1, "b": 2}));
        assert_eq!(hash, call_hash("t", "1", &json!({"b": 2, "a": 1})));
        assert_ne!(hash, call_hash("u", "1", &json!({"a": 1, "b": 2})));
        assert_ne!(hash, call_hash("t", "2", &json!({"a": 1, "b": 2})));
        assert_ne!(hash, call_hash("t", "1", &json!({"a": 1, "b": "2"})));
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

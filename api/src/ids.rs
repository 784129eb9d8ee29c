//! Where ids, secrets and the time come from: the impure things that commands carry inwards.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use devmind_domain::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// A new UUIDv7 (RFC 9562 §5.7).
pub fn new_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// The time.
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

/// 256 random bits as base64url text.
///
/// # Errors
/// When the operating system has no randomness to give.
pub fn new_secret() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

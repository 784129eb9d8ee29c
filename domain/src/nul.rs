//! U+0000 in what people and models say. The log keeps it (JSON escapes it), but PostgreSQL has no text with it in,
//! and views give prompts their earlier turns: so views and prompts show U+FFFD in its place, on every store alike.

use std::borrow::Cow;

/// The text with U+FFFD in place of every U+0000.
pub fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

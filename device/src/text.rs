//! Text from outside, made safe to show and to compare.
//!
//! A file name or an argument may hold characters that move the cursor, turn the reading direction
//! round, or are not seen at all. Here they are recognised and, for people, written out.

use std::fmt::Write as _;

/// Code points with the property `Default_Ignorable_Code_Point` (Unicode 16, DerivedCoreProperties):
/// a reader does not see them, so a name may hide behind them.
const DEFAULT_IGNORABLE: [(u32, u32); 17] = [
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
];

/// Whether a reader would not see the character, or it would change how the rest is shown.
pub fn is_invisible(character: char) -> bool {
    let point = u32::from(character);
    character.is_control()
        // Line and paragraph separators break a line without being controls.
        || matches!(character, '\u{2028}' | '\u{2029}')
        || DEFAULT_IGNORABLE.iter().any(|(first, last)| (*first..=*last).contains(&point))
}

/// The text with every character of [`is_invisible`] written as `\u{…}`, and the backslash doubled
/// so that nobody can write such an escape by hand.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            hidden if is_invisible(hidden) => {
                // Writing to a String cannot fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(hidden));
            }
            plain => shown.push(plain),
        }
    }
    shown
}

/// As many whole characters from the beginning as fit into so many bytes.
pub fn whole_characters(text: &str, max_bytes: usize) -> &str {
    let mut end = max_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The text from the character on that the byte at `from` belongs to.
pub fn whole_characters_from(text: &str, from: usize) -> &str {
    &text[whole_characters(text, from).len()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_turns_or_hides_text_is_shown_raw() {
        assert_eq!(visible("a\u{202e}b\u{1b}[2Jc\u{200b}\n"), r"a\u{202e}b\u{1b}[2Jc\u{200b}\n");
        assert_eq!(visible("файл 日本 😀.md"), "файл 日本 😀.md");
        assert_eq!(visible(r"\u{1b}"), r"\\u{1b}");
        for point in (0..=0xFFFFu32).filter_map(char::from_u32).filter(|c| is_invisible(*c)) {
            assert!(!visible(&point.to_string()).contains(point), "{:x}", u32::from(point));
        }
    }
}

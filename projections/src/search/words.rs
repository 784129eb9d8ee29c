//! Text as words, and a piece of a text around the words that were looked for.

/// Words of one text that can be found, at most: the first.
const MAX_WORDS: usize = 20_000;
/// Words of a search, at most: the first.
pub(super) const MAX_SEARCHED_WORDS: usize = 16;
/// Characters of a word, at most: what follows is not looked at.
const MAX_WORD_CHARS: usize = 64;
/// Characters shown before the first word found, and from there on.
const BEFORE: usize = 60;
const AFTER: usize = 140;

/// Words, each with the byte it begins at: letters and digits in lower case; an ideograph or kana is a word
/// by itself, because such texts have no spaces.
fn words(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut letters = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (at, first) = letters.find(|(_, letter)| letter.is_alphanumeric())?;
        let mut word: String = first.to_lowercase().collect();
        let mut length = 1;
        while !stands_alone(first)
            && let Some((_, letter)) = letters.next_if(|(_, letter)| letter.is_alphanumeric() && !stands_alone(*letter))
        {
            length += 1;
            if length <= MAX_WORD_CHARS {
                word.extend(letter.to_lowercase());
            }
        }
        // Lower case may bring marks along that are no letters.
        word.retain(char::is_alphanumeric);
        Some((at, word))
    })
    .filter(|(_, word)| !word.is_empty())
}

const fn stands_alone(letter: char) -> bool {
    matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// The words of a text, as they are stored.
pub(super) fn indexed(text: &str) -> String {
    words(text).take(MAX_WORDS).map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// The words of a search.
pub(super) fn searched(text: &str) -> Vec<String> {
    words(text).take(MAX_SEARCHED_WORDS).map(|(_, word)| word).collect()
}

/// The text around the first word that begins like one of those searched, in one line.
pub(super) fn snippet(text: &str, searched: &[String]) -> String {
    let found = words(text).find(|(_, word)| searched.iter().any(|begin| word.starts_with(begin.as_str())));
    let at = found.map_or(0, |(at, _)| at);
    let (before, after) = text.split_at(at);
    let skipped = before.chars().count().saturating_sub(BEFORE);
    let shown: String = before.chars().skip(skipped).chain(after.chars().take(AFTER)).collect();
    let line = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let (begin, end) = (if skipped > 0 { "…" } else { "" }, if after.chars().nth(AFTER).is_some() { "…" } else { "" });
    format!("{begin}{line}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_letters_and_digits_in_lower_case_and_ideographs_stand_alone() {
        assert_eq!(indexed("Read README.md, then src/main.rs (v2)!"), "read readme md then src main rs v2");
        assert_eq!(indexed("Größe ÇA été"), "größe ça été");
        assert_eq!(indexed("数据库 and カナ"), "数 据 库 and カ ナ");
        assert_eq!(indexed(" ' & : * \\ \" "), "");
        assert_eq!(indexed("İ"), "i", "what lower case adds is no word");
        assert_eq!(indexed(&"x".repeat(1_000)).len(), MAX_WORD_CHARS);
        assert_eq!(searched(&"a ".repeat(100)).len(), MAX_SEARCHED_WORDS);
    }

    #[test]
    fn a_snippet_shows_the_first_word_found_in_one_line_and_says_what_is_left_out() {
        assert_eq!(snippet("a short\ntext", &["tex".to_owned()]), "a short text");
        let long = format!("{} Needle {}", "ä ".repeat(200), "ö ".repeat(200));
        let shown = snippet(&long, &["needle".to_owned()]);
        assert!(shown.starts_with("…ä ") && shown.contains(" Needle ö ") && shown.ends_with('…'), "{shown}");
        assert!(shown.chars().count() <= BEFORE + AFTER + 2, "{shown}");
    }
}

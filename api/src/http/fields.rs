//! What clients write into fields: each kind of text is a type that holds only what may be used, so
//! that a handler cannot forget to check it, and the description of the API says the same.

use crate::identity::MAX_USER_CHARS;
use devmind_domain::limits::{
    MAX_CLIENT_ID_CHARS, MAX_CONTENT_CHARS, MAX_IDEMPOTENCY_KEY_CHARS, MAX_PATH_BYTES, MAX_TITLE_CHARS,
};
use devmind_projections::DAY_CHARS;
use serde::Deserialize;
use utoipa::ToSchema;

/// Characters of a search, at most.
const MAX_SEARCH_CHARS: usize = 200;

macro_rules! texts {
    ($($(#[doc = $doc:literal])* #[schema($($schema:tt)*)] $name:ident, $check:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
        #[schema($($schema)*)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                $check(text).map(Self)
            }
        }
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl From<$name> for String {
            fn from(text: $name) -> String {
                text.0
            }
        }
    )*};
}

texts! {
    /// An id that the server gave out, or that the client made.
    #[schema(min_length = 1, max_length = 200, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    ClientId, id;
    /// Names the request: the same key with the same request gives the first reply again, for ever.
    #[schema(min_length = 1, max_length = 200)]
    IdempotencyKey, key;
    /// A question; not blank.
    #[schema(min_length = 1, max_length = 32_000, pattern = r"\S")]
    Content, content;
    /// A title; not blank.
    #[schema(min_length = 1, max_length = 50, pattern = r"\S")]
    Title, title;
    /// A user's name.
    #[schema(min_length = 1, max_length = 64, pattern = r"^[A-Za-z0-9._@-]+$")]
    UserName, user_name;
    /// What to look for; at least one letter or digit.
    #[schema(min_length = 1, max_length = 200)]
    SearchText, search_text;
    /// A folder within a workspace: `docs/api`, or `.`.
    #[schema(min_length = 1, max_length = 4096, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    FolderPath, folder_path;
    /// A day: `2026-11-30`.
    #[schema(min_length = 10, max_length = 10, pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    Day, day;
}

impl ClientId {
    /// As the kind of id that the field stands for.
    pub fn id<T: From<String>>(self) -> T {
        T::from(self.0)
    }
}

fn id(text: String) -> Result<String, String> {
    let characters = text.chars().count();
    if (1..=MAX_CLIENT_ID_CHARS).contains(&characters) && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    Err(format!("must have 1-{MAX_CLIENT_ID_CHARS} characters, none of them control characters"))
}

/// Kept for ever, so it must not be long.
fn key(text: String) -> Result<String, String> {
    if (1..=MAX_IDEMPOTENCY_KEY_CHARS).contains(&text.chars().count()) {
        return Ok(text);
    }
    Err(format!("must have 1-{MAX_IDEMPOTENCY_KEY_CHARS} characters"))
}

fn content(text: String) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().count() > MAX_CONTENT_CHARS {
        return Err(format!("must have 1-{MAX_CONTENT_CHARS} characters, not all of them blank"));
    }
    Ok(text)
}

/// Spaces around it are not part of it.
fn title(text: String) -> Result<String, String> {
    let text = text.trim();
    if (1..=MAX_TITLE_CHARS).contains(&text.chars().count()) {
        return Ok(text.to_owned());
    }
    Err(format!("must have 1-{MAX_TITLE_CHARS} characters"))
}

fn user_name(text: String) -> Result<String, String> {
    if crate::identity::is_user_name(&text) {
        return Ok(text);
    }
    Err(format!("must have 1-{MAX_USER_CHARS} letters, digits, . _ @ -"))
}

fn search_text(text: String) -> Result<String, String> {
    if text.chars().any(char::is_alphanumeric) && text.chars().count() <= MAX_SEARCH_CHARS {
        return Ok(text);
    }
    Err(format!("must have 1-{MAX_SEARCH_CHARS} characters, one of them a letter or digit"))
}

fn folder_path(text: String) -> Result<String, String> {
    if (1..=MAX_PATH_BYTES).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        return Ok(text);
    }
    Err(format!("must have 1-{MAX_PATH_BYTES} characters, none of them control characters"))
}

fn day(text: String) -> Result<String, String> {
    let shaped = text.len() == DAY_CHARS
        && text
            .bytes()
            .enumerate()
            .all(|(at, byte)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() });
    if shaped { Ok(text) } else { Err("must be a day like 2026-11-30".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use utoipa::PartialSchema;

    /// The description's numbers are literals; the rules' are constants.
    #[test]
    fn the_description_says_the_lengths_that_are_checked() {
        fn lengths<T: PartialSchema>() -> (u64, u64) {
            let schema = serde_json::to_value(T::schema()).expect("JSON");
            (schema["minLength"].as_u64().expect("a least"), schema["maxLength"].as_u64().expect("a most"))
        }
        assert_eq!(lengths::<ClientId>(), (1, MAX_CLIENT_ID_CHARS as u64));
        assert_eq!(lengths::<IdempotencyKey>(), (1, MAX_IDEMPOTENCY_KEY_CHARS as u64));
        assert_eq!(lengths::<Content>(), (1, MAX_CONTENT_CHARS as u64));
        assert_eq!(lengths::<Title>(), (1, MAX_TITLE_CHARS as u64));
        assert_eq!(lengths::<UserName>(), (1, MAX_USER_CHARS as u64));
        assert_eq!(lengths::<SearchText>(), (1, MAX_SEARCH_CHARS as u64));
        assert_eq!(lengths::<FolderPath>(), (1, MAX_PATH_BYTES as u64));
        assert_eq!(lengths::<Day>(), (DAY_CHARS as u64, DAY_CHARS as u64));
    }

    #[test]
    fn texts_at_their_limits_are_taken_and_those_beyond_are_not() {
        let parsed = |name: &str, text: String| match name {
            "id" => ClientId::try_from(text).is_ok(),
            "key" => IdempotencyKey::try_from(text).is_ok(),
            "content" => Content::try_from(text).is_ok(),
            _ => Title::try_from(text).is_ok(),
        };
        for (name, most) in [
            ("id", MAX_CLIENT_ID_CHARS),
            ("key", MAX_IDEMPOTENCY_KEY_CHARS),
            ("content", MAX_CONTENT_CHARS),
            ("title", MAX_TITLE_CHARS),
        ] {
            assert!(parsed(name, "é".repeat(most)), "{name}");
            assert!(!parsed(name, "é".repeat(most + 1)), "{name}");
            assert!(!parsed(name, String::new()), "{name}");
        }
        assert!(!parsed("id", "a\nb".into()) && !parsed("content", " \n".into()) && !parsed("title", " ".into()));
        assert_eq!(Title::try_from(" a ".to_owned()).expect("good").as_str(), "a");
    }
}

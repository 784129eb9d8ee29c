//! What must not be repeated: values that came from the environment for one server.

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

/// Shorter ones would be found in innocent text.
const MIN_BYTES: usize = 6;

/// The secrets that a server was given.
#[derive(Clone, Debug, Default)]
pub(super) struct Secrets(Vec<SecretString>);

impl Secrets {
    pub fn add(&mut self, value: &str) {
        // `Bearer TOKEN` is repeated as its token, too.
        let parts = std::iter::once(value).chain(value.split_whitespace());
        self.0.extend(parts.filter(|part| part.len() >= MIN_BYTES).map(SecretString::from));
    }

    /// The text with `***` in place of each secret.
    pub fn without(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), "***"))
    }

    /// The same for every text within a value.
    pub fn out_of(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if self.0.iter().any(|secret| text.contains(secret.expose_secret())) {
                    *text = self.without(text);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.out_of(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.out_of(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_is_not_repeated_wherever_it_stands() {
        let mut secrets = Secrets::default();
        secrets.add("Bearer s3cr3t-token");
        let mut value = json!([{ "env": "TOKEN=s3cr3t-token" }, "Bearer s3cr3t-token", 1]);
        secrets.out_of(&mut value);
        assert_eq!(value, json!([{ "env": "TOKEN=***" }, "***", 1]));
        assert!(!format!("{secrets:?}").contains("s3cr3t"));
    }
}

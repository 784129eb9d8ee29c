//! The model's settings: `[model]` of the file, or `MODEL_…` of the environment.

use crate::config::ConfigError;
use reqwest::Url;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Anthropic's public endpoint.
const ANTHROPIC_BASE_URL: &str = "https://api.anthropic.com/v1";

/// Which API an endpoint speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// OpenAI's chat completions, and every endpoint that speaks them too.
    #[default]
    Openai,
    /// Anthropic's messages.
    Anthropic,
}

/// A model and its endpoint.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// Which API it speaks.
    pub provider: Provider,
    /// For example `https://api.openai.com/v1`; absent: the provider's own, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The model's name there.
    pub name: String,
    /// The key; empty for endpoints that want none. It is read, and never written.
    #[serde(skip_serializing, deserialize_with = "secret")]
    pub api_key: String,
    /// Tokens of an answer, at most; absent: the provider's limit, or ours where it wants one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Whether the model may call several tools in one answer. It may do so unasked, all the same.
    pub parallel_tool_calls: bool,
}

impl fmt::Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { provider, base_url, name, api_key, max_tokens, parallel_tool_calls } = self;
        let key = if api_key.is_empty() { "" } else { "***" };
        f.debug_struct("ModelConfig")
            .field("provider", provider)
            .field("base_url", base_url)
            .field("name", name)
            .field("api_key", &key)
            .field("max_tokens", max_tokens)
            .field("parallel_tool_calls", parallel_tool_calls)
            .finish()
    }
}

/// A value of a wrong type must not be repeated in the error.
fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match serde_json::Value::deserialize(deserializer) {
        Ok(serde_json::Value::String(text)) => Ok(text),
        _ => Err(serde::de::Error::custom("a key must be text in quotes")),
    }
}

impl ModelConfig {
    /// The endpoint's address; empty where none is set and the provider has none of its own.
    pub fn base_url(&self) -> &str {
        match (&self.base_url, self.provider) {
            (Some(base_url), _) => base_url,
            (None, Provider::Anthropic) => ANTHROPIC_BASE_URL,
            (None, Provider::Openai) => "",
        }
    }

    /// The settings after the environment. A model that the environment names is not mixed with that
    /// of the file, or the file's key would go to another host; a key, a token limit or the choice of
    /// parallel calls alone complete the file's model.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the variable.
    pub(crate) fn with_environment(
        file: Option<Self>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ConfigError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let own = match (variable("MODEL_PROVIDER"), variable("MODEL_BASE_URL"), variable("MODEL_NAME")) {
            (None, None, None) => None,
            (Some(_), _, None) => return Err(ConfigError::invalid("MODEL_PROVIDER is set, MODEL_NAME is not")),
            (None, Some(_), None) => return Err(ConfigError::invalid("MODEL_BASE_URL is set, MODEL_NAME is not")),
            (provider, base_url, Some(name)) => {
                let provider = provider.map(|text| one_of_providers(&text)).transpose()?.unwrap_or_default();
                Some(Self { provider, base_url, name, ..Self::default() })
            }
        };
        let Some(mut model) = own.or(file) else { return Ok(None) };
        if let Some(key) = variable("MODEL_API_KEY") {
            model.api_key = key;
        }
        if let Some(text) = variable("MODEL_MAX_TOKENS") {
            let invalid = |_| ConfigError::invalid("MODEL_MAX_TOKENS must be a number");
            model.max_tokens = Some(text.trim().parse().map_err(invalid)?);
        }
        if let Some(text) = variable("MODEL_PARALLEL_TOOL_CALLS") {
            let invalid = |_| ConfigError::invalid("MODEL_PARALLEL_TOOL_CALLS must be true or false");
            model.parallel_tool_calls = text.trim().parse().map_err(invalid)?;
        }
        Ok(Some(model))
    }

    /// Whether the settings can be used.
    ///
    /// # Errors
    /// `CONFIG_INVALID` naming the setting.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.name.trim().is_empty() {
            return Err(ConfigError::invalid("model: the name (MODEL_NAME) is missing"));
        }
        if self.max_tokens == Some(0) {
            return Err(ConfigError::invalid("model: max_tokens (MODEL_MAX_TOKENS) must not be 0"));
        }
        if self.base_url().is_empty() {
            return Err(ConfigError::invalid("MODEL_NAME is set, MODEL_BASE_URL is not"));
        }
        // The address is not repeated: a password may be in it.
        let url = Url::parse(self.base_url()).ok();
        let Some(url) = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) else {
            return Err(ConfigError::invalid("MODEL_BASE_URL must begin with http:// or https:// and name a host"));
        };
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
            return Err(ConfigError::invalid(
                "MODEL_BASE_URL must be an address only, without a user, a password or anything after ?; \
                 the key goes into MODEL_API_KEY",
            ));
        }
        Ok(())
    }
}

fn one_of_providers(text: &str) -> Result<Provider, ConfigError> {
    match text.trim() {
        "openai" => Ok(Provider::Openai),
        "anthropic" => Ok(Provider::Anthropic),
        _ => Err(ConfigError::invalid("MODEL_PROVIDER must be openai (also for compatible endpoints) or anthropic")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_environment(file: Option<ModelConfig>, variables: &[(&str, &str)]) -> Result<Option<ModelConfig>, String> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        ModelConfig::with_environment(file, find).map_err(|error| error.to_string())
    }

    fn in_file() -> ModelConfig {
        let (base_url, api_key) = (Some("http://file/v1".to_owned()), "file-key".to_owned());
        ModelConfig { base_url, api_key, name: "file-model".to_owned(), ..ModelConfig::default() }
    }

    #[test]
    fn a_model_of_the_environment_is_not_mixed_with_that_of_the_file() {
        let own = [("MODEL_BASE_URL", "http://env/v1"), ("MODEL_NAME", "env-model")];
        let model = from_environment(Some(in_file()), &own).expect("good").expect("a model");
        assert_eq!((model.name.as_str(), model.base_url.as_deref()), ("env-model", Some("http://env/v1")));
        assert_eq!(model.api_key, "", "the file's key goes to no other host");
        let model = from_environment(Some(in_file()), &[("MODEL_API_KEY", "env-key")]).expect("good").expect("a model");
        assert_eq!((model.name.as_str(), model.api_key.as_str()), ("file-model", "env-key"));
    }

    #[test]
    fn every_setting_can_come_from_the_environment() {
        let variables = [
            ("MODEL_PROVIDER", "anthropic"),
            ("MODEL_NAME", "m"),
            ("MODEL_API_KEY", "k"),
            ("MODEL_MAX_TOKENS", "100"),
            ("MODEL_PARALLEL_TOOL_CALLS", "true"),
            ("MODEL_BASE_URL", " "),
        ];
        let model = from_environment(None, &variables).expect("good").expect("a model");
        assert_eq!((model.provider, model.max_tokens), (Provider::Anthropic, Some(100)));
        assert!(model.parallel_tool_calls);
        assert_eq!(model.base_url(), ANTHROPIC_BASE_URL);
        model.check().expect("good");
        assert!(from_environment(None, &[("MODEL_API_KEY", "k")]).expect("good").is_none(), "a key is no model");
        assert!(!ModelConfig::default().parallel_tool_calls, "off unless asked for");
    }

    #[test]
    fn what_cannot_be_used_is_named_and_secrets_are_not_repeated() {
        for (variables, complaint) in [
            (&[("MODEL_NAME", "m")][..], "MODEL_BASE_URL"),
            (&[("MODEL_PROVIDER", "anthropic")], "MODEL_NAME"),
            (&[("MODEL_PROVIDER", "azure"), ("MODEL_NAME", "m")], "MODEL_PROVIDER"),
            (&[("MODEL_BASE_URL", "http://x"), ("MODEL_NAME", "m"), ("MODEL_MAX_TOKENS", "many")], "MODEL_MAX_TOKENS"),
            (&[("MODEL_BASE_URL", "http://x"), ("MODEL_NAME", "m"), ("MODEL_MAX_TOKENS", "0")], "MODEL_MAX_TOKENS"),
            (
                &[("MODEL_BASE_URL", "http://x"), ("MODEL_NAME", "m"), ("MODEL_PARALLEL_TOOL_CALLS", "2")],
                "MODEL_PARALLEL_TOOL_CALLS",
            ),
            (&[("MODEL_BASE_URL", "http://ann:secret@x"), ("MODEL_NAME", "m")], "MODEL_API_KEY"),
            (&[("MODEL_BASE_URL", "http://x?key=secret"), ("MODEL_NAME", "m")], "MODEL_API_KEY"),
            (&[("MODEL_BASE_URL", "secret"), ("MODEL_NAME", "m")], "http://"),
            (&[("MODEL_BASE_URL", "file:///secret"), ("MODEL_NAME", "m")], "http://"),
        ] {
            let model = from_environment(None, variables);
            let error = model.and_then(|model| model.expect("a model").check().map_err(|error| error.to_string()));
            let error = error.expect_err(complaint);
            assert!(error.contains(complaint) && !error.contains("secret"), "{variables:?}: {error}");
        }
    }

    #[test]
    fn a_key_is_never_printed() {
        let model = in_file();
        assert!(!format!("{model:?}").contains("file-key"));
        assert!(!serde_json::to_string(&model).expect("written").contains("file-key"));
    }
}

//! A model behind an OpenAI-compatible endpoint, asked one question at a time: all that a what-if branch may
//! reach.

use crate::failure::Failure;
use crate::http::{address, beginning, client};
use crate::output::escaped;
use devmind_domain::ErrorCode;
use devmind_domain::agent::Message;
use devmind_domain::thread::{ModelToolCall, TokenUsage};
use devmind_domain::tools::Registry;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);
/// Bytes of an answer, at most.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// A model that can be asked.
pub(super) struct AskedModel {
    http: Client,
    url: Url,
    key: Option<String>,
    pub name: String,
}

/// What it answered.
pub(super) struct Answered {
    pub content: String,
    pub tool_calls: Vec<ModelToolCall>,
    pub finish_reason: String,
    pub usage: TokenUsage,
    pub served_model: String,
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    model: String,
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Said,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Said {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

#[derive(Deserialize)]
struct Call {
    #[serde(default)]
    id: String,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

impl AskedModel {
    /// The endpoint's base address, as `MODEL_BASE_URL` has it; the key is sent to it and shown nowhere.
    pub fn new(base: &str, key: Option<String>, name: String) -> Result<Self, Failure> {
        let mut url = address(base, "give the endpoint's address, like http://localhost:4000/v1")?;
        url.set_path(&format!("{}/chat/completions", url.path().trim_end_matches('/')));
        Ok(Self { http: client(&url, ANSWER_WITHIN)?, url, key: key.filter(|key| !key.is_empty()), name })
    }

    /// Asks it once, with the tools that the run had.
    pub async fn ask(&self, messages: &[Message], tools: &Registry) -> Result<Answered, Failure> {
        let offered: Vec<Value> =
            tools.model_visible().into_iter().map(|tool| json!({ "type": "function", "function": tool })).collect();
        let body = json!({
            "model": self.name, "messages": messages.iter().map(Message::chat_completion).collect::<Vec<_>>(), "tools": offered,
        });
        let mut request = self.http.post(self.url.clone()).json(&body);
        if let Some(key) = &self.key {
            let value = HeaderValue::try_from(format!("Bearer {key}"));
            let mut value = value.map_err(|_| self.failed(ErrorCode::ModelAuthFailed, "the key is no header"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let unreachable =
            |error: reqwest::Error| self.failed(ErrorCode::ModelUnreachable, &error.without_url().to_string());
        let answer = request.send().await.map_err(unreachable)?;
        let status = answer.status();
        let body = beginning(answer, MAX_ANSWER_BYTES).await.map_err(unreachable)?;
        match status {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(self.failed(ErrorCode::ModelAuthFailed, &status.to_string()));
            }
            StatusCode::TOO_MANY_REQUESTS => {
                return Err(self.failed(ErrorCode::ModelRateLimited, &status.to_string()));
            }
            other if other.is_client_error() => {
                return Err(self.failed(ErrorCode::ModelRefused, &format!("{status}: {}", self.words(&body))));
            }
            _ => return Err(self.failed(ErrorCode::ModelUnavailable, &status.to_string())),
        }
        let completion: Completion = serde_json::from_slice(&body)
            .map_err(|error| self.failed(ErrorCode::ModelRefused, &format!("its answer cannot be read: {error}")))?;
        let Completion { model, choices, usage } = completion;
        let Some(Choice { message, finish_reason }) = choices.into_iter().next() else {
            return Err(self.failed(ErrorCode::ModelRefused, "its answer has no choice"));
        };
        let calls = message.tool_calls.unwrap_or_default().into_iter();
        Ok(Answered {
            content: message.content.or(message.refusal).unwrap_or_default(),
            tool_calls: calls
                .map(|call| ModelToolCall { id: call.id, name: call.function.name, arguments: call.function.arguments })
                .collect(),
            finish_reason: finish_reason.unwrap_or_else(|| "stop".to_owned()),
            usage: usage.map_or_else(TokenUsage::default, |usage| TokenUsage {
                input: usage.prompt_tokens,
                output: usage.completion_tokens,
                ..TokenUsage::default()
            }),
            served_model: if model.is_empty() { self.name.clone() } else { model },
        })
    }

    /// The beginning of what an endpoint complains about, without the key that some repeat.
    fn words(&self, body: &[u8]) -> String {
        let text = String::from_utf8_lossy(body).into_owned();
        let text = self.key.as_ref().map_or(text.clone(), |key| text.replace(key, "***"));
        escaped(&text.chars().take(200).collect::<String>())
    }

    fn failed(&self, code: ErrorCode, reason: &str) -> Failure {
        let address = self.url.origin().ascii_serialization();
        Failure::new(code, format!("the model {} at {address}: {reason}", self.name))
            .with_hint("check --ask, the model's name (--with model=NAME) and MODEL_API_KEY")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::played::{answer, server};
    use devmind_domain::tools::catalogue;

    /// What comes of an answer, and what was sent for it.
    async fn asked(key: Option<&str>, told: String) -> (Result<Answered, Failure>, String) {
        let (address, requests) = server(vec![told]).await;
        let model = AskedModel::new(&address, key.map(str::to_owned), "m".to_owned()).expect("a model");
        let came = model.ask(&[Message::System { content: "s".to_owned() }], catalogue()).await;
        let sent = requests.lock().expect("whole").concat();
        (came, sent)
    }

    #[tokio::test]
    async fn what_an_endpoint_complains_about_has_a_code_of_its_own_and_never_the_key() {
        for (status, body, expected) in [
            ("401 Unauthorized", "", "MODEL_AUTH_FAILED"),
            ("403 Forbidden", "", "MODEL_AUTH_FAILED"),
            ("429 Too Many Requests", "", "MODEL_RATE_LIMITED"),
            ("400 Bad Request", "no such key: k-123", "MODEL_REFUSED"),
            ("503 Service Unavailable", "", "MODEL_UNAVAILABLE"),
            ("200 OK", "no JSON", "MODEL_REFUSED"),
            ("200 OK", r#"{"choices":[]}"#, "MODEL_REFUSED"),
        ] {
            let (came, sent) = asked(Some("k-123"), answer(status, "", body)).await;
            let Err(Failure::Error { code, message, .. }) = came else { panic!("{status} {body}") };
            assert_eq!(code.as_str(), expected, "{status} {body}: {message}");
            assert!(sent.contains("Bearer k-123") && !message.contains("k-123"), "{message}");
        }
        let too_long = format!(r#"{{"choices":[{{"message":{{"content":"{}"}}}}]}}"#, "x".repeat(MAX_ANSWER_BYTES));
        assert!(asked(None, answer("200 OK", "", &too_long)).await.0.is_err(), "it is cut off, and no JSON any more");
    }

    #[tokio::test]
    async fn an_empty_key_is_none_and_a_refusal_in_words_is_an_answer() {
        let body = r#"{"choices":[{"message":{"content":null,"refusal":"I will not."}}]}"#;
        let (came, sent) = asked(Some(""), answer("200 OK", "", body)).await;
        assert!(!sent.to_lowercase().contains("authorization"), "{sent}");
        let said = came.unwrap_or_else(|_| panic!("an answer"));
        assert_eq!((said.content.as_str(), said.served_model.as_str()), ("I will not.", "m"));
    }
}

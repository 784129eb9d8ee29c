//! Rollout files of the Codex CLI: `{timestamp, type, payload}` a line, under `~/.codex/sessions`
//! (`codex-rs/protocol`, `RolloutItem`).
//!
//! The user's words come from `event_msg`/`user_message`, because messages of the role `user` also carry what the
//! program itself put into the prompt. An answer is all items until its tokens are counted, a tool returns, or the
//! turn ends.

use super::{Dialect, Read, Said, Step, moment};
use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct Codex {
    model: String,
    held: Option<Said>,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The texts of a list of content parts.
fn texts(parts: &Value) -> String {
    let texts = parts.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}

impl Codex {
    fn hold(&mut self) -> &mut Said {
        let model = &self.model;
        self.held.get_or_insert_with(|| Said {
            provider: "openai",
            model: if model.is_empty() { "unknown".to_owned() } else { model.clone() },
            finish_reason: "stop".to_owned(),
            usage: json!({}),
            ..Said::default()
        })
    }

    fn call(&mut self, id: &str, name: &str, arguments: String) {
        let said = self.hold();
        "tool_calls".clone_into(&mut said.finish_reason);
        said.calls.push((id.to_owned(), name.to_owned(), arguments));
    }

    fn item(&mut self, item: &Value) -> Option<Vec<Step>> {
        let id = text(item, "call_id");
        match text(item, "type") {
            "message" if text(item, "role") == "assistant" => {
                let said = self.hold();
                if !said.text.is_empty() {
                    said.text.push_str("\n\n");
                }
                said.text.push_str(&texts(&item["content"]));
            }
            "reasoning" => {
                let told = texts(&item["summary"]);
                if !told.is_empty() {
                    self.hold().reasoning = Some(told);
                }
            }
            "function_call" if !id.is_empty() => self.call(id, text(item, "name"), text(item, "arguments").to_owned()),
            "custom_tool_call" if !id.is_empty() => {
                let arguments = json!({ "input": item["input"] }).to_string();
                self.call(id, text(item, "name"), arguments);
            }
            "local_shell_call" if !id.is_empty() => self.call(id, "local_shell", item["action"].to_string()),
            "function_call_output" | "custom_tool_call_output" if !id.is_empty() => {
                let output = &item["output"];
                let ok = output["success"].as_bool().unwrap_or(true);
                let output = output.get("content").unwrap_or(output).clone();
                let mut steps = self.rest();
                steps.push(Step::Returned { call_id: id.to_owned(), ok, output });
                return Some(steps);
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn told(&mut self, event: &Value) -> Option<Vec<Step>> {
        let last = match text(event, "type") {
            "user_message" => Step::Asked(text(event, "message").to_owned()),
            "task_complete" | "turn_complete" => Step::Ended,
            "turn_aborted" => Step::Stopped,
            "token_count" if self.held.is_some() => {
                let used = &event["info"]["last_token_usage"];
                let mut usage = serde_json::Map::new();
                for (name, theirs) in [
                    ("input", "input_tokens"),
                    ("cached", "cached_input_tokens"),
                    ("output", "output_tokens"),
                    ("reasoning", "reasoning_output_tokens"),
                ] {
                    usage.extend(used[theirs].as_u64().map(|count| (name.to_owned(), json!(count))));
                }
                self.hold().usage = Value::Object(usage);
                return Some(self.rest());
            }
            _ => return None,
        };
        let mut steps = self.rest();
        steps.push(last);
        Some(steps)
    }
}

impl Dialect for Codex {
    fn source(&self) -> &'static str {
        "codex"
    }

    fn session(&self, records: &[Value]) -> Option<String> {
        let meta = records.iter().find(|record| record["type"] == "session_meta")?;
        meta["payload"]["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned)
    }

    fn read(&mut self, record: &Value) -> Read {
        let (kind, payload) = (text(record, "type"), &record["payload"]);
        let steps = match kind {
            "session_meta" => Some(Vec::new()),
            "turn_context" => {
                if let Some(model) = payload["model"].as_str() {
                    model.clone_into(&mut self.model);
                }
                Some(Vec::new())
            }
            "response_item" => self.item(payload),
            "event_msg" => self.told(payload),
            _ => None,
        };
        if let Some(said) = self.held.as_mut().filter(|_| steps.is_some()) {
            said.at = moment(record).or(said.at);
        }
        let inner = text(payload, "type");
        let kind = match (kind, inner) {
            ("", _) => "no type".to_owned(),
            (kind, "") => kind.to_owned(),
            (kind, inner) => format!("{kind}/{inner}"),
        };
        Read { kind, understood: steps.is_some(), steps: steps.unwrap_or_default() }
    }

    fn rest(&mut self) -> Vec<Step> {
        self.held.take().map(|said| Step::Said(Box::new(said))).into_iter().collect()
    }
}

//! Transcripts of Claude Code: one record a line, under `~/.claude/projects`, in the shapes that its current versions
//! write: `user`, `assistant` and a growing number of others.
//!
//! An answer of the model is written as several records with one message id. Work of a sub-agent (`isSidechain`) is
//! kept and not told in the main session's file; a file of its own is a session of its own.

use super::{Dialect, Read, Said, Step, moment};
use serde_json::{Value, json};

#[derive(Default)]
pub(super) struct ClaudeCode {
    /// Message id and what was said so far.
    held: Option<(String, Said)>,
    /// Whether the file is of a sub-agent.
    of_a_sub_agent: std::cell::Cell<bool>,
}

/// What the program writes in the user's name.
const NOT_SAID: [&str; 4] = ["<command-name>", "<local-command-", "<command-message>", "Caveat: "];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// A content that is a text or a list of blocks, as one text.
fn plain(content: &Value) -> Value {
    let Some(blocks) = content.as_array() else { return content.clone() };
    let texts: Vec<_> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    if texts.len() == blocks.len() { json!(texts.join("\n")) } else { content.clone() }
}

impl ClaudeCode {
    fn asked(&mut self, said: &str) -> Option<Vec<Step>> {
        if said.is_empty() || NOT_SAID.iter().any(|start| said.starts_with(start)) {
            return None;
        }
        let step =
            if said.starts_with("[Request interrupted by user") { Step::Stopped } else { Step::Asked(said.to_owned()) };
        let mut steps = self.rest();
        steps.push(step);
        Some(steps)
    }

    fn user(&mut self, record: &Value) -> Option<Vec<Step>> {
        if record["isMeta"] == true || record["isCompactSummary"] == true {
            return None;
        }
        let content = &record["message"]["content"];
        let Some(blocks) = content.as_array() else { return self.asked(content.as_str()?) };
        let mut steps = Vec::new();
        let mut words = Vec::new();
        for block in blocks {
            match text(block, "type") {
                "tool_result" => {
                    let ok = block["is_error"] != true;
                    let call_id = text(block, "tool_use_id").to_owned();
                    steps.extend(self.rest());
                    steps.push(Step::Returned { call_id, ok, output: plain(&block["content"]) });
                }
                "text" => words.push(text(block, "text")),
                _ => {}
            }
        }
        if !words.is_empty() {
            steps.extend(self.asked(&words.join("\n"))?);
        }
        (!steps.is_empty()).then_some(steps)
    }

    fn assistant(&mut self, record: &Value) -> Option<Vec<Step>> {
        let message = &record["message"];
        let blocks = message["content"].as_array()?;
        let id = text(message, "id");
        let same = self.held.as_ref().is_some_and(|(held, _)| held == id && !id.is_empty());
        let steps = if same { Vec::new() } else { self.rest() };
        let (_, said) = self.held.get_or_insert_with(|| {
            let model = message["model"].as_str().unwrap_or("unknown").to_owned();
            let said = Said {
                provider: "anthropic",
                model,
                usage: json!({}),
                finish_reason: "end_turn".to_owned(),
                ..Said::default()
            };
            (id.to_owned(), said)
        });
        for block in blocks {
            match text(block, "type") {
                "text" => {
                    if !said.text.is_empty() {
                        said.text.push_str("\n\n");
                    }
                    said.text.push_str(text(block, "text"));
                }
                "thinking" => said.reasoning = block["thinking"].as_str().map(str::to_owned).or(said.reasoning.take()),
                "tool_use" => {
                    let call =
                        (text(block, "id").to_owned(), text(block, "name").to_owned(), block["input"].to_string());
                    said.calls.push(call);
                }
                _ => {}
            }
        }
        said.at = moment(record).or(said.at);
        if let Some(reason) = message["stop_reason"].as_str() {
            reason.clone_into(&mut said.finish_reason);
        }
        let used = &message["usage"];
        let count = |key: &str| used[key].as_u64();
        if let (Some(fresh), Some(output)) = (count("input_tokens"), count("output_tokens")) {
            // The provider counts what it read from a cache apart; we count it as part of the input.
            let cached = count("cache_read_input_tokens").unwrap_or(0);
            let input = fresh + cached + count("cache_creation_input_tokens").unwrap_or(0);
            said.usage = json!({ "input": input, "output": output, "cached": cached });
        }
        Some(steps)
    }
}

impl Dialect for ClaudeCode {
    fn source(&self) -> &'static str {
        "claude-code"
    }

    fn session(&self, records: &[Value]) -> Option<String> {
        let first = records.iter().find(|record| record["sessionId"].is_string())?;
        let session = text(first, "sessionId").to_owned();
        let agent = first["agentId"].as_str().filter(|_| first["isSidechain"] == true);
        self.of_a_sub_agent.set(agent.is_some());
        Some(agent.map_or_else(|| session.clone(), |agent| format!("{session}:{agent}")))
    }

    fn read(&mut self, record: &Value) -> Read {
        let kind = text(record, "type");
        let aside = record["isSidechain"] == true && !self.of_a_sub_agent.get();
        let steps = match kind {
            _ if aside => None,
            "user" => self.user(record),
            "assistant" => self.assistant(record),
            _ => None,
        };
        let kind = match (kind, record["subtype"].as_str()) {
            ("", _) => "no type".to_owned(),
            (kind, _) if aside => format!("{kind} of a sub-agent"),
            (kind, Some(subtype)) => format!("{kind}/{subtype}"),
            (kind, None) => kind.to_owned(),
        };
        Read { kind, understood: steps.is_some(), steps: steps.unwrap_or_default() }
    }

    fn rest(&mut self) -> Vec<Step> {
        self.held.take().map(|(_, said)| Step::Said(Box::new(said))).into_iter().collect()
    }
}

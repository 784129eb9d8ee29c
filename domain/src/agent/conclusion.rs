//! The answer of a turn that a tool has ended.
//!
//! It is what the model would have seen of the tool's value: words as they are, anything else as JSON. A tool that
//! ends the turn and gives nothing (`null` or no words) leaves the answer to what the model said beside its call.

use crate::ids::MessageId;
use crate::thread::{Exchange, ToolResultObserved};
use serde_json::Value;

/// What stands before the id of the message with the calls, in the id of an answer that tools gave.
const TOOLS_ANSWER: &str = "answer:";

/// Whether a message is an answer that tools gave: no text of the model was streamed under its id.
pub fn is_tools_answer(id: &MessageId) -> bool {
    id.as_str().starts_with(TOOLS_ANSWER)
}

/// The turn's answer and its message, where calls of this one have ended the turn; of several, all they gave.
pub(super) fn concluded(exchange: &Exchange) -> Option<(MessageId, String)> {
    exchange.concluding().next()?;
    let given: Vec<String> = exchange.concluding().map(words).filter(|words| !words.is_empty()).collect();
    if given.is_empty() {
        return Some((exchange.message_id.clone(), exchange.content.clone()));
    }
    Some((format!("{TOOLS_ANSWER}{}", exchange.message_id).into(), given.join("\n\n")))
}

/// What a result says to a person.
fn words(result: &ToolResultObserved) -> String {
    match serde_json::from_str(&result.content) {
        Ok(Value::Object(mut told)) if told.contains_key("data") => match told.remove("data") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(words)) => words,
            Some(data) => data.to_string(),
        },
        // A later stage wrote it.
        Ok(_) | Err(_) => result.content.clone(),
    }
}

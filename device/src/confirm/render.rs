//! What a person sees of a question: everything, and nothing that could deceive.

use super::ConfirmationRequest;
use crate::text::visible;
use crate::tools::Subject;
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// The question as lines of text, with the seconds left to answer.
pub fn render(request: &ConfirmationRequest, left: Duration) -> String {
    let mut shown = format!("\nA model asks to use {}", visible(&request.tool));
    for (name, value) in rows(request) {
        // Writing to a String cannot fail.
        let _ = write!(shown, "\n  {name:<14} {value}");
    }
    let _ = write!(shown, "\nAllow this once? [y/N] ({} s left) ", left.as_secs());
    shown
}

/// Everything that is asked about, by name. Characters that move the cursor, turn the reading
/// direction or are not seen are written out.
pub(super) fn rows(request: &ConfirmationRequest) -> Vec<(String, String)> {
    let mut rows = vec![("conversation".to_owned(), visible(&request.conversation_title))];
    let arguments = request.arguments.as_object().into_iter().flatten();
    rows.extend(arguments.map(|(name, value)| (visible(name), argument(value))));
    rows.extend(request.subject.iter().flat_map(subject_rows).map(|(name, value)| (name.to_owned(), value)));
    rows
}

fn subject_rows(subject: &Subject) -> Vec<(&'static str, String)> {
    let shown = visible(&subject.resolved_path);
    let Some(facts) = &subject.facts else {
        let place = if shown.is_empty() { "the whole workspace".to_owned() } else { format!("{shown}/ and all below") };
        return vec![("folder", place)];
    };
    let mut rows =
        vec![("file", shown), ("size", format!("{} bytes", facts.size)), ("changed", facts.modified.to_string())];
    if facts.links > 1 {
        rows.push(("names", format!("{} (the same file has other names)", facts.links)));
    }
    rows
}

/// Text between quotes, anything else as JSON.
fn argument(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", visible(text)),
        other => visible(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Deadline;
    use crate::path_policy::FileFacts;
    use devmind_domain::Timestamp;
    use serde_json::json;

    #[test]
    fn a_question_shows_everything_and_no_character_can_deceive() {
        let facts = FileFacts {
            device: 1,
            inode: 2,
            size: 42,
            modified: Timestamp::from_micros(1_790_000_000_000_100),
            links: 2,
        };
        let request = ConfirmationRequest {
            tool_call_id: "call".into(),
            tool: "workspace.read_file".into(),
            arguments: json!({ "path": "a\u{202e}dm.txt\u{1b}[2K\n[y/N] y", "offset": 7 }),
            subject: Some(Subject { resolved_path: "real\u{200b}.txt".into(), facts: Some(facts) }),
            conversation_title: "hello\r\u{1b}]0;title\u{7}".into(),
            deadline: Deadline::after(Duration::from_secs(60)),
        };
        let shown = render(&request, Duration::from_secs(59));
        assert_eq!(
            shown,
            "\nA model asks to use workspace.read_file\
             \n  conversation   hello\\r\\u{1b}]0;title\\u{7}\
             \n  offset         7\
             \n  path           \"a\\u{202e}dm.txt\\u{1b}[2K\\n[y/N] y\"\
             \n  file           real\\u{200b}.txt\
             \n  size           42 bytes\
             \n  changed        2026-09-21T14:13:20.000100Z\
             \n  names          2 (the same file has other names)\
             \nAllow this once? [y/N] (59 s left) "
        );
    }
}

//! One short line that tells a person what a call is about.

use serde_json::Value;

/// Characters of a summary, at most.
const MAX_SUMMARY_CHARS: usize = 120;

/// The arguments as `name: value`, in the order of their names; text that was no object as it stands.
pub(super) fn of(arguments: &Value) -> String {
    let line = match arguments {
        Value::Object(entries) => {
            let mut pairs: Vec<_> = entries.iter().map(|(name, value)| (name, word(value))).collect();
            pairs.sort();
            pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => word(arguments),
    };
    cut(&line)
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// At most [`MAX_SUMMARY_CHARS`] characters on one line, never half a character.
fn cut(line: &str) -> String {
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= MAX_SUMMARY_CHARS {
        return line;
    }
    line.chars().take(MAX_SUMMARY_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_summary_is_one_short_line_of_the_arguments() {
        for (arguments, line) in [
            (json!({"path": "README.md"}), "path: README.md".to_owned()),
            (json!({"b": 2, "a": 1}), "a: 1, b: 2".to_owned()),
            (json!({}), String::new()),
            (json!("not\njson"), "not json".to_owned()),
            (json!({"x": "é".repeat(300)}), format!("x: {}…", "é".repeat(MAX_SUMMARY_CHARS - 4))),
        ] {
            assert_eq!(of(&arguments), line);
        }
    }
}

//! The built-in demo model: deterministic, offline, and honest about being one.
//!
//! It reads the question for what it names, in the order of naming, and calls one tool at a time:
//! *list (the) files (in FOLDER)* · *read FILE (and FILE …)* · *find files named \*.GLOB* ·
//! *search (the files) for "TEXT"* · *what time (in ZONE)* · *add A and B* (also *A + B*) · *the demo
//! text*. Then it answers from the results or refusals,
//! recalls "my name is …" from earlier messages, and otherwise says what it can do. It streams word
//! by word.

use super::{Model, ModelChunk, ModelFailure, ModelRequest, ModelStream};
use async_trait::async_trait;
use devmind_domain::agent::Message;
use devmind_domain::thread::TokenUsage;
use futures::StreamExt;
use regex::Regex;
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::time::Duration;

/// The pause between two pieces, so that streaming can be seen (and stopped).
const PIECE_PAUSE: Duration = Duration::from_millis(8);
/// Characters of a file that an answer quotes, at most.
const QUOTED_CHARS: usize = 400;
/// Names of a listing that an answer quotes, at most.
const QUOTED_NAMES: usize = 40;

/// The demo model.
#[derive(Clone, Copy, Debug, Default)]
pub struct DemoModel;

#[async_trait]
impl Model for DemoModel {
    fn provider(&self) -> &str {
        "built-in"
    }

    fn name(&self) -> &str {
        "demo"
    }

    fn parameters(&self) -> Value {
        json!({})
    }

    async fn ask(&self, request: ModelRequest) -> Result<ModelStream, ModelFailure> {
        let mut chunks = vec![ModelChunk::Served("demo".to_owned())];
        match reply(&request) {
            Reply::Call(intent) => {
                let (name, arguments) = intent.call();
                let id = Some(format!("call_{}", results(&request.messages).len() + 1));
                let arguments = arguments.to_string();
                chunks.push(ModelChunk::ToolCall { index: 0, id, name: Some(name.to_owned()), arguments });
                chunks.push(ModelChunk::Finished("tool_calls".to_owned()));
            }
            Reply::Say(text) => {
                chunks.extend(text.split_inclusive(' ').map(|piece| ModelChunk::Text(piece.to_owned())));
                chunks.push(ModelChunk::Finished("stop".to_owned()));
            }
        }
        // Words stand in for tokens.
        let words = |text: &str| text.split_whitespace().count() as u64;
        let input = request.messages.iter().map(|message| words(message.content())).sum();
        let output = chunks
            .iter()
            .map(|chunk| match chunk {
                ModelChunk::Text(text) => words(text),
                ModelChunk::ToolCall { arguments, .. } => 1 + words(arguments),
                ModelChunk::Reasoning(_) | ModelChunk::Usage(_) | ModelChunk::Served(_) | ModelChunk::Finished(_) => 0,
            })
            .sum();
        chunks.push(ModelChunk::Usage(TokenUsage {
            input: Some(input),
            output: Some(output),
            ..TokenUsage::default()
        }));
        Ok(futures::stream::iter(chunks)
            .then(|chunk| async {
                if matches!(chunk, ModelChunk::Text(_)) {
                    tokio::time::sleep(PIECE_PAUSE).await;
                }
                Ok(chunk)
            })
            .boxed())
    }
}

enum Reply {
    Call(Intent),
    Say(String),
}

/// One thing that a question names.
#[derive(Clone, Debug, PartialEq)]
enum Intent {
    List(String),
    Read(String),
    Find(String),
    Search(String),
    Time(Option<String>),
    Add(Value, Value),
    DemoText,
}

impl Intent {
    fn call(&self) -> (&'static str, Value) {
        match self {
            Self::List(path) => ("workspace_list_files", json!({ "path": path })),
            Self::Read(path) => ("workspace_read_file", json!({ "path": path })),
            Self::Find(glob) => ("workspace_search_files", json!({ "pattern": glob })),
            Self::Search(text) => ("workspace_search_text", json!({ "pattern": regex::escape(text) })),
            Self::Time(None) => ("get_current_time", json!({})),
            Self::Time(Some(zone)) => ("get_current_time", json!({ "timezone": zone })),
            Self::Add(a, b) => ("add", json!({ "a": a, "b": b })),
            Self::DemoText => ("demo_text", json!({})),
        }
    }
}

fn reply(request: &ModelRequest) -> Reply {
    let question = request.messages.iter().rev().find_map(|message| match message {
        Message::User { content } => Some(content.as_str()),
        _ => None,
    });
    let question = question.unwrap_or_default();
    let offered = |intent: &Intent| request.tools.iter().any(|tool| tool.name == intent.call().0);
    let intents = intents(question);
    let callable: Vec<_> = intents.iter().filter(|intent| offered(intent)).collect();
    let results = results(&request.messages);
    if let Some(next) = callable.get(results.len()) {
        return Reply::Call((*next).clone());
    }
    let mut lines: Vec<String> = callable.iter().zip(&results).map(|(intent, result)| report(intent, result)).collect();
    for missing in intents.iter().filter(|intent| !offered(intent)) {
        lines.push(format!("I was not given the tool {}.", missing.call().0));
    }
    if let Some(line) = recall(question, &request.messages) {
        lines.push(line);
    }
    if lines.is_empty() {
        lines.push(HELP.to_owned());
    }
    Reply::Say(lines.join("\n\n"))
}

const HELP: &str = "I am the built-in demo model, not a language model. I can list the files of your workspace, \
read a file (for example: read README.md), find files by name (find files named *.md), search their text \
(search for TODO), say what time it is, add two numbers, and remember a name \
(my name is …). For real answers set MODEL_BASE_URL, MODEL_NAME and MODEL_API_KEY.";

/// The results of the calls made since the question, oldest first.
fn results(messages: &[Message]) -> Vec<Value> {
    let since = messages.iter().rposition(|message| matches!(message, Message::User { .. })).unwrap_or(0);
    messages[since..]
        .iter()
        .filter_map(|message| match message {
            Message::Tool { content, .. } => Some(serde_json::from_str(content).unwrap_or(Value::Null)),
            _ => None,
        })
        .collect()
}

#[allow(clippy::expect_used)]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern, compiled by every test of this file")
}

static LIST: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)\blist\b[^.?!\n]{0,40}?\b(?:files?|folders?|names)\b(?:\s+(?:in|of|under)\s+(?P<path>[\w./-]*[\w/]))?|列出|列一下",
    )
});
static READ: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\bread(?:ing)?\b|读一下|读取|读"));
/// A file's name: in back-ticks or quotes whatever it is, otherwise with a dot or slash in it, or one
/// of the well-known names without.
static FILE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r#"`([^`\n]+)`|"([^"\n]+)"|(?:^|[\s,，])((?:[\w@~.+-]*/)*[\w@~+-]*\.[\w@~.+/-]*[\w]|(?:[\w@~.+-]*/)+[\w@~.+-]+|LICENSE|Makefile|Dockerfile)"#,
    )
});
static FIND: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r#"(?i)\bfind\b(?:\s+(?:all|the|my|files?|named|called|matching|like)\b)*\s+(?:`([^`\n]+)`|"([^"\n]+)"|([\w./?{},-]*\*[\w./?{},*-]*))"#,
    )
});
static SEARCH: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?i)\bsearch\b[^.?!\n"`]{0,40}?\bfor\s+(?:`([^`\n]+)`|"([^"\n]+)"|(\w+))"#));
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"(?i)\bwhat(?:'s| is)?(?: the)? time\b(?:[^.?!\n]*?\bin (?P<zone>[A-Za-z_]+/[A-Za-z_]+|UTC))?|几点")
});
static ADD: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(?i)\badd\s+(?P<a>-?\d+(?:\.\d+)?)\s+(?:and|to|plus)\s+(?P<b>-?\d+(?:\.\d+)?)|(?P<c>-?\d+(?:\.\d+)?)\s*\+\s*(?P<d>-?\d+(?:\.\d+)?)",
    )
});
static DEMO: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\bdemo text\b|示例文本"));
static NAME: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)\bmy name is\s+(?P<name>[\p{L}][\p{L}'-]*)|我叫(?P<cn>[\p{Han}A-Za-z]{1,10})"));
static ASKS_NAME: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\bwhat(?:'s| is) my name\b|\bwho am i\b|我叫什么"));

/// What the question names, in the order of naming.
fn intents(question: &str) -> Vec<Intent> {
    let mut found: Vec<(usize, Intent)> = Vec::new();
    for hit in LIST.captures_iter(question) {
        let at = hit.get(0).map_or(0, |whole| whole.start());
        let path = hit.name("path").map_or(".", |path| path.as_str());
        // "of my workspace" and the like name the root, not a folder.
        let path = if path.contains(['/', '.']) || is_folder_word(question, path) { path } else { "." };
        found.push((at, Intent::List(path.to_owned())));
    }
    for hit in READ.find_iter(question) {
        // Files belong to a "read" up to the end of its sentence or the next one.
        let rest = &question[hit.end()..];
        let next = READ.find(rest).map_or(rest.len(), |next| next.start());
        let list = LIST.find(rest).map_or(rest.len(), |next| next.start());
        for file in FILE.captures_iter(&rest[..next.min(list)]) {
            if let Some(name) = file.iter().skip(1).flatten().next() {
                let name = name.as_str().trim_end_matches(['.', ',', '?', '!']);
                found.push((hit.end() + file.get(0).map_or(0, |whole| whole.start()), Intent::Read(name.to_owned())));
            }
        }
    }
    let mut named = |pattern: &Regex, intent: fn(String) -> Intent| {
        for hit in pattern.captures_iter(question) {
            let name = hit.iter().skip(1).flatten().next().map_or("", |name| name.as_str());
            found.push((hit.get(0).map_or(0, |whole| whole.start()), intent(name.trim_end_matches('.').to_owned())));
        }
    };
    named(&FIND, Intent::Find);
    named(&SEARCH, Intent::Search);
    for hit in TIME.captures_iter(question) {
        let zone = hit.name("zone").map(|zone| zone.as_str().to_owned());
        found.push((hit.get(0).map_or(0, |whole| whole.start()), Intent::Time(zone)));
    }
    for hit in ADD.captures_iter(question) {
        let number = |first: &str, second: &str| {
            let text = hit.name(first).or_else(|| hit.name(second))?.as_str();
            serde_json::from_str::<Value>(text).ok()
        };
        if let (Some(a), Some(b)) = (number("a", "c"), number("b", "d")) {
            found.push((hit.get(0).map_or(0, |whole| whole.start()), Intent::Add(a, b)));
        }
    }
    found.extend(DEMO.find_iter(question).map(|hit| (hit.start(), Intent::DemoText)));
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, intent)| intent).collect()
}

/// Whether a bare word after "files in" is meant as a folder: "in src", "in the docs folder" — not
/// "of my workspace root".
fn is_folder_word(question: &str, word: &str) -> bool {
    const NOT_FOLDERS: [&str; 7] = ["my", "the", "this", "workspace", "root", "project", "it"];
    !NOT_FOLDERS.contains(&word.to_lowercase().as_str()) && question.contains(&format!("in {word}"))
}

fn report(intent: &Intent, result: &Value) -> String {
    if result["ok"] != true {
        let code = result["error"]["code"].as_str().unwrap_or("UNKNOWN");
        let message = result["error"]["message"].as_str().unwrap_or_default();
        let what = match intent {
            Intent::List(path) => format!("I could not list {path}"),
            Intent::Read(path) => format!("I could not read {path}"),
            Intent::Find(glob) => format!("I could not look for {glob}"),
            Intent::Search(text) => format!("I could not search for {text}"),
            Intent::Time(_) => "I could not get the time".to_owned(),
            Intent::Add(..) => "I could not add the numbers".to_owned(),
            Intent::DemoText => "I could not get the demo text".to_owned(),
        };
        return format!("{what}: {code} ({message}).");
    }
    let data = &result["data"];
    match intent {
        Intent::Find(glob) => {
            let entries = data["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
            let paths: Vec<&str> = entries.iter().take(QUOTED_NAMES).map(|entry| text(&entry["path"])).collect();
            format!("{} names match {glob}: {}", entries.len(), paths.join(", "))
        }
        Intent::Search(wanted) => {
            let matches = data["matches"].as_array().map(Vec::as_slice).unwrap_or_default();
            let line =
                |found: &Value| format!("\n{}:{}: {}", text(&found["path"]), found["line"], text(&found["text"]));
            let lines: String = matches.iter().take(QUOTED_NAMES).map(line).collect();
            format!("{} lines hold {wanted}:{lines}", matches.len())
        }
        Intent::List(path) => {
            let entries = data["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
            let names = entries.iter().take(QUOTED_NAMES).map(|entry| {
                let name = entry["name"].as_str().unwrap_or("?");
                if entry["kind"] == "dir" { format!("{name}/") } else { name.to_owned() }
            });
            let more = if entries.len() > QUOTED_NAMES { ", …" } else { "" };
            let place = if path == "." { "Your workspace root" } else { path };
            format!("{place} has {} entries: {}{more}", entries.len(), names.collect::<Vec<_>>().join(", "))
        }
        Intent::Read(path) => {
            let content = data["content"].as_str().unwrap_or_default();
            let quoted: String = content.chars().take(QUOTED_CHARS).collect();
            let more = if quoted.len() < content.len() { " …" } else { "" };
            format!("{path} ({} bytes) says:\n\n{}{more}", data["size"], quoted.trim_end())
        }
        Intent::Time(_) => format!("It is {} ({}).", text(&data["time"]), text(&data["timezone"])),
        Intent::Add(a, b) => format!("{a} + {b} = {}.", data["sum"]),
        Intent::DemoText => format!("The demo text is: {}", text(&data["text"])),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// A name that an earlier message gave, if the question asks for it; an acknowledgement, if it gives
/// one.
fn recall(question: &str, messages: &[Message]) -> Option<String> {
    let name_in = |text: &str| {
        let hit = NAME.captures(text)?;
        hit.name("name").or_else(|| hit.name("cn")).map(|name| name.as_str().to_owned())
    };
    if ASKS_NAME.is_match(question) {
        let known = messages.iter().rev().find_map(|message| match message {
            Message::User { content } if !ASKS_NAME.is_match(content) => name_in(content),
            _ => None,
        });
        return Some(
            known.map_or("You have not told me your name.".to_owned(), |name| format!("Your name is {name}.")),
        );
    }
    name_in(question).map(|name| format!("Nice to meet you, {name}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_questions_tools_are_called_in_the_order_it_names_them() {
        let list = || Intent::List(".".into());
        let read = |path: &str| Intent::Read(path.into());
        for (question, expected) in [
            ("list the files of my workspace root, then read README.md", vec![list(), read("README.md")]),
            ("列出我工作区根目录的文件，再读一下 README.md", vec![list(), read("README.md")]),
            ("list files in src", vec![Intent::List("src".into())]),
            (
                "list the files in docs/api and read docs/guide.md",
                vec![Intent::List("docs/api".into()), read("docs/guide.md")],
            ),
            (
                "read README.md, docs/guide.md and LICENSE.",
                vec![read("README.md"), read("docs/guide.md"), read("LICENSE")],
            ),
            ("read ../secret.txt", vec![read("../secret.txt")]),
            ("read /etc/passwd", vec![read("/etc/passwd")]),
            ("read .env", vec![read(".env")]),
            ("please read `no extension`", vec![read("no extension")]),
            (
                "what time is it in Europe/Berlin? and add 2 and 3.5",
                vec![Intent::Time(Some("Europe/Berlin".into())), Intent::Add(json!(2), json!(3.5))],
            ),
            ("what is 2 + 3", vec![Intent::Add(json!(2), json!(3))]),
            ("find all files named *.rs.", vec![Intent::Find("*.rs".into())]),
            (
                "find `a b`, then search my files for \"read this\"",
                vec![Intent::Find("a b".into()), Intent::Search("read this".into())],
            ),
            ("find out what time it is", vec![Intent::Time(None)]),
            ("show me the demo text", vec![Intent::DemoText]),
            ("hello", vec![]),
        ] {
            assert_eq!(intents(question), expected, "{question}");
        }
    }

    #[test]
    fn a_name_is_recalled_from_the_context_and_nothing_is_made_up() {
        let user = |content: &str| Message::User { content: content.into() };
        let ask = |messages: Vec<Message>| match reply(&ModelRequest { messages, tools: vec![] }) {
            Reply::Say(text) => text,
            Reply::Call(intent) => format!("{intent:?}"),
        };
        assert_eq!(ask(vec![user("My name is Ann"), user("What is my name?")]), "Your name is Ann.");
        assert_eq!(ask(vec![user("我叫小明"), user("我叫什么")]), "Your name is 小明.");
        assert_eq!(ask(vec![user("What is my name?")]), "You have not told me your name.");
        assert_eq!(ask(vec![user("hello")]), HELP);
        assert!(ask(vec![user("the demo text please")]).contains("not given the tool demo_text"));
    }
}

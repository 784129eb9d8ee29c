//! The chat as markup, part by part: the page is made of the same parts that the stream sends.

use super::markdown;
use super::view::{Chat, MAX_RUNNING, MAX_SHOWN_TURNS, Open};
use crate::ui::audit::parts::{chat_link, history_link, run_link};
use crate::ui::components::{Tone, chip, time};
use crate::ui::{grants, text, utf8_percent};
use devmind_domain::ErrorCode;
use devmind_domain::limits::{MAX_CONTENT_CHARS, MAX_TITLE_CHARS};
use devmind_projections::{DeviceRow, PendingApproval, TurnRow, TurnToolCall};
use maud::{Markup, html};

/// What sends "continue" after an answer that was cut off.
const CONTINUE: &str = "continue";

/// Everything within the frame.
pub(super) fn whole(chat: &Chat) -> Markup {
    let id = chat.open.as_ref().map(|open| open.id.as_str());
    let still = chat.open.as_ref().is_some_and(|open| open.before.is_some());
    html! {
        div.chat-columns #chat data-conversation=[id] data-position=(chat.position) data-still[still] {
            section.chat-open aria-labelledby="chat-title" {
                (head(chat))
                (device(chat))
                p #connection.card.doubt role="status" hidden {}
                div #turns { @if let Some(open) = &chat.open { (turns(chat, open)) } @else { (welcome()) } }
                p #problem role="alert" hidden {}
                @match chat.open.as_ref().and_then(|open| Some((open, open.before?))) {
                    Some((open, before)) => (later(open, before)),
                    None => (composer(chat)),
                }
            }
            (list(chat))
        }
    }
}

/// Each part by the id of its element, as the stream sends them.
pub(super) fn all(chat: &Chat) -> Vec<(String, Markup)> {
    let fixed = [("chat-head", head(chat)), ("chat-device", device(chat))];
    let mut parts: Vec<_> = fixed.into_iter().map(|(id, part)| (id.to_owned(), part)).collect();
    if let Some(open) = &chat.open {
        parts.extend(open.turns.iter().map(|own| (format!("turn-{}", own.sequence_no), turn(chat, open, own))));
    }
    parts.push(("composer".to_owned(), composer(chat)));
    parts.push(("chat-list".to_owned(), list(chat)));
    parts
}

fn welcome() -> Markup {
    html! {
        div.empty {
            p.empty-title { "What would you like to know?" }
            p { "Each question and each step of the answer is recorded. A file of yours is read only after you allow it." }
        }
    }
}

fn head(chat: &Chat) -> Markup {
    html! {
        header #chat-head {
            h1 #chat-title { (text::inline(chat.title())) }
            a.jump href="#chat-list" { "All conversations" }
            @if let Some(open) = &chat.open { a.past href=(history_link(open.id.as_str())) { "History" } }
            @if let Some(open) = chat.open.as_ref().filter(|open| open.own) {
                details.menu {
                    summary { "Rename or delete" }
                    form method="post" action="/chat/rename" data-act {
                        input type="hidden" name="conversation_id" value=(open.id);
                        label for="title" { "Title" }
                        input #title name="title" required maxlength=(MAX_TITLE_CHARS) value=(open.title) data-kept;
                        button.quiet type="submit" { "Rename" }
                    }
                    form method="post" action="/chat/delete" data-act {
                        input type="hidden" name="conversation_id" value=(open.id);
                        p.hint { "It leaves the lists. The log keeps what happened." }
                        button.danger type="submit" { "Delete this conversation" }
                    }
                }
            }
        }
    }
}

/// Whether the model can use a computer's tools, and if not, why.
fn device(chat: &Chat) -> Markup {
    let online = chat.online();
    let last = chat.devices.iter().find(|device| !device.online);
    html! {
        p #chat-device role="status" {
            @if let Some(device) = online.first() {
                (chip(Tone::Good, "connected"))
                span { "Local tools: connected · "
                    @if let Some(workspace) = &device.workspace { "workspace " strong { (text::inline(workspace)) } " · " }
                    (computer(chat, device)) " · " (device.tools.len()) " tools"
                    @if online.len() > 1 { " · and " (online.len() - 1) " more" }
                }
            } @else if let Some(device) = last {
                (chip(Tone::Quiet, "not connected"))
                span { "Local tools: not connected. " (computer(chat, device)) @if let Some(workspace) = &device.workspace { " (workspace " (text::inline(workspace)) ")" } " was last seen " (time(device.last_seen))
                    @if let Some(reason) = device.close_reason.as_ref().filter(|reason| !reason.is_empty()) { ", " (text::inline(reason)) }
                    ". Start it again with " code { "devmind-device" } "." }
            } @else {
                (chip(Tone::Quiet, "no device"))
                span { "Local tools: no device of " bdi { (chat.user) } " has connected. Start one on the computer that has the files: "
                    code { "devmind-device --user " (chat.user) " --workspace DIR" } "." }
            }
        }
    }
}

/// A computer as its user knows it.
fn computer(chat: &Chat, device: &DeviceRow) -> Markup {
    html! {
        @if chat.own_device.as_ref() == Some(&device.device_id) { "this computer" }
        @else if let Some(name) = &device.computer { "computer " (text::inline(name)) }
        @else { "device " code title=(device.device_id) { "…" (end_of(device.device_id.as_str())) } }
    }
}

/// The same where no markup can be.
fn choice(chat: &Chat, device: &DeviceRow) -> String {
    let computer = match &device.computer {
        _ if chat.own_device.as_ref() == Some(&device.device_id) => "this computer".to_owned(),
        Some(name) => text::plain(name),
        None => format!("device …{}", end_of(device.device_id.as_str())),
    };
    device.workspace.as_ref().map_or(computer.clone(), |workspace| format!("{} · {computer}", text::plain(workspace)))
}

/// The end of an id, which tells those of one person apart.
fn end_of(id: &str) -> &str {
    let end = id.char_indices().rev().nth(5).map_or(0, |(at, _)| at);
    id.get(end..).unwrap_or(id)
}

fn turns(chat: &Chat, open: &Open) -> Markup {
    html! {
        @if open.first() > 1 {
            nav.buttons aria-label="Earlier turns" {
                a.button.quiet rel="prev" href=(format!("{}?before={}", chat_link(open.id.as_str()), open.first())) { "Earlier turns" }
                span.hint { (open.first() - 1) " before these" }
            }
        }
        @if open.turns.is_empty() && open.before.is_some() { p.hint { "There are no turns before this one." } }
        @for own in &open.turns { (turn(chat, open, own)) }
    }
}

/// The ways out of a page of earlier turns, which does not change and where nothing is asked.
fn later(open: &Open, before: u32) -> Markup {
    let place = chat_link(open.id.as_str());
    html! {
        nav.buttons #later aria-label="Later turns" {
            a.button.quiet rel="next" href=(format!("{place}?before={}", before.saturating_add(MAX_SHOWN_TURNS))) { "Later turns" }
            a.button href=(place) { "To the newest, to ask" }
        }
    }
}

fn turn(chat: &Chat, open: &Open, turn: &TurnRow) -> Markup {
    let number = turn.sequence_no;
    let api = format!("/api/turns?conversation_id={}&before={}&limit=1", utf8_percent(open.id.as_str()), number + 1);
    let whole = format!("/chat/answer?c={}&turn={number}", utf8_percent(open.id.as_str()));
    let runs = turn.status == "running";
    let answer =
        if runs { Some(open.streamed.as_str()).filter(|text| !text.is_empty()) } else { turn.answer.as_deref() };
    html! {
        article.turn id=(format!("turn-{number}")) data-number=(number) data-status=(turn.status) aria-labelledby=(format!("turn-{number}-title")) {
            h2.visually-hidden id=(format!("turn-{number}-title")) { "Turn " (number) }
            div.question { span.visually-hidden { "Question: " } (text::block(&turn.question, &api)) }
            @if !turn.tool_calls.is_empty() || !turn.pending_approvals.is_empty() {
                ul.calls aria-label="Tool calls" { @for call in &turn.tool_calls { (card(open, turn, call)) } }
            }
            @if let Some(answer) = answer {
                div.answer aria-busy=[runs.then_some("true")] { span.visually-hidden { "Answer: " } (markdown::answer(answer, &whole)) }
            } @else if runs {
                p.answer.thinking { "Working on it …" }
            }
            (ending(chat, open, turn))
        }
    }
}

/// How the turn stands, and what can be done about it.
fn ending(chat: &Chat, open: &Open, turn: &TurnRow) -> Markup {
    let (tone, words) = turn_words(turn);
    let code = turn.error_code.as_deref();
    let help = code.and_then(ErrorCode::parse).map(ErrorCode::help);
    let was_cut = matches!(turn.status.as_str(), "failed" | "cancelled");
    let run = turn.active_run.as_ref();
    html! {
        footer.ending {
            (chip(tone, words))
            @if let Some(message) = turn.error_message.as_ref().filter(|_| turn.status == "failed") { span { (text::inline(message)) } }
            @if let Some(help) = help.filter(|_| turn.status == "failed" && turn.error_message.as_deref() != help) { span.hint { (help) } }
            @if let Some(code) = code.filter(|_| turn.status == "failed") { code.hint { (code) } }
            @if open.own {
                @if let Some(run) = run.filter(|_| matches!(turn.status.as_str(), "running" | "interrupted")) {
                    (button("/chat/stop", &[("run_id", run.run_id.as_str())], "danger", "Stop"))
                }
                @if let Some(run) = run.filter(|run| turn.status == "pending" && run.status == "queued") {
                    (button("/chat/start", &[("run_id", run.run_id.as_str())], "", "Start now"))
                }
                @if turn.can_rerun && turn.status != "interrupted" {
                    (button("/chat/rerun", &[("turn_id", turn.id.as_str()), ("key", &chat.key)], "quiet", "Retry"))
                }
                @if turn.can_rerun && was_cut {
                    (button("/chat/ask", &[("conversation_id", open.id.as_str()), ("content", CONTINUE), ("key", &chat.key), ("device_id", chosen(chat))], "quiet", "Continue"))
                }
                @if turn.can_rerun { (edit(chat, turn)) }
            }
            @if let Some(run) = run {
                a.trail href=(run_link(run.run_id.as_str())) { "What happened" span.visually-hidden { " in turn " (turn.sequence_no) } }
            }
        }
    }
}

fn edit(chat: &Chat, turn: &TurnRow) -> Markup {
    let field = format!("edit-{}", turn.sequence_no);
    html! {
        details.edit {
            summary { "Edit" }
            form method="post" action="/chat/rerun" data-act {
                (hidden(&[("turn_id", turn.id.as_str()), ("key", &chat.key)]))
                label for=(field) { "The question" }
                textarea id=(field) name="content" required maxlength=(MAX_CONTENT_CHARS) rows="3" dir="auto" data-kept { "\n" (turn.question) }
                @if turn.status == "interrupted" { p.hint { "The approval that waits is taken back." } }
                button type="submit" { "Save and run again" }
            }
        }
    }
}

fn turn_words(turn: &TurnRow) -> (Tone, &'static str) {
    match (turn.status.as_str(), turn.error_code.as_deref()) {
        ("pending", _) => (Tone::Busy, "waiting to start"),
        ("running", _) => (Tone::Busy, "running"),
        ("interrupted", _) => (Tone::Person, "waiting for your approval"),
        ("completed", _) => (Tone::Good, "answered"),
        ("failed", _) => (Tone::Bad, "failed"),
        ("cancelled", Some("CLIENT_DISCONNECTED")) => (Tone::Quiet, "stopped: the client that asked went away"),
        ("cancelled", Some("ABANDONED")) => (Tone::Quiet, "never started: a newer question came first"),
        ("cancelled", _) => (Tone::Quiet, "stopped"),
        _ => (Tone::Quiet, "unknown"),
    }
}

/// A tool call, and the approval that it waits for.
fn card(open: &Open, turn: &TurnRow, call: &TurnToolCall) -> Markup {
    let approval = turn.pending_approvals.iter().find(|own| own.tool_call_id == call.tool_call_id);
    let (tone, words) = call_words(call, approval.is_some());
    let code = call.error_code.as_deref().and_then(ErrorCode::parse);
    let id = call.tool_call_id.as_str();
    html! {
        li.call id=(format!("call-{id}")) data-status=(call.status) {
            div.call-line {
                (chip(tone, words))
                code.tool { (text::inline(&call.tool)) }
                span.summary { (text::inline(&call.summary)) }
            }
            @if let Some(code) = code.filter(|_| call.status != "succeeded") { p.hint { (code.help()) " " code { (code.as_str()) } } }
            @if let Some(approval) = approval { (ask(open, approval)) }
            details.more data-fetch=(format!("/chat/call?id={}", utf8_percent(id))) {
                summary { "Details" span.visually-hidden { " of " (text::inline(&call.tool)) } }
                div data-kept { a href=(format!("/chat/call?id={}", utf8_percent(id))) { "Arguments and result" } }
            }
        }
    }
}

fn call_words(call: &TurnToolCall, waits: bool) -> (Tone, &'static str) {
    match (call.status.as_str(), call.phase.as_deref()) {
        (_, _) if waits => (Tone::Person, "waiting for your approval"),
        ("created", _) => (Tone::Quiet, "not sent"),
        ("dispatched", Some("confirming")) => (Tone::Person, "waiting for your confirmation at the device"),
        ("dispatched", Some("executing")) => (Tone::Busy, "executing"),
        ("dispatched", _) if call.target == "device" => (Tone::Busy, "sent to the device"),
        ("dispatched", _) => (Tone::Busy, "executing"),
        ("succeeded", _) if call.origin.as_deref() == Some("redelivered") => (Tone::Good, "done, reconciled later"),
        ("succeeded", _) => (Tone::Good, "done"),
        ("failed", _) => (Tone::Bad, "failed"),
        ("rejected", _) => (Tone::Bad, "refused, did not run"),
        ("cancelled", _) => (Tone::Quiet, "taken back, did not run"),
        ("timed_out", _) => (Tone::Doubt, "no answer in time, outcome unknown"),
        ("unknown", _) => (Tone::Doubt, "outcome unknown"),
        ("indeterminate", _) => (Tone::Doubt, "began, nobody can know how it ended"),
        _ => (Tone::Quiet, "in an unknown state"),
    }
}

/// What is asked, how long, and what the answer is good for.
fn ask(open: &Open, approval: &PendingApproval) -> Markup {
    let arguments = serde_json::to_string_pretty(&approval.arguments).unwrap_or_default();
    let whole = format!("/chat/call?id={}", utf8_percent(approval.tool_call_id.as_str()));
    html! {
        div.approval {
            p { strong { (text::inline(&approval.message)) } }
            (text::code(&arguments, &whole))
            p.hint {
                "“Allow once” allows " code { (text::inline(&approval.tool)) } " once, with exactly these arguments, and nothing else."
                @if let Some(at) = approval.expires_at { " Without an answer by " (time(at)) " the model is told that nobody decided." }
            }
            @if open.own {
                div.buttons {
                    (button("/chat/decide", &[("interrupt_id", approval.interrupt_id.as_str()), ("approved", "false")], "quiet", "Deny"))
                    (button("/chat/decide", &[("interrupt_id", approval.interrupt_id.as_str()), ("approved", "true")], "", "Allow once"))
                }
                (grants::offer(approval, "/chat/decide"))
            }
        }
    }
}

/// A form that is one button.
fn button(action: &str, fields: &[(&str, &str)], class: &str, words: &str) -> Markup {
    html! {
        form.one method="post" action=(action) data-act { (hidden(fields)) button.(class) type="submit" { (words) } }
    }
}

/// Fields that nobody sees. Scripts make each click's key themselves.
fn hidden(fields: &[(&str, &str)]) -> Markup {
    html! { @for (name, value) in fields { input type="hidden" name=(name) value=(value) data-kept[*name == "key"]; } }
}

fn chosen(chat: &Chat) -> &str {
    chat.online().first().map_or("", |device| device.device_id.as_str())
}

/// Where the next question is written.
fn composer(chat: &Chat) -> Markup {
    let latest = chat.open.as_ref().and_then(Open::latest);
    let why_not = match (chat.open.as_ref(), latest.map(|turn| turn.status.as_str())) {
        (Some(open), _) if !open.own => Some("This conversation is somebody else's: you can read it."),
        (_, Some("running")) => Some("Send when the answer is there, or stop it."),
        (_, Some("interrupted")) => Some("Answer the approval first, or edit the question."),
        _ => None,
    };
    let online = chat.online();
    html! {
        form #composer method="post" action="/chat/ask" data-act data-clears {
            (hidden(&[("key", &chat.key)]))
            @if let Some(open) = &chat.open { (hidden(&[("conversation_id", open.id.as_str())])) }
            label.visually-hidden for="content" { "Your question" }
            textarea #content name="content" required maxlength=(MAX_CONTENT_CHARS) rows="2" dir="auto" placeholder="Ask something" data-kept {}
            div.composer-line {
                @match online.as_slice() {
                    [] => { (hidden(&[("device_id", "")])) }
                    devices => {
                        label for="device" { "Tools of" }
                        select #device name="device_id" {
                            @for device in devices {
                                option value=(device.device_id) { (choice(chat, device)) }
                            }
                            option value="" { "no computer" }
                        }
                    }
                }
                p #why-not.hint { (why_not.unwrap_or("Enter sends, Shift+Enter makes a new line.")) }
                button type="submit" disabled[why_not.is_some()] aria-describedby="why-not" { "Send" }
            }
        }
    }
}

fn list(chat: &Chat) -> Markup {
    let here = chat.open.as_ref().map(|open| &open.id);
    let running = chat.conversations.iter().filter(|row| row.latest_turn_status.as_deref() == Some("running")).count();
    html! {
        aside #chat-list aria-labelledby="list-title" tabindex="-1" {
            h2 #list-title { "Conversations" }
            a.button.quiet href="/" aria-current=[here.is_none().then_some("page")] { "New conversation" }
            @if running > 0 { p.hint { (running) " of at most " (MAX_RUNNING) " running" } }
            @if chat.conversations.is_empty() { p.hint { "None yet." } }
            ul {
                @for row in &chat.conversations {
                    li {
                        a href=(chat_link(row.id.as_str())) aria-current=[(here == Some(&row.id)).then_some("page")] {
                            span.title { (text::inline(&row.title)) }
                            @match row.latest_turn_status.as_deref() {
                                Some("running") => { (chip(Tone::Busy, "running")) }
                                Some("pending") => { (chip(Tone::Busy, "waiting to start")) }
                                Some("interrupted") => { (chip(Tone::Person, "waiting for approval")) }
                                Some("failed") => { (chip(Tone::Bad, "failed")) }
                                Some("cancelled") => { (chip(Tone::Quiet, "stopped")) }
                                _ => {}
                            }
                        }
                    }
                }
            }
        }
    }
}

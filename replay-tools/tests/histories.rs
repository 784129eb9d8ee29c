//! Sessions of other agents, imported: nothing is lost, nothing comes twice, and our tools tell them.

#[allow(dead_code, reason = "shared with another test program")]
mod support;

use serde_json::{Value, json};
use support::{Data, Ran, code_of};

const CODEX: &str = r#"{"timestamp":"2026-03-01T10:00:00.000Z","type":"session_meta","payload":{"id":"s1","timestamp":"2026-03-01T10:00:00.000Z","cwd":"/p","originator":"codex_cli_rs","cli_version":"0.99.0","source":"cli","model_provider":"openai"}}
{"timestamp":"2026-03-01T10:00:00.100Z","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"<environment_context>\n</environment_context>"}]}}
{"timestamp":"2026-03-01T10:00:01.000Z","type":"event_msg","payload":{"type":"user_message","message":"what is here?","images":[]}}
{"timestamp":"2026-03-01T10:00:01.100Z","type":"turn_context","payload":{"cwd":"/p","approval_policy":"on-request","model":"gpt-x","summary":"auto"}}
{"timestamp":"2026-03-01T10:00:02.000Z","type":"response_item","payload":{"type":"reasoning","summary":[{"type":"summary_text","text":"I look."}],"encrypted_content":"x"}}
{"timestamp":"2026-03-01T10:00:02.100Z","type":"response_item","payload":{"type":"function_call","name":"shell","arguments":"{\"command\":[\"ls\"]}","call_id":"c1"}}
{"timestamp":"2026-03-01T10:00:02.200Z","type":"event_msg","payload":{"type":"token_count","info":{"last_token_usage":{"input_tokens":100,"cached_input_tokens":40,"output_tokens":10,"reasoning_output_tokens":5}}}}
{"timestamp":"2026-03-01T10:00:05.200Z","type":"response_item","payload":{"type":"function_call_output","call_id":"c1","output":"README.md"}}
this is no JSON
{"timestamp":"2026-03-01T10:00:06.000Z","type":"event_msg","payload":{"type":"invented_later","x":1}}
{"timestamp":"2026-03-01T10:00:07.000Z","type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"A README."}]}}
{"timestamp":"2026-03-01T10:00:07.100Z","type":"event_msg","payload":{"type":"task_complete","last_agent_message":"A README."}}
"#;

const CLAUDE: &str = r#"{"type":"queue-operation","operation":"dequeue","timestamp":"2026-03-02T09:00:00.000Z","sessionId":"s2"}
{"parentUuid":null,"isSidechain":false,"userType":"external","cwd":"/p","sessionId":"s2","version":"2.1.17","type":"user","message":{"role":"user","content":"fix the test"},"uuid":"u1","timestamp":"2026-03-02T09:00:01.000Z"}
{"parentUuid":"u1","isSidechain":false,"sessionId":"s2","type":"assistant","message":{"id":"m1","model":"claude-x","role":"assistant","content":[{"type":"thinking","thinking":"Let me see."}],"stop_reason":null,"usage":{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":1}},"uuid":"u2","timestamp":"2026-03-02T09:00:02.000Z"}
{"parentUuid":"u2","isSidechain":false,"sessionId":"s2","type":"assistant","message":{"id":"m1","model":"claude-x","role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"cargo test"}}],"stop_reason":"tool_use","usage":{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":20}},"uuid":"u3","timestamp":"2026-03-02T09:00:03.000Z"}
{"parentUuid":"u3","isSidechain":true,"sessionId":"s2","type":"assistant","message":{"id":"m9","model":"claude-y","role":"assistant","content":[{"type":"text","text":"aside"}]},"uuid":"u9","timestamp":"2026-03-02T09:00:03.500Z"}
{"parentUuid":"u3","isSidechain":false,"sessionId":"s2","type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_1","type":"tool_result","content":"1 failed","is_error":true}]},"toolUseResult":{"stdout":"1 failed"},"uuid":"u4","timestamp":"2026-03-02T09:00:13.000Z"}
{"parentUuid":"u4","isSidechain":false,"sessionId":"s2","type":"assistant","message":{"id":"m2","model":"claude-x","role":"assistant","content":[{"type":"text","text":"It fails."}],"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":6}},"uuid":"u5","timestamp":"2026-03-02T09:00:14.000Z"}
{"type":"summary","summary":"A failing test","leafUuid":"u5"}
"#;

fn told(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

async fn import(data: &Data, flag: &str, file: &str) -> Value {
    let ran = data.run(&["import", flag, file, "--user", "ann", "--yes", "--json"]).await;
    assert_eq!(ran.status, 0, "{ran:?}");
    told(&ran)
}

/// Log and views hold what the domain's rules ask for.
async fn assert_sound(data: &Data) {
    for arguments in [&["verify"][..], &["schema", "check"], &["rebuild", "--yes"], &["rebuild", "--check"]] {
        let ran = data.run(arguments).await;
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
    }
}

/// The lines that the log keeps of a session, put together again.
async fn kept(data: &Data, stream: &str) -> String {
    let ran = data.run(&["log", "--json", "--stream", stream, "--type", "ForeignRecordKept"]).await;
    let parts = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["payload"].clone());
    let mut text = String::new();
    for part in parts {
        text.push_str(part["text"].as_str().expect("text"));
        if part["part"] == part["parts"] {
            text.push('\n');
        }
    }
    text
}

#[tokio::test]
async fn a_codex_session_is_told_like_our_own_and_every_line_of_it_is_kept() {
    let data = Data::empty();
    data.write("rollout.jsonl", CODEX);
    let before = data.run(&["import", "--from-codex", "rollout.jsonl", "--json"]).await;
    assert_eq!((before.status, data.files().len()), (1, 1), "without --yes nothing is written: {before:?}");
    let report = import(&data, "--from-codex", "rollout.jsonl").await;
    assert_eq!(report["understood"]["response_item/function_call"], 1);
    assert_eq!(
        report["kept_only"],
        json!({ "event_msg/invented_later": 1, "response_item/message": 1, "unreadable": 1 })
    );
    assert_eq!(kept(&data, "history/codex:s1").await, CODEX);
    assert_sound(&data).await;

    let ran = data.run(&["timeline", "--run", "codex:s1:t1r1"]).await;
    for words in ["what is here?", "model gpt-x", "shell", "attempt 1 succeeded", "run answered", "3.100s"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    let shown = told(&data.run(&["show", "--conversation", "codex:s1", "--json"]).await).to_string();
    assert!(shown.contains("A README.") && shown.contains("what is here?"), "{shown}");
    let stats = told(&data.run(&["stats", "--json"]).await);
    let usage = &stats["models"][0];
    assert_eq!((&usage["day"], &usage["model"]), (&json!("2026-03-01"), &json!("gpt-x")));
    assert_eq!((&usage["input"], &usage["cached"]), (&json!(100), &json!(40)));
}

#[tokio::test]
async fn a_claude_code_session_is_told_like_our_own_and_every_line_of_it_is_kept() {
    let data = Data::empty();
    data.write("s2.jsonl", CLAUDE);
    let report = import(&data, "--from-claude-code", "s2.jsonl").await;
    let expected = json!({ "assistant of a sub-agent": 1, "queue-operation": 1, "summary": 1 });
    assert_eq!(report["kept_only"], expected);
    assert_eq!(kept(&data, "history/claude-code:s2").await, CLAUDE);
    assert_sound(&data).await;
    let ran = data.run(&["timeline", "--run", "claude-code:s2:t1r1"]).await;
    for words in ["fix the test", "claude-x", "Bash", "attempt 1 failed", "run answered", "10.000s"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    // Records of one message are one answer.
    let answers = data.run(&["log", "--json", "--type", "ModelResponded"]).await;
    assert_eq!(answers.stdout.lines().count(), 2);
    let stats = told(&data.run(&["stats", "--json"]).await);
    assert_eq!((&stats["models"][0]["input"], &stats["models"][0]["output"]), (&json!(15), &json!(26)));
}

#[tokio::test]
async fn an_import_that_is_repeated_adds_nothing_and_one_of_a_longer_file_adds_what_is_new() {
    for (flag, text) in [("--from-codex", CODEX), ("--from-claude-code", CLAUDE)] {
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        // However the file had grown between imports, the log holds every line once, and is sound.
        for cut in 1..lines.len() {
            let data = Data::empty();
            data.write("s.jsonl", &lines[..cut].concat());
            import(&data, flag, "s.jsonl").await;
            let position = import(&data, flag, "s.jsonl").await["position"].clone();
            // The rest, and the beginning of a line that is still being written.
            data.write("s.jsonl", &format!("{text}{{\"timest"));
            let report = import(&data, flag, "s.jsonl").await;
            assert_eq!(
                (&report["sessions"][0]["known"], &report["sessions"][0]["unfinished"]),
                (&json!(cut), &json!(true))
            );
            assert!(report["position"].as_u64() > position.as_u64(), "{report}");
            let again = import(&data, flag, "s.jsonl").await;
            assert_eq!((&again["position"], &again["sessions"][0]["events"]), (&report["position"], &json!(0)));
            let session = report["sessions"][0]["conversation_id"].as_str().expect("an id").to_owned();
            assert_eq!(kept(&data, &format!("history/{session}")).await, text, "cut at {cut}");
            let verified = data.run(&["verify"]).await;
            assert_eq!(verified.status, 0, "cut at {cut}: {verified:?}");
        }
    }
}

#[tokio::test]
async fn a_session_whose_past_was_changed_is_refused_and_the_others_are_taken() {
    let data = Data::empty();
    std::fs::create_dir(data.path().join("all")).expect("a folder");
    data.write("all/a.jsonl", CODEX);
    import(&data, "--from-codex", "all").await;
    data.write("all/a.jsonl", &CODEX.replace("what is here?", "delete it all"));
    data.write("all/b.jsonl", &CODEX.replace("\"s1\"", "\"s3\""));
    data.write("all/notes.txt", "no session");
    let ran = data.run(&["import", "--from-codex", "all", "--yes", "--json"]).await;
    assert_eq!(ran.status, 1, "{ran:?}");
    assert_eq!((&told(&ran)["failed"], told(&ran)["sessions"].as_array().map(Vec::len)), (&json!(1), Some(1)));
    assert!(code_of(&ran) == "VALIDATION_FAILED" && ran.stderr.contains("line 3 is another"), "{}", ran.stderr);
    let ran = data.run(&["import", "--from-codex", "all/notes", "--yes"]).await;
    assert_eq!((ran.status, code_of(&ran)), (1, "IO_ERROR"));
}

#[tokio::test]
async fn a_conversation_that_went_on_here_is_not_gone_on_with_by_an_import() {
    let data = Data::empty();
    let begun: String = CODEX.split_inclusive('\n').take(7).collect();
    data.write("a.jsonl", &begun);
    import(&data, "--from-codex", "a.jsonl").await;
    // Somebody stops the run on a page.
    let stopped = json!({ "run_id": "codex:s1:t1r1", "error_code": "STOPPED", "partial_text": "" });
    let ledger = data.open().await;
    data.append(&ledger, &("conversation", "codex:s1", "RunCancelled", stopped)).await;
    ledger.close().await;
    data.write("a.jsonl", CODEX);
    let ran = data.run(&["import", "--from-codex", "a.jsonl", "--yes", "--json"]).await;
    assert_eq!((ran.status, &told(&ran)["failed"]), (1, &json!(1)), "{ran:?}");
    assert!(ran.stderr.contains("the conversation went on here, with event 18"), "{}", ran.stderr);
    assert_eq!(data.run(&["verify"]).await.status, 0, "one end of the run");
}

#[tokio::test]
async fn an_imported_run_is_said_to_have_no_replay_not_to_differ() {
    let data = Data::empty();
    data.write("a.jsonl", CODEX);
    import(&data, "--from-codex", "a.jsonl").await;
    let ran = data.run(&["replay", "--all"]).await;
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.stdout.contains("cannot be replayed [RUN_NOT_REPLAYABLE]: another program ran it"), "{}", ran.stdout);
}

#[tokio::test]
async fn long_lines_and_bytes_that_are_no_text_are_kept_exactly() {
    let data = Data::empty();
    let long = format!("{{\"type\":\"later\",\"x\":\"{}\"}}", "ü".repeat(1_500_000));
    let mut bytes = format!("{long}\n").into_bytes();
    bytes.extend(b"\xff\x00\xfe\n");
    std::fs::write(data.path().join("s.jsonl"), bytes).expect("written");
    let report = import(&data, "--from-codex", "s.jsonl").await;
    assert_eq!(report["kept_only"], json!({ "later": 1, "unreadable": 1 }));
    let text = kept(&data, "history/codex:s").await;
    assert_eq!(text, format!("{long}\n/wD+\n"), "base64 of the bytes");
    let parts = data.run(&["log", "--json", "--type", "ForeignRecordKept"]).await;
    assert_eq!(parts.stdout.lines().count(), 3 + 1, "no event is longer than a part");
    assert_sound(&data).await;
}

#[tokio::test]
async fn only_files_of_sessions_are_looked_for_no_link_is_followed_and_what_is_none_is_said_to_be_none() {
    let data = Data::empty();
    let deep = "all/1/2/3/4/5/6/7";
    std::fs::create_dir_all(data.path().join(deep).join("8")).expect("folders");
    std::fs::create_dir(data.path().join("none")).expect("a folder");
    let none = data.run(&["import", "--from-codex", "none"]).await;
    assert_eq!((none.status, code_of(&none)), (1, "NOT_FOUND"), "{none:?}");
    data.write("elsewhere.jsonl", CODEX);
    #[cfg(unix)]
    for (target, link) in [("elsewhere.jsonl", "all/link.jsonl"), (".", "all/loop")] {
        std::os::unix::fs::symlink(data.path().join(target), data.path().join(link)).expect("a link");
    }
    data.write("all/notes.txt", CODEX);
    data.write(&format!("{deep}/a.jsonl"), CODEX);
    data.write(&format!("{deep}/8/b.jsonl"), &CODEX.replace("\"s1\"", "\"s9\""));
    let report = import(&data, "--from-codex", "all").await;
    let sessions = report["sessions"].as_array().expect("sessions");
    assert_eq!((sessions.len(), &sessions[0]["session"]), (1, &json!("s1")), "{report}");

    // A file that lost lines is another one, and one that is too long is left where it is.
    let short: String = CODEX.split_inclusive('\n').take(5).collect();
    data.write(&format!("{deep}/a.jsonl"), &short);
    let lost = data.run(&["import", "--from-codex", deep, "--yes"]).await;
    assert!(lost.status == 1 && lost.stderr.contains("line 6 is another"), "{lost:?}");
    let large = std::fs::File::create(data.path().join("large.jsonl")).expect("made");
    large.set_len((1 << 30) + 1).expect("a file with nothing in it");
    let refused = data.run(&["import", "--from-codex", "large.jsonl"]).await;
    assert!(refused.status == 1 && refused.stderr.contains("longer than"), "{refused:?}");
}

#[tokio::test]
async fn what_a_session_repeats_or_answers_without_having_been_asked_becomes_no_second_fact() {
    let data = Data::empty();
    let lines: Vec<&str> = CODEX.split_inclusive('\n').collect();
    let (called, returned) = (lines[5], lines[7]);
    let strange = returned.replace("\"c1\"", "\"never-called\"");
    let text = [&lines[..8].concat(), called, returned, strange.as_str(), &lines[8..].concat()].concat();
    data.write("s.jsonl", &text);
    import(&data, "--from-codex", "s.jsonl").await;
    assert_eq!(kept(&data, "history/codex:s1").await, text);
    for (kind, count) in [("ToolCallRequested", 1), ("ToolResultRecorded", 1)] {
        let events = data.run(&["log", "--json", "--type", kind]).await;
        assert_eq!(events.stdout.lines().count(), count, "{kind}");
    }
    assert_sound(&data).await;
    // Renamed here, it is still theirs.
    let ledger = data.open().await;
    data.append(
        &ledger,
        &("conversation", "codex:s1", "ConversationRenamed", json!({ "title": "mine", "source": "manual" })),
    )
    .await;
    ledger.close().await;
    data.write("s.jsonl", &format!("{text}{}", lines[9]));
    assert_eq!(import(&data, "--from-codex", "s.jsonl").await["failed"], 0);
}

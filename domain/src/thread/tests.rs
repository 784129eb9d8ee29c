//! The rules of a thread, as given/when/then.

use super::*;
use crate::aggregate::Decider;
use crate::ids::*;
use crate::json::MAX_SAFE_INTEGER;
use crate::limits::{MAX_MODEL_ANSWER_BYTES, MAX_MODEL_CALL_ID_CHARS, MAX_PARTIAL_TEXT_JSON_BYTES};
use cqrs_es::test::TestFramework;
use serde_json::json;

type Command = ThreadCommand;
type Event = ThreadEvent;

/// After these events this command gives this: events, or a refusal.
fn check(given: &[Event], when: Command, expect: Result<Vec<Event>, ThreadError>) {
    let result = TestFramework::<Thread>::with(()).given(given.to_vec()).when(when).inspect_result();
    assert_eq!(result, expect);
}

fn start() -> ThreadStarted {
    ThreadStarted { conversation_id: "c".into(), turn_id: "t".into(), run_id: "r".into(), user_id: "alice".into() }
}
fn request(round: u32) -> ModelRequested {
    ModelRequested {
        run_id: "r".into(),
        round,
        provider: "demo".into(),
        model: "demo".into(),
        parameters: json!({}),
        request_hash: "h".into(),
        tools_hash: "h".into(),
        tool_set: None,
    }
}
fn piece(message: &str, text: &str) -> AnswerProgressed {
    AnswerProgressed { run_id: "r".into(), message_id: message.into(), text: text.into() }
}
fn response(round: u32, call_ids: &[&str]) -> ModelResponded {
    let call = |id: &&str| ModelToolCall { id: (*id).into(), name: "add".into(), arguments: "{}".into() };
    ModelResponded {
        run_id: "r".into(),
        round,
        message_id: format!("m{round}").into(),
        content: format!("answer {round}"),
        reasoning: None,
        tool_calls: call_ids.iter().map(call).collect(),
        finish_reason: "stop".into(),
        usage: TokenUsage::default(),
        served_model: "demo".into(),
        latency_ms: 1,
    }
}
fn failure(round: u32) -> ModelFailed {
    ModelFailed { run_id: "r".into(), round, code: "MODEL_TIMEOUT".into(), message: "silent".into(), retriable: true }
}
fn result(call: &str) -> ToolResultObserved {
    ToolResultObserved {
        tool_call_id: ToolCallId::of(&"g".into(), call),
        ok: true,
        content: format!("result of {call}"),
        error: None,
    }
}
fn observe(result: ToolResultObserved) -> Command {
    Command::ObserveResult(result, Deferred::default())
}
fn asked() -> Vec<Event> {
    vec![start().into(), request(1).into()]
}
fn answered(call_ids: &[&str]) -> Vec<Event> {
    [asked(), vec![response(1, call_ids).into()]].concat()
}
fn fold(events: impl IntoIterator<Item = Event>) -> Thread {
    let mut thread = Thread::default();
    events.into_iter().for_each(|event| thread.evolve(&event));
    thread
}

#[test]
fn a_thread_begins_once_and_nothing_comes_before_it() {
    check(&[], Command::Start(start()), Ok(vec![start().into()]));
    check(&[start().into()], Command::Start(start()), Err(ThreadError::AlreadyStarted));
    for command in [
        Command::RequestModel(request(1)),
        Command::Progress(piece("m", "x")),
        Command::RecordResponse(response(1, &[])),
        Command::RecordFailure(failure(1)),
        observe(result("a")),
    ] {
        check(&[], command, Err(ThreadError::NotStarted));
    }
}

#[test]
fn rounds_come_one_after_another() {
    let begun = vec![start().into()];
    check(&begun, Command::RequestModel(request(1)), Ok(vec![request(1).into()]));
    for got in [0, 2, 24] {
        check(&begun, Command::RequestModel(request(got)), Err(ThreadError::WrongRound { expected: 1, got }));
    }
    let one_done = [answered(&["a"]), vec![result("a").into()]].concat();
    check(&one_done, Command::RequestModel(request(2)), Ok(vec![request(2).into()]));
    check(&one_done, Command::RequestModel(request(1)), Err(ThreadError::WrongRound { expected: 2, got: 1 }));
}

#[test]
fn a_model_that_was_not_asked_has_nothing_to_say() {
    for given in [vec![start().into()], answered(&[]), [asked(), vec![failure(1).into()]].concat()] {
        check(&given, Command::Progress(piece("m", "x")), Err(ThreadError::NotAsked));
        check(&given, Command::RecordResponse(response(1, &[])), Err(ThreadError::NotAsked));
        check(&given, Command::RecordFailure(failure(1)), Err(ThreadError::NotAsked));
    }
}

#[test]
fn an_answer_or_a_failure_of_another_round_is_refused() {
    let wrong = ThreadError::WrongRound { expected: 1, got: 2 };
    check(&asked(), Command::RecordResponse(response(2, &[])), Err(wrong.clone()));
    check(&asked(), Command::RecordFailure(failure(2)), Err(wrong));
    check(&asked(), Command::RecordFailure(failure(1)), Ok(vec![failure(1).into()]));
}

#[test]
fn after_a_failure_the_model_may_be_asked_again_in_the_same_round() {
    let failed = [asked(), vec![failure(1).into()]].concat();
    assert_eq!(fold(failed.clone()).failure, Some(failure(1)));
    check(&failed, Command::RequestModel(request(1)), Ok(vec![request(1).into()]));
    assert_eq!(fold([failed, vec![request(1).into()]].concat()).failure, None);
}

#[test]
fn the_model_is_not_asked_before_every_call_has_its_result() {
    let some = [answered(&["a", "b"]), vec![result("b").into()]].concat();
    check(&answered(&["a", "b"]), Command::RequestModel(request(2)), Err(ThreadError::ResultsMissing));
    check(&some, Command::RequestModel(request(2)), Err(ThreadError::ResultsMissing));
    let all = [some, vec![result("a").into()]].concat();
    check(&all, Command::RequestModel(request(2)), Ok(vec![request(2).into()]));
}

#[test]
fn results_are_taken_in_any_order_each_once_and_only_for_calls_that_were_made() {
    let given = answered(&["a", "b:1"]);
    check(&given, observe(result("b:1")), Ok(vec![result("b:1").into()]));
    check(&given, observe(result("c")), Err(ThreadError::UnexpectedResult));
    check(&given, observe(result("1")), Err(ThreadError::UnexpectedResult));
    check(&asked(), observe(result("a")), Err(ThreadError::UnexpectedResult));
    let once = [given, vec![result("a").into()]].concat();
    check(&once, observe(result("a")), Err(ThreadError::UnexpectedResult));
    let next = [once, vec![result("b:1").into(), request(2).into(), response(2, &["c"]).into()]].concat();
    check(&next, observe(result("a")), Err(ThreadError::UnexpectedResult));
}

#[test]
fn calls_without_an_id_or_with_one_that_was_used_get_one_of_their_own() {
    let longest = "é".repeat(MAX_MODEL_CALL_ID_CHARS);
    let too_long = format!("{longest}é");
    for (earlier, written, expected) in [
        (vec![], vec!["a", "b"], vec!["a", "b"]),
        (vec![], vec![&longest, &too_long, "a\nb"], vec![&longest, "~1.1", "~1.2"]),
        (vec![], vec!["", ""], vec!["~1.0", "~1.1"]),
        (vec![], vec!["a", "a", "a"], vec!["a", "a~1.1", "a~1.2"]),
        (vec!["call_0"], vec!["call_0"], vec!["call_0~2.0"]),
        (vec!["a"], vec!["b", "a"], vec!["b", "a~2.1"]),
        // The model itself may write an id of the form that is made here.
        (vec![], vec!["a", "a~1.2", "a"], vec!["a", "a~1.2", "a~1.2~1.2"]),
        (vec![], vec!["~1.1", ""], vec!["~1.1", "~1.1~1.1"]),
        (vec!["a~2.0", "a"], vec!["a"], vec!["a~2.0~2.0"]),
    ] {
        let mut given = asked();
        let mut round = 1;
        if !earlier.is_empty() {
            given = answered(&earlier);
            given.extend(earlier.iter().map(|id| result(id).into()));
            given.push(request(2).into());
            round = 2;
        }
        check(&given, Command::RecordResponse(response(round, &written)), Ok(vec![response(round, &expected).into()]));
    }
}

#[test]
fn a_token_count_that_json_cannot_keep_exactly_is_recorded_as_unknown() {
    let usage = |input, output| TokenUsage { input, output, cached: None, reasoning: Some(0) };
    let answer = ModelResponded { usage: usage(Some(u64::MAX), Some(MAX_SAFE_INTEGER)), ..response(1, &[]) };
    let expected = ModelResponded { usage: usage(None, Some(MAX_SAFE_INTEGER)), ..response(1, &[]) };
    check(&asked(), Command::RecordResponse(answer), Ok(vec![expected.into()]));
}

#[test]
fn pieces_of_one_message_join_and_a_new_message_begins_anew() {
    check(&asked(), Command::Progress(piece("m", "x")), Ok(vec![piece("m", "x").into()]));
    let pieces: Vec<Event> = vec![piece("m", "Hel").into(), piece("m", "lo").into()];
    let thread = fold([asked(), pieces].concat());
    assert_eq!(thread.progress, Some(Progress { message_id: "m".into(), text: "Hello".into() }));
    assert_eq!(thread.streamed_text(), (Some("m".into()), "Hello".into()));
    let thread = fold([asked(), vec![piece("m", "Hel").into(), piece("n", "Bye").into()]].concat());
    assert_eq!(thread.progress, Some(Progress { message_id: "n".into(), text: "Bye".into() }));
}

#[test]
fn what_was_streamed_is_kept_over_rounds_and_over_a_failure_and_counted_once() {
    let events = [
        asked(),
        vec![
            piece("m1", "answer 1").into(),
            response(1, &["a"]).into(),
            result("a").into(),
            request(2).into(),
            piece("m2", "half").into(),
            failure(2).into(),
        ],
    ]
    .concat();
    assert_eq!(fold(events).streamed_text(), (Some("m2".into()), "answer 1\n\nhalf".into()));
    assert_eq!(fold(asked()).streamed_text(), (None, String::new()));
}

#[test]
fn what_a_run_that_ends_early_records_of_its_text_fits_into_its_last_event_however_much_was_streamed() {
    let mut events = asked();
    for round in 1..=3 {
        let text = "\u{1}é\"".repeat(MAX_MODEL_ANSWER_BYTES / 4);
        let answer = ModelResponded { content: text, ..response(round, &[&format!("c{round}")]) };
        events.push(answer.into());
        events.push(result(&format!("c{round}")).into());
        events.push(request(round + 1).into());
    }
    let (last, text) = fold(events).streamed_text();
    assert_eq!(last, Some("m3".into()));
    let written = serde_json::to_string(&text).expect("text").len() - 2;
    assert!((MAX_PARTIAL_TEXT_JSON_BYTES - 6..=MAX_PARTIAL_TEXT_JSON_BYTES).contains(&written), "{written}");
}

#[test]
fn the_fold_keeps_the_first_result_of_a_call_and_names_what_is_unanswered() {
    let second = ToolResultObserved { content: "another".into(), ..result("a") };
    let thread = fold([answered(&["a", "b"]), vec![result("a").into(), second.into()]].concat());
    let last = thread.exchanges.last().expect("an answer");
    assert_eq!(last.result_of("a"), Some(&result("a")));
    assert_eq!(last.unanswered().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(thread.rounds(), 1);
}

#[test]
fn only_a_success_leaves_contexts_and_ends_the_turn_and_a_turn_that_has_ended_asks_no_model() {
    let deferred = |contexts: &[&str], concludes_turn| Deferred {
        contexts: contexts.iter().map(|text| (*text).to_owned()).collect(),
        concludes_turn,
    };
    let context = |call: &str, message: &str| {
        ContextDeferred { tool_call_id: ToolCallId::of(&"g".into(), call), message: message.into() }.into()
    };
    let concluded: Event = TurnConcluded { tool_call_id: ToolCallId::of(&"g".into(), "a") }.into();
    let failed = || ToolResultObserved { ok: false, error: Some("IO_ERROR".into()), ..result("a") };
    let given = answered(&["a", "b"]);
    for (result, deferred, expected) in [
        (result("a"), deferred(&[], false), vec![]),
        (result("a"), deferred(&["x", "y"], false), vec![context("a", "x"), context("a", "y")]),
        (result("a"), deferred(&["x"], true), vec![context("a", "x"), concluded.clone()]),
        (failed(), deferred(&["x"], true), vec![]),
    ] {
        let expected = [vec![result.clone().into()], expected].concat();
        check(&given, Command::ObserveResult(result, deferred), Ok(expected));
    }
    let ended = [given, vec![result("a").into(), context("a", "x"), concluded]].concat();
    check(&ended, Command::RequestModel(request(2)), Err(ThreadError::ResultsMissing));
    check(&ended, observe(result("b")), Ok(vec![result("b").into()]));
    let all = [ended, vec![result("b").into()]].concat();
    check(&all, Command::RequestModel(request(2)), Err(ThreadError::Concluded));
}

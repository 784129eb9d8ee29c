use super::*;
use crate::tools::ToolDefinition;
use proptest::prelude::*;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

fn registry(change: impl FnOnce(&mut ToolDefinition)) -> Registry {
    let output = json!({"type": "object", "required": ["sum"]});
    let mut tool = ToolDefinition::new("t", "", json!({"type": "object"}), output);
    change(&mut tool);
    Registry::new([tool]).expect("whole")
}

fn seen(change: impl FnOnce(&mut ToolDefinition), steps: Vec<PostExecute>, ended: impl Into<Ended>) -> Seen {
    Finish::captured(&registry(change), "t", &steps.into()).see(&json!({}), ended.into())
}

fn good() -> ToolOutcome {
    ToolOutcome::success(json!({"sum": 1}))
}

fn bad() -> ToolOutcome {
    ToolOutcome::failure(ErrorCode::IoError, "disk")
}

fn step(id: &str, amendment: Amendment) -> PostExecute {
    PostExecute::new(id, move |_| amendment.clone())
}

#[test]
fn what_the_model_sees_differs_from_the_result_only_with_a_revision_that_says_who_and_why() {
    let ignore = |_: &mut ToolDefinition| {};
    let sum = |tool: &mut ToolDefinition| tool.render = Some(Arc::new(|_, value| Ok(value["sum"].clone())));
    let late = || ("timeout".to_owned(), ToolError { code: "TOOL_TIMEOUT".into(), message: "late".into() });
    let overruled = |outcome| Ended { outcome, overruled: Some(late()), aborted: false };
    let aborted = |outcome| Ended { outcome, overruled: None, aborted: true };
    let with = |amendment| vec![step("a", amendment)];
    for (what, seen, code, revised) in [
        ("nothing", seen(ignore, vec![], good()), None, ""),
        ("a failure", seen(ignore, vec![], bad()), Some("IO_ERROR"), ""),
        (
            "another shape",
            seen(ignore, vec![], ToolOutcome::success(json!({}))),
            Some("INVALID_TOOL_OUTPUT"),
            "output INVALID_TOOL_OUTPUT",
        ),
        (
            "a render that fails",
            seen(|tool| tool.render = Some(Arc::new(|_, _| Err("no".into()))), vec![], good()),
            Some("RENDER_FAILED"),
            "render RENDER_FAILED",
        ),
        (
            "a render that panics",
            seen(|tool| tool.render = Some(Arc::new(|_, _| panic!("a fault"))), vec![], good()),
            Some("RENDER_FAILED"),
            "render RENDER_FAILED",
        ),
        (
            "a render that never ends to write",
            seen(|tool| tool.render = Some(Arc::new(|_, _| Ok(json!("\0".repeat(2 << 20))))), vec![], good()),
            Some("RENDER_FAILED"),
            "render RENDER_FAILED",
        ),
        ("a render", seen(sum, vec![], good()), None, "render RENDERED"),
        (
            "a last word",
            seen(|tool| tool.finalize_content = Some(Arc::new(|text| text + "!")), vec![], good()),
            None,
            "finalize_content FINALIZED",
        ),
        (
            "a last word that panics",
            seen(|tool| tool.finalize_content = Some(Arc::new(|_| panic!("a fault"))), vec![], good()),
            None,
            "",
        ),
        ("a late time-out", seen(sum, vec![], overruled(good())), Some("TOOL_TIMEOUT"), "timeout TOOL_TIMEOUT"),
        ("an abort of a success", seen(ignore, vec![], aborted(good())), Some("ABORTED"), "stop ABORTED"),
        ("an abort of a failure", seen(ignore, vec![], aborted(bad())), Some("IO_ERROR"), ""),
        ("a step that keeps", seen(ignore, with(Amendment::Keep), good()), None, ""),
        ("other text", seen(ignore, with(Amendment::Content("short".into())), good()), None, "a CONTENT_REPLACED"),
        (
            "other text for a failure",
            seen(ignore, with(Amendment::Content("ask ann".into())), bad()),
            Some("IO_ERROR"),
            "a CONTENT_REPLACED",
        ),
        (
            "text without end",
            seen(ignore, with(Amendment::Content("\0".repeat(2 << 20))), good()),
            Some("BLOCKED_BY_POLICY"),
            "a BLOCKED_BY_POLICY",
        ),
        (
            "another value, rendered again",
            seen(sum, with(Amendment::Value(json!({"sum": 2}))), good()),
            None,
            "render RENDERED, a VALUE_REPLACED, render RENDERED",
        ),
        (
            "another value, checked again",
            seen(ignore, with(Amendment::Value(json!([]))), good()),
            Some("INVALID_TOOL_OUTPUT"),
            "a VALUE_REPLACED, output INVALID_TOOL_OUTPUT",
        ),
        (
            "a success made of a failure",
            seen(ignore, with(Amendment::Value(json!({"sum": 2}))), bad()),
            Some("BLOCKED_BY_POLICY"),
            "a BLOCKED_BY_POLICY",
        ),
        (
            "held back",
            seen(ignore, with(Amendment::Block("secret".into())), good()),
            Some("BLOCKED_BY_POLICY"),
            "a BLOCKED_BY_POLICY",
        ),
        (
            "a step that panics",
            seen(ignore, vec![PostExecute::new("a", |_| panic!("a fault"))], good()),
            Some("BLOCKED_BY_POLICY"),
            "a BLOCKED_BY_POLICY",
        ),
        (
            "held back, whatever comes after",
            seen(
                ignore,
                vec![step("a", Amendment::Block("no".into())), step("b", Amendment::Value(json!({"sum": 3})))],
                good(),
            ),
            Some("BLOCKED_BY_POLICY"),
            "a BLOCKED_BY_POLICY, b BLOCKED_BY_POLICY",
        ),
    ] {
        assert_eq!(seen.outcome.error_code().as_deref(), code, "{what}");
        let revisions: Vec<_> = seen.revisions.iter().map(|one| format!("{} {}", one.by, one.reason)).collect();
        assert_eq!(revisions.join(", "), revised, "{what}");
        if let Some(last) = seen.revisions.last() {
            assert_eq!(last.content_hash, sha256_hex(seen.content.as_bytes()), "{what}");
        }
    }
}

#[test]
fn a_program_gets_no_value_in_whose_place_a_step_put_other_words() {
    let steps = |list: Vec<Amendment>| list.into_iter().map(|amendment| step("a", amendment)).collect::<Vec<_>>();
    let words = || Amendment::Content("words".into());
    let value = || Amendment::Value(json!({"sum": 2}));
    for (what, list, ended, given) in [
        ("words", vec![words()], good(), Ok(json!("words"))),
        ("words for a failure", vec![words()], bad(), Err(("IO_ERROR", "words"))),
        ("words, and nothing after", vec![words(), Amendment::Keep], good(), Ok(json!("words"))),
        ("a value after words", vec![words(), value()], good(), Ok(json!({"sum": 2}))),
        ("words after a value", vec![value(), words()], good(), Ok(json!("words"))),
        (
            "held back after words",
            vec![words(), Amendment::Block("no".into())],
            good(),
            Err(("BLOCKED_BY_POLICY", "no")),
        ),
    ] {
        let outcome = seen(|_| {}, steps(list), ended).outcome.result;
        let given = given.map_err(|(code, words)| ToolError { code: code.into(), message: words.into() });
        assert_eq!(outcome, given, "{what}");
    }
    // The last word about the text alone is the tool's own: its value is what it is.
    let shouted = seen(|tool| tool.finalize_content = Some(Arc::new(|text| text + "!")), vec![], good());
    assert_eq!(shouted.outcome, good());
}

#[test]
fn a_step_sees_refusals_also_of_tools_that_do_not_exist() {
    let steps: Arc<[PostExecute]> = Arc::new([PostExecute::new("a", |call| {
        Amendment::Block(format!("{} {}", call.tool, call.outcome.error_code().unwrap_or_default()))
    })]);
    let unknown = ToolOutcome::failure(ErrorCode::UnknownTool, "there is no such tool");
    let seen = Finish::captured(&Registry::default(), "rm_rf", &steps).see(&json!("{"), unknown.into());
    assert!(seen.content.contains("rm_rf UNKNOWN_TOOL"), "{}", seen.content);
}

/// What a step of the property test wants.
fn amendments() -> impl Strategy<Value = Option<Amendment>> {
    prop_oneof![
        Just(Some(Amendment::Keep)),
        "[a-z]{0,3}".prop_map(|text| Some(Amendment::Content(text))),
        (0..3).prop_map(|sum| Some(Amendment::Value(json!({ "sum": sum })))),
        Just(Some(Amendment::Value(json!({})))),
        Just(Some(Amendment::Block("no".into()))),
        // A fault.
        Just(None),
    ]
}

proptest! {
    #[test]
    fn every_outcome_is_finalised_once_and_nothing_makes_a_success_of_a_failure(
        value in prop_oneof![Just(None), Just(Some(json!({}))), Just(Some(json!({"sum": 1})))],
        overruled in any::<bool>(),
        aborted in any::<bool>(),
        steps in prop::collection::vec(amendments(), 0..4),
        render in prop_oneof![Just("none"), Just("fails"), Just("panics"), Just("shows")],
        finalize in prop_oneof![Just("panics"), Just("changes")],
    ) {
        let times = Arc::new(AtomicUsize::new(0));
        let counted = times.clone();
        let registry = registry(|tool| {
            tool.render = match render {
                "none" => None,
                "fails" => Some(Arc::new(|_, _| Err("no".into()))),
                "panics" => Some(Arc::new(|_, _| panic!("a fault"))),
                _ => Some(Arc::new(|_, value| Ok(value["sum"].clone()))),
            };
            tool.finalize_content = Some(Arc::new(move |text| {
                counted.fetch_add(1, Ordering::SeqCst);
                assert_ne!(finalize, "panics", "a fault");
                text + "!"
            }));
        });
        let outcome = value.map_or_else(bad, ToolOutcome::success);
        let succeeded = outcome.ok();
        let blocks = steps.iter().any(|step| matches!(step, None | Some(Amendment::Block(_))));
        let steps: Vec<_> = steps
            .into_iter()
            .map(|amendment| PostExecute::new("a", move |_| amendment.clone().expect("a fault")))
            .collect();
        let late = || ("w".to_owned(), ToolError { code: "TOOL_TIMEOUT".into(), message: "late".into() });
        let ended = Ended { outcome, overruled: overruled.then(late), aborted };
        let seen = Finish::captured(&registry, "t", &steps.into()).see(&json!({}), ended);
        prop_assert_eq!(times.load(Ordering::SeqCst), 1);
        prop_assert!(!seen.outcome.ok() || (succeeded && !overruled && !aborted && !blocks));
        prop_assert!(seen.outcome.error_code() != Some("ABORTED".into()) || succeeded);
        let last = seen.revisions.last().map(|last| last.content_hash.clone());
        prop_assert!(last.is_none_or(|hash| hash == sha256_hex(seen.content.as_bytes())));
    }
}

//! Answering the latest turn anew: edit and retry.

use super::*;

/// The retry of turn 1 after run `parent`, the turn's run number `run_seq - 1`.
fn retried(parent: &str, run_seq: u32, replaced: &[&str]) -> Vec<Event> {
    vec![
        TurnRerunPrepared {
            turn_id: "t1".into(),
            message_id: "q1".into(),
            content: "question 1".into(),
            previous_message_id: "q1".into(),
            edited: false,
            replaced_message_ids: replaced.iter().map(|id| (*id).into()).collect(),
        }
        .into(),
        again(parent, run_seq, RunTrigger::Retry),
    ]
}
/// The edit of turn 1 to "changed", which is its title too.
fn edited(parent: &str, run_seq: u32, replaced: &[&str]) -> Vec<Event> {
    vec![
        ConversationRenamed { title: "changed".into(), source: TitleSource::Derived }.into(),
        TurnRerunPrepared {
            turn_id: "t1".into(),
            message_id: "q1-edited".into(),
            content: "changed".into(),
            previous_message_id: "q1".into(),
            edited: true,
            replaced_message_ids: replaced.iter().map(|id| (*id).into()).collect(),
        }
        .into(),
        again(parent, run_seq, RunTrigger::Edit),
    ]
}
fn again(parent: &str, run_seq: u32, trigger: RunTrigger) -> Event {
    RunPrepared {
        run_id: "r1-again".into(),
        turn_id: "t1".into(),
        kind: RunKind::Retry,
        trigger,
        run_seq,
        graph_thread_id: "g1-again".into(),
        parent_run_id: Some(parent.into()),
        device_id: Some("laptop".into()),
    }
    .into()
}
fn retry() -> Command {
    Command::Rerun(rerun(None))
}
fn edit() -> Command {
    Command::Rerun(rerun(Some("changed")))
}
fn without_text(error: bool) -> Event {
    let (run_id, message_id, partial_text) = ("r1".into(), None, String::new());
    if error {
        let (error_code, error_message) = ("MODEL_TIMEOUT".into(), "silent".into());
        RunFailed { run_id, error_code, error_message, message_id, partial_text }.into()
    } else {
        RunCancelled { run_id, error_code: RunCancelReason::Stopped, message_id, partial_text }.into()
    }
}

#[test]
fn a_retry_replaces_the_answer_and_an_edit_the_question_too_also_where_the_answer_is_partial() {
    for end in [succeeded("r1"), failed("r1"), cancelled("r1", RunCancelReason::ClientDisconnected)] {
        let given = then(running(), end);
        check(&given, retry(), Ok(retried("r1", 2, &["a"])));
        check(&given, edit(), Ok(edited("r1", 2, &["q1", "a"])));
    }
}

#[test]
fn where_there_was_no_answer_none_is_replaced() {
    for end in [without_text(true), without_text(false)] {
        let given = then(running(), end);
        check(&given, retry(), Ok(retried("r1", 2, &[])));
        check(&given, edit(), Ok(edited("r1", 2, &["q1"])));
    }
}

#[test]
fn a_turn_that_is_being_answered_cannot_be_answered_anew() {
    for command in [retry(), edit()] {
        check(&running(), command, Err(ConversationError::RunInProgress));
    }
    let resuming = [waiting(&[None]), vec![resolved(1, true), resumed("r2", "r1", 2), claimed("r2")]].concat();
    check(&resuming, retry(), Err(ConversationError::RunInProgress));
}

#[test]
fn a_rerun_replaces_the_run_that_nobody_has_claimed() {
    let replaced = cancelled("r1", RunCancelReason::ReplacedByRerun);
    check(&queued(), retry(), Ok([vec![replaced.clone()], retried("r1", 2, &[])].concat()));
    check(&queued(), edit(), Ok([vec![replaced.clone()], edited("r1", 2, &["q1"])].concat()));
    let given = [queued(), vec![replaced], retried("r1", 2, &[])].concat();
    check(&given, claim("r1"), Err(ConversationError::RunNotFound));
    check(&given, claim("r1-again"), Ok(vec![claimed("r1-again")]));
}

#[test]
fn a_rerun_of_an_interrupted_turn_takes_back_the_open_approvals_and_leaves_the_answered_one() {
    let given = then(waiting(&[None, None, None]), resolved(2, true));
    let withdrawn = vec![withdrawn(1, InterruptCancelReason::Edited), withdrawn(3, InterruptCancelReason::Edited)];
    check(&given, retry(), Ok([withdrawn.clone(), retried("r1", 2, &[])].concat()));
    check(&given, edit(), Ok([withdrawn, edited("r1", 2, &["q1"])].concat()));
}

#[test]
fn an_answer_to_an_approval_that_a_rerun_took_back_changes_nothing() {
    let withdrawn = withdrawn(1, InterruptCancelReason::Edited);
    let given = [waiting(&[None]), vec![withdrawn], retried("r1", 2, &[])].concat();
    for approved in [true, false] {
        check(&given, Command::Answer(answer(&[(1, approved)])), Err(ConversationError::InterruptNotFound));
    }
    assert_eq!(ConversationError::InterruptNotFound.code(), ErrorCode::InterruptClosed, "it was there, it is over");
}

#[test]
fn runs_of_a_turn_are_numbered_on_and_each_names_the_one_it_follows() {
    let given = [waiting(&[None]), vec![resolved(1, true), resumed("r2", "r1", 2), claimed("r2")]].concat();
    check(&then(given, succeeded("r2")), retry(), Ok(retried("r2", 3, &["a"])));
    let once = [running(), vec![succeeded("r1")], retried("r1", 2, &["a"])].concat();
    let twice = Rerun { run_id: "r1-third".into(), graph_thread_id: "g1-third".into(), ..rerun(None) };
    let mut state = Conversation::default();
    once.iter().for_each(|event| state.evolve(event));
    let events = state.decide(Command::Rerun(twice)).expect("accepted");
    let Some(Event::RunPrepared(third)) = events.last() else { panic!("a run is prepared last: {events:?}") };
    assert_eq!((third.run_seq, third.parent_run_id.clone()), (3, Some("r1-again".into())));
    let Some(Event::TurnRerunPrepared(turn)) = events.get(1) else { panic!("{events:?}") };
    assert!(turn.replaced_message_ids.is_empty(), "the first answer was replaced once: {turn:?}");
}

#[test]
fn a_rerun_of_an_edited_turn_is_of_the_edited_question() {
    let given = [running(), vec![succeeded("r1")], edited("r1", 2, &["q1", "a"]), vec![claimed("r1-again")]].concat();
    let mut state = Conversation::default();
    given.iter().for_each(|event| state.evolve(event));
    state.evolve(&succeeded("r1-again"));
    let events = state.decide(retry()).expect("accepted");
    let Some(Event::TurnRerunPrepared(turn)) = events.first() else { panic!("a retry renames nothing: {events:?}") };
    assert_eq!((turn.content.as_str(), turn.message_id.as_str()), ("changed", "q1-edited"));
    assert_eq!(turn.replaced_message_ids, [MessageId::from("a")], "the question of a retry stays");
}

#[test]
fn only_an_edit_of_the_first_turn_changes_the_title() {
    let long = "é".repeat(MAX_TITLE_CHARS + 10);
    let done = then(running(), succeeded("r1"));
    let mut state = Conversation::default();
    done.iter().for_each(|event| state.evolve(event));
    let title = |events: Vec<Event>| {
        events.into_iter().find_map(|event| match event {
            Event::ConversationRenamed(renamed) => Some(renamed.title),
            _ => None,
        })
    };
    let of = |state: &Conversation, rerun: Rerun| title(state.decide(Command::Rerun(rerun)).expect("accepted"));
    assert_eq!(of(&state, rerun(Some(&long))), Some("é".repeat(MAX_TITLE_CHARS)));
    assert_eq!(of(&state, rerun(None)), None);
    for event in [turn(2), run(2), claimed("r2"), succeeded("r2")] {
        state.evolve(&event);
    }
    assert_eq!(of(&state, Rerun { turn_id: "t2".into(), ..rerun(Some("changed")) }), None);
}

#[test]
fn only_the_latest_turn_can_be_answered_anew() {
    let given = [running(), vec![succeeded("r1"), turn(2), run(2), claimed("r2"), succeeded("r2")]].concat();
    for command in [retry(), edit(), Command::Rerun(Rerun { turn_id: "t9".into(), ..rerun(None) })] {
        check(&given, command, Err(ConversationError::TurnNotLatest));
    }
    check(&[started()], retry(), Err(ConversationError::TurnNotLatest));
    assert_eq!(ConversationError::TurnNotLatest.code(), ErrorCode::TurnNotLatest);
}

#[test]
fn only_the_owner_reruns_and_only_where_the_conversation_is_still_there() {
    let stranger = || Command::Rerun(Rerun { user_id: "mallory".into(), ..rerun(Some("changed")) });
    for given in [queued(), running(), waiting(&[None]), then(running(), succeeded("r1"))] {
        check(&given, stranger(), Err(ConversationError::NotOwner));
    }
    check(&[], retry(), Err(ConversationError::NotFound));
    let deleted = then(then(running(), succeeded("r1")), ConversationDeleted {});
    check(&deleted, retry(), Err(ConversationError::NotFound));
}

#[test]
fn a_zombie_of_the_replaced_run_cannot_end_the_new_one_or_its_own() {
    let given = [running(), vec![failed("r1")], retried("r1", 2, &["a"]), vec![claimed("r1-again")]].concat();
    for (command, _) in ends(&owner(7)) {
        check(&given, command, Err(ConversationError::RunNotActive));
    }
    check(&given, complete("r1-again", owner(7)), Ok(vec![succeeded("r1-again")]));
}

//! Stop, rename and delete.

use super::*;

fn stop(run_id: &str) -> Command {
    Command::Stop { user_id: "alice".into(), run_id: run_id.into() }
}
fn rename(user: &str, title: &str) -> Command {
    Command::Rename { user_id: user.into(), title: title.into() }
}
fn delete(user: &str) -> Command {
    Command::Delete { user_id: user.into() }
}
fn stopped() -> Event {
    cancelled("r1", RunCancelReason::Stopped)
}
fn deleted() -> Event {
    ConversationDeleted {}.into()
}
fn ended() -> [Vec<Event>; 3] {
    [succeeded("r1"), failed("r1"), cancelled("r1", RunCancelReason::Stopped)].map(|end| then(running(), end))
}

#[test]
fn a_queued_run_that_was_stopped_is_never_claimed() {
    check(&queued(), stop("r1"), Ok(vec![stopped()]));
    check(&then(queued(), stopped()), claim("r1"), Err(ConversationError::AlreadyClaimed));
    let answered = [waiting(&[None]), vec![resolved(1, true), resumed("r2", "r1", 2)]].concat();
    check(&answered, stop("r2"), Ok(vec![cancelled("r2", RunCancelReason::Stopped)]));
}

#[test]
fn stopping_an_interrupted_run_takes_back_its_open_questions_and_ends_it() {
    let given = then(waiting(&[None, None, None]), resolved(2, false));
    let withdrawn = [1, 3].map(|n| withdrawn(n, InterruptCancelReason::RunStopped));
    let expect = [withdrawn.to_vec(), vec![stopped()]].concat();
    check(&given, stop("r1"), Ok(expect.clone()));
    let after = [given, expect].concat();
    check(&after, Command::Ask(ask(2)), Ok(vec![turn(2), run(2)]));
    check(&after, Command::Expire { now: at(99), run_id: "r2".into() }, Ok(vec![]));
}

#[test]
fn a_run_that_is_being_executed_is_stopped_by_the_one_that_executes_it() {
    check(&running(), stop("r1"), Err(ConversationError::RunExecuting));
    assert_eq!(ConversationError::RunExecuting.code(), ErrorCode::RunInProgress);
}

#[test]
fn stopping_twice_or_after_the_end_is_the_same_as_once() {
    for given in ended().into_iter().chain([then(queued(), stopped())]) {
        check(&given, stop("r1"), Ok(vec![]));
    }
    let withdrawn = withdrawn(1, InterruptCancelReason::RunStopped);
    check(&[waiting(&[None]), vec![withdrawn, stopped()]].concat(), stop("r1"), Ok(vec![]));
}

#[test]
fn stopping_a_run_of_an_earlier_turn_or_one_that_was_replaced_leaves_the_active_one_alone() {
    let next = [running(), vec![succeeded("r1"), turn(2), run(2)]].concat();
    let resumed = [waiting(&[None]), vec![resolved(1, true), resumed("r2", "r1", 2)]].concat();
    let executing = then(next.clone(), claimed("r2"));
    for given in [next, resumed, executing] {
        check(&given, stop("r1"), Ok(vec![]));
    }
}

#[test]
fn only_the_owner_stops_and_only_where_the_conversation_is_still_there() {
    let stranger = || Command::Stop { user_id: "mallory".into(), run_id: "r1".into() };
    for given in [queued(), running(), waiting(&[None])].into_iter().chain(ended()) {
        check(&given, stranger(), Err(ConversationError::NotOwner));
    }
    check(&[], stop("r1"), Err(ConversationError::NotFound));
    check(&then(then(running(), stopped()), deleted()), stop("r1"), Err(ConversationError::NotFound));
}

#[test]
fn the_owner_renames_whatever_the_latest_turn_is_doing_and_the_same_title_is_no_change() {
    let renamed = |title: &str| ConversationRenamed { title: title.into(), source: TitleSource::Manual };
    for given in [queued(), running(), waiting(&[None])].into_iter().chain(ended()) {
        check(&given, rename("alice", "mine"), Ok(vec![renamed("mine").into()]));
        check(&given, rename("alice", "question 1"), Ok(vec![]));
        check(&then(given.clone(), renamed("mine")), rename("alice", "mine"), Ok(vec![]));
        check(&given, rename("mallory", "mine"), Err(ConversationError::NotOwner));
        check(&then(given, deleted()), rename("alice", "mine"), Err(ConversationError::NotFound));
    }
    check(&[], rename("alice", "mine"), Err(ConversationError::NotFound));
}

#[test]
fn a_conversation_is_deleted_with_everything_that_waits_but_not_while_a_run_is_executed() {
    check(&[started()], delete("alice"), Ok(vec![deleted()]));
    check(&queued(), delete("alice"), Ok(vec![cancelled("r1", RunCancelReason::Abandoned), deleted()]));
    check(&running(), delete("alice"), Err(ConversationError::RunInProgress));
    let half_answered = then(waiting(&[None, None]), resolved(1, true));
    let withdrawn = withdrawn(2, InterruptCancelReason::ConversationDeleted);
    check(&half_answered, delete("alice"), Ok(vec![withdrawn, stopped(), deleted()]));
    for given in ended() {
        check(&given, delete("alice"), Ok(vec![deleted()]));
    }
}

#[test]
fn only_the_owner_deletes_and_deleting_twice_is_the_same_as_once() {
    for given in [queued(), running(), waiting(&[None])].into_iter().chain(ended()) {
        check(&given, delete("mallory"), Err(ConversationError::NotOwner));
        check(&then(given.clone(), deleted()), delete("alice"), Ok(vec![]));
        check(&then(given, deleted()), delete("mallory"), Err(ConversationError::NotOwner));
    }
    check(&[], delete("alice"), Err(ConversationError::NotFound));
}

#[test]
fn no_run_of_a_deleted_conversation_is_claimed() {
    let queued_and_gone = then(queued(), deleted());
    let orderly = then(then(queued(), cancelled("r1", RunCancelReason::Abandoned)), deleted());
    for given in [queued_and_gone, orderly] {
        check(&given, claim("r1"), Err(ConversationError::NotFound));
    }
}

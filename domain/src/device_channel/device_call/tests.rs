//! The device's calls under random schedules, beside a small reference that keeps only what was promised.

use super::*;
use crate::ErrorCode;
use crate::device_channel::Settlement;
use crate::tool_call::{Phase, ResultStatus};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MOMENT: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(60);

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The call is requested as this attempt.
    Request { call: u8, attempt_no: u32 },
    /// The same id is used for something else.
    Conflict { call: u8 },
    /// The server does not want this attempt and earlier ones.
    Cancel { call: u8, attempt_no: u32 },
    /// What the call waits for comes: as wished, or not.
    Outcome { call: u8, well: bool },
    /// The step cannot be done.
    Decline { call: u8 },
    /// The request is too old.
    Expire { call: u8 },
    /// The program is killed and started again.
    Crash,
}

fn event() -> impl Strategy<Value = Event> {
    let (call, attempt_no) = (0..3_u8, 1..5_u32);
    prop_oneof![
        6 => (call.clone(), attempt_no.clone()).prop_map(|(call, attempt_no)| Event::Request { call, attempt_no }),
        1 => call.clone().prop_map(|call| Event::Conflict { call }),
        4 => (call.clone(), attempt_no).prop_map(|(call, attempt_no)| Event::Cancel { call, attempt_no }),
        20 => (call.clone(), prop::bool::weighted(0.9)).prop_map(|(call, well)| Event::Outcome { call, well }),
        1 => call.clone().prop_map(|call| Event::Decline { call }),
        1 => call.prop_map(|call| Event::Expire { call }),
        1 => Just(Event::Crash),
    ]
}

/// A row of the reference's journal.
#[derive(Clone, Debug, PartialEq)]
enum Row {
    Open(Phase),
    Settled(Settlement),
}

/// The shell of the test: a journal that is a map, and witnesses.
#[derive(Default)]
struct Shell {
    calls: DeviceCalls<u8>,
    /// The effect whose outcome each call waits for.
    jobs: BTreeMap<u8, Effect>,
    journal: BTreeMap<u8, Row>,
    executions: BTreeMap<u8, u32>,
    /// The newest attempt that the server took back, since the program was started.
    cancelled: BTreeMap<u8, u32>,
    aborted: BTreeSet<u8>,
}

impl Shell {
    fn happens(&mut self, event: Event) {
        match event {
            Event::Request { call, attempt_no } => {
                let asked = Asked { attempt_no, is_mine: true, is_the_same: true };
                match self.calls.request(&call, asked, MOMENT) {
                    Door::Opened(effects) => self.perform(call, effects),
                    Door::Joined(effects) => {
                        let only_progress = |effect: &Effect| matches!(effect, Effect::Say(Said::Received { .. }));
                        assert!(effects.iter().all(only_progress), "joining does nothing but tell: {effects:?}");
                    }
                    Door::Refused(code) => panic!("three calls are not too many: {code}"),
                }
            }
            Event::Conflict { call } => {
                let before = self.calls.clone();
                let asked = Asked { attempt_no: 9, is_mine: true, is_the_same: false };
                if before.get(&call).is_some() {
                    assert_eq!(self.calls.request(&call, asked, MOMENT), Door::Refused(ErrorCode::IdempotencyConflict));
                    assert_eq!(self.calls, before, "another content touches nothing");
                }
            }
            Event::Cancel { call, attempt_no } => {
                let newest = self.cancelled.entry(call).or_default();
                *newest = attempt_no.max(*newest);
                let effects = self.calls.cancel(&call, attempt_no, LATER, MOMENT);
                self.perform(call, effects);
            }
            Event::Outcome { call, well } => {
                if let Some(job) = self.jobs.remove(&call) {
                    let input = self.outcome(call, job, well);
                    self.feed(call, input);
                }
            }
            Event::Decline { call } => {
                if self.jobs.remove(&call).is_some() {
                    self.feed(call, Input::Declined(ErrorCode::DeviceJournalFull));
                }
            }
            Event::Expire { call } => self.feed(call, Input::Expired),
            Event::Crash => {
                self.calls = DeviceCalls::default();
                self.jobs.clear();
                self.cancelled.clear();
                self.aborted.clear();
                for row in self.journal.values_mut() {
                    if let Row::Open(left_at) = row {
                        *row = Row::Settled(Settlement::after_restart(*left_at));
                    }
                }
            }
        }
    }

    fn feed(&mut self, call: u8, input: Input) {
        let effects = self.calls.step(&call, input);
        self.perform(call, effects);
    }

    fn outcome(&mut self, call: u8, job: Effect, well: bool) -> Input {
        let failure = |code| Failure { code, message: "no".to_owned() };
        match job {
            Effect::LookUp => Input::Found(match self.journal.get(&call) {
                None => Known::No,
                Some(Row::Settled(_)) => Known::Settled,
                Some(Row::Open(_)) => Known::Unfinished,
            }),
            Effect::Admit => Input::Admitted,
            // Of one of the three nobody is asked.
            Effect::Examine => {
                Input::Examined(if well { Ok(call != 0) } else { Err(failure(ErrorCode::PathNotFound)) })
            }
            Effect::RecordVerdict(settlement) => {
                assert_eq!(self.journal.insert(call, Row::Settled(settlement)), None, "a verdict is the first row");
                Input::Settled
            }
            Effect::Reserve => {
                assert_eq!(self.journal.insert(call, Row::Open(Phase::Reserved)), None, "reserved once");
                Input::Journalled
            }
            Effect::Ask => Input::Answered(if well { Answer::Allow } else { Answer::Deny }),
            Effect::LookAgain => Input::LookedAgain(Ok(well)),
            Effect::Begin => {
                let begun = self.journal.insert(call, Row::Open(Phase::Executing));
                assert_eq!(begun, Some(Row::Open(Phase::Reserved)), "only what is reserved begins");
                Input::Journalled
            }
            Effect::BeginAtOnce => {
                assert_eq!(self.journal.insert(call, Row::Open(Phase::Executing)), None, "begun once");
                Input::Journalled
            }
            // It stays so: a newer attempt that joined meanwhile gets the end of this execution, as there is no other.
            Effect::Execute if self.aborted.contains(&call) && !well => {
                Input::Executed(Err(failure(ErrorCode::CancelledByServer)))
            }
            Effect::Execute => {
                assert_eq!(self.journal.get(&call), Some(&Row::Open(Phase::Executing)), "executing, durably, first");
                *self.executions.entry(call).or_default() += 1;
                Input::Executed(if well {
                    Ok(Settlement::succeeded(&serde_json::json!({})))
                } else {
                    Err(failure(ErrorCode::IoError))
                })
            }
            Effect::Settle(settlement) => {
                let before = self.journal.insert(call, Row::Settled(settlement));
                assert!(matches!(before, Some(Row::Open(_))), "what is settled stays: {before:?}");
                Input::Settled
            }
            other => panic!("{other:?} has no outcome"),
        }
    }

    fn perform(&mut self, call: u8, effects: Vec<Effect>) {
        let newest = self.calls.get(&call).map(DeviceCall::attempt_no);
        let taken_back_to = self.cancelled.get(&call).copied().unwrap_or_default();
        for effect in effects {
            match effect {
                Effect::Say(Said::StoredResult) | Effect::Announce => {
                    let row = self.journal.get(&call);
                    assert!(matches!(row, Some(Row::Settled(_))), "what settles is a row first: {row:?}");
                }
                Effect::Say(Said::Received { .. } | Said::Refused { .. }) => {}
                Effect::End => assert!(self.calls.get(&call).is_none(), "closed, then told"),
                Effect::Interrupt => drop(self.jobs.remove(&call)),
                Effect::Abort => {
                    assert!(newest <= Some(taken_back_to), "a wanted attempt is aborted");
                    self.aborted.insert(call);
                }
                job => {
                    let wanted = newest > Some(taken_back_to);
                    let ends =
                        [Effect::Settle(Settlement::taken_back()), Effect::RecordVerdict(Settlement::taken_back())];
                    if ends.contains(&job) && !self.aborted.contains(&call) {
                        let executed = self.executions.contains_key(&call);
                        assert!(!wanted || executed, "attempt {newest:?}, taken back up to {taken_back_to}");
                    }
                    if job == Effect::Execute {
                        assert!(wanted, "executes what was taken back");
                    }
                    assert_eq!(self.jobs.insert(call, job), None, "one step at a time");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c1_in_every_schedule_a_call_runs_at_most_once_and_its_first_end_stays(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut shell = Shell::default();
        let mut settled: BTreeMap<u8, Row> = BTreeMap::new();
        for event in events {
            shell.happens(event);
            for (call, row) in &shell.journal {
                if let Row::Settled(settlement) = row {
                    let first = settled.entry(*call).or_insert_with(|| row.clone());
                    prop_assert_eq!(&*first, row, "the first end stays");
                    let says_not_run = matches!(settlement.status, ResultStatus::Rejected | ResultStatus::Cancelled);
                    let ran = shell.executions.contains_key(call);
                    prop_assert!(!(says_not_run && ran), "ran, and is told as {:?}", settlement);
                }
            }
            prop_assert!(shell.executions.values().all(|count| *count <= 1), "{:?}", shell.executions);
        }
    }

}

proptest! {
    // Each case is a thousand cancels and more.
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cancels_are_bounded_only_rise_and_outlive_none_that_is_newer(
        cancels in prop::collection::vec((0..4_000_u32, 1..4_u32), 1_000..3_000),
    ) {
        let mut early = EarlyCancels::default();
        let mut newest: BTreeMap<u32, u32> = BTreeMap::new();
        for (n, (call, attempt_no)) in (1..).zip(cancels) {
            let (now, until) = (Duration::from_secs(n), Duration::from_secs(n + 5_000));
            early.remember(&call, attempt_no, until, now);
            let known = newest.entry(call).or_default();
            *known = attempt_no.max(*known);
            prop_assert!(early.len() <= MAX_EARLY_CANCELS);
            prop_assert!(early.up_to(&call, now) >= attempt_no, "the newest cancel is always remembered");
            prop_assert!(early.up_to(&call, now) <= *known, "none is invented");
            prop_assert_eq!(early.up_to(&call, until), 0, "after its time it means nothing");
        }
    }
}

#[test]
fn the_cancel_that_is_forgotten_first_makes_room() {
    let mut early = EarlyCancels::default();
    for n in 0..=MAX_EARLY_CANCELS as u64 {
        early.remember(&n, 1, Duration::from_secs(n + 1), MOMENT);
    }
    assert_eq!(early.len(), MAX_EARLY_CANCELS);
    assert_eq!((early.up_to(&0, MOMENT), early.up_to(&1, MOMENT)), (0, 1));
}

#[test]
fn a_newer_attempt_that_joins_before_the_call_begins_is_wanted() {
    let (mut call, _) = DeviceCall::requested(1, 0);
    assert_eq!(call.step(Input::Found(Known::No)), [Effect::Admit]);
    assert_eq!(call.step(Input::Cancelled { attempt_no: 1 }), []);
    assert_eq!(call.step(Input::Requested { attempt_no: 2 }), []);
    assert_eq!(call.step(Input::Admitted), [Effect::Examine]);
    assert_eq!(call.step(Input::Examined(Ok(true))), [Effect::Reserve]);
    let received = |phase| Effect::Say(Said::Received { attempt_no: 2, phase });
    let asks = [received(Phase::Reserved), received(Phase::Confirming), Effect::Ask];
    assert_eq!(call.step(Input::Journalled), asks);
}

#[test]
fn an_execution_that_was_told_to_stop_ends_as_taken_back_for_a_newer_attempt_that_joined_as_well() {
    let (mut call, _) = DeviceCall::requested(1, 0);
    for input in [Input::Found(Known::No), Input::Admitted, Input::Examined(Ok(false))] {
        call.step(input);
    }
    assert_eq!(call.step(Input::Journalled).last(), Some(&Effect::Execute));
    assert_eq!(call.step(Input::Cancelled { attempt_no: 1 }), [Effect::Abort]);
    let joined = Effect::Say(Said::Received { attempt_no: 2, phase: Phase::Executing });
    assert_eq!(call.step(Input::Requested { attempt_no: 2 }), [joined]);
    // It began, so it never begins again: how it ended is the answer to both.
    let stopped = Failure { code: ErrorCode::CancelledByServer, message: String::new() };
    assert_eq!(call.step(Input::Executed(Err(stopped))), [Effect::Settle(Settlement::taken_back())]);
}

#[test]
fn where_nobody_is_asked_a_call_is_known_and_begins_in_one_durable_step_unless_it_is_unwanted() {
    let examined = || {
        let (mut call, _) = DeviceCall::requested(1, 0);
        call.step(Input::Found(Known::No));
        call.step(Input::Admitted);
        call
    };
    let mut call = examined();
    assert_eq!(call.step(Input::Examined(Ok(false))), [Effect::BeginAtOnce]);
    let executing = Effect::Say(Said::Received { attempt_no: 1, phase: Phase::Executing });
    assert_eq!(call.step(Input::Journalled), [executing, Effect::Execute]);
    for (input, settlement) in unwanted() {
        let mut call = examined();
        assert_eq!(call.step(input), []);
        assert_eq!(call.step(Input::Examined(Ok(false))), [Effect::RecordVerdict(settlement)]);
    }
}

fn unwanted() -> [(Input, Settlement); 3] {
    [
        (Input::Cancelled { attempt_no: 1 }, Settlement::taken_back()),
        (Input::Expired, Settlement::expired()),
        (Input::Stopping, Settlement::not_executed()),
    ]
}

#[test]
fn c12_what_comes_while_the_beginning_is_made_durable_still_keeps_the_call_from_running() {
    let asked = [Input::Journalled, Input::Answered(Answer::Allow), Input::LookedAgain(Ok(true))];
    for (needs_person, outcomes, begins) in [(true, &asked[..], Effect::Begin), (false, &[], Effect::BeginAtOnce)] {
        for (input, settlement) in unwanted() {
            let (mut call, _) = DeviceCall::requested(1, 0);
            let mut effects = vec![];
            let first = [Input::Found(Known::No), Input::Admitted, Input::Examined(Ok(needs_person))];
            for outcome in first.iter().chain(outcomes) {
                effects = call.step(outcome.clone());
            }
            assert_eq!(effects, std::slice::from_ref(&begins));
            assert_eq!(call.step(input), []);
            assert_eq!(call.step(Input::Journalled), [Effect::Settle(settlement)]);
        }
    }
}

#[test]
fn a_device_that_stops_or_has_too_much_under_way_takes_no_more_and_forgets_none() {
    let mut calls = DeviceCalls::default();
    let asked = Asked { attempt_no: 1, is_mine: true, is_the_same: true };
    for n in 0..MAX_OPEN_CALLS {
        assert!(matches!(calls.request(&n, asked, MOMENT), Door::Opened(_)));
    }
    assert_eq!(calls.request(&MAX_OPEN_CALLS, asked, MOMENT), Door::Refused(ErrorCode::DeviceBusy));
    assert!(matches!(calls.request(&0, asked, MOMENT), Door::Joined(_)));
    let foreign = Asked { is_mine: false, ..asked };
    assert_eq!(calls.request(&0, foreign, MOMENT), Door::Refused(ErrorCode::DeviceMismatch));
    assert_eq!(calls.stop().len(), MAX_OPEN_CALLS);
    assert_eq!(calls.request(&0, asked, MOMENT), Door::Refused(ErrorCode::DeviceBusy));
}

#[test]
fn a_row_of_other_content_or_of_somebody_else_is_another_call() {
    let known = |row| Known::of(row, "hash", &"ada");
    assert_eq!(known(None), Known::No);
    assert_eq!(known(Some(("hash", &"ada", true))), Known::Settled);
    assert_eq!(known(Some(("hash", &"ada", false))), Known::Unfinished);
    assert_eq!(known(Some(("other", &"ada", true))), Known::AsAnother);
    assert_eq!(known(Some(("hash", &"bob", true))), Known::AsAnother);
}

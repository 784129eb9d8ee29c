//! Callers and reports under random schedules, over the real aggregate and a log that is a list.

use super::*;
use crate::Decider;
use crate::event::EventSet;
use crate::tool_call::*;
use proptest::prelude::*;
use serde_json::{Value, json};

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Somebody calls, if nobody does.
    Call,
    /// What the caller asked of the ledger is done, or fails: stored or not.
    Caller(Ledger),
    Wake,
    /// The device refuses an attempt.
    Refuse {
        attempt_no: u32,
    },
    TimeOut,
    Stop,
    LoseSocket,
    /// The device reports how it ended, always the same or now and then something else.
    Report {
        attempt_no: u32,
        as_first: bool,
    },
    /// What the report asked of the ledger is done, or fails.
    ReportGoesOn(Ledger),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ledger {
    Takes,
    FailsButStores,
    Fails,
}

fn event() -> impl Strategy<Value = Event> {
    let ledger = || prop_oneof![8 => Just(Ledger::Takes), 1 => Just(Ledger::FailsButStores), 1 => Just(Ledger::Fails)];
    prop_oneof![
        4 => Just(Event::Call),
        12 => ledger().prop_map(Event::Caller),
        3 => Just(Event::Wake),
        1 => (1..4_u32).prop_map(|attempt_no| Event::Refuse { attempt_no }),
        1 => Just(Event::TimeOut),
        1 => Just(Event::Stop),
        1 => Just(Event::LoseSocket),
        2 => (1..4_u32, any::<bool>()).prop_map(|(attempt_no, as_first)| Event::Report { attempt_no, as_first }),
        6 => ledger().prop_map(Event::ReportGoesOn),
    ]
}

#[derive(Default)]
struct Shell {
    call: ToolCall,
    log: Vec<ToolCallEvent>,
    caller: Option<(ServerCall, Effect)>,
    report: Option<(Report, ToolResultRecorded, ReportEffect)>,
    /// What the caller read last.
    read: Option<ToolResultRecorded>,
    refused: Vec<u32>,
    sent: Vec<u32>,
    woken_after_record: bool,
}

impl Shell {
    fn command(&mut self, command: ToolCallCommand) -> Result<(), ToolCallError> {
        let events = self.call.decide(command)?;
        events.iter().for_each(|event| self.call.evolve(event));
        self.log.extend(events);
        Ok(())
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Call if self.caller.is_none() => {
                let (machine, effects) = ServerCall::begin(false);
                self.read = None;
                self.caller_performs(machine, effects);
            }
            Event::Call => {}
            Event::Caller(ledger) => self.caller_goes_on(ledger),
            Event::Wake => self.feed(Input::Woken(None)),
            Event::Refuse { attempt_no } => {
                self.refused.push(attempt_no);
                self.feed(Input::Woken(Some(Refusal { attempt_no, code: "DEVICE_BUSY".to_owned() })));
            }
            Event::TimeOut => self.feed(Input::WaitTimedOut),
            Event::Stop => self.feed(Input::RunStopped),
            Event::LoseSocket => self.feed(Input::SocketLost),
            Event::Report { attempt_no, as_first } => {
                let made = self.call.attempts.iter().any(|attempt| attempt.attempt_no == attempt_no);
                if self.report.is_none() && made {
                    let output = if as_first { json!(1) } else { json!(attempt_no) };
                    let (mut machine, read) = Report::arrived(true);
                    assert_eq!(read, [ReportEffect::Read]);
                    let effects = machine.step(ReportInput::Read { is_known: true });
                    self.report_performs(machine, report(attempt_no, output), effects);
                }
            }
            Event::ReportGoesOn(ledger) => self.report_goes_on(ledger),
        }
    }

    fn feed(&mut self, input: Input) {
        if let Some((mut machine, Effect::Wait)) = self.caller.take_if(|(_, job)| *job == Effect::Wait) {
            let effects = machine.step(input);
            self.caller_performs(machine, effects);
        }
    }

    fn caller_goes_on(&mut self, ledger: Ledger) {
        let Some((mut machine, job)) = self.caller.take_if(|(_, job)| *job != Effect::Wait) else { return };
        let stores = ledger != Ledger::Fails;
        let mut input = match job {
            Effect::Dispatch if stores => match self.command(ToolCallCommand::Dispatch(Box::new(dispatch()))) {
                Ok(()) => Input::Dispatched,
                Err(_) => Input::Forbidden,
            },
            Effect::Read => Input::Read(Stands::from(&self.call)),
            Effect::RecordTimeOut { attempt_no } if stores => {
                self.command(ToolCallCommand::TimeOut { attempt_no, after_ms: 1 }).expect("always allowed");
                Input::Recorded(Stands::from(&self.call))
            }
            Effect::RecordCancel(reason) if stores => {
                self.command(ToolCallCommand::Cancel { reason }).expect("always allowed");
                Input::Recorded(Stands::from(&self.call))
            }
            Effect::Dispatch | Effect::RecordTimeOut { .. } | Effect::RecordCancel(_) => Input::InDoubt,
            other => panic!("{other:?} has no outcome"),
        };
        if ledger == Ledger::Takes {
            if let Input::Read(_) | Input::Recorded(_) = input {
                self.read = self.call.result.clone();
            }
        } else {
            input = Input::InDoubt;
        }
        let effects = machine.step(input);
        self.caller_performs(machine, effects);
    }

    fn caller_performs(&mut self, machine: ServerCall, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { attempt_no } => {
                    assert_eq!(attempt_no, self.call.last_attempt(), "recorded before it is sent");
                    assert!(!self.sent.contains(&attempt_no), "sent twice");
                    self.sent.push(attempt_no);
                }
                Effect::SendCancel { attempt_no, .. } => {
                    assert!(self.sent.contains(&attempt_no), "what was never sent is not taken back");
                }
                Effect::WakeLater => {}
                Effect::End(end) => {
                    match end {
                        End::Settled => assert!(self.read.is_some(), "told a result that it did not read"),
                        End::Refused(_) => assert!(self.refused.contains(&self.call.last_attempt())),
                        End::Lost | End::TimedOut => assert_eq!(self.read, None, "a result was read, and is not told"),
                        End::Forbidden => panic!("nothing here forbids a dispatch"),
                        End::Stopped | End::InDoubt => {}
                    }
                    assert!(machine.has_ended());
                    return;
                }
                job => self.caller = Some((machine.clone(), job)),
            }
        }
    }

    fn report_goes_on(&mut self, ledger: Ledger) {
        let Some((mut machine, report, job)) = self.report.take() else { return };
        let input = match job {
            ReportEffect::Record if ledger != Ledger::Fails => {
                let reporter = Reporter::Device {
                    user_id: "u".into(),
                    device_id: "d".into(),
                    journal_id: "j".to_owned(),
                    connection_id: "c".into(),
                };
                let disposition = self.call.disposition_of(&report);
                let record = ToolCallCommand::RecordResult { result: Box::new(report.clone()), reporter };
                self.command(record).expect("of an attempt that was made");
                ReportInput::Recorded(disposition)
            }
            _ => ReportInput::InDoubt,
        };
        let effects = machine.step(if ledger == Ledger::Takes { input } else { ReportInput::InDoubt });
        self.report_performs(machine, report, effects);
    }

    fn report_performs(&mut self, machine: Report, report: ToolResultRecorded, effects: Vec<ReportEffect>) {
        for effect in effects {
            match effect {
                ReportEffect::Wake => {
                    assert!(self.call.result.is_some(), "woken before it is recorded");
                    self.woken_after_record = true;
                }
                ReportEffect::SendAck(disposition) => {
                    let acked = self.log.iter().rev().find_map(|event| match event {
                        ToolCallEvent::ToolResultAcked(acked) => Some(acked.disposition),
                        _ => None,
                    });
                    assert!(self.call.result.is_some() && self.woken_after_record, "acknowledged before it is safe");
                    assert_eq!(acked, Some(disposition), "what is said is recorded first");
                }
                ReportEffect::CloseSocket => {}
                ReportEffect::SendNack => panic!("a sound report"),
                job => self.report = Some((machine, report.clone(), job)),
            }
        }
    }
}

fn dispatch() -> Dispatch {
    Dispatch {
        request: ToolCallRequested {
            conversation_id: "c".into(),
            turn_id: "t".into(),
            run_id: "r".into(),
            user_id: "u".into(),
            graph_thread_id: "g".into(),
            model_call_id: "m".to_owned(),
            parent_tool_call_id: None,
            tool: "workspace.read_file".to_owned(),
            tool_version: "1".to_owned(),
            target: Target::Device,
            device_id: Some("d".into()),
            arguments: json!({}),
            call_hash: "h".to_owned(),
            risk: Risk::Medium,
        },
        run_id: "r".into(),
        node_id: "n".into(),
        epoch: 1,
        connection_id: Some("c".into()),
        journal_id: Some("j".to_owned()),
        wait_ms: 1,
        ttl_ms: 1,
        attempt_is_live: false,
        age_ms: 0,
    }
}

fn report(attempt_no: u32, output: Value) -> ToolResultRecorded {
    ToolResultRecorded {
        executed_attempt_no: attempt_no,
        status: ResultStatus::Succeeded,
        output_sha256: Some(crate::canonical::hash_json(&output)),
        output: Some(output),
        error: None,
        started_at: None,
        finished_at: None,
        origin: ResultOrigin::Live,
        connection_id: Some("c".into()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inv_b08_in_every_schedule_the_first_result_stays_is_told_as_read_and_is_acknowledged_only_when_it_is_safe(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut shell = Shell::default();
        let mut first = None;
        for event in events {
            shell.happens(event);
            if first.is_none() {
                first = shell.call.result.clone();
            }
            prop_assert_eq!(&shell.call.result, &first, "the first result stays");
        }
        let mut replayed = ToolCall::default();
        for event in &shell.log {
            let read = ToolCallEvent::read(event.type_name(), event.version(), &event.payload()).expect("reads back");
            replayed.evolve(&read);
        }
        prop_assert_eq!(replayed, shell.call, "the events alone say where the call stands");
    }
}

/// A call that was sent as attempt 1 and waits.
fn waiting() -> ServerCall {
    let (mut call, effects) = ServerCall::begin(false);
    assert_eq!(effects, [Effect::Dispatch]);
    assert_eq!(call.step(Input::Dispatched), [Effect::Read]);
    assert_eq!(call.step(Input::Read(open())), [Effect::Send { attempt_no: 1 }, Effect::Wait]);
    call
}

fn open() -> Stands {
    Stands { is_settled: false, last_attempt: 1 }
}

#[test]
fn a_refusal_ends_the_wait_of_its_own_attempt_alone() {
    let refusal = |attempt_no| Input::Woken(Some(Refusal { attempt_no, code: "DEVICE_BUSY".to_owned() }));
    let mut call = waiting();
    assert_eq!(call.step(refusal(2)), [Effect::Read]);
    assert_eq!(call.step(Input::Read(open())), [Effect::Wait], "another attempt's");
    assert_eq!(call.step(refusal(1)), [Effect::Read]);
    assert_eq!(call.step(Input::Read(open())), [Effect::End(End::Refused("DEVICE_BUSY".to_owned()))]);
}

#[test]
fn a_stop_reaches_the_device_also_when_it_cannot_be_recorded() {
    let mut call = waiting();
    let reason = CancelReason::RunCancelled;
    assert_eq!(call.step(Input::RunStopped), [Effect::RecordCancel(reason)]);
    let cancel = Effect::SendCancel { attempt_no: 1, reason };
    assert_eq!(call.step(Input::InDoubt), [cancel, Effect::End(End::Stopped)]);
}

#[test]
fn a_read_that_fails_is_made_again_and_the_wait_goes_on() {
    let mut call = waiting();
    assert_eq!(call.step(Input::Woken(None)), [Effect::Read]);
    assert_eq!(call.step(Input::InDoubt), [Effect::WakeLater, Effect::Wait]);
    assert!(call.is_waiting());
}

#[test]
fn h3_a_result_that_stands_there_after_the_commit_is_told_and_nothing_is_sent() {
    let (mut call, _) = ServerCall::begin(false);
    call.step(Input::Dispatched);
    let settled = Stands { is_settled: true, last_attempt: 2 };
    assert_eq!(call.step(Input::Read(settled)), [Effect::End(End::Settled)]);
}

#[test]
fn inv_b11_a_report_is_recorded_then_wakes_then_is_acknowledged_and_in_doubt_none_of_it() {
    let known = |report: &mut Report| report.step(ReportInput::Read { is_known: true });
    let (mut report, _) = Report::arrived(true);
    assert_eq!(known(&mut report), [ReportEffect::Record]);
    let stored = Disposition::Stored;
    assert_eq!(report.step(ReportInput::Recorded(stored)), [ReportEffect::Wake, ReportEffect::SendAck(stored)]);
    let (mut report, _) = Report::arrived(true);
    known(&mut report);
    assert_eq!(report.step(ReportInput::InDoubt), [ReportEffect::CloseSocket]);
    let (mut report, _) = Report::arrived(true);
    let unknown = report.step(ReportInput::Read { is_known: false });
    assert_eq!(unknown, [ReportEffect::SendAck(Disposition::UnknownCall)]);
    assert_eq!(Report::arrived(false).1, [ReportEffect::SendNack]);
}

#[test]
fn inv_b21_a_wait_that_is_exceeded_is_recorded_taken_back_and_told_to_the_device_unless_the_result_is_there() {
    let reason = CancelReason::WaitTimedOut;
    let mut call = waiting();
    assert_eq!(call.step(Input::WaitTimedOut), [Effect::RecordTimeOut { attempt_no: 1 }]);
    assert_eq!(call.step(Input::Recorded(open())), [Effect::RecordCancel(reason)]);
    let told = [Effect::SendCancel { attempt_no: 1, reason }, Effect::End(End::TimedOut)];
    assert_eq!(call.step(Input::Recorded(open())), told);
    // A result that was recorded in this very moment is the answer.
    let mut call = waiting();
    call.step(Input::WaitTimedOut);
    let settled = Stands { is_settled: true, last_attempt: 1 };
    assert_eq!(call.step(Input::Recorded(settled)), [Effect::End(End::Settled)]);
}

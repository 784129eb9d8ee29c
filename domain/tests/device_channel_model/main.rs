//! A model of one device call, checked in every order in which things can happen.
//!
//! The two sides are the very step functions that the server and the device run
//! (`devmind_domain::device_channel`), and what the ledger takes is decided by the real aggregate. Around
//! them the model has a journal, a ledger, links that keep their order, and: lost connections, crashes of
//! the device, restarts of the server, appends in doubt, the journal's purge after seven days, a database
//! that is restored to before the result. What is checked in each state is P1 to P8 below; each guard of
//! the protocol is taken out in turn, and the checker must find what then breaks. The checker is
//! stateright (<https://docs.rs/stateright>), a breadth-first search over unique states.
//!
//! The model has no clock: a history may need a week between two steps, never an impossible order. It has
//! one call, one device, one server process; a restored database has lost the result and no dispatch.
//!
//! The long run (more than 5,000,000 states):
//! `cargo test -p devmind-domain --test device_channel_model -- --ignored --nocapture`

mod device;
mod ledger;
mod server;
mod variants;
mod world;

use devmind_domain::device_channel::device_call::Input as DeviceInput;
use devmind_domain::device_channel::server_call::Input as CallerInput;
use devmind_domain::tool_call::ResultStatus;
use server::Commit;
use stateright::{Checker as _, HasDiscoveries, Model, Property};
use std::collections::BTreeSet;
use variants::Variant;
use world::{At, CallerJob, DeviceJob, Row, Told, World};

/// Threads of the checker; the machines that test this have few.
const THREADS: usize = 2;

/// What may happen, and how often.
#[derive(Clone, Debug)]
struct Channel {
    variant: Variant,
    /// Whether a person is asked about the call.
    asks: bool,
    attempts: u8,
    disconnects: u8,
    device_crashes: u8,
    server_restarts: u8,
    doubts: u8,
    purges: u8,
    rollbacks: u8,
}

const USUAL: Channel = Channel {
    variant: Variant::Sound,
    asks: true,
    attempts: 3,
    disconnects: 1,
    device_crashes: 1,
    server_restarts: 1,
    doubts: 0,
    purges: 1,
    rollbacks: 0,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// A run calls the tool.
    Call,
    CallerWorks(Commit),
    CallerWakes,
    WaitTimesOut,
    RunStops,
    CallerLosesSocket,
    ReportWorks(Commit),
    ServerReceives,
    DeviceReceives,
    /// The device goes one step on: the check passes, the person allows, the tool runs …
    DeviceWorks,
    /// … or not.
    DeviceRefuses,
    RequestExpires,
    Disconnect,
    Reconnect,
    DeviceCrashes,
    ServerRestarts,
    SevenDaysPass,
    DatabaseIsRestored,
}

impl Model for Channel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.asks)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let commits: &[Commit] = if world.spent.doubts < self.doubts {
            &[Commit::Sure, Commit::InDoubtStored, Commit::InDoubtLost]
        } else {
            &[Commit::Sure]
        };
        match &world.caller {
            None if world.connected && (world.ledger.attempts < self.attempts || world.ledger.result.is_some()) => {
                actions.push(Action::Call);
            }
            None => {}
            Some(caller) if caller.job == CallerJob::Wait => {
                actions.extend([Action::WaitTimesOut, Action::RunStops]);
                if caller.woken {
                    actions.push(Action::CallerWakes);
                }
                if caller.lost_socket {
                    actions.push(Action::CallerLosesSocket);
                }
            }
            Some(_) => actions.extend(commits.iter().map(|commit| Action::CallerWorks(*commit))),
        }
        match &world.report {
            Some(_) => actions.extend(commits.iter().map(|commit| Action::ReportWorks(*commit))),
            None if !world.to_server.is_empty() => actions.push(Action::ServerReceives),
            None => {}
        }
        if !world.to_device.is_empty() {
            actions.push(Action::DeviceReceives);
        }
        match world.job {
            Some(DeviceJob::Examine | DeviceJob::Ask | DeviceJob::Execute { aborted: true }) => {
                actions.extend([Action::DeviceWorks, Action::DeviceRefuses, Action::RequestExpires]);
            }
            Some(_) => actions.extend([Action::DeviceWorks, Action::RequestExpires]),
            None => {}
        }
        if world.connected && world.spent.disconnects < self.disconnects {
            actions.push(Action::Disconnect);
        }
        if !world.connected {
            actions.push(Action::Reconnect);
        }
        if world.spent.device_crashes < self.device_crashes {
            actions.push(Action::DeviceCrashes);
        }
        if world.spent.server_restarts < self.server_restarts {
            actions.push(Action::ServerRestarts);
        }
        let acked = matches!(world.row, Some(Row { at: At::Settled { acked: true, .. }, .. }));
        if acked && world.spent.purges < self.purges {
            actions.push(Action::SevenDaysPass);
        }
        // A backup of before the seven days is not restored.
        let restorable = world.ledger.result.is_some() && world.caller.is_none() && world.report.is_none();
        if restorable && world.spent.purges == 0 && world.spent.rollbacks < self.rollbacks {
            actions.push(Action::DatabaseIsRestored);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let (mut world, variant) = (last.clone(), self.variant);
        match action {
            Action::Call => world.calls(),
            Action::CallerWorks(commit) => {
                world.spent.doubts += u8::from(commit != Commit::Sure);
                world.caller_works(commit, variant);
            }
            Action::CallerWakes => {
                if let Some(caller) = &mut world.caller {
                    caller.woken = false;
                }
                world.caller_step(CallerInput::Woken(None), variant);
            }
            Action::WaitTimesOut => world.caller_step(CallerInput::WaitTimedOut, variant),
            Action::RunStops => world.caller_step(CallerInput::RunStopped, variant),
            Action::CallerLosesSocket => world.caller_step(CallerInput::SocketLost, variant),
            Action::ReportWorks(commit) => {
                world.spent.doubts += u8::from(commit != Commit::Sure);
                world.report_works(commit, variant);
            }
            Action::ServerReceives => {
                let reported = world.to_server.pop()?;
                world.report_arrives(reported, variant);
            }
            Action::DeviceReceives => {
                let frame = world.to_device.pop()?;
                world.device_receives(frame, variant);
            }
            Action::DeviceWorks => world.device_works(true, variant),
            Action::DeviceRefuses => world.device_works(false, variant),
            Action::RequestExpires => world.device_step(DeviceInput::Expired, variant),
            Action::Disconnect => {
                world.spent.disconnects += 1;
                world.disconnect();
            }
            Action::Reconnect => world.reconnects(),
            Action::DeviceCrashes => {
                world.spent.device_crashes += 1;
                world.device_crashes();
            }
            Action::ServerRestarts => {
                world.spent.server_restarts += 1;
                world.server_restarts();
            }
            Action::SevenDaysPass => {
                world.spent.purges += 1;
                world.purges(variant);
            }
            Action::DatabaseIsRestored => {
                world.spent.rollbacks += 1;
                world.ledger.result = None;
            }
        }
        let kept = last.ledger.result.is_none_or(|before| world.ledger.result == Some(before));
        if !kept && action != Action::DatabaseIsRestored {
            world.seen.settlement_overwritten = true;
        }
        (!world.to_device.overflowed && !world.to_server.overflowed).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(P1, |_, world: &World| world.seen.executions <= 1),
            Property::always(P2, |_, world: &World| !world.seen.settlement_overwritten),
            Property::always(P3, |_, world: &World| {
                let says_not_run = world
                    .ledger
                    .result
                    .is_some_and(|result| matches!(result.status, ResultStatus::Rejected | ResultStatus::Cancelled));
                !says_not_run || world.seen.executions == 0
            }),
            Property::always(P4, |_, world: &World| {
                world.seen.told != Some(Told::SuccessWithoutOutput) || world.seen.output_aged_out
            }),
            Property::always(P5, |_, world: &World| !world.seen.cancelled_unasked),
            Property::always(P6, |_, world: &World| !world.seen.acked_unpersisted),
            Property::always(P7, |_, world: &World| {
                !world.is_quiescent()
                    || match world.row {
                        None => true,
                        Some(Row { at: At::Settled { acked, .. }, .. }) => {
                            acked && (world.ledger.result.is_some() || world.spent.rollbacks > 0)
                        }
                        Some(_) => false,
                    }
            }),
            Property::always(P8, |_, world: &World| match (world.row, world.ledger.result) {
                (Some(Row { at: At::Settled { ending, acked: true }, .. }), stored)
                    if ending.status == ResultStatus::Succeeded =>
                {
                    ending.has_output
                        || world.seen.output_aged_out
                        || stored.is_some_and(|stored| stored.has_output || stored.status != ResultStatus::Succeeded)
                }
                _ => true,
            }),
        ]
    }
}

const P1: &str = "P1 a call is executed at most once";
const P2: &str = "P2 what settled a call is never overwritten";
const P3: &str = "P3 what is recorded as rejected or cancelled was not executed";
const P4: &str = "P4 no success is told without its output";
const P5: &str = "P5 no attempt is cancelled that the server wants";
const P6: &str = "P6 what is acknowledged is recorded";
const P7: &str = "P7 when nothing is under way, every row is settled on both sides and acknowledged";
const P8: &str = "P8 an acknowledged output can be read from one of the two sides";

/// Searches all of it; how many unique states there are. Fails with the shortest history that breaks a
/// property.
fn assert_sound(name: &str, model: Channel) -> usize {
    let checker = model.checker().threads(THREADS).spawn_bfs().join();
    let broken: Vec<_> = checker.discoveries().into_iter().map(|(name, path)| (name, path.into_actions())).collect();
    assert!(broken.is_empty(), "{name}: {broken:#?}");
    let states = checker.unique_state_count();
    println!("{name}: {states} states, {} steps deep, sound", checker.max_depth());
    states
}

/// Searches until each of these properties is found broken.
fn assert_found(model: Channel, broken: &[&'static str]) {
    let variant = model.variant;
    let wanted: BTreeSet<&'static str> = broken.iter().copied().collect();
    let checker = model.checker().threads(THREADS).finish_when(HasDiscoveries::AllOf(wanted)).spawn_bfs().join();
    let found = checker.discoveries();
    for property in broken {
        let path = found.get(property);
        let states = checker.unique_state_count();
        assert!(path.is_some(), "{variant:?}: {property} was not broken in {states} states");
        println!("{variant:?}: {property}, by {:?}", path.map(|path| path.clone().into_actions()));
    }
}

#[test]
fn all_eight_properties_hold_in_every_order_of_three_attempts_and_the_faults_of_networks_and_processes() {
    let states = assert_sound("three attempts", Channel { server_restarts: 0, ..USUAL })
        + assert_sound("nobody asked", Channel { asks: false, attempts: 2, ..USUAL })
        + assert_sound("restored", Channel { rollbacks: 1, attempts: 2, ..USUAL })
        + assert_sound("in doubt", Channel { doubts: 1, attempts: 2, device_crashes: 0, ..USUAL });
    assert!(states >= 500_000, "only {states} states: the model has shrunk");
}

#[test]
#[ignore = "takes minutes; the command is in the file's head"]
fn all_eight_properties_hold_over_more_than_five_million_states() {
    let states = assert_sound("four attempts", Channel { attempts: 4, ..USUAL })
        + assert_sound("nobody asked", Channel { asks: false, disconnects: 2, ..USUAL })
        + assert_sound("restored", Channel { rollbacks: 1, disconnects: 2, ..USUAL })
        + assert_sound("in doubt", Channel { doubts: 1, disconnects: 2, ..USUAL });
    assert!(states >= 5_000_000, "only {states} states: the model has shrunk");
}

#[test]
fn each_guard_that_is_taken_out_is_missed() {
    let with = |variant| Channel { variant, ..USUAL };
    assert_found(with(Variant::VerdictNotJournalled), &[P3]);
    assert_found(with(Variant::WakeWithPayloadAndOutputDropped), &[P4]);
    assert_found(Channel { rollbacks: 1, ..with(Variant::NoTombstones) }, &[P1]);
    assert_found(with(Variant::CancelWithoutFence), &[P5]);
    assert_found(Channel { rollbacks: 1, ..with(Variant::OutputDropped) }, &[P4, P8]);
    assert_found(with(Variant::AckBeforePersist), &[P6, P7]);
    assert_found(with(Variant::ExecuteBeforeReserve), &[P1, P3]);
    assert_found(Channel { asks: false, ..with(Variant::ExecuteBeforeReserve) }, &[P1]);
    assert_found(with(Variant::OverwriteSettledAndVerdictNotJournalled), &[P2]);
    assert_found(with(Variant::UnconditionalUnknown), &[P2, P6, P7]);
    assert_found(with(Variant::AckOnlyOnChange), &[P7]);
}

//! The rules of a device, as given/when/then.

use super::*;
use crate::ErrorCode;
use crate::aggregate::Decider;
use crate::conversation::Claim;
use crate::event::Role;
use crate::limits::{MAX_DEVICE_NAME_CHARS, MAX_OPEN_TICKETS, TICKET_TTL_MS};
use crate::protocol::{Names, RegisteredTool};
use crate::time::Timestamp;
use crate::tool_call::Risk;
use cqrs_es::test::TestFramework;
use serde_json::json;

type Command = DeviceCommand;
type Event = DeviceEvent;

/// After these events this command gives this: events, or a refusal.
fn check(given: &[Event], when: Command, expect: Result<Vec<Event>, DeviceError>) {
    let result = TestFramework::<Device>::with(()).given(given.to_vec()).when(when).inspect_result();
    assert_eq!(result, expect);
}

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn issue(n: usize) -> Command {
    Command::IssueTicket { ticket_hash: format!("ticket {n}"), now: NOW }
}
fn issued(n: usize) -> Event {
    DeviceTicketIssued { ticket_hash: format!("ticket {n}"), expires_at: NOW.plus_millis(TICKET_TTL_MS) }.into()
}
fn consume(n: usize) -> Command {
    Command::ConsumeTicket { ticket_hash: format!("ticket {n}") }
}
fn consumed(n: usize) -> Event {
    DeviceTicketConsumed { ticket_hash: format!("ticket {n}") }.into()
}
fn connect(socket: &str, journal: &str, journal_epoch: u64) -> Command {
    Command::Connect {
        connection_id: socket.into(),
        holder: Claim { node_id: "node-1".into(), epoch: 1 },
        instance_id: "i".into(),
        journal_id: journal.into(),
        journal_epoch,
        version: "0.1.0".into(),
        remote: "127.0.0.1:5".into(),
        names: Names::default(),
    }
}
fn connected(socket: &str, connection_epoch: u64, journal: &str, journal_epoch: u64) -> Event {
    DeviceConnected {
        connection_id: socket.into(),
        connection_epoch,
        node_id: "node-1".into(),
        node_epoch: Some(1),
        instance_id: "i".into(),
        journal_id: journal.into(),
        journal_epoch,
        version: "0.1.0".into(),
        remote: "127.0.0.1:5".into(),
    }
    .into()
}
fn replaced(old: &str, new: &str) -> Event {
    DeviceReplaced { old_connection_id: old.into(), new_connection_id: new.into() }.into()
}
fn disconnect(socket: &str) -> Command {
    Command::Disconnect { connection_id: socket.into(), code: 4408, reason: "silent".into() }
}
fn disconnected(socket: &str) -> Event {
    DeviceDisconnected { connection_id: socket.into(), code: 4408, reason: "silent".into() }.into()
}
fn tool(version: &str) -> RegisteredTool {
    RegisteredTool {
        name: "workspace.list_files".into(),
        version: version.into(),
        risk: Risk::Low,
        schema: json!({}),
        timeout_ms: 10_000,
        requires_confirmation: false,
    }
}
fn sync(socket: &str, version: &str) -> Command {
    Command::SyncRegistry { connection_id: socket.into(), tools: vec![tool(version)] }
}
fn synced(socket: &str, version: &str) -> Event {
    ToolRegistrySynced { connection_id: socket.into(), tools: vec![tool(version)] }.into()
}

#[test]
fn a_ticket_lives_sixty_seconds_from_when_it_was_given_out() {
    check(&[], issue(1), Ok(vec![issued(1)]));
    let mut device = Device::default();
    device.evolve(&issued(1));
    assert_eq!(device.ticket_expiry("ticket 1"), Some(NOW.plus_millis(60_000)));
    assert_eq!(device.ticket_expiry("ticket 2"), None);
}

#[test]
fn a_ticket_is_burnt_once() {
    check(&[issued(1)], consume(1), Ok(vec![consumed(1)]));
    check(&[issued(1), consumed(1)], consume(1), Err(DeviceError::TicketInvalid));
    check(&[issued(1), issued(2), consumed(1)], consume(2), Ok(vec![consumed(2)]));
}

#[test]
fn a_ticket_that_was_never_given_out_is_refused_like_a_used_one() {
    check(&[], consume(1), Err(DeviceError::TicketInvalid));
    check(&[issued(2)], consume(1), Err(DeviceError::TicketInvalid));
    assert_eq!(DeviceError::TicketInvalid.code(), ErrorCode::TicketInvalid);
}

#[test]
fn more_open_tickets_than_the_limit_forget_the_oldest_and_only_it() {
    let given: Vec<Event> = (1..=MAX_OPEN_TICKETS + 1).map(issued).collect();
    check(&given, consume(1), Err(DeviceError::TicketInvalid));
    for n in 2..=MAX_OPEN_TICKETS + 1 {
        check(&given, consume(n), Ok(vec![consumed(n)]));
    }
}

#[test]
fn every_socket_has_the_next_epoch() {
    check(&[], connect("s1", "j", 1), Ok(vec![connected("s1", 1, "j", 1)]));
    let given = [connected("s1", 1, "j", 1), disconnected("s1")];
    check(&given, connect("s2", "j", 1), Ok(vec![connected("s2", 2, "j", 1)]));
}

#[test]
fn what_a_device_is_called_is_recorded_only_where_it_differs_and_never_longer_than_the_limit() {
    let call = |names: &Names| match connect("s2", "j", 1) {
        Command::Connect { connection_id, holder, instance_id, journal_id, journal_epoch, version, remote, .. } => {
            let names = names.clone();
            Command::Connect { connection_id, holder, instance_id, journal_id, journal_epoch, version, remote, names }
        }
        other => other,
    };
    let described = |socket: &str, names: &Names| {
        Event::from(DeviceDescribed { connection_id: socket.into(), names: names.clone() })
    };
    let names = Names::new(Some("laptop".into()), Some("project".into()));
    let given = vec![connected("s1", 1, "j", 1), described("s1", &names), disconnected("s1")];
    let again = connected("s2", 2, "j", 1);
    check(&given, call(&names), Ok(vec![again.clone()]));
    for other in [Names::new(Some("laptop".into()), Some("other".into())), Names::default()] {
        check(&given, call(&other), Ok(vec![again.clone(), described("s2", &other)]));
    }
    let long = Names::new(Some(String::new()), Some("é".repeat(MAX_DEVICE_NAME_CHARS + 1)));
    assert_eq!(long, Names { computer: None, workspace: Some("é".repeat(MAX_DEVICE_NAME_CHARS)) });
}

#[test]
fn a_newer_socket_replaces_the_older_one() {
    let given = [connected("s1", 1, "j", 1)];
    check(&given, connect("s2", "j", 1), Ok(vec![replaced("s1", "s2"), connected("s2", 2, "j", 1)]));
}

#[test]
fn the_end_of_a_socket_that_no_longer_counts_is_no_event() {
    let taken_over = [connected("s1", 1, "j", 1), replaced("s1", "s2"), connected("s2", 2, "j", 1)];
    check(&taken_over, disconnect("s1"), Ok(vec![]));
    check(&taken_over, disconnect("s2"), Ok(vec![disconnected("s2")]));
    check(&[connected("s1", 1, "j", 1), disconnected("s1")], disconnect("s1"), Ok(vec![]));
    check(&[], disconnect("s1"), Ok(vec![]));
}

#[test]
fn a_late_end_of_an_old_socket_does_not_end_the_new_one_in_the_fold_either() {
    let mut device = Device::default();
    for event in [connected("s1", 1, "j", 1), connected("s2", 2, "j", 1), disconnected("s1"), replaced("s1", "s2")] {
        device.evolve(&event);
    }
    assert_eq!(device.connection.map(|connection| connection.connection_id), Some("s2".into()));
}

#[test]
fn a_journal_that_went_back_is_refused_and_another_journal_is_not() {
    let given = [connected("s1", 1, "j", 5), disconnected("s1")];
    check(&given, connect("s2", "j", 4), Err(DeviceError::JournalRolledBack { seen: 5, got: 4 }));
    for epoch in [5, 6] {
        check(&given, connect("s2", "j", epoch), Ok(vec![connected("s2", 2, "j", epoch)]));
    }
    check(&given, connect("s2", "k", 1), Ok(vec![connected("s2", 2, "k", 1)]));
    let moved_on = [given.to_vec(), vec![connected("s2", 2, "k", 1), disconnected("s2")]].concat();
    check(&moved_on, connect("s3", "j", 4), Err(DeviceError::JournalRolledBack { seen: 5, got: 4 }));
    assert_eq!(DeviceError::JournalRolledBack { seen: 5, got: 4 }.code(), ErrorCode::JournalRolledBack);
}

#[test]
fn the_set_of_tools_is_recorded_only_where_it_differs_and_survives_a_reconnect() {
    let online = vec![connected("s1", 1, "j", 1)];
    check(&online, sync("s1", "1"), Ok(vec![synced("s1", "1")]));
    let once = [online, vec![synced("s1", "1")]].concat();
    check(&once, sync("s1", "1"), Ok(vec![]));
    check(&once, sync("s1", "2"), Ok(vec![synced("s1", "2")]));
    let again = [once, vec![disconnected("s1"), connected("s2", 2, "j", 1)]].concat();
    check(&again, sync("s2", "1"), Ok(vec![]));
    let none = |socket: &str| Command::SyncRegistry { connection_id: socket.into(), tools: vec![] };
    let synced_none = |socket: &str| Event::from(ToolRegistrySynced { connection_id: socket.into(), tools: vec![] });
    check(&again, none("s2"), Ok(vec![synced_none("s2")]));
    // A device is online from its first sync on, whatever it offers.
    let online = vec![connected("s1", 1, "j", 1)];
    check(&online, none("s1"), Ok(vec![synced_none("s1")]));
    check(&[online, vec![synced_none("s1")]].concat(), none("s1"), Ok(vec![]));
}

#[test]
fn a_socket_that_does_not_count_cannot_change_the_tools() {
    let taken_over = [connected("s1", 1, "j", 1), replaced("s1", "s2"), connected("s2", 2, "j", 1)];
    for given in [vec![], taken_over.to_vec(), vec![connected("s1", 1, "j", 1), disconnected("s1")]] {
        check(&given, sync("s1", "1"), Err(DeviceError::NotCurrent));
    }
    assert_eq!(DeviceError::NotCurrent.code(), ErrorCode::DeviceOffline);
}

#[test]
fn a_stream_key_names_its_user_and_device() {
    let key = stream_key(&"alice".into(), &"laptop".into());
    assert_eq!(key, "alice/laptop");
    assert_eq!(parse_stream_key(&key), Some(("alice".into(), "laptop".into())));
    assert_eq!(parse_stream_key("alice"), None);
}

#[test]
fn a_read_of_somebody_elses_device_is_recorded_and_changes_nothing() {
    let mut device = Device::default();
    let read = DeviceCommand::RecordRead { by: "carol".into(), role: Role::Auditor, what: "devices".into() };
    let expected = DeviceRead { by: "carol".into(), role: Role::Auditor, what: "devices".into() };
    let events = device.decide(read).expect("recorded");
    assert_eq!(events, [expected.into()]);
    events.iter().for_each(|event| device.evolve(event));
    assert_eq!(device, Device::default());
}

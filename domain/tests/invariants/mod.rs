//! What must hold of every log that a conversation's commands write.

use devmind_domain::conversation::*;
use devmind_domain::ids::*;
use std::collections::{BTreeMap, BTreeSet};

/// Where a run stands, by the log alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Queued,
    Running,
    Interrupted,
    Ended,
}

#[derive(Default)]
struct Seen<'a> {
    turns: u32,
    threads: BTreeMap<&'a RunId, &'a ThreadId>,
    runs: BTreeMap<&'a RunId, Run>,
    /// Those that a later run of the turn took over.
    left: BTreeSet<&'a RunId>,
    newest: Option<&'a RunId>,
    /// The run that paused for each interrupt, its hash, and whether nobody has decided.
    interrupts: BTreeMap<&'a InterruptId, (&'a RunId, &'a str, bool)>,
    /// Those that were answered with yes.
    approved: BTreeSet<&'a InterruptId>,
    /// Each grant, and whether it counts.
    grants: BTreeMap<&'a GrantId, bool>,
    deleted: bool,
}

/// One claim and one end a run, one active run a conversation, one end an interrupt, and no run that
/// goes on while an interrupt is open.
pub fn conversation(log: &[ConversationEvent]) {
    let mut seen = Seen::default();
    for event in log {
        assert!(!seen.deleted || matches!(event, ConversationEvent::ConversationRead(_)), "after its end: {log:?}");
        seen.see(event, log);
    }
}

impl<'a> Seen<'a> {
    fn see(&mut self, event: &'a ConversationEvent, log: &[ConversationEvent]) {
        match event {
            ConversationEvent::TurnPrepared(e) => {
                self.turns += 1;
                assert_eq!(e.sequence_no, self.turns);
            }
            ConversationEvent::RunPrepared(e) => self.prepared(e, log),
            ConversationEvent::RunClaimed(e) => self.step(&e.run_id, &[Run::Queued], Run::Running, log),
            ConversationEvent::RunInterrupted(e) => {
                self.step(&e.run_id, &[Run::Running], Run::Interrupted, log);
                assert!(self.open().any(|run| **run == e.run_id), "a pause that nobody can end: {log:?}");
            }
            ConversationEvent::RunSucceeded(e) => self.step(&e.run_id, &[Run::Running], Run::Ended, log),
            ConversationEvent::RunFailed(e) => self.step(&e.run_id, &[Run::Running], Run::Ended, log),
            ConversationEvent::RunCancelled(e) => {
                let before = [Run::Queued, Run::Running, Run::Interrupted];
                self.step(&e.run_id, &before, Run::Ended, log);
                assert_eq!(self.open().count(), 0, "a question about a run that was stopped: {log:?}");
            }
            ConversationEvent::InterruptRaised(e) => {
                assert_eq!(self.runs.get(&e.run_id), Some(&Run::Running), "{log:?}");
                let new = self.interrupts.insert(&e.interrupt_id, (&e.run_id, &e.arguments_hash, true));
                assert!(new.is_none(), "raised twice: {log:?}");
            }
            ConversationEvent::InterruptResolved(e) => {
                let hash = self.close(&e.interrupt_id, log);
                assert_eq!(hash, e.arguments_hash, "decided about other arguments: {log:?}");
                if e.approved {
                    self.approved.insert(&e.interrupt_id);
                }
            }
            ConversationEvent::InterruptCancelled(e) => drop(self.close(&e.interrupt_id, log)),
            ConversationEvent::InterruptExpired(e) => drop(self.close(&e.interrupt_id, log)),
            ConversationEvent::ToolGrantGiven(e) => {
                assert!(self.approved.contains(&e.interrupt_id), "given without a yes: {log:?}");
                assert!(self.grants.insert(&e.grant_id, true).is_none(), "given twice: {log:?}");
            }
            ConversationEvent::ToolGrantRevoked(e) => {
                assert_eq!(self.grants.insert(&e.grant_id, false), Some(true), "revoked what does not count: {log:?}");
            }
            ConversationEvent::ConversationStarted(_) => assert_eq!(self.turns, 0),
            ConversationEvent::ConversationDeleted(_) => {
                let alive = self.runs.iter().any(|(run, state)| *state != Run::Ended && !self.left.contains(run));
                assert!(!alive && self.open().count() == 0, "deleted with something alive: {log:?}");
                self.deleted = true;
            }
            ConversationEvent::TurnRerunPrepared(e) => {
                assert_eq!(e.edited, e.previous_message_id != e.message_id, "{log:?}");
            }
            ConversationEvent::RunStopRequested(e) => {
                assert!(self.runs.get(&e.run_id).is_some_and(|run| *run == Run::Running), "nobody to ask: {log:?}");
            }
            ConversationEvent::ConversationRenamed(_) | ConversationEvent::ConversationRead(_) => {}
        }
    }

    /// The runs that open interrupts paused.
    fn open(&self) -> impl Iterator<Item = &&'a RunId> {
        self.interrupts.values().filter(|(_, _, open)| *open).map(|(run, _, _)| run)
    }

    fn prepared(&mut self, e: &'a RunPrepared, log: &[ConversationEvent]) {
        assert_eq!(self.open().count(), 0, "a run is prepared while a person is asked: {log:?}");
        let before = self.newest.and_then(|run| self.runs.get(run));
        match e.kind {
            RunKind::Normal | RunKind::Retry => {
                let free = before.is_none_or(|state| *state == Run::Ended)
                    || (e.kind == RunKind::Retry && before == Some(&Run::Interrupted));
                assert!(free, "at most one active run a conversation: {log:?}");
                assert!(!self.threads.values().any(|thread| **thread == e.graph_thread_id), "{log:?}");
            }
            RunKind::Resume => {
                assert_eq!(before, Some(&Run::Interrupted), "{log:?}");
                let thread = self.newest.and_then(|run| self.threads.get(run));
                assert_eq!(thread, Some(&&e.graph_thread_id), "another thread is resumed: {log:?}");
            }
        }
        let parent = if e.kind == RunKind::Normal { None } else { self.newest };
        assert_eq!(e.parent_run_id.as_ref(), parent, "{log:?}");
        self.left.extend(self.newest);
        self.newest = Some(&e.run_id);
        self.threads.insert(&e.run_id, &e.graph_thread_id);
        assert!(self.runs.insert(&e.run_id, Run::Queued).is_none(), "prepared twice: {log:?}");
    }

    fn step(&mut self, run: &'a RunId, from: &[Run], to: Run, log: &[ConversationEvent]) {
        assert!(!self.left.contains(run), "a run that another took over: {log:?}");
        let state = self.runs.insert(run, to);
        assert!(state.is_some_and(|state| from.contains(&state)), "{run} goes from {state:?} to {to:?}: {log:?}");
    }

    fn close(&mut self, interrupt: &InterruptId, log: &[ConversationEvent]) -> &'a str {
        let found = self.interrupts.get_mut(interrupt).unwrap_or_else(|| panic!("{interrupt} was not raised: {log:?}"));
        assert!(std::mem::take(&mut found.2), "{interrupt} had ended before: {log:?}");
        found.1
    }
}

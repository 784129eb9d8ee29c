//! What the log has of one run: where the loop began, what it was given, and how the run ended.

use super::history::History;
use devmind_domain::agent::{self, Approvals, CallsInAnswer, Message, assemble, prompt};
use devmind_domain::conversation::{Conversation, ConversationEvent, Grant, RunFailed};
use devmind_domain::event::{AggregateType, EventSet, Facts, RecordedEvent, StreamId};
use devmind_domain::history::IMPORTED;
use devmind_domain::ids::{ConversationId, DeviceId, RunId, ThreadId, ToolCallId, UserId};
use devmind_domain::redaction::Redacted;
use devmind_domain::thread::{Deferred, Thread, ThreadEvent, ToolResultObserved};
use devmind_domain::{Decider, ErrorCode};
use devmind_ledger::{EventFilter, LedgerError, LedgerReader};
use std::collections::{HashMap, VecDeque};

/// A claimed run.
pub(super) struct Record {
    pub conversation_id: ConversationId,
    /// Whose conversation it is; nobody's where its beginning cannot be understood.
    pub user_id: UserId,
    /// The computer that was chosen for the run.
    pub device_id: Option<DeviceId>,
    /// What the conversation's owner allowed for all of it, from each position on.
    grants: Vec<(u64, Vec<Grant>)>,
    /// What calls of the thread left for the time after all results of their message.
    pub deferred: HashMap<ToolCallId, Deferred>,
    /// What the model was told of calls of the thread.
    pub told: HashMap<ToolCallId, ToolResultObserved>,
    pub thread_id: ThreadId,
    pub claimed_at: u64,
    /// The hash of the messages that the claim names.
    pub context_hash: String,
    pub context: Vec<Message>,
    pub approvals: Approvals,
    /// The thread when the run was claimed.
    pub thread: Thread,
    /// What the run recorded in its thread, with positions.
    pub facts: VecDeque<(u64, ThreadEvent)>,
    /// Interrupts that the run raised: position, call, hash.
    pub raised: Vec<(u64, String, String)>,
    pub end: Option<(u64, ConversationEvent)>,
    /// The position that the log is read to.
    at: u64,
}

/// Why what the log has cannot be read: a stable code, and words.
pub(super) type Unreadable = (ErrorCode, String);

/// Why there is nothing to replay.
pub(super) enum Missing {
    NoSuchRun,
    NotClaimed,
    Unreadable(Unreadable),
}

impl Record {
    /// Where the log stops speaking of the run: its end, or all that is read.
    pub fn until(&self) -> u64 {
        self.end.as_ref().map_or(self.at.saturating_add(1), |(position, _)| *position)
    }

    /// The grants that counted at a position.
    pub fn grants_at(&self, position: u64) -> &[Grant] {
        let given = self.grants.iter().rfind(|(since, _)| *since < position);
        given.map_or(&[], |(_, grants)| grants)
    }

    /// Whether the run was ended from outside of the loop, or has not ended: then the log may stop anywhere.
    pub fn was_cut(&self) -> bool {
        let outside = [ErrorCode::ShuttingDown, ErrorCode::ServerRestarted, ErrorCode::Internal];
        match self.end.as_ref().map(|(_, event)| event) {
            None | Some(ConversationEvent::RunCancelled(_)) => true,
            Some(ConversationEvent::RunFailed(RunFailed { error_code, .. })) => {
                outside.iter().any(|code| code.as_str() == error_code)
            }
            Some(_) => false,
        }
    }

    /// Keeps what calls left and what the model was told of them.
    fn note(&mut self, fact: &ThreadEvent) {
        match fact {
            ThreadEvent::ContextDeferred(e) => {
                self.deferred.entry(e.tool_call_id.clone()).or_default().contexts.push(e.message.clone());
            }
            ThreadEvent::TurnConcluded(e) => {
                self.deferred.entry(e.tool_call_id.clone()).or_default().concludes_turn = true;
            }
            ThreadEvent::ToolResultObserved(e) => drop(self.told.insert(e.tool_call_id.clone(), e.clone())),
            ThreadEvent::ThreadStarted(_)
            | ThreadEvent::ModelRequested(_)
            | ThreadEvent::AnswerProgressed(_)
            | ThreadEvent::ModelResponded(_)
            | ThreadEvent::ModelFailed(_) => {}
        }
    }

    /// What the log had of a run at a position.
    pub async fn read(reader: &LedgerReader, run_id: &RunId, at: u64) -> Result<Result<Self, Missing>, LedgerError> {
        let Some(conversation) = conversation_of(reader, run_id, at).await? else { return Ok(Err(Missing::NoSuchRun)) };
        let own = EventFilter { conversation_id: Some(conversation.clone()), ..EventFilter::default() };
        if let Some(row) = reader.damaged_of(&own).await?.into_iter().find(|row| row.position <= at) {
            let reason = format!("event {} cannot be read: {}", row.position, row.reason);
            return Ok(Err(Missing::Unreadable((ErrorCode::LedgerCorrupt, reason))));
        }
        let stream = StreamId::new(AggregateType::Conversation, conversation.as_str());
        let mut before = Before::default();
        let (mut all, mut grants) = (Conversation::default(), Vec::<(u64, Vec<Grant>)>::new());
        let mut claim = None;
        let (mut raised, mut end, mut prepared) = (Vec::new(), None, None);
        for event in reader.read_stream(&stream, 0).await?.into_iter().filter(|event| event.position <= at) {
            let facts = match readable(&event) {
                Ok(facts) => facts,
                Err(reason) => return Ok(Err(Missing::Unreadable(reason))),
            };
            for decoded in facts {
                if let ConversationEvent::RunPrepared(e) = &decoded
                    && e.run_id == *run_id
                {
                    prepared = Some(e.clone());
                }
                if let ConversationEvent::RunClaimed(e) = &decoded
                    && e.run_id == *run_id
                {
                    claim = Some((event.position, e.context_hash.clone()));
                }
                if let ConversationEvent::InterruptRaised(e) = &decoded
                    && e.run_id == *run_id
                {
                    raised.push((event.position, e.tool_call_id.to_string(), e.arguments_hash.clone()));
                }
                if end.is_none() && ends(&decoded) == Some(run_id) {
                    end = Some((event.position, decoded.clone()));
                }
                if claim.is_none() {
                    before.see(&decoded);
                }
                all.evolve(&decoded);
                if grants.last().map_or(&[][..], |(_, grants)| grants) != all.grants {
                    grants.push((event.position, all.grants.clone()));
                }
            }
        }
        let (Some((claimed_at, context_hash)), Some(prepared)) = (claim, prepared) else {
            return Ok(Err(Missing::NotClaimed));
        };
        if context_hash == IMPORTED {
            let reason = "another program ran it, and its history does not say what the model was told".to_owned();
            return Ok(Err(Missing::Unreadable((ErrorCode::RunNotReplayable, reason))));
        }
        let Some((history, question)) = before.history.before(&prepared.turn_id) else {
            return Ok(Err(Missing::Unreadable((
                ErrorCode::RunNotReplayable,
                "its turn is not in the conversation".to_owned(),
            ))));
        };
        let mut record = Self {
            conversation_id: conversation,
            user_id: all.owner.unwrap_or_else(|| "".into()),
            device_id: prepared.device_id,
            grants,
            deferred: HashMap::new(),
            told: HashMap::new(),
            claimed_at,
            context_hash,
            context: Vec::new(),
            approvals: Approvals::of(&before.conversation, &prepared.graph_thread_id),
            thread_id: prepared.graph_thread_id,
            thread: Thread::default(),
            facts: VecDeque::new(),
            raised,
            end,
            at,
        };
        let stream = StreamId::new(AggregateType::Thread, record.thread_id.as_str());
        for event in reader.read_stream(&stream, 0).await? {
            let facts = match readable(&event) {
                Ok(facts) => facts,
                Err(reason) => return Ok(Err(Missing::Unreadable(reason))),
            };
            for decoded in facts {
                if event.position < record.until() {
                    record.note(&decoded);
                }
                let begins = matches!(decoded, ThreadEvent::ThreadStarted(_));
                if event.position < claimed_at || begins {
                    record.thread.evolve(&decoded);
                } else if event.position < record.until() {
                    record.facts.push_back((event.position, decoded));
                }
            }
        }
        // How many calls the model was asked for at a time the hash says; with none of them it is another prompt.
        let begins = |calls: &CallsInAnswer| assemble(*calls, &history, question);
        let is_recorded =
            |context: &Vec<Message>| agent::context_hash(&prompt(context, &record.thread)) == record.context_hash;
        record.context =
            CallsInAnswer::ALL.iter().map(begins).find(is_recorded).unwrap_or_else(|| begins(&CallsInAnswer::One));
        Ok(Ok(record))
    }
}

/// The state of the conversation at the claim.
#[derive(Default)]
struct Before {
    conversation: Conversation,
    history: History,
}

impl Before {
    fn see(&mut self, event: &ConversationEvent) {
        self.conversation.evolve(event);
        self.history.see(event);
    }
}

/// The event, if it says what it said when it was recorded.
pub(super) fn readable<E: EventSet>(event: &RecordedEvent) -> Result<Facts<E>, Unreadable> {
    if let Some(erased) = Redacted::parse(&event.payload) {
        let reason = format!("event {} was redacted by event {}", event.position, erased.by);
        return Err((ErrorCode::EventRedacted, reason));
    }
    event.decode_as().map_err(|error| (ErrorCode::RunNotReplayable, format!("event {}: {error}", event.position)))
}

/// The run that an event ends.
fn ends(event: &ConversationEvent) -> Option<&RunId> {
    match event {
        ConversationEvent::RunInterrupted(e) => Some(&e.run_id),
        ConversationEvent::RunSucceeded(e) => Some(&e.run_id),
        ConversationEvent::RunFailed(e) => Some(&e.run_id),
        ConversationEvent::RunCancelled(e) => Some(&e.run_id),
        ConversationEvent::ConversationStarted(_)
        | ConversationEvent::ConversationRenamed(_)
        | ConversationEvent::ConversationDeleted(_)
        | ConversationEvent::ConversationRead(_)
        | ConversationEvent::TurnPrepared(_)
        | ConversationEvent::TurnRerunPrepared(_)
        | ConversationEvent::RunPrepared(_)
        | ConversationEvent::RunClaimed(_)
        | ConversationEvent::RunStopRequested(_)
        | ConversationEvent::InterruptRaised(_)
        | ConversationEvent::InterruptResolved(_)
        | ConversationEvent::InterruptCancelled(_)
        | ConversationEvent::ToolGrantGiven(_)
        | ConversationEvent::ToolGrantRevoked(_)
        | ConversationEvent::InterruptExpired(_) => None,
    }
}

async fn conversation_of(
    reader: &LedgerReader,
    run_id: &RunId,
    at: u64,
) -> Result<Option<ConversationId>, LedgerError> {
    for event_type in ["RunClaimed", "RunPrepared"] {
        let filter = EventFilter {
            run_id: Some(run_id.clone()),
            event_type: Some(event_type.to_owned()),
            ..EventFilter::default()
        };
        let found = reader.query(&filter, 0, 1).await?;
        if let Some(event) = found.first().filter(|event| event.position <= at) {
            return Ok(Some(event.stream.aggregate_id.as_str().into()));
        }
    }
    Ok(None)
}

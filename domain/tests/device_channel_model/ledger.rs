//! The model's ledger: what the stream of one call folds to, decided by the real aggregate.

use devmind_domain::Decider;
use devmind_domain::device_channel::server_call::Stands;
use devmind_domain::tool_call::*;
use serde_json::Value;

/// What the call's stream says, small enough to be a part of millions of states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub attempts: u8,
    timed_out: bool,
    taken_back: Option<(u8, CancelReason)>,
    pub result: Option<Reported>,
}

/// A report of the device, as far as the protocol is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reported {
    pub attempt_no: u8,
    pub status: ResultStatus,
    pub has_output: bool,
}

impl Ledger {
    /// How the call stands, for its caller.
    pub fn stands(&self) -> Stands {
        Stands::from(&self.unfold())
    }

    pub fn dispatch(&mut self) -> bool {
        let dispatch = Dispatch {
            request: request(),
            run_id: "".into(),
            node_id: "".into(),
            epoch: 1,
            connection_id: None,
            journal_id: Some(String::new()),
            wait_ms: 1,
            ttl_ms: 1,
            attempt_is_live: false,
            age_ms: 0,
        };
        self.execute(ToolCallCommand::Dispatch(Box::new(dispatch))).is_some()
    }

    pub fn time_out(&mut self, attempt_no: u32) {
        self.execute(ToolCallCommand::TimeOut { attempt_no, after_ms: 1 });
    }

    pub fn take_back(&mut self, reason: CancelReason) {
        self.execute(ToolCallCommand::Cancel { reason });
    }

    /// Records a report; `None` when the rules refuse it.
    pub fn record(&mut self, reported: Reported) -> Option<Disposition> {
        let result = recorded(reported);
        let reporter = Reporter::Device {
            user_id: "".into(),
            device_id: "".into(),
            journal_id: String::new(),
            connection_id: "".into(),
        };
        let disposition = self.unfold().disposition_of(&result);
        self.execute(ToolCallCommand::RecordResult { result: Box::new(result), reporter })?;
        Some(disposition)
    }

    /// Decides and folds; how many events it took, or `None` when refused.
    fn execute(&mut self, command: ToolCallCommand) -> Option<usize> {
        let mut call = self.unfold();
        let events = call.decide(command).ok()?;
        events.iter().for_each(|event| call.evolve(event));
        let small = |attempt_no: u32| u8::try_from(attempt_no).expect("few attempts");
        *self = Self {
            attempts: small(call.last_attempt()),
            timed_out: call.timed_out,
            taken_back: call.cancelled_attempt.map(|(attempt_no, reason)| (small(attempt_no), reason)),
            result: call.result.map(|result| Reported {
                attempt_no: small(result.executed_attempt_no),
                status: result.status,
                has_output: result.output.is_some(),
            }),
        };
        Some(events.len())
    }

    fn unfold(&self) -> ToolCall {
        let attempt = |attempt_no: u8| ToolDispatched {
            attempt_no: attempt_no.into(),
            run_id: "".into(),
            node_id: "".into(),
            epoch: 1,
            connection_id: None,
            journal_id: Some(String::new()),
            wait_ms: 1,
            ttl_ms: 1,
        };
        ToolCall {
            request: (self.attempts > 0).then(request),
            attempts: (1..=self.attempts).map(attempt).collect(),
            timed_out: self.timed_out,
            cancelled_attempt: self.taken_back.map(|(attempt_no, reason)| (attempt_no.into(), reason)),
            result: self.result.map(recorded),
            ..ToolCall::default()
        }
    }
}

fn request() -> ToolCallRequested {
    ToolCallRequested {
        conversation_id: "".into(),
        turn_id: "".into(),
        run_id: "".into(),
        user_id: "".into(),
        graph_thread_id: "".into(),
        model_call_id: String::new(),
        parent_tool_call_id: None,
        tool: String::new(),
        tool_version: String::new(),
        target: Target::Device,
        device_id: Some("".into()),
        arguments: Value::Null,
        call_hash: String::new(),
        risk: Risk::Low,
    }
}

fn recorded(reported: Reported) -> ToolResultRecorded {
    ToolResultRecorded {
        executed_attempt_no: reported.attempt_no.into(),
        status: reported.status,
        output: reported.has_output.then_some(Value::Null),
        output_sha256: None,
        error: None,
        started_at: None,
        finished_at: None,
        origin: ResultOrigin::Live,
        connection_id: None,
    }
}

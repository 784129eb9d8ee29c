//! One call under way on the device.

use crate::ErrorCode;
use crate::device_channel::Settlement;
use crate::tool_call::{Phase, ResultStatus};

/// What can happen to a call under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The same call was requested once more, as this attempt.
    Requested {
        /// The attempt.
        attempt_no: u32,
    },
    /// This attempt and earlier ones are not wanted.
    Cancelled {
        /// The attempt.
        attempt_no: u32,
    },
    /// The request is too old to begin.
    Expired,
    /// The program ends: nothing more begins.
    Stopping,
    /// [`Effect::LookUp`]: what the journal knows of the call.
    Found(Known),
    /// [`Effect::Admit`]: the call is young enough, and there is room for its result.
    Admitted,
    /// [`Effect::Examine`]: tool, arguments and paths are right, or not.
    Examined(Result<NeedsPerson, Failure>),
    /// [`Effect::Reserve`], [`Effect::Begin`] or [`Effect::BeginAtOnce`]: it is durable.
    Journalled,
    /// [`Effect::Ask`]: the question is closed.
    Answered(Answer),
    /// [`Effect::LookAgain`]: whether the file is still the one that was examined.
    LookedAgain(Result<Unchanged, Failure>),
    /// [`Effect::Execute`]: how the tool ended.
    Executed(Result<Settlement, Failure>),
    /// [`Effect::Settle`] or [`Effect::RecordVerdict`]: the row is settled, durably.
    Settled,
    /// The step under way cannot be done, which says nothing about the call: the device is busy, the
    /// journal is full or broken. Nothing is settled by it.
    Declined(ErrorCode),
}

/// Whether a person must be asked.
pub type NeedsPerson = bool;
/// Whether what was examined is still the same.
pub type Unchanged = bool;

/// What the journal knows of a call that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    No,
    /// Another call under the same id: other content, or somebody else's.
    AsAnother,
    /// It has ended, and how is stored.
    Settled,
    /// It has not ended and is not under way: a step could not be stored. Only a new start of the
    /// program settles it.
    Unfinished,
}

impl Known {
    /// What a row means for a request: `row` is the hash of its content and whom it belongs to, and
    /// whether it is settled.
    pub fn of<Owner: PartialEq>(row: Option<(&str, &Owner, bool)>, call_hash: &str, owner: &Owner) -> Self {
        match row {
            None => Self::No,
            Some((own_hash, own, _)) if own_hash != call_hash || own != owner => Self::AsAnother,
            Some((.., true)) => Self::Settled,
            Some((.., false)) => Self::Unfinished,
        }
    }
}

/// A person's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes, this once.
    Allow,
    /// No.
    Deny,
    /// Nobody answered, or nobody could be asked.
    NoAnswer,
}

/// Why a check or the tool failed: a stable code, and words for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub code: ErrorCode,
    /// The words.
    pub message: String,
}

/// What is to be done, in this order. An effect that leads to an input is the last but for what is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Find the call in the journal → [`Input::Found`].
    LookUp,
    /// See whether a call of that age may be taken, and whether there is room → [`Input::Admitted`].
    Admit,
    /// Tool, arguments and hash, paths; open what is needed and keep it → [`Input::Examined`].
    Examine,
    /// Reserve and settle in one durable step → [`Input::Settled`].
    RecordVerdict(Settlement),
    /// Make the call known, durably → [`Input::Journalled`].
    Reserve,
    /// Ask the person → [`Input::Answered`].
    Ask,
    /// See whether what was examined is unchanged → [`Input::LookedAgain`].
    LookAgain,
    /// Note, durably, that the execution begins → [`Input::Journalled`].
    Begin,
    /// Make the call known and note that its execution begins, in one durable step → [`Input::Journalled`]. Where
    /// nobody is asked nothing happens between the two.
    BeginAtOnce,
    /// Execute → [`Input::Executed`].
    Execute,
    /// End the call in the journal, durably → [`Input::Settled`].
    Settle(Settlement),
    /// Close the question, give up looking: their input is no longer waited for.
    Interrupt,
    /// Tell the tool to stop. Its input is still waited for.
    Abort,
    /// Say this to whom asked last.
    Say(Said),
    /// The settled row waits to be sent: tell whoever sends results.
    Announce,
    /// The call is no longer under way.
    End,
}

impl Effect {
    /// What is done, in words.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::LookUp => "look up",
            Self::Admit => "admit",
            Self::Examine => "examine",
            Self::RecordVerdict(_) => "record verdict",
            Self::Reserve => "reserve",
            Self::Ask => "ask",
            Self::LookAgain => "look again",
            Self::Begin => "begin",
            Self::BeginAtOnce => "begin at once",
            Self::Execute => "execute",
            Self::Settle(_) => "settle",
            Self::Interrupt => "interrupt",
            Self::Abort => "abort",
            Self::Say(_) => "say",
            Self::Announce => "announce",
            Self::End => "end",
        }
    }
}

/// What is said about a call besides its result, which is sent from the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// How far it has got.
    Received {
        /// The attempt.
        attempt_no: u32,
        /// How far.
        phase: Phase,
    },
    /// The attempt ends with this code; the call is not settled by it.
    Refused {
        /// The attempt.
        attempt_no: u32,
        /// The code.
        code: ErrorCode,
    },
    /// The result that the journal has, again.
    StoredResult,
}

/// What the call waits for; each is the input of the effect of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Awaits {
    LookUp,
    Admission,
    Examination,
    Reservation,
    Answer,
    SecondLook,
    Beginning,
    Execution,
    Settlement,
    /// It has ended.
    Nothing,
}

/// One call under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCall {
    awaits: Awaits,
    /// The newest attempt that this execution answers.
    attempt_no: u32,
    /// The newest attempt that is not wanted; 0 where all are.
    cancelled_up_to: u32,
    /// How far the server was told that it has got; `None` while it is judged.
    phase: Option<Phase>,
    is_expired: bool,
    is_stopping: bool,
}

impl DeviceCall {
    /// A call that was just requested as this attempt; attempts up to `cancelled_up_to` were taken
    /// back before.
    pub fn requested(attempt_no: u32, cancelled_up_to: u32) -> (Self, Vec<Effect>) {
        let call = Self {
            awaits: Awaits::LookUp,
            attempt_no,
            cancelled_up_to,
            phase: None,
            is_expired: false,
            is_stopping: false,
        };
        // Check 6 looks before checks 2 to 5 judge: a repeated call always gets its first verdict.
        (call, vec![Effect::LookUp])
    }

    /// Whether it is no longer under way.
    pub fn has_ended(&self) -> bool {
        self.awaits == Awaits::Nothing
    }

    /// The newest attempt that it answers.
    pub fn attempt_no(&self) -> u32 {
        self.attempt_no
    }

    /// The next state, and what is to be done. An input that is not waited for does nothing.
    pub fn step(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::Requested { attempt_no } => self.joined(attempt_no),
            Input::Cancelled { attempt_no } => {
                self.cancelled_up_to = self.cancelled_up_to.max(attempt_no);
                self.interrupted()
            }
            Input::Expired => {
                self.is_expired = true;
                self.interrupted()
            }
            Input::Stopping => {
                self.is_stopping = true;
                self.interrupted()
            }
            other => self.advance(other),
        }
    }

    /// A repeated request is answered by what is under way; a newer attempt of it is wanted, even if
    /// an earlier one was taken back.
    fn joined(&mut self, attempt_no: u32) -> Vec<Effect> {
        self.attempt_no = self.attempt_no.max(attempt_no);
        self.phase.map(|phase| Effect::Say(Said::Received { attempt_no, phase })).into_iter().collect()
    }

    /// Something that may end the call came while it waits.
    fn interrupted(&mut self) -> Vec<Effect> {
        match self.awaits {
            Awaits::Answer | Awaits::SecondLook => match self.unwanted() {
                None => vec![],
                // The question closes, and that is not the person's no.
                Some(settlement) => {
                    let mut effects = vec![Effect::Interrupt];
                    effects.extend(self.settle(settlement));
                    effects
                }
            },
            Awaits::Execution if self.is_taken_back() => vec![Effect::Abort],
            // What is being written is written first; the next step looks whether it is wanted.
            Awaits::LookUp
            | Awaits::Admission
            | Awaits::Examination
            | Awaits::Reservation
            | Awaits::Beginning
            | Awaits::Execution
            | Awaits::Settlement
            | Awaits::Nothing => vec![],
        }
    }

    /// The outcome of the effect that the call waits for.
    fn advance(&mut self, input: Input) -> Vec<Effect> {
        match (self.awaits, input) {
            (Awaits::Nothing, _) => vec![],
            (_, Input::Declined(code)) => self.end(Some(Said::Refused { attempt_no: self.attempt_no, code })),
            (Awaits::LookUp, Input::Found(known)) => self.found(known),
            (Awaits::Admission, Input::Admitted) => self.await_for(Awaits::Examination, Effect::Examine),
            (Awaits::Examination, Input::Examined(Err(failure))) => self.verdict(failure.into_rejection()),
            (Awaits::Examination, Input::Examined(Ok(_))) if self.is_expired => self.verdict(Settlement::expired()),
            (Awaits::Examination, Input::Examined(Ok(true))) => self.await_for(Awaits::Reservation, Effect::Reserve),
            // Nobody is asked, so nothing was shown that could have changed since it was opened.
            (Awaits::Examination, Input::Examined(Ok(false))) => match self.unwanted() {
                Some(settlement) => self.verdict(settlement),
                None => self.await_for(Awaits::Beginning, Effect::BeginAtOnce),
            },
            (Awaits::Reservation, Input::Journalled) => {
                let mut effects = vec![self.enter(Phase::Reserved)];
                effects.extend(match self.unwanted() {
                    Some(settlement) => self.settle(settlement),
                    None => {
                        let confirming = self.enter(Phase::Confirming);
                        self.awaits = Awaits::Answer;
                        vec![confirming, Effect::Ask]
                    }
                });
                effects
            }
            // A question that closes because the call is not wanted comes back unanswered.
            (Awaits::Answer, Input::Answered(answer)) => match (self.unwanted(), answer) {
                (Some(settlement), _) => self.settle(settlement),
                (None, Answer::Allow) => self.await_for(Awaits::SecondLook, Effect::LookAgain),
                (None, Answer::Deny) => self
                    .settle(Settlement::rejected(ErrorCode::ConfirmationRejected, "the person at the device said no")),
                (None, Answer::NoAnswer) => {
                    self.settle(Settlement::rejected(ErrorCode::ConfirmationExpired, "nobody answered at the device"))
                }
            },
            (Awaits::SecondLook, Input::LookedAgain(Err(failure))) => self.settle(failure.into_rejection()),
            (Awaits::SecondLook, Input::LookedAgain(Ok(false))) => self
                .settle(Settlement::rejected(ErrorCode::FileChanged, "the file changed while the question was open")),
            (Awaits::SecondLook, Input::LookedAgain(Ok(true))) => match self.unwanted() {
                Some(settlement) => self.settle(settlement),
                None => self.await_for(Awaits::Beginning, Effect::Begin),
            },
            // The journal says that it begins, and it has not: there is still time to say no.
            (Awaits::Beginning, Input::Journalled) => match self.unwanted() {
                Some(settlement) => self.settle(settlement),
                None => {
                    let executing = self.enter(Phase::Executing);
                    self.awaits = Awaits::Execution;
                    vec![executing, Effect::Execute]
                }
            },
            (Awaits::Execution, Input::Executed(Ok(settlement))) => self.settle(settlement),
            (Awaits::Execution, Input::Executed(Err(failure))) => self.settle(failure.into_end_of_execution()),
            (Awaits::Settlement, Input::Settled) => {
                self.awaits = Awaits::Nothing;
                vec![Effect::Announce, Effect::End]
            }
            // The outcome of an effect that was interrupted.
            (_, _) => vec![],
        }
    }

    fn found(&mut self, known: Known) -> Vec<Effect> {
        let refused = |code| Some(Said::Refused { attempt_no: self.attempt_no, code });
        match known {
            Known::No => self.await_for(Awaits::Admission, Effect::Admit),
            Known::AsAnother => self.end(refused(ErrorCode::IdempotencyConflict)),
            Known::Settled => self.end(Some(Said::StoredResult)),
            Known::Unfinished => self.end(refused(ErrorCode::DeviceJournalFailed)),
        }
    }

    fn await_for(&mut self, awaits: Awaits, effect: Effect) -> Vec<Effect> {
        self.awaits = awaits;
        vec![effect]
    }

    fn verdict(&mut self, settlement: Settlement) -> Vec<Effect> {
        self.await_for(Awaits::Settlement, Effect::RecordVerdict(settlement))
    }

    fn settle(&mut self, settlement: Settlement) -> Vec<Effect> {
        self.await_for(Awaits::Settlement, Effect::Settle(settlement))
    }

    fn enter(&mut self, phase: Phase) -> Effect {
        self.phase = Some(phase);
        Effect::Say(Said::Received { attempt_no: self.attempt_no, phase })
    }

    fn end(&mut self, said: Option<Said>) -> Vec<Effect> {
        self.awaits = Awaits::Nothing;
        said.map(Effect::Say).into_iter().chain([Effect::End]).collect()
    }

    /// How the call ends if it may no longer begin.
    fn unwanted(&self) -> Option<Settlement> {
        if self.is_taken_back() {
            Some(Settlement::taken_back())
        } else if self.is_stopping {
            Some(Settlement::not_executed())
        } else if self.is_expired {
            Some(Settlement::expired())
        } else {
            None
        }
    }

    fn is_taken_back(&self) -> bool {
        self.attempt_no <= self.cancelled_up_to
    }
}

impl Failure {
    /// A check failed: the call did not run, and never will.
    fn into_rejection(self) -> Settlement {
        Settlement::rejected(self.code, self.message)
    }

    fn into_end_of_execution(self) -> Settlement {
        if self.code == ErrorCode::CancelledByServer {
            return Settlement::taken_back();
        }
        Settlement::without_success(ResultStatus::Failed, self.code, self.message)
    }
}

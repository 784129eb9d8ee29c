//! The stable codes of every refusal: one table for the code's text, its HTTP status, whether
//! trying again can help, and what a person can do.
//!
//! A code is never renamed. Clients, models and scripts match on it; messages may change.

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $status:literal, $retriable:literal, $help:literal;)*) => {
        /// A stable error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the help text says it")]
        pub enum ErrorCode { $($(#[$doc])* $name),* }

        impl ErrorCode {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The code as text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code),* }
            }
            /// The HTTP status it travels with.
            pub const fn http_status(self) -> u16 {
                match self { $(Self::$name => $status),* }
            }
            /// Whether the same request may succeed later.
            pub const fn retriable(self) -> bool {
                match self { $(Self::$name => $retriable),* }
            }
            /// What a person can do about it.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$name => $help),* }
            }
        }
    };
}

error_codes! {
    // Requests.
    ValidationFailed = "VALIDATION_FAILED", 422, false, "correct the named field";
    MalformedJson = "MALFORMED_JSON", 400, false, "send one JSON object with Content-Type: application/json";
    BodyTooLarge = "BODY_TOO_LARGE", 413, false, "send a smaller body";
    RequestTimeout = "REQUEST_TIMEOUT", 408, true, "send the whole body in one go";
    NotFound = "NOT_FOUND", 404, false, "check the id or the path";
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, false, "use the method that the README names for this path";
    Unauthenticated = "UNAUTHENTICATED", 401, false, "say who you are: X-Dev-User: NAME in development mode";
    Forbidden = "FORBIDDEN", 403, false, "this belongs to somebody else";
    ReadOnlyRole = "READ_ONLY_ROLE", 403, false, "an auditor reads everything and changes nothing: ask as a user";
    RateLimited = "RATE_LIMITED", 429, true, "wait a minute";
    ShuttingDown = "SHUTTING_DOWN", 503, true, "the server is stopping; try again when it is back";
    NotReady = "NOT_READY", 503, true, "the server is starting or catching up; try again";
    CollectorRefused = "COLLECTOR_REFUSED", 502, true, "check the collector's address and headers; sending a run again adds nothing twice";
    Internal = "INTERNAL", 500, true, "see the server's log for this time";

    // Conversations, turns and runs.
    ConversationNotFound = "CONVERSATION_NOT_FOUND", 404, false, "check conversation_id";
    RunNotFound = "RUN_NOT_FOUND", 404, false, "check runId: it is the run_id that POST /api/turns answered";
    RunNotReplayable = "RUN_NOT_REPLAYABLE", 409, false, "`devmind-replay timeline` shows what the log has of the run";
    EventRedacted = "EVENT_REDACTED", 410, false, "what it said was erased on purpose; `verify` and `timeline` show what is left";
    RunInProgress = "RUN_IN_PROGRESS", 409, true, "wait for the latest turn to end, or stop it";
    TurnWaitingApproval = "TURN_WAITING_APPROVAL", 409, true, "answer the open approval first";
    TurnNotLatest = "TURN_NOT_LATEST", 409, false, "only the latest turn can be edited or retried";
    TurnNotFound = "TURN_NOT_FOUND", 404, false, "check turn_id";
    InterruptNotFound = "INTERRUPT_NOT_FOUND", 404, false, "check interrupt_id: read the turn again for its open approvals";
    InterruptAlreadyResolved = "INTERRUPT_ALREADY_RESOLVED", 409, false, "the approval was answered the other way; the first answer counts";
    InterruptClosed = "INTERRUPT_CLOSED", 409, false, "the approval is no longer open; read the turn again";
    InterruptExpired = "INTERRUPT_EXPIRED", 409, false, "the time to answer is over; continue the run or ask anew";
    InterruptMismatch = "INTERRUPT_MISMATCH", 400, false, "resume[].interruptId must name the approvals that were answered";
    GrantRefused = "GRANT_REFUSED", 409, false, "answer this approval alone; the message says why it cannot count for the whole conversation";
    GrantNotFound = "GRANT_NOT_FOUND", 404, false, "check grant_id: read the conversation's permissions again";
    RunAlreadyClaimed = "RUN_ALREADY_CLAIMED", 409, false, "a run is executed once; ask a new question";
    RunNotActive = "RUN_NOT_ACTIVE", 409, false, "the run has ended, or another server process owns it";
    RunMismatch = "RUN_MISMATCH", 400, false, "threadId must be the conversation_id that the run belongs to";
    MessageMismatch = "MESSAGE_MISMATCH", 400, false, "send one user message whose id is user_message_id";
    IdempotencyConflict = "IDEMPOTENCY_CONFLICT", 409, false, "this key was used for another request: use a new key";
    Stopped = "STOPPED", 409, false, "the user stopped the run";
    ClientDisconnected = "CLIENT_DISCONNECTED", 499, false, "the client went away, which stops a run";
    Abandoned = "ABANDONED", 409, false, "a newer question replaced this run before it began";
    ServerRestarted = "SERVER_RESTARTED", 500, false, "the server was restarted while this ran; ask again";

    // Models.
    ModelAuthFailed = "MODEL_AUTH_FAILED", 502, false, "check MODEL_API_KEY";
    ModelRateLimited = "MODEL_RATE_LIMITED", 502, true, "the model's provider limits you; wait and ask again";
    ModelRefused = "MODEL_REFUSED", 502, false, "the provider refused the request; check MODEL_NAME and the server's log";
    ModelUnreachable = "MODEL_UNREACHABLE", 502, true, "check MODEL_BASE_URL and that the endpoint is up";
    ModelUnavailable = "MODEL_UNAVAILABLE", 502, true, "the provider failed; try again later";
    ModelTimeout = "MODEL_TIMEOUT", 504, true, "the model was silent for too long; try again";
    ModelStreamCut = "MODEL_STREAM_CUT", 502, true, "the model's answer broke off; what had come is kept";
    ModelAnswerTooLarge = "MODEL_ANSWER_TOO_LARGE", 502, false, "the model wrote more than one answer may hold";
    ModelRoundLimit = "MODEL_ROUND_LIMIT", 500, false, "the model kept calling tools; ask a narrower question";

    // The tool pipeline (specification of tools).
    UnknownTool = "UNKNOWN_TOOL", 404, false, "call one of the tools that were offered";
    InvalidArguments = "INVALID_ARGUMENTS", 422, false, "send arguments that match the tool's schema";
    ApprovalRequired = "APPROVAL_REQUIRED", 409, false, "a person must decide";
    ApprovalGiven = "APPROVAL_GIVEN", 409, false, "a person allowed exactly this call";
    ApprovalRejected = "APPROVAL_REJECTED", 403, false, "a person said no to this call";
    ApprovalExpired = "APPROVAL_EXPIRED", 403, false, "nobody decided in time; this is not a refusal";
    ApprovalUnavailable = "APPROVAL_UNAVAILABLE", 403, false, "a person would have to decide, and nobody can be asked here";
    ToolAllowed = "TOOL_ALLOWED", 409, false, "a policy, a permission for the conversation or the tool itself allows the call";
    ToolDenied = "TOOL_DENIED", 403, false, "a policy refuses this call; asking again changes nothing";
    PolicyFailed = "POLICY_FAILED", 500, false, "a policy has a fault, and what it cannot judge is refused; the server's log says more";
    ApprovalCancelled = "APPROVAL_CANCELLED", 403, false, "the approval was taken back before anybody decided";
    GuardRefused = "GUARD_REFUSED", 403, false, "a check right before the call was begun refused it; the event of the refusal names it";
    BlockedByPolicy = "BLOCKED_BY_POLICY", 403, false, "a policy holds back what came of the call; its words say why";
    Aborted = "ABORTED", 409, false, "the tool ran to its end while the run was stopped; what it gave is in the log";
    ToolNotStarted = "TOOL_NOT_STARTED", 409, false, "the run ended before this call was begun";
    ToolLimitReached = "TOOL_LIMIT_REACHED", 429, false, "a run may use a limited number of tools; answer with what there is";
    ExecutionFailed = "EXECUTION_FAILED", 500, false, "the tool failed; its message says why";
    InvalidToolOutput = "INVALID_TOOL_OUTPUT", 500, false, "the tool ran and gave a value of another shape than it promises; the value is in the log";
    RenderFailed = "RENDER_FAILED", 500, false, "the tool ran and its value could not be shown; the value is in the log";
    ToolTimeout = "TOOL_TIMEOUT", 504, true, "no result came in time; a late one is still recorded";
    ResultUnknown = "RESULT_UNKNOWN", 503, false, "it is not known whether the tool ran; the device's report will settle it";
    McpUnavailable = "MCP_UNAVAILABLE", 503, true, "the MCP server is away and is being started again; nothing was sent to it";
    ToolChanged = "TOOL_CHANGED", 409, false, "the tool is not what it was when it was offered or allowed, or is gone: ask again";
    RunCancelled = "RUN_CANCELLED", 409, false, "the run was stopped while the tool was under way";
    AbortedBeforeDispatch = "ABORTED_BEFORE_DISPATCH", 409, false, "the run was stopped before the tool was sent anywhere";

    // Calling a device.
    DesktopDeviceNotSelected = "DESKTOP_DEVICE_NOT_SELECTED", 409, false, "send device_id with the question";
    DeviceOffline = "DEVICE_OFFLINE", 409, true, "start devmind-device on that computer";
    ToolNotAvailable = "TOOL_NOT_AVAILABLE", 409, false, "the device does not offer this tool in this version";
    DeviceChanged = "DEVICE_CHANGED", 409, false, "the call belongs to another device or another journal of it";
    CallTooOld = "CALL_TOO_OLD", 409, false, "the device no longer remembers calls of that age; ask again";

    // The device's answers.
    DeviceMismatch = "DEVICE_MISMATCH", 403, false, "the request names another device";
    AbsolutePathDenied = "ABSOLUTE_PATH_DENIED", 403, false, "use a path relative to the workspace";
    PathOutOfScope = "PATH_OUT_OF_SCOPE", 403, false, "the path leaves the workspace";
    SensitivePathDenied = "SENSITIVE_PATH_DENIED", 403, false, "files of this name hold secrets and are never read";
    PathNotFound = "PATH_NOT_FOUND", 404, false, "list the folder to see what there is";
    NotAFile = "NOT_A_FILE", 422, false, "only regular files can be read and only folders listed";
    RequestExpired = "REQUEST_EXPIRED", 410, false, "the request was too old to begin";
    ConfirmationRejected = "CONFIRMATION_REJECTED", 403, false, "the person at the device said no";
    ConfirmationExpired = "CONFIRMATION_EXPIRED", 403, false, "nobody answered at the device";
    CancelledByServer = "CANCELLED_BY_SERVER", 409, false, "the server took the request back before it began";
    FileChanged = "FILE_CHANGED", 409, true, "the file changed while its confirmation was open; ask again";
    ExecutionTimeout = "EXECUTION_TIMEOUT", 504, false, "the tool took too long on the device";
    FileTooLarge = "FILE_TOO_LARGE", 413, false, "read the file in parts with offset and max_bytes";
    NotText = "NOT_TEXT", 422, false, "only UTF-8 text can be read";
    IoError = "IO_ERROR", 500, true, "the device's disk refused; its log says why";
    ResultTooLarge = "RESULT_TOO_LARGE", 413, false, "ask for less at once";
    NotExecuted = "NOT_EXECUTED", 409, false, "the device program ended before it began the call";
    DeviceRestarted = "DEVICE_RESTARTED", 500, false, "the device program ended while executing: whether the call took effect is not known";
    OutputNotStored = "OUTPUT_NOT_STORED", 500, false, "the device's disk was full: the call ran, its output is lost";
    DeviceBusy = "DEVICE_BUSY", 503, true, "the device has too much to do; try again";
    DeviceJournalFull = "DEVICE_JOURNAL_FULL", 503, true, "free disk space on the device";
    DeviceJournalFailed = "DEVICE_JOURNAL_FAILED", 503, false, "restart the device program: its journal could not be written";

    WorkspaceReplaced = "WORKSPACE_REPLACED", 409, false, "the workspace's folder was moved, replaced or removed: start the device program again";
    AnsweredTooSoon = "ANSWERED_TOO_SOON", 409, true, "read the question first, then answer";
    QuestionClosed = "QUESTION_CLOSED", 409, false, "the question is no longer open: it was answered, taken back, or its time is over";

    // The device channel.
    TicketInvalid = "TICKET_INVALID", 401, false, "ask for a new ticket: it is unknown, used or expired";
    OriginDenied = "ORIGIN_DENIED", 403, false, "a browser page may not open the device socket";
    Protocol = "PROTOCOL_ERROR", 400, false, "the peer sent something the protocol does not know";
    DeviceReplaced = "DEVICE_REPLACED", 409, false, "another program took over as this device; start this one again to take over here";
    JournalRolledBack = "JOURNAL_ROLLED_BACK", 403, false, "the device's state folder was restored from a copy: remove it to start a new device";

    // Starting up.
    WorkspaceNotFound = "WORKSPACE_NOT_FOUND", 400, false, "name an existing folder with --workspace";
    WorkspaceRefused = "WORKSPACE_REFUSED", 400, false, "name a project folder: not the root of a disk, not your home";
    NodeIdInUse = "NODE_ID_IN_USE", 500, false, "another server process of this name is running: give this one its own --node-id NAME, or stop the other";
    NodeLost = "NODE_LOST", 500, false, "this process did not renew its lease in time and others count it as lost: start it again";
    AddressInUse = "ADDRESS_IN_USE", 500, false, "another program listens there: choose another --listen ADDR, or stop it";
    AddressInvalid = "ADDRESS_INVALID", 400, false, "give --listen as IP:PORT, for example 127.0.0.1:8787";
    ConfigInvalid = "CONFIG_INVALID", 400, false, "correct the named setting";
    StateLocked = "STATE_LOCKED", 500, false, "another process uses this folder: stop it, or choose another folder";
    LedgerCorrupt = "LEDGER_CORRUPT", 500, false, "keep the file as it is and restore a copy; devmind-replay verify says where it breaks";
    LedgerForked = "LEDGER_FORKED", 409, false, "the log is not the one whose head was seen before: it was restored from a copy, rewritten or replaced; ask who runs it, and keep both signed heads";
    WitnessRefused = "WITNESS_REFUSED", 502, true, "check the witness's address and key, and that it watches this log";
    LedgerSchemaNewer = "LEDGER_SCHEMA_NEWER", 500, false, "a newer version made this file: upgrade this program";
    LedgerUnavailable = "LEDGER_UNAVAILABLE", 503, true, "check the disk (free space, permissions) or the database (does it run, can it be reached?)";
    LedgerNotDurable = "LEDGER_NOT_DURABLE", 500, false, "set fsync, full_page_writes and synchronous_commit to on in PostgreSQL, or accept the loss with --accept-data-loss";
    LedgerOverloaded = "LEDGER_OVERLOADED", 503, true, "too many writes wait; try again";
    LedgerInDoubt = "LEDGER_IN_DOUBT", 503, true, "it is not known whether this was stored; ask again with the same idempotency key";
    EventTooLarge = "EVENT_TOO_LARGE", 413, false, "one event may not be that large";
    VersionConflict = "VERSION_CONFLICT", 409, true, "somebody else changed this at the same time; try again";
    ServerUnreachable = "SERVER_UNREACHABLE", 503, true, "check --server and that the server is up";
}

impl ErrorCode {
    /// The code with this text.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::RunCancelReason;

    #[test]
    fn codes_are_distinct_upper_case_words_with_help() {
        let mut seen = std::collections::BTreeSet::new();
        for code in ErrorCode::ALL {
            assert!(seen.insert(code.as_str()), "{code} stands twice");
            assert!(code.as_str().chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{code}");
            assert!(!code.help().is_empty() && (400..600).contains(&code.http_status()), "{code}");
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
        }
    }

    #[test]
    fn every_code_that_the_specification_names_for_what_is_built_is_in_the_table() {
        let conversations = "VALIDATION_FAILED RUN_IN_PROGRESS TURN_WAITING_APPROVAL IDEMPOTENCY_CONFLICT RUN_MISMATCH \
            RUN_ALREADY_CLAIMED MESSAGE_MISMATCH CLIENT_DISCONNECTED STOPPED ABANDONED SERVER_RESTARTED";
        let calling_a_device = "DESKTOP_DEVICE_NOT_SELECTED DEVICE_OFFLINE TOOL_NOT_AVAILABLE DEVICE_CHANGED \
            RESULT_UNKNOWN RUN_CANCELLED";
        let refused = "DEVICE_MISMATCH IDEMPOTENCY_CONFLICT CALL_TOO_OLD DEVICE_BUSY DEVICE_JOURNAL_FULL";
        let device_answers = "INVALID_ARGUMENTS ABSOLUTE_PATH_DENIED PATH_OUT_OF_SCOPE SENSITIVE_PATH_DENIED \
            PATH_NOT_FOUND NOT_A_FILE REQUEST_EXPIRED CONFIRMATION_REJECTED CONFIRMATION_EXPIRED CANCELLED_BY_SERVER \
            FILE_CHANGED EXECUTION_TIMEOUT FILE_TOO_LARGE NOT_TEXT IO_ERROR RESULT_TOO_LARGE NOT_EXECUTED \
            DEVICE_RESTARTED OUTPUT_NOT_STORED JOURNAL_ROLLED_BACK";
        let pipeline = "UNKNOWN_TOOL INVALID_ARGUMENTS TOOL_DENIED APPROVAL_REJECTED APPROVAL_EXPIRED APPROVAL_CANCELLED \
            APPROVAL_UNAVAILABLE GUARD_REFUSED TOOL_TIMEOUT ABORTED_BEFORE_DISPATCH ABORTED INVALID_TOOL_OUTPUT \
            RENDER_FAILED BLOCKED_BY_POLICY TOOL_NOT_STARTED TOOL_LIMIT_REACHED RESULT_UNKNOWN EXECUTION_FAILED";
        for code in [conversations, calling_a_device, refused, device_answers, pipeline].map(str::split_whitespace) {
            code.for_each(|code| assert!(ErrorCode::parse(code).is_some(), "{code} is not in the table"));
        }
        for reason in [RunCancelReason::Stopped, RunCancelReason::ClientDisconnected, RunCancelReason::Abandoned] {
            assert!(ErrorCode::parse(reason.as_str()).is_some(), "{}", reason.as_str());
        }
        assert_eq!(ErrorCode::parse("NO_SUCH_CODE"), None);
    }

    #[test]
    fn codes_travel_with_the_statuses_that_the_specification_names() {
        for (code, status) in [
            (ErrorCode::Unauthenticated, 401),
            (ErrorCode::Forbidden, 403),
            (ErrorCode::NotFound, 404),
            (ErrorCode::ConversationNotFound, 404),
            (ErrorCode::RunNotFound, 404),
            (ErrorCode::RunInProgress, 409),
            (ErrorCode::TurnWaitingApproval, 409),
            (ErrorCode::IdempotencyConflict, 409),
            (ErrorCode::RunAlreadyClaimed, 409),
            (ErrorCode::RunMismatch, 400),
            (ErrorCode::MessageMismatch, 400),
            (ErrorCode::BodyTooLarge, 413),
            (ErrorCode::ValidationFailed, 422),
            (ErrorCode::NotReady, 503),
            (ErrorCode::ShuttingDown, 503),
        ] {
            assert_eq!(code.http_status(), status, "{code}");
        }
    }
}

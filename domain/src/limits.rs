//! Every limit of the product, with its unit in the name. What has no limit here has one where it
//! is used; nothing is unlimited.

/// Characters of a question, at most.
pub const MAX_CONTENT_CHARS: usize = 32_000;
/// Characters of a conversation's title, at most.
pub const MAX_TITLE_CHARS: usize = 50;
/// Characters of an idempotency key, at most.
pub const MAX_IDEMPOTENCY_KEY_CHARS: usize = 200;
/// Characters of an id that a client sends, at most.
pub const MAX_CLIENT_ID_CHARS: usize = 200;
/// Characters of a model's own id of a tool call, at most; with the thread's id before it, it still
/// is an id that a client can send back ([`MAX_CLIENT_ID_CHARS`]).
pub const MAX_MODEL_CALL_ID_CHARS: usize = 100;
/// Earlier turns in a prompt, at most.
pub const CONTEXT_TURNS: usize = 20;
/// Tool calls of one run that are carried out, at most; later ones get `TOOL_LIMIT_REACHED`.
pub const MAX_TOOL_CALLS_PER_RUN: u32 = 16;
/// Bytes of a call's arguments as canonical JSON, at most: a frame to a device holds them.
pub const MAX_TOOL_ARGUMENTS_BYTES: usize = MAX_REQUEST_FRAME_BYTES / 2;
/// Bytes of what a tool in the server gives, as canonical JSON, at most.
pub const MAX_TOOL_OUTPUT_BYTES: usize = 4 << 20;
/// Bytes of the text that the model sees of one call, as JSON writes them, at most: an event holds it.
pub const MAX_TOOL_CONTENT_JSON_BYTES: usize = MAX_PAYLOAD_BYTES - (64 << 10);
/// Characters of what a tool in the server says about its failure, at most; the rest is cut off.
pub const MAX_TOOL_MESSAGE_CHARS: usize = 8_000;
/// Times that a tool may be run again, at most.
pub const MAX_TOOL_RETRIES: u32 = 5;
/// Tool calls of one message that are under way at once, at most.
pub const MAX_PARALLEL_CALLS: usize = 10;
/// What one tool call leaves for the model after all results of its message: messages, and bytes of them all, at most.
pub const MAX_DEFERRED_CONTEXTS: usize = 8;
/// See [`MAX_DEFERRED_CONTEXTS`].
pub const MAX_DEFERRED_BYTES: usize = 64 << 10;
/// Steps of calls that a device carries out at once, at most, and so calls of one message that it is sent at once.
pub const DEVICE_SLOTS: usize = 4;
/// Questions to the model in one run, at most.
pub const MAX_MODEL_ROUNDS_PER_RUN: u32 = 24;
/// Bytes of one model answer (text and arguments together), at most.
pub const MAX_MODEL_ANSWER_BYTES: usize = 1 << 20;
/// Bytes of the text that a run which ends early records in its last event, as JSON writes them, at most: half of what
/// an event may hold.
pub const MAX_PARTIAL_TEXT_JSON_BYTES: usize = 4 << 20;
/// Characters of the name of a computer or of its workspace, at most.
pub const MAX_DEVICE_NAME_CHARS: usize = 100;
/// Conversations in a list, at most.
pub const MAX_LISTED_CONVERSATIONS: u32 = 100;
/// Bytes of one event's payload, at most.
pub const MAX_PAYLOAD_BYTES: usize = 8 << 20;
/// Bytes of an HTTP request's body, at most …
pub const MAX_BODY_BYTES: usize = 64 << 10;
/// … where it holds a question, whose characters JSON may write with twelve bytes each, or the messages
/// of a client's whole thread.
pub const MAX_QUESTION_BODY_BYTES: usize = 1 << 20;
/// Nesting of JSON from outside, at most.
pub const MAX_JSON_DEPTH: usize = 32;

/// Streamed text is appended to the thread at least this often (milliseconds) …
pub const PROGRESS_INTERVAL_MS: u64 = 500;
/// … or when this many bytes have come.
pub const PROGRESS_BYTES: usize = 2 << 10;
/// Wait for a model's first byte (milliseconds).
pub const MODEL_FIRST_BYTE_MS: u64 = 60_000;
/// Silence allowed within a model's answer (milliseconds).
pub const MODEL_IDLE_MS: u64 = 120_000;
/// A model is asked this often in one round, at most: again only before anything of its answer came.
pub const MAX_MODEL_TRIES: u32 = 3;
/// The longest wait before a model is asked a second time (milliseconds); it doubles …
pub const MODEL_BACKOFF_MS: u64 = 500;
/// … up to this.
pub const MODEL_BACKOFF_CAP_MS: u64 = 8_000;
/// A model that wants to be left alone for longer (milliseconds) is not asked again.
pub const MODEL_RETRY_AFTER_MS: u64 = 30_000;
/// Tokens of an answer, at most, where the provider wants a limit and none is configured.
pub const MODEL_MAX_TOKENS: u32 = 8_192;
/// Bytes of one streamed answer with everything around its text, at most.
pub const MAX_MODEL_STREAM_BYTES: usize = 64 << 20;
/// Bytes of one line of a streamed answer, at most.
pub const MAX_MODEL_LINE_BYTES: usize = 8 << 20;
/// Bytes that are read of a refusal.
pub const MAX_MODEL_REFUSAL_BYTES: usize = 64 << 10;

/// A person may take this long to answer an approval, unless configured otherwise (milliseconds).
pub const APPROVAL_LIFETIME_MS: i64 = 86_400_000;

/// A ticket's life (milliseconds).
pub const TICKET_TTL_MS: i64 = 60_000;
/// Tickets a user may ask for in a minute.
pub const TICKETS_PER_MINUTE: u32 = 10;
/// Unused tickets a device's stream remembers, at most; the oldest are forgotten (and refused).
pub const MAX_OPEN_TICKETS: usize = 5;

/// A device must register within this time of the upgrade (milliseconds).
pub const REGISTER_WITHIN_MS: u64 = 10_000;
/// Heartbeats are sent this often (milliseconds).
pub const HEARTBEAT_INTERVAL_MS: u64 = 15_000;
/// A peer that completes no message for this long is gone (milliseconds).
pub const SILENCE_MS: u64 = 45_000;
/// One frame must leave within this time (milliseconds).
pub const SEND_DEADLINE_MS: u64 = 5_000;
/// Frames that wait for a socket's writer, at most.
pub const SEND_QUEUE_FRAMES: usize = 64;
/// Bytes of a frame before the device has registered, at most.
pub const MAX_UNREGISTERED_FRAME_BYTES: usize = 4 << 10;
/// Bytes of a frame from server to device, at most.
pub const MAX_REQUEST_FRAME_BYTES: usize = 1 << 20;
/// Bytes of a frame from device to server, at most.
pub const MAX_RESULT_FRAME_BYTES: usize = 4 << 20;
/// Tools a device may register, at most.
pub const MAX_DEVICE_TOOLS: usize = 64;
/// Unacknowledged results in flight after a reconnect, at most.
pub const RESULTS_IN_FLIGHT: usize = 8;

/// A person has this long to answer a confirmation, from when it is shown (milliseconds).
pub const CONFIRMATION_MS: u64 = 60_000;
/// A device tool may run this long (milliseconds).
pub const TOOL_EXECUTION_MS: u64 = 10_000;
/// The slack between the device's deadlines and the server's (milliseconds).
pub const DEADLINE_MARGIN_MS: u64 = 5_000;
/// The server waits this long for a device's result (milliseconds).
pub const TOOL_WAIT_MS: u64 = 120_000;
/// The device counts from receipt: it must not begin later than this (milliseconds).
pub const TOOL_TTL_MS: u64 = TOOL_WAIT_MS - TOOL_EXECUTION_MS - DEADLINE_MARGIN_MS;

// The deadlines nest, or the server would give up before the device does.
const _: () = assert!(CONFIRMATION_MS + TOOL_EXECUTION_MS + DEADLINE_MARGIN_MS <= TOOL_WAIT_MS);

/// Days a device remembers that it saw a call.
pub const TOMBSTONE_DAYS: i64 = 400;
/// Days a device keeps a call's output, acknowledged or not.
pub const OUTPUT_DAYS: i64 = 7;
/// Bytes of outputs a device keeps, at most.
pub const OUTPUT_QUOTA_BYTES: u64 = 256 << 20;
/// Results a device holds unacknowledged, at most.
pub const MAX_UNACKED_RESULTS: u32 = 1_000;
/// A call older than this (days) is not dispatched again: the device might have forgotten it.
pub const MAX_REDISPATCH_AGE_DAYS: i64 = TOMBSTONE_DAYS - 1;

/// Names in a listing, at most.
pub const MAX_LISTED_FILES: usize = 500;
/// Directory entries looked at for one listing, at most.
pub const MAX_SCANNED_ENTRIES: usize = 10_000;
/// Time for one listing (milliseconds).
pub const LIST_BUDGET_MS: u64 = 2_000;
/// Names or matches that one search answers with, at most.
pub const MAX_SEARCH_RESULTS: usize = 500;
/// Directory entries looked at for one search, at most.
pub const MAX_SEARCHED_ENTRIES: usize = 100_000;
/// Files whose text one search looks into, at most.
pub const MAX_SEARCHED_FILES: usize = 20_000;
/// Bytes of a file whose text is searched, at most; larger ones are counted and passed over.
pub const MAX_SEARCHED_FILE_BYTES: u64 = 4 << 20;
/// Bytes of texts that one search looks into, at most.
pub const MAX_SEARCHED_BYTES: u64 = 256 << 20;
/// Time for one search (milliseconds): less than a tool may run, so that what was found is answered.
pub const SEARCH_BUDGET_MS: u64 = 8_000;
/// Characters of a search pattern, at most.
pub const MAX_PATTERN_CHARS: usize = 1_000;
/// Lines before and after a match that are answered with it, at most.
pub const MAX_CONTEXT_LINES: u64 = 5;
/// Bytes of one line in a search's answer, at most.
pub const MAX_MATCHED_LINE_BYTES: usize = 400;
/// Bytes of text in a search's answer, at most.
pub const MAX_SEARCH_ANSWER_BYTES: usize = 262_144;
const _: () = assert!(SEARCH_BUDGET_MS < TOOL_EXECUTION_MS);
/// Bytes of one file read, at most.
pub const MAX_READ_BYTES: u64 = 262_144;
/// Bytes of a path, at most.
pub const MAX_PATH_BYTES: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_call::Target;
    use crate::tools::catalogue;

    #[test]
    fn inv_b20_the_deadlines_of_a_device_call_nest() {
        // What is waited for longest: the person, the tool, and the way there and back.
        let longest = CONFIRMATION_MS + TOOL_EXECUTION_MS + DEADLINE_MARGIN_MS;
        assert!(longest <= TOOL_WAIT_MS);
        assert_eq!(TOOL_TTL_MS + TOOL_EXECUTION_MS + DEADLINE_MARGIN_MS, TOOL_WAIT_MS);
        let device = catalogue().definitions().filter(|definition| definition.target == Target::Device);
        assert!(
            device
                .map(|definition| definition.timeout_ms)
                .all(|timeout| timeout.is_some_and(|ms| ms <= TOOL_EXECUTION_MS))
        );
    }
}

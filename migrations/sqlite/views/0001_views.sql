-- The read models. Everything here comes from the log and can be deleted at any time.
-- Moments are microseconds since the Unix epoch; JSON is canonical text.

-- Which log these rows were made from.
CREATE TABLE views_origin (
    only_row  INTEGER PRIMARY KEY CHECK (only_row = 1),
    ledger_id TEXT NOT NULL
);

-- How far each projection has come; written in the transaction that writes its rows.
CREATE TABLE projection_position (
    name            TEXT PRIMARY KEY,
    version         INTEGER NOT NULL,
    position        INTEGER NOT NULL,
    -- The leaf hash of the event at `position`: another log, or one cut back, is noticed by it.
    leaf_hash       TEXT,
    failed_position INTEGER,
    failed_reason   TEXT,
    skipped_unknown INTEGER NOT NULL,
    -- Hash of the event types that the program knew: one that knows more reads again what was skipped.
    known_types     TEXT NOT NULL
);

-- Projection `conversation`.
CREATE TABLE conversations (
    conversation_id  TEXT PRIMARY KEY,
    user_id          TEXT NOT NULL,
    title            TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    -- When the last turn was asked or asked again.
    updated_at       INTEGER NOT NULL,
    deleted          BOOLEAN NOT NULL,
    latest_turn_id   TEXT,
    last_sequence_no INTEGER NOT NULL
);
CREATE INDEX conversations_of_user ON conversations (user_id, deleted, updated_at DESC, conversation_id DESC);

CREATE TABLE turns (
    turn_id             TEXT PRIMARY KEY,
    conversation_id     TEXT NOT NULL,
    sequence_no         INTEGER NOT NULL,
    status              TEXT NOT NULL,
    question            TEXT NOT NULL,
    question_message_id TEXT NOT NULL,
    answer              TEXT,
    answer_message_id   TEXT,
    partial             BOOLEAN NOT NULL,
    error_code          TEXT,
    error_message       TEXT,
    active_run_id       TEXT,
    device_id           TEXT,
    created_at          INTEGER NOT NULL,
    ended_at            INTEGER
);
CREATE INDEX turns_of_conversation ON turns (conversation_id, sequence_no);

CREATE TABLE runs (
    run_id          TEXT PRIMARY KEY,
    turn_id         TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    kind            TEXT NOT NULL,
    run_trigger     TEXT NOT NULL,
    run_seq         INTEGER NOT NULL,
    graph_thread_id TEXT NOT NULL,
    parent_run_id   TEXT,
    device_id       TEXT,
    -- The question's message when the run was prepared; an edit gives the turn another one.
    user_message_id TEXT,
    status          TEXT NOT NULL,
    node_id         TEXT,
    epoch           INTEGER,
    context_hash    TEXT,
    error_code      TEXT,
    created_at      INTEGER NOT NULL,
    claimed_at      INTEGER,
    ended_at        INTEGER
);
CREATE INDEX runs_of_turn ON runs (turn_id, run_seq);
CREATE INDEX runs_running ON runs (node_id) WHERE status = 'running';

CREATE TABLE messages (
    message_id      TEXT PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    turn_id         TEXT,
    run_id          TEXT,
    role            TEXT NOT NULL,
    content         TEXT NOT NULL,
    partial         BOOLEAN NOT NULL,
    replaced        BOOLEAN NOT NULL,
    created_at      INTEGER NOT NULL
);
CREATE INDEX messages_of_conversation ON messages (conversation_id, created_at);

CREATE TABLE interrupts (
    interrupt_id    TEXT PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    run_id          TEXT NOT NULL,
    turn_id         TEXT NOT NULL,
    kind            TEXT NOT NULL,
    tool_call_id    TEXT NOT NULL,
    tool            TEXT NOT NULL,
    arguments       TEXT NOT NULL,
    arguments_hash  TEXT NOT NULL,
    message         TEXT NOT NULL,
    expires_at      INTEGER,
    status          TEXT NOT NULL,
    approved        BOOLEAN,
    resolved_by     TEXT,
    reason          TEXT,
    raised_at       INTEGER NOT NULL,
    raised_position INTEGER NOT NULL,
    closed_at       INTEGER
);
CREATE INDEX interrupts_open ON interrupts (conversation_id) WHERE status = 'open';
CREATE INDEX interrupts_overdue ON interrupts (expires_at) WHERE status = 'open';

-- Projection `tool_call`. The columns from `attempt_no` to `dispatch_epoch` describe the newest attempt.
CREATE TABLE tool_calls (
    tool_call_id        TEXT PRIMARY KEY,
    conversation_id     TEXT NOT NULL,
    turn_id             TEXT NOT NULL,
    run_id              TEXT NOT NULL,
    user_id             TEXT NOT NULL,
    graph_thread_id     TEXT NOT NULL,
    model_call_id       TEXT NOT NULL,
    parent_tool_call_id TEXT,
    tool                TEXT NOT NULL,
    tool_version        TEXT NOT NULL,
    target              TEXT NOT NULL,
    device_id           TEXT,
    arguments           TEXT NOT NULL,
    call_hash           TEXT NOT NULL,
    risk                TEXT NOT NULL,
    summary             TEXT NOT NULL,
    status              TEXT NOT NULL,
    error_code          TEXT,
    error_message       TEXT,
    attempt_no          INTEGER NOT NULL,
    dispatch_run_id     TEXT,
    connection_id       TEXT,
    node_id             TEXT,
    dispatch_epoch      INTEGER,
    executed_attempt_no INTEGER,
    output              TEXT,
    output_sha256       TEXT,
    origin              TEXT,
    started_at          INTEGER,
    finished_at         INTEGER,
    cancel_reason       TEXT,
    revised_by          TEXT,
    revised_reason      TEXT,
    acks                INTEGER NOT NULL,
    late_results        INTEGER NOT NULL,
    requested_at        INTEGER NOT NULL,
    requested_position  INTEGER NOT NULL,
    dispatched_at       INTEGER,
    wait_ended_at       INTEGER,
    settled_at          INTEGER,
    acked_at            INTEGER
);
CREATE INDEX tool_calls_of_conversation ON tool_calls (conversation_id, requested_position);
CREATE INDEX tool_calls_of_run ON tool_calls (run_id, requested_position);
CREATE INDEX tool_calls_of_turn ON tool_calls (turn_id, requested_position);
CREATE INDEX tool_calls_under_way ON tool_calls (connection_id) WHERE status = 'dispatched';

CREATE TABLE tool_attempts (
    tool_call_id  TEXT NOT NULL,
    attempt_no    INTEGER NOT NULL,
    run_id        TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    connection_id TEXT,
    journal_id    TEXT,
    status        TEXT NOT NULL,
    reason        TEXT,
    phase         TEXT,
    wait_ms       INTEGER NOT NULL,
    ttl_ms        INTEGER NOT NULL,
    dispatched_at INTEGER NOT NULL,
    ended_at      INTEGER,
    PRIMARY KEY (tool_call_id, attempt_no)
);
CREATE INDEX tool_attempts_under_way ON tool_attempts (connection_id) WHERE status = 'dispatched';

-- Projection `device`.
CREATE TABLE devices (
    user_id          TEXT NOT NULL,
    device_id        TEXT NOT NULL,
    online           BOOLEAN NOT NULL,
    connection_id    TEXT,
    connection_epoch INTEGER NOT NULL,
    node_id          TEXT,
    node_epoch       INTEGER,
    instance_id      TEXT NOT NULL,
    journal_id       TEXT NOT NULL,
    version          TEXT NOT NULL,
    remote           TEXT NOT NULL,
    tools            TEXT,
    last_seen        INTEGER NOT NULL,
    connected_at     INTEGER NOT NULL,
    disconnected_at  INTEGER,
    close_code       INTEGER,
    close_reason     TEXT,
    PRIMARY KEY (user_id, device_id)
);

CREATE TABLE nodes (
    node_id    TEXT PRIMARY KEY,
    epoch      INTEGER NOT NULL,
    version    TEXT NOT NULL,
    status     TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER
);

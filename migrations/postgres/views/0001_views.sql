-- The read models. Everything here comes from the log and can be deleted at any time.
-- Moments are microseconds since the Unix epoch; JSON is canonical text.

-- Which log these rows were made from.
CREATE TABLE views_origin (
    only_row  bigint PRIMARY KEY CHECK (only_row = 1),
    ledger_id text COLLATE "C" NOT NULL
);

-- How far each projection has come; written in the transaction that writes its rows.
CREATE TABLE projection_position (
    name            text COLLATE "C" PRIMARY KEY,
    version         bigint NOT NULL,
    position        bigint NOT NULL,
    -- The leaf hash of the event at `position`: another log, or one cut back, is noticed by it.
    leaf_hash       text COLLATE "C",
    failed_position bigint,
    failed_reason   text COLLATE "C",
    skipped_unknown bigint NOT NULL,
    -- Hash of the event types that the program knew: one that knows more reads again what was skipped.
    known_types     text COLLATE "C" NOT NULL
);

-- Projection `conversation`.
CREATE TABLE conversations (
    conversation_id  text COLLATE "C" PRIMARY KEY,
    user_id          text COLLATE "C" NOT NULL,
    title            text COLLATE "C" NOT NULL,
    created_at       bigint NOT NULL,
    -- When the last turn was asked or asked again.
    updated_at       bigint NOT NULL,
    deleted          boolean NOT NULL,
    latest_turn_id   text COLLATE "C",
    last_sequence_no bigint NOT NULL
);
CREATE INDEX conversations_of_user ON conversations (user_id, deleted, updated_at DESC, conversation_id DESC);

CREATE TABLE turns (
    turn_id             text COLLATE "C" PRIMARY KEY,
    conversation_id     text COLLATE "C" NOT NULL,
    sequence_no         bigint NOT NULL,
    status              text COLLATE "C" NOT NULL,
    question            text COLLATE "C" NOT NULL,
    question_message_id text COLLATE "C" NOT NULL,
    answer              text COLLATE "C",
    answer_message_id   text COLLATE "C",
    partial             boolean NOT NULL,
    error_code          text COLLATE "C",
    error_message       text COLLATE "C",
    active_run_id       text COLLATE "C",
    device_id           text COLLATE "C",
    created_at          bigint NOT NULL,
    ended_at            bigint
);
CREATE INDEX turns_of_conversation ON turns (conversation_id, sequence_no);

CREATE TABLE runs (
    run_id          text COLLATE "C" PRIMARY KEY,
    turn_id         text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    kind            text COLLATE "C" NOT NULL,
    run_trigger     text COLLATE "C" NOT NULL,
    run_seq         bigint NOT NULL,
    graph_thread_id text COLLATE "C" NOT NULL,
    parent_run_id   text COLLATE "C",
    device_id       text COLLATE "C",
    -- The question's message when the run was prepared; an edit gives the turn another one.
    user_message_id text COLLATE "C",
    status          text COLLATE "C" NOT NULL,
    node_id         text COLLATE "C",
    epoch           bigint,
    context_hash    text COLLATE "C",
    error_code      text COLLATE "C",
    created_at      bigint NOT NULL,
    claimed_at      bigint,
    ended_at        bigint
);
CREATE INDEX runs_of_turn ON runs (turn_id, run_seq);
CREATE INDEX runs_running ON runs (node_id) WHERE status = 'running';

CREATE TABLE messages (
    message_id      text COLLATE "C" PRIMARY KEY,
    conversation_id text COLLATE "C" NOT NULL,
    turn_id         text COLLATE "C",
    run_id          text COLLATE "C",
    role            text COLLATE "C" NOT NULL,
    content         text COLLATE "C" NOT NULL,
    partial         boolean NOT NULL,
    replaced        boolean NOT NULL,
    created_at      bigint NOT NULL
);
CREATE INDEX messages_of_conversation ON messages (conversation_id, created_at);

CREATE TABLE interrupts (
    interrupt_id    text COLLATE "C" PRIMARY KEY,
    conversation_id text COLLATE "C" NOT NULL,
    run_id          text COLLATE "C" NOT NULL,
    turn_id         text COLLATE "C" NOT NULL,
    kind            text COLLATE "C" NOT NULL,
    tool_call_id    text COLLATE "C" NOT NULL,
    tool            text COLLATE "C" NOT NULL,
    arguments       text COLLATE "C" NOT NULL,
    arguments_hash  text COLLATE "C" NOT NULL,
    message         text COLLATE "C" NOT NULL,
    expires_at      bigint,
    status          text COLLATE "C" NOT NULL,
    approved        boolean,
    resolved_by     text COLLATE "C",
    reason          text COLLATE "C",
    raised_at       bigint NOT NULL,
    raised_position bigint NOT NULL,
    closed_at       bigint
);
CREATE INDEX interrupts_open ON interrupts (conversation_id) WHERE status = 'open';
CREATE INDEX interrupts_overdue ON interrupts (expires_at) WHERE status = 'open';

-- Projection `tool_call`. The columns from `attempt_no` to `dispatch_epoch` describe the newest attempt.
CREATE TABLE tool_calls (
    tool_call_id        text COLLATE "C" PRIMARY KEY,
    conversation_id     text COLLATE "C" NOT NULL,
    turn_id             text COLLATE "C" NOT NULL,
    run_id              text COLLATE "C" NOT NULL,
    user_id             text COLLATE "C" NOT NULL,
    graph_thread_id     text COLLATE "C" NOT NULL,
    model_call_id       text COLLATE "C" NOT NULL,
    parent_tool_call_id text COLLATE "C",
    tool                text COLLATE "C" NOT NULL,
    tool_version        text COLLATE "C" NOT NULL,
    target              text COLLATE "C" NOT NULL,
    device_id           text COLLATE "C",
    arguments           text COLLATE "C" NOT NULL,
    call_hash           text COLLATE "C" NOT NULL,
    risk                text COLLATE "C" NOT NULL,
    summary             text COLLATE "C" NOT NULL,
    status              text COLLATE "C" NOT NULL,
    error_code          text COLLATE "C",
    error_message       text COLLATE "C",
    attempt_no          bigint NOT NULL,
    dispatch_run_id     text COLLATE "C",
    connection_id       text COLLATE "C",
    node_id             text COLLATE "C",
    dispatch_epoch      bigint,
    executed_attempt_no bigint,
    output              text COLLATE "C",
    output_sha256       text COLLATE "C",
    origin              text COLLATE "C",
    started_at          bigint,
    finished_at         bigint,
    cancel_reason       text COLLATE "C",
    revised_by          text COLLATE "C",
    revised_reason      text COLLATE "C",
    acks                bigint NOT NULL,
    late_results        bigint NOT NULL,
    requested_at        bigint NOT NULL,
    requested_position  bigint NOT NULL,
    dispatched_at       bigint,
    wait_ended_at       bigint,
    settled_at          bigint,
    acked_at            bigint
);
CREATE INDEX tool_calls_of_conversation ON tool_calls (conversation_id, requested_position);
CREATE INDEX tool_calls_of_run ON tool_calls (run_id, requested_position);
CREATE INDEX tool_calls_of_turn ON tool_calls (turn_id, requested_position);
CREATE INDEX tool_calls_under_way ON tool_calls (connection_id) WHERE status = 'dispatched';

CREATE TABLE tool_attempts (
    tool_call_id  text COLLATE "C" NOT NULL,
    attempt_no    bigint NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    node_id       text COLLATE "C" NOT NULL,
    epoch         bigint NOT NULL,
    connection_id text COLLATE "C",
    journal_id    text COLLATE "C",
    status        text COLLATE "C" NOT NULL,
    reason        text COLLATE "C",
    phase         text COLLATE "C",
    wait_ms       bigint NOT NULL,
    ttl_ms        bigint NOT NULL,
    dispatched_at bigint NOT NULL,
    ended_at      bigint,
    PRIMARY KEY (tool_call_id, attempt_no)
);
CREATE INDEX tool_attempts_under_way ON tool_attempts (connection_id) WHERE status = 'dispatched';

-- Projection `device`.
CREATE TABLE devices (
    user_id          text COLLATE "C" NOT NULL,
    device_id        text COLLATE "C" NOT NULL,
    online           boolean NOT NULL,
    connection_id    text COLLATE "C",
    connection_epoch bigint NOT NULL,
    node_id          text COLLATE "C",
    node_epoch       bigint,
    instance_id      text COLLATE "C" NOT NULL,
    journal_id       text COLLATE "C" NOT NULL,
    version          text COLLATE "C" NOT NULL,
    remote           text COLLATE "C" NOT NULL,
    tools            text COLLATE "C",
    last_seen        bigint NOT NULL,
    connected_at     bigint NOT NULL,
    disconnected_at  bigint,
    close_code       bigint,
    close_reason     text COLLATE "C",
    PRIMARY KEY (user_id, device_id)
);

CREATE TABLE nodes (
    node_id    text COLLATE "C" PRIMARY KEY,
    epoch      bigint NOT NULL,
    version    text COLLATE "C" NOT NULL,
    status     text COLLATE "C" NOT NULL,
    started_at bigint NOT NULL,
    ended_at   bigint
);

-- The log and what belongs to it. The log is the only truth: nobody, the server included, may
-- change or delete a row of it, and the triggers below refuse to.

-- "DMLG": tells a ledger from any other SQLite file before anything is written to it.
PRAGMA application_id = 1145916487;

CREATE TABLE events (
    partition       INTEGER NOT NULL,
    position        INTEGER NOT NULL CHECK (position >= 1),
    event_id        TEXT    NOT NULL UNIQUE,
    aggregate_type  TEXT    NOT NULL,
    aggregate_id    TEXT    NOT NULL,
    sequence        INTEGER NOT NULL CHECK (sequence >= 1),
    event_type      TEXT    NOT NULL,
    event_version   INTEGER NOT NULL,
    -- The exact canonical JSON texts that were hashed.
    payload         TEXT    NOT NULL,
    metadata        TEXT    NOT NULL,
    -- RFC 3339, UTC, exactly six fractional digits: texts sort as moments do.
    recorded_at     TEXT    NOT NULL,
    leaf_hash       BLOB    NOT NULL CHECK (length(leaf_hash) = 32),
    -- Computed when read, stored in the indexes alone; they serve the filters.
    conversation_id TEXT GENERATED ALWAYS AS
        (CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.conversation_id') END) VIRTUAL,
    run_id          TEXT GENERATED ALWAYS AS
        (CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.correlation_id') END) VIRTUAL,
    actor           TEXT GENERATED ALWAYS AS
        (CASE WHEN json_valid(metadata)
         THEN json_extract(metadata, '$.actor.kind') || ':' || json_extract(metadata, '$.actor.id') END) VIRTUAL,
    PRIMARY KEY (partition, position),
    UNIQUE (aggregate_type, aggregate_id, sequence)
) STRICT;

CREATE INDEX events_conversation ON events (partition, conversation_id, position) WHERE conversation_id IS NOT NULL;
CREATE INDEX events_run ON events (partition, run_id, position) WHERE run_id IS NOT NULL;
CREATE INDEX events_type ON events (partition, event_type, position);
CREATE INDEX events_actor ON events (partition, actor, position);

-- The Merkle tree of RFC 6962 over the leaf hashes: its size, its root, and the roots of the
-- perfect subtrees it consists of (largest first), from which an append goes on.
CREATE TABLE head (
    partition INTEGER NOT NULL PRIMARY KEY,
    size      INTEGER NOT NULL CHECK (size >= 0),
    root      BLOB    NOT NULL CHECK (length(root) = 32),
    frontier  BLOB    NOT NULL CHECK (length(frontier) % 32 = 0)
) STRICT;

-- The root of no leaves is the SHA-256 of nothing.
INSERT INTO head (partition, size, root, frontier)
VALUES (0, 0, X'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', X'');

-- Requests that were answered, kept for ever. An empty range (last = first - 1) is a request that
-- had nothing to change.
CREATE TABLE idempotency (
    scope          TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    request_hash   TEXT    NOT NULL,
    first_position INTEGER NOT NULL,
    last_position  INTEGER NOT NULL CHECK (last_position >= first_position - 1),
    PRIMARY KEY (scope, key)
) STRICT;

-- `verify` compares keys and events in the order of the log.
CREATE INDEX idempotency_position ON idempotency (first_position);

-- One row, made with the file.
CREATE TABLE ledger_meta (
    only_row   INTEGER NOT NULL PRIMARY KEY CHECK (only_row = 1),
    ledger_id  TEXT    NOT NULL,
    created_at TEXT    NOT NULL
) STRICT;

INSERT INTO ledger_meta (only_row, ledger_id, created_at)
VALUES (1, lower(hex(randomblob(16))), strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z');

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'the log is append-only: events are never changed'); END;
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'the log is append-only: events are never deleted'); END;

CREATE TRIGGER head_only_grows BEFORE UPDATE ON head
WHEN NEW.partition <> OLD.partition OR NEW.size < OLD.size
BEGIN SELECT RAISE(ABORT, 'the head of the log only moves forward'); END;
CREATE TRIGGER head_no_delete BEFORE DELETE ON head
BEGIN SELECT RAISE(ABORT, 'the head of the log is never deleted'); END;

CREATE TRIGGER idempotency_no_update BEFORE UPDATE ON idempotency
BEGIN SELECT RAISE(ABORT, 'idempotency keys are kept for ever'); END;
CREATE TRIGGER idempotency_no_delete BEFORE DELETE ON idempotency
BEGIN SELECT RAISE(ABORT, 'idempotency keys are kept for ever'); END;

CREATE TRIGGER ledger_meta_no_update BEFORE UPDATE ON ledger_meta
BEGIN SELECT RAISE(ABORT, 'the identity of a ledger is never changed'); END;
CREATE TRIGGER ledger_meta_no_delete BEFORE DELETE ON ledger_meta
BEGIN SELECT RAISE(ABORT, 'the identity of a ledger is never changed'); END;

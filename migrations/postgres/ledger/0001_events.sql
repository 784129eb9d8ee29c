-- The log and what belongs to it, in the schema `ledger`. The log is the only truth: nobody, the server
-- included, may change or delete a row of it, and the triggers below refuse to.

CREATE TABLE events (
    partition       bigint NOT NULL,
    position        bigint NOT NULL CHECK (position >= 1),
    event_id        text   COLLATE "C" NOT NULL UNIQUE,
    aggregate_type  text   COLLATE "C" NOT NULL,
    aggregate_id    text   COLLATE "C" NOT NULL,
    sequence        bigint NOT NULL CHECK (sequence >= 1),
    event_type      text   COLLATE "C" NOT NULL,
    event_version   bigint NOT NULL,
    -- The exact canonical JSON texts that were hashed: text, because jsonb would write them anew.
    payload         text   NOT NULL,
    metadata        text   NOT NULL,
    -- RFC 3339, UTC, exactly six fractional digits: texts sort as moments do.
    recorded_at     text   COLLATE "C" NOT NULL,
    leaf_hash       bytea  NOT NULL CHECK (length(leaf_hash) = 32),
    -- Copies out of `metadata` that serve the filters; `verify` compares them with it.
    conversation_id text   COLLATE "C",
    run_id          text   COLLATE "C",
    actor           text   COLLATE "C",
    PRIMARY KEY (partition, position),
    UNIQUE (aggregate_type, aggregate_id, sequence)
);

CREATE INDEX events_conversation ON events (partition, conversation_id, position) WHERE conversation_id IS NOT NULL;
CREATE INDEX events_run ON events (partition, run_id, position) WHERE run_id IS NOT NULL;
CREATE INDEX events_type ON events (partition, event_type, position);
CREATE INDEX events_actor ON events (partition, actor, position);

-- The Merkle tree of RFC 6962 over the leaf hashes: its size, its root, and the roots of the perfect
-- subtrees it consists of (largest first), from which an append goes on. The row's lock is what gives
-- several server processes one order.
CREATE TABLE head (
    partition  bigint PRIMARY KEY,
    size       bigint NOT NULL CHECK (size >= 0),
    root       bytea  NOT NULL CHECK (length(root) = 32),
    frontier   bytea  NOT NULL CHECK (length(frontier) % 32 = 0),
    -- Raised to settle a commit in doubt: a statement that names an older one can do nothing any more.
    generation bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

-- The root of no leaves is the SHA-256 of nothing.
INSERT INTO head (partition, size, root, frontier)
VALUES (0, 0, '\xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', '');

-- Requests that were answered, kept for ever. An empty range (last = first - 1) is a request that had
-- nothing to change.
CREATE TABLE idempotency (
    scope          text   COLLATE "C" NOT NULL,
    key            text   COLLATE "C" NOT NULL,
    request_hash   text   COLLATE "C" NOT NULL,
    first_position bigint NOT NULL,
    last_position  bigint NOT NULL CHECK (last_position >= first_position - 1),
    PRIMARY KEY (scope, key)
);

-- `verify` compares keys and events in the order of the log.
CREATE INDEX idempotency_position ON idempotency (first_position);

-- One row, made with the schema.
CREATE TABLE ledger_meta (
    only_row   bigint PRIMARY KEY CHECK (only_row = 1),
    ledger_id  text   NOT NULL,
    created_at text   NOT NULL
);

INSERT INTO ledger_meta (only_row, ledger_id, created_at)
VALUES (1, replace(gen_random_uuid()::text, '-', ''),
        to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
    EXECUTE FUNCTION refuse('the log is append-only');
CREATE TRIGGER events_no_delete BEFORE DELETE ON events
    EXECUTE FUNCTION refuse('the log is append-only');
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events
    EXECUTE FUNCTION refuse('the log is append-only');

CREATE TRIGGER head_only_grows BEFORE UPDATE ON head FOR EACH ROW
    WHEN (NEW.partition <> OLD.partition OR NEW.size < OLD.size OR NEW.generation < OLD.generation)
    EXECUTE FUNCTION refuse('the head of the log only moves forward');
CREATE TRIGGER head_no_delete BEFORE DELETE ON head
    EXECUTE FUNCTION refuse('the head of the log is never deleted');
CREATE TRIGGER head_no_truncate BEFORE TRUNCATE ON head
    EXECUTE FUNCTION refuse('the head of the log is never deleted');

CREATE TRIGGER idempotency_no_update BEFORE UPDATE ON idempotency
    EXECUTE FUNCTION refuse('idempotency keys are kept for ever');
CREATE TRIGGER idempotency_no_delete BEFORE DELETE ON idempotency
    EXECUTE FUNCTION refuse('idempotency keys are kept for ever');
CREATE TRIGGER idempotency_no_truncate BEFORE TRUNCATE ON idempotency
    EXECUTE FUNCTION refuse('idempotency keys are kept for ever');

CREATE TRIGGER ledger_meta_no_update BEFORE UPDATE ON ledger_meta
    EXECUTE FUNCTION refuse('the identity of a ledger is never changed');
CREATE TRIGGER ledger_meta_no_delete BEFORE DELETE ON ledger_meta
    EXECUTE FUNCTION refuse('the identity of a ledger is never changed');
CREATE TRIGGER ledger_meta_no_truncate BEFORE TRUNCATE ON ledger_meta
    EXECUTE FUNCTION refuse('the identity of a ledger is never changed');

-- The device's own memory of every call it was asked for. A call's row outlives its output: it is
-- what keeps a repeated call from running again.

CREATE TABLE journal (
    one             INTEGER PRIMARY KEY CHECK (one = 1),
    journal_id      TEXT    NOT NULL,             -- random, made with the file
    epoch           INTEGER NOT NULL,             -- + 1 at each opening
    purged_through  INTEGER NOT NULL              -- microseconds: calls created until then may be forgotten
) STRICT;

CREATE TABLE calls (
    tool_call_id         TEXT    NOT NULL PRIMARY KEY,
    call_hash            TEXT    NOT NULL,
    tool                 TEXT    NOT NULL,
    phase                TEXT    NOT NULL CHECK (phase IN ('reserved', 'executing', 'settled')),
    instance_id          TEXT    NOT NULL,        -- the start of the program that reserved it
    executed_attempt_no  INTEGER NOT NULL,
    server_id            TEXT    NOT NULL,        -- results go back only to the ledger that asked …
    user_hash            TEXT    NOT NULL,        -- … for the user who asked
    call_created_at      INTEGER NOT NULL,        -- microseconds, the server's clock
    reserved_at          INTEGER NOT NULL,        -- microseconds, as all that follow, this device's clock
    started_at           INTEGER,
    finished_at          INTEGER,
    status               TEXT    CHECK (status IN ('succeeded', 'failed', 'rejected', 'cancelled', 'indeterminate')),
    output               TEXT,                    -- JSON; removed after 7 days
    output_bytes         INTEGER NOT NULL DEFAULT 0,
    output_sha256        TEXT,                    -- stays when the output goes
    error_code           TEXT,
    error_message        TEXT,
    settled_no           INTEGER UNIQUE,          -- 1, 2, 3 … in the order of settling
    delivery             TEXT    NOT NULL DEFAULT 'open' CHECK (delivery IN ('open', 'pending', 'acked', 'parked')),
    delivery_note        TEXT,                    -- the ack's disposition or the nack's code
    CHECK ((phase = 'settled') = (status IS NOT NULL)),
    CHECK ((phase = 'settled') = (settled_no IS NOT NULL)),
    CHECK ((phase = 'settled') = (delivery <> 'open'))
) STRICT;

CREATE INDEX calls_pending ON calls (settled_no) WHERE delivery = 'pending';
CREATE INDEX calls_unsettled ON calls (tool_call_id) WHERE phase <> 'settled';
CREATE INDEX calls_by_age ON calls (call_created_at);
CREATE INDEX calls_with_output ON calls (settled_no, output_bytes) WHERE output IS NOT NULL;

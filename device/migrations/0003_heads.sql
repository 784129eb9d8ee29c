-- The newest head of each server's log that the device was shown: a log that does not continue it is refused.

CREATE TABLE heads (
    origin  TEXT PRIMARY KEY,           -- the log's name (C2SP tlog-checkpoint)
    note    TEXT NOT NULL,              -- the signed head
    key     TEXT NOT NULL,              -- the public key that signed it, as it was shown
    seen_at INTEGER NOT NULL,           -- microseconds since 1970
    refused TEXT                        -- the last signed head that does not continue it: both prove what happened
) STRICT;

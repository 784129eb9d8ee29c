-- States of aggregates, folded from their streams so that a command need not read a long one from
-- its beginning. They are derived: the table may be emptied at any time, `verify` folds again and
-- compares, and a state of another `state_version` than the program's is not used.
CREATE TABLE snapshots (
    aggregate_type text   COLLATE "C" NOT NULL,
    aggregate_id   text   COLLATE "C" NOT NULL,
    -- The sequence number of the last event that is in the state.
    sequence       bigint NOT NULL CHECK (sequence >= 1),
    state_version  bigint NOT NULL,
    state          text   NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
);

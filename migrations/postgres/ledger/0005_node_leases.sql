-- Which starts of server processes are alive: each renews its row; a row that has expired belongs to a process
-- that is gone, or must end. Times are the database's. Nothing here is history, and the log never depends on it:
-- that a process was lost is an event.
CREATE TABLE node_leases (
    node_id    text        COLLATE "C" PRIMARY KEY,
    epoch      bigint      NOT NULL,
    expires_at timestamptz NOT NULL
);

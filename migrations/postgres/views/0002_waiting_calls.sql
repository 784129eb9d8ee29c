-- Calls that wait for a person: what ends their wait is told in the words of interrupts and runs.
ALTER TABLE tool_calls ADD COLUMN interrupt_id text COLLATE "C";
-- The run that would go on with the call: the one that asked, then the one that resumes it.
ALTER TABLE tool_calls ADD COLUMN waiting_run_id text COLLATE "C";
ALTER TABLE tool_calls ADD COLUMN approval_expired boolean NOT NULL DEFAULT FALSE;
-- Whether the status is the view's conclusion, which gives way to what the call's own stream says.
ALTER TABLE tool_calls ADD COLUMN concluded boolean NOT NULL DEFAULT FALSE;
CREATE INDEX tool_calls_of_interrupt ON tool_calls (interrupt_id) WHERE status = 'created';
CREATE INDEX tool_calls_of_waiting_run ON tool_calls (waiting_run_id) WHERE status = 'created';

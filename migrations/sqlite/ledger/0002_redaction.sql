-- A payload can be erased, and nothing else ever changes: only to a marker that names the event which
-- says so, and only once that event is in the log.
DROP TRIGGER events_no_update;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events
WHEN NOT (
    NEW.partition = OLD.partition AND NEW.position = OLD.position AND NEW.event_id = OLD.event_id
    AND NEW.aggregate_type = OLD.aggregate_type AND NEW.aggregate_id = OLD.aggregate_id
    AND NEW.sequence = OLD.sequence AND NEW.event_type = OLD.event_type AND NEW.event_version = OLD.event_version
    AND NEW.metadata = OLD.metadata AND NEW.recorded_at = OLD.recorded_at AND NEW.leaf_hash = OLD.leaf_hash
    AND substr(OLD.payload, 1, 12) <> '{"redacted":'
    AND json_valid(NEW.payload)
    AND EXISTS (
        SELECT 1 FROM events AS told
        WHERE told.aggregate_type = 'redaction' AND told.aggregate_id = CAST(OLD.position AS TEXT)
        AND told.event_type = 'PayloadRedacted' AND told.partition = OLD.partition
        AND told.position = NEW.payload ->> '$.redacted.by'
        AND told.payload ->> '$.position' = OLD.position
        AND told.payload ->> '$.payload_hash' = NEW.payload ->> '$.redacted.payload_hash'
    )
)
BEGIN SELECT RAISE(ABORT, 'the log is append-only: events are never changed'); END;

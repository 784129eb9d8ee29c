-- A payload can be erased, and nothing else ever changes: only to a marker that names the event which
-- says so, and only once that event is in the log.
CREATE FUNCTION only_erased() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    marker json;
BEGIN
    IF NEW.partition = OLD.partition AND NEW.position = OLD.position AND NEW.event_id = OLD.event_id
        AND NEW.aggregate_type = OLD.aggregate_type AND NEW.aggregate_id = OLD.aggregate_id
        AND NEW.sequence = OLD.sequence AND NEW.event_type = OLD.event_type
        AND NEW.event_version = OLD.event_version AND NEW.metadata = OLD.metadata
        AND NEW.recorded_at = OLD.recorded_at AND NEW.leaf_hash = OLD.leaf_hash
        AND NEW.conversation_id IS NOT DISTINCT FROM OLD.conversation_id
        AND NEW.run_id IS NOT DISTINCT FROM OLD.run_id AND NEW.actor IS NOT DISTINCT FROM OLD.actor
        AND left(OLD.payload, 12) <> '{"redacted":' AND left(NEW.payload, 12) = '{"redacted":'
    THEN
        marker := NEW.payload::json -> 'redacted';
        IF marker ->> 'payload_hash' = encode(sha256(convert_to(OLD.payload, 'UTF8')), 'hex') AND EXISTS (
            SELECT 1 FROM ledger.events AS told
            WHERE told.aggregate_type = 'redaction' AND told.aggregate_id = OLD.position::text
            AND told.event_type = 'PayloadRedacted' AND told.partition = OLD.partition
            AND told.position::text = marker ->> 'by'
            AND told.payload::json ->> 'position' = OLD.position::text
            AND told.payload::json ->> 'payload_hash' = marker ->> 'payload_hash'
        ) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% of % is refused: the log is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

DROP TRIGGER events_no_update ON events;
CREATE TRIGGER events_no_update BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION only_erased();

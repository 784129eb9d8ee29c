-- PostgreSQL keeps a JSON text with an escaped NUL, but refuses to look inside it ("unsupported Unicode escape
-- sequence"). What only looks at ids reads the text with U+FFFD in its place; the stored text stays as it is.
CREATE FUNCTION readable(stored text) RETURNS json LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT replace(stored, '\u0000', '\ufffd')::json $$;

CREATE OR REPLACE FUNCTION only_erased() RETURNS trigger LANGUAGE plpgsql AS $$
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
        marker := ledger.readable(NEW.payload) -> 'redacted';
        IF marker ->> 'payload_hash' = encode(sha256(convert_to(OLD.payload, 'UTF8')), 'hex') AND EXISTS (
            SELECT 1 FROM ledger.events AS told
            WHERE told.aggregate_type = 'redaction' AND told.aggregate_id = OLD.position::text
            AND told.event_type = 'PayloadRedacted' AND told.partition = OLD.partition
            AND told.position::text = marker ->> 'by'
            AND ledger.readable(told.payload) ->> 'position' = OLD.position::text
            AND ledger.readable(told.payload) ->> 'payload_hash' = marker ->> 'payload_hash'
        ) THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% of % is refused: the log is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE OR REPLACE VIEW cqrs_events AS
SELECT
    aggregate_type,
    aggregate_id,
    sequence,
    event_type,
    event_version::text AS event_version,
    json_build_object(
        event_type,
        CASE WHEN left(payload, 12) = '{"redacted":' THEN ledger.readable(payload) #> '{redacted,kept}' ELSE payload::json END
    ) AS payload,
    json_strip_nulls(json_build_object(
        'actor', actor,
        'correlation_id', ledger.readable(metadata) ->> 'correlation_id',
        'causation_id', ledger.readable(metadata) ->> 'causation_id',
        'conversation_id', ledger.readable(metadata) ->> 'conversation_id',
        'idempotency_key', ledger.readable(metadata) ->> 'idempotency_key',
        'request_hash', ledger.readable(metadata) ->> 'request_hash',
        'node_id', ledger.readable(metadata) ->> 'node_id',
        'traceparent', ledger.readable(metadata) ->> 'traceparent'
    )) AS metadata
FROM events;

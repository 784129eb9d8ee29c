-- The log as the cqrs-es family's repositories read an events table: the type's name around the payload,
-- metadata as texts by name, the version as text. For reading alone.
CREATE VIEW cqrs_events AS
SELECT
    aggregate_type,
    aggregate_id,
    sequence,
    event_type,
    event_version::text AS event_version,
    json_build_object(event_type, coalesce(payload::json #> '{redacted,kept}', payload::json)) AS payload,
    json_strip_nulls(json_build_object(
        'actor', actor,
        'correlation_id', metadata::json ->> 'correlation_id',
        'causation_id', metadata::json ->> 'causation_id',
        'conversation_id', metadata::json ->> 'conversation_id',
        'idempotency_key', metadata::json ->> 'idempotency_key',
        'request_hash', metadata::json ->> 'request_hash',
        'node_id', metadata::json ->> 'node_id',
        'traceparent', metadata::json ->> 'traceparent'
    )) AS metadata
FROM events;

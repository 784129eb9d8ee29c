-- The log as the cqrs-es family's repositories read an events table: the type's name around the payload,
-- metadata as texts by name, the version as text. For reading alone.
CREATE VIEW cqrs_events AS
SELECT
    aggregate_type,
    aggregate_id,
    sequence,
    event_type,
    CAST(event_version AS TEXT) AS event_version,
    json_object(event_type, json(coalesce(payload -> '$.redacted.kept', payload))) AS payload,
    -- A patch leaves out what is null.
    json_patch('{}', json_object(
        'actor', actor,
        'correlation_id', metadata ->> '$.correlation_id',
        'causation_id', metadata ->> '$.causation_id',
        'conversation_id', metadata ->> '$.conversation_id',
        'idempotency_key', metadata ->> '$.idempotency_key',
        'request_hash', metadata ->> '$.request_hash',
        'node_id', metadata ->> '$.node_id',
        'traceparent', metadata ->> '$.traceparent'
    )) AS metadata
FROM events;

-- Whether an event of a thread is about a call, where one payload of the thread is no JSON: an error about it would be
-- one about all of them. What nobody can read may be about any call. Asked only after the ordinary query has failed, for
-- each row costs a subtransaction; which is why no parallel plan may use it.
CREATE FUNCTION may_tell_of(event_type text, payload text, tool_call_id text, model_call_id text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL UNSAFE AS $$
DECLARE
    told json;
    calls json;
BEGIN
    IF event_type NOT IN ('ToolResultObserved', 'ModelResponded') THEN
        RETURN false;
    END IF;
    told := ledger.readable(payload);
    IF event_type = 'ToolResultObserved' THEN
        RETURN coalesce(
            coalesce(told ->> 'tool_call_id', told #>> '{redacted,kept,tool_call_id}') = tool_call_id, false
        );
    END IF;
    calls := coalesce(told -> 'tool_calls', told #> '{redacted,kept,tool_calls}');
    IF calls IS NULL OR json_typeof(calls) <> 'array' THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT 1 FROM json_array_elements(calls) AS call WHERE call ->> 'id' = model_call_id);
EXCEPTION WHEN data_exception THEN
    RETURN true;
END $$;

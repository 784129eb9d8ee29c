-- An append's statement read the text of every CHECK of its tables, and of the WHEN of the head's trigger, anew each
-- time: of a statement that stores one event a sixth of the database's time. What they forbade the program does not
-- write, and `verify` finds it, as it must where somebody dropped a constraint first.
ALTER TABLE events
    DROP CONSTRAINT events_position_check, DROP CONSTRAINT events_sequence_check, DROP CONSTRAINT events_leaf_hash_check;
ALTER TABLE head
    DROP CONSTRAINT head_size_check, DROP CONSTRAINT head_root_check, DROP CONSTRAINT head_frontier_check;
ALTER TABLE idempotency DROP CONSTRAINT idempotency_check;

-- The same rule in a function, which a session reads once.
CREATE FUNCTION only_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.partition <> OLD.partition OR NEW.size < OLD.size OR NEW.generation < OLD.generation THEN
        RAISE EXCEPTION '% of % is refused: the head of the log only moves forward', TG_OP, TG_TABLE_NAME
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

DROP TRIGGER head_only_grows ON head;
CREATE TRIGGER head_only_grows BEFORE UPDATE ON head FOR EACH ROW EXECUTE FUNCTION only_forward();

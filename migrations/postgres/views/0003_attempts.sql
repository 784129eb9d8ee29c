-- Attempts at the event after `position` that did not succeed, those that a process did not survive among
-- them: written before each, 0 again once it is applied.
ALTER TABLE projection_position ADD COLUMN attempts bigint NOT NULL DEFAULT 0;

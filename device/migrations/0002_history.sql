-- What a person wants to know later: what was asked, in which conversation, and who allowed it.

ALTER TABLE calls ADD COLUMN arguments TEXT NOT NULL DEFAULT '';             -- JSON, the beginning of it if it is long
ALTER TABLE calls ADD COLUMN conversation_title TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN decided_by TEXT;                               -- NULL: nobody was asked, or nobody answered

-- Whose a thread is, and what models used for each person, day (UTC) and model.
CREATE TABLE usage_threads (
    thread_id TEXT PRIMARY KEY,
    user_id   TEXT NOT NULL
);

CREATE TABLE usage (
    user_id          TEXT NOT NULL,
    day              TEXT NOT NULL,
    model            TEXT NOT NULL,
    answers          INTEGER NOT NULL,
    -- Answers whose tokens the provider did not count, or not all of them.
    uncounted        INTEGER NOT NULL,
    input_tokens     INTEGER NOT NULL,
    output_tokens    INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    PRIMARY KEY (user_id, day, model)
);

CREATE TABLE search_conversations (
    conversation_id TEXT PRIMARY KEY,
    user_id         TEXT NOT NULL,
    title           TEXT NOT NULL,
    deleted         BOOLEAN NOT NULL
);

CREATE TABLE search_runs (
    run_id  TEXT PRIMARY KEY,
    turn_id TEXT NOT NULL,
    is_open BOOLEAN NOT NULL
);

-- Titles, questions and answers that a person sees, each at the event that said it.
CREATE TABLE search_texts (
    position        INTEGER PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    turn_id         TEXT,
    message_id      TEXT,
    role            TEXT NOT NULL,
    content         TEXT NOT NULL,
    -- The content in lower-case words with one space between them: what is looked for.
    words           TEXT NOT NULL,
    created_at      INTEGER NOT NULL
);
CREATE INDEX search_texts_by_conversation ON search_texts (conversation_id);
CREATE INDEX search_texts_by_turn ON search_texts (turn_id);
CREATE INDEX search_texts_by_message ON search_texts (message_id);

-- An index of the rows above, which follows them by triggers: also where a rebuild swaps them.
CREATE VIRTUAL TABLE search_index USING fts5(
    words, content = 'search_texts', content_rowid = 'position', tokenize = 'unicode61 remove_diacritics 0'
);
CREATE TRIGGER search_texts_added AFTER INSERT ON search_texts BEGIN
    INSERT INTO search_index (rowid, words) VALUES (new.position, new.words);
END;
CREATE TRIGGER search_texts_removed AFTER DELETE ON search_texts BEGIN
    INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.position, old.words);
END;

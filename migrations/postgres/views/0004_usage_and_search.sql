-- Whose a thread is, and what models used for each person, day (UTC) and model.
CREATE TABLE usage_threads (
    thread_id text COLLATE "C" PRIMARY KEY,
    user_id   text COLLATE "C" NOT NULL
);

CREATE TABLE usage (
    user_id          text COLLATE "C" NOT NULL,
    day              text COLLATE "C" NOT NULL,
    model            text COLLATE "C" NOT NULL,
    answers          bigint NOT NULL,
    -- Answers whose tokens the provider did not count, or not all of them.
    uncounted        bigint NOT NULL,
    input_tokens     bigint NOT NULL,
    output_tokens    bigint NOT NULL,
    cached_tokens    bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    PRIMARY KEY (user_id, day, model)
);

CREATE TABLE search_conversations (
    conversation_id text COLLATE "C" PRIMARY KEY,
    user_id         text COLLATE "C" NOT NULL,
    title           text COLLATE "C" NOT NULL,
    deleted         boolean NOT NULL
);

CREATE TABLE search_runs (
    run_id  text COLLATE "C" PRIMARY KEY,
    turn_id text COLLATE "C" NOT NULL,
    is_open boolean NOT NULL
);

-- Titles, questions and answers that a person sees, each at the event that said it.
CREATE TABLE search_texts (
    position        bigint PRIMARY KEY,
    conversation_id text COLLATE "C" NOT NULL,
    turn_id         text COLLATE "C",
    message_id      text COLLATE "C",
    role            text COLLATE "C" NOT NULL,
    content         text COLLATE "C" NOT NULL,
    -- The content in lower-case words with one space between them: what is looked for.
    words           text COLLATE "C" NOT NULL,
    created_at      bigint NOT NULL
);
CREATE INDEX search_texts_by_conversation ON search_texts (conversation_id);
CREATE INDEX search_texts_by_turn ON search_texts (turn_id);
CREATE INDEX search_texts_by_message ON search_texts (message_id);

-- The words as they are, not as a language's parser would take them apart: both stores find the same.
CREATE INDEX search_index ON search_texts USING gin (array_to_tsvector(string_to_array(words, ' ')));

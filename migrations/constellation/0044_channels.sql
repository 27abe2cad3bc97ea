-- Events of data sources, what is kept of them, and who talks to an agent from where. Raw events wait in `outbox`, with
-- the target `source:{source}:{agent or chat}`; answers have the target `chat:{chat}`.

ALTER TABLE data_sources ADD COLUMN error TEXT;           -- why it fails; NULL: it does not
ALTER TABLE data_sources ADD COLUMN failing_since TEXT CHECK ((failing_since IS NULL) = (error IS NULL));
ALTER TABLE data_sources ADD COLUMN last_event_at TEXT;

ALTER TABLE agent_data_sources ADD COLUMN delivery TEXT NOT NULL DEFAULT 'message'
    CHECK (delivery IN ('message', 'notification', 'archive', 'activity'));
ALTER TABLE agent_data_sources ADD COLUMN filters TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(filters));
ALTER TABLE agent_data_sources ADD COLUMN batch_s REAL NOT NULL DEFAULT 0 CHECK (batch_s >= 0);

-- Every event that ever arrived: 16 bytes of what names it at its service. Never deleted but with its source.
CREATE TABLE source_seen (
    source_id        TEXT NOT NULL REFERENCES data_sources(id) ON DELETE CASCADE,
    digest           BLOB NOT NULL CHECK (length(digest) = 16),
    PRIMARY KEY (source_id, digest)
) STRICT, WITHOUT ROWID;

-- Who may talk in a channel: people and rooms, by their ids there. Who is in no row, or pending, may not.
CREATE TABLE source_person (
    source_id        TEXT NOT NULL REFERENCES data_sources(id) ON DELETE CASCADE,
    native           TEXT NOT NULL CHECK (native <> ''),
    name             TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('pending', 'allowed', 'partner', 'blocked')),
    code             TEXT,                 -- of a pending one; valid until:
    expires_at       TEXT CHECK ((expires_at IS NULL) = (code IS NULL)),
    decided_by       TEXT,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    PRIMARY KEY (source_id, native)
) STRICT, WITHOUT ROWID;

-- A conversation in a channel: a chat, a topic or a thread, with its own session of one agent.
CREATE TABLE source_chat (
    id               TEXT PRIMARY KEY,
    source_id        TEXT NOT NULL REFERENCES data_sources(id) ON DELETE CASCADE,
    native           TEXT NOT NULL CHECK (native <> ''),
    name             TEXT NOT NULL,
    is_room          INTEGER NOT NULL CHECK (is_room IN (0, 1)),
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    session_id       TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    UNIQUE (source_id, native)
) STRICT;
CREATE INDEX source_chat_agent ON source_chat(agent_id);
CREATE INDEX source_chat_session ON source_chat(session_id);

-- Where the answer of a turn goes: written with the turn, and never changed.
CREATE TABLE source_turn (
    turn             INTEGER PRIMARY KEY REFERENCES turn(key) ON DELETE CASCADE,
    chat_id          TEXT NOT NULL REFERENCES source_chat(id) ON DELETE CASCADE,
    person           TEXT NOT NULL,        -- who asked, by the id at the service
    reply_to         TEXT NOT NULL         -- the message that is answered
) STRICT;
CREATE INDEX source_turn_chat ON source_turn(chat_id, turn);

-- How often it was begun to send this without learning what came of it; only where a repetition would show.
ALTER TABLE outbox ADD COLUMN unclear INTEGER NOT NULL DEFAULT 0 CHECK (unclear >= 0);
CREATE INDEX outbox_target ON outbox(target, id) WHERE status = 'pending';

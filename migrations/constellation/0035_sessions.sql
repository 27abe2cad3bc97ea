-- Sessions: conversations of front ends with one agent or group, in addition to the agent's own conversation.

CREATE TABLE sessions (
    id               TEXT PRIMARY KEY,
    agent_id         TEXT REFERENCES agents(id) ON DELETE CASCADE,
    group_id         TEXT REFERENCES agent_groups(id) ON DELETE CASCADE,
    title            TEXT,
    origin           TEXT,                  -- the front end that began it, as it names itself
    is_archived      INTEGER NOT NULL DEFAULT 0 CHECK (is_archived IN (0, 1)),  -- takes no more messages
    -- Of a fork: the session that it begins as, and the newest summary that it has in common with that one. No action
    -- is as good as a refusal, and lets an agent's sessions go with the agent.
    parent_id        TEXT REFERENCES sessions(id) ON DELETE NO ACTION,
    summary_id       TEXT REFERENCES archive_summaries(id) ON DELETE SET NULL,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24),
    CHECK ((agent_id IS NULL) <> (group_id IS NULL))
) STRICT;
CREATE INDEX sessions_owner ON sessions(coalesce(agent_id, group_id), id);
CREATE INDEX sessions_parent ON sessions(parent_id) WHERE parent_id IS NOT NULL;

-- The messages of a session are those with its id, and all of them are in its prompts: what differs is here, by the
-- position. It is a message that a fork has in common with its parent, whose text is stored once, or one that has left
-- the session's prompts (`is_archived`). So a live message needs no row.
CREATE TABLE session_message (
    session_id       TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    position         TEXT NOT NULL CHECK (length(position) = 19),
    is_archived      INTEGER NOT NULL CHECK (is_archived IN (0, 1)),
    PRIMARY KEY (session_id, position)
) STRICT, WITHOUT ROWID;

ALTER TABLE turn ADD COLUMN session_id TEXT;               -- no foreign key: that would need an index
ALTER TABLE archive_summaries ADD COLUMN session_id TEXT;  -- NULL: of the agent's own conversation
DROP INDEX archive_summaries_agent;
CREATE INDEX archive_summaries_agent ON archive_summaries(agent_id, session_id, row);

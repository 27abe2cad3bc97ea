-- The conversation of each agent, and the summaries of what was archived from it.

-- `row` is declared, because VACUUM renumbers an undeclared rowid and the search table is tied to it. Nothing is ever
-- removed but with its agent: an archived message has left the prompt, a deleted one is a tombstone.
CREATE TABLE messages (
    row              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    position         TEXT NOT NULL CHECK (length(position) = 19),  -- a Snowflake; text order is order in time
    batch_id         TEXT,             -- position of the first message of its turn; NULL for what no turn made
    sequence_in_batch INTEGER,
    role             TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system', 'tool')),
    content          TEXT,             -- the words
    parts            TEXT CHECK (parts IS NULL OR json_valid(parts)),  -- all parts in order, where it is more than words
    tool_call_id     TEXT,
    tool_name        TEXT,
    tool_args        TEXT CHECK (tool_args IS NULL OR json_valid(tool_args)),
    tool_result      TEXT CHECK (tool_result IS NULL OR json_valid(tool_result)),
    source           TEXT,
    source_metadata  TEXT CHECK (source_metadata IS NULL OR json_valid(source_metadata)),
    session_id       TEXT,             -- a conversation within the agent's history
    workspace        TEXT,             -- the project that it was about
    batch_type       TEXT CHECK (batch_type IN ('user_request', 'agent_to_agent', 'system_trigger', 'continuation')),
    is_archived      INTEGER NOT NULL DEFAULT 0 CHECK (is_archived IN (0, 1)),
    is_deleted       INTEGER NOT NULL DEFAULT 0 CHECK (is_deleted IN (0, 1)),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;

-- Each index costs its bytes with every message. A turn's messages need none: they lie between its first position,
-- which is the batch's id, and the next batch.
CREATE UNIQUE INDEX messages_agent_position ON messages(agent_id, position);
CREATE INDEX messages_archived ON messages(agent_id, position) WHERE is_archived = 1;
CREATE INDEX messages_session ON messages(session_id, position) WHERE session_id IS NOT NULL;

CREATE TABLE archive_summaries (
    id               TEXT PRIMARY KEY,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    summary          TEXT NOT NULL,
    start_position   TEXT NOT NULL CHECK (length(start_position) = 19),
    end_position     TEXT NOT NULL CHECK (length(end_position) = 19),
    message_count    INTEGER NOT NULL CHECK (message_count >= 0),
    previous_summary_id TEXT REFERENCES archive_summaries(id) ON DELETE SET NULL,
    depth            INTEGER NOT NULL DEFAULT 0 CHECK (depth >= 0),  -- a summary of summaries is one deeper
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    CHECK (start_position <= end_position)
) STRICT;
CREATE INDEX archive_summaries_agent ON archive_summaries(agent_id, start_position);
CREATE INDEX archive_summaries_previous ON archive_summaries(previous_summary_id) WHERE previous_summary_id IS NOT NULL;

-- State and notes that agents share. Nothing was stored in these tables before.

-- Rises with each change of a key, so that a change can name the value that it is based on.
ALTER TABLE coordination_state ADD COLUMN version INTEGER NOT NULL DEFAULT 1 CHECK (version >= 1);

-- A note outlives the agent that wrote it: it may have been written because that agent was to be deleted.
DROP TABLE handoff_notes;
CREATE TABLE handoff_notes (
    id               TEXT PRIMARY KEY,
    from_agent       TEXT REFERENCES agents(id) ON DELETE SET NULL,  -- NULL: a person, or an agent that was deleted
    author           TEXT NOT NULL,                                  -- agent:<id> or user:<id>
    to_agent         TEXT REFERENCES agents(id) ON DELETE SET NULL,  -- NULL: for any agent, until one claims it
    content          TEXT NOT NULL CHECK (content <> ''),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    read_at          TEXT CHECK (length(read_at) = 24)               -- when a prompt of `to_agent` showed it
) STRICT;
CREATE INDEX handoff_notes_to ON handoff_notes(to_agent, read_at);
CREATE INDEX handoff_notes_from ON handoff_notes(from_agent);

-- The newest message that a summary covers: what came after it is read by its position.
ALTER TABLE agent_summaries ADD COLUMN up_to TEXT NOT NULL DEFAULT '';

-- Consent that outlives its question, and turns that rest until a person answers.

-- What people agreed to beforehand: the agent may do it without asking again.
CREATE TABLE consent_grant (
    id               TEXT PRIMARY KEY,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    subject          TEXT NOT NULL CHECK (subject <> ''),  -- 'tool:{name}' or 'block:{label}'
    args_hash        BLOB,              -- 16 bytes: for these arguments alone; NULL: for any
    approval_id      TEXT,              -- the question whose answer it was
    granted_by       TEXT NOT NULL,
    expires_at       TEXT,              -- NULL: until it is revoked
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;
CREATE INDEX consent_grant_agent ON consent_grant(agent_id, subject);

-- The time that a waiting turn has left once somebody answered; NULL while it does not wait.
ALTER TABLE turn ADD COLUMN time_left_ms INTEGER CHECK (time_left_ms >= 0);
-- A message that joined a running turn has a turn of its own that ends at once; this is the one that it joined.
ALTER TABLE turn ADD COLUMN joined_turn INTEGER REFERENCES turn(key) ON DELETE SET NULL;
CREATE INDEX turn_joined ON turn(joined_turn) WHERE joined_turn IS NOT NULL;

-- What a turn said after it waited stands behind the messages of other turns; a turn that never waits needs no index.
CREATE INDEX messages_continued ON messages(batch_id, position) WHERE batch_type = 'continuation';

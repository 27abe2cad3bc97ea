-- API tokens. Only a digest is stored: who reads this file cannot use them.

CREATE TABLE tokens (
    id               TEXT PRIMARY KEY,
    user_id          TEXT NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    name             TEXT NOT NULL,
    token_hash       BLOB NOT NULL UNIQUE CHECK (length(token_hash) = 32),  -- SHA-256
    scopes           TEXT NOT NULL CHECK (json_valid(scopes)),              -- an array of scope names
    constellation_id TEXT REFERENCES constellations(id) ON DELETE CASCADE,  -- NULL: all that the user may see
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    expires_at       TEXT,
    last_used_at     TEXT,
    revoked_at       TEXT
) STRICT;
CREATE INDEX tokens_user ON tokens(user_id);
CREATE INDEX tokens_constellation ON tokens(constellation_id) WHERE constellation_id IS NOT NULL;

-- Signing in with a password. A sign-in is a token that is used with short-lived access tokens, and with a refresh token
-- that changes with every use; its token_hash is of the first half of all its refresh tokens.

ALTER TABLE tokens ADD COLUMN refresh_hash BLOB CHECK (length(refresh_hash) = 32);  -- SHA-256 of the whole current one

CREATE TABLE signing_keys (
    id               TEXT PRIMARY KEY,
    secret           BLOB NOT NULL,      -- access tokens are signed with it
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    retires_at       TEXT                -- what it signed is refused from then on; NULL: it signs
) STRICT;

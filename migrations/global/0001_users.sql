-- Who may use this server.

CREATE TABLE users (
    id               TEXT PRIMARY KEY,
    username         TEXT NOT NULL UNIQUE COLLATE NOCASE CHECK (username <> ''),  -- 'Admin' must not pass for 'admin'
    email            TEXT UNIQUE COLLATE NOCASE,
    password_hash    TEXT,               -- Argon2; NULL: signs in elsewhere or only with tokens
    is_admin         INTEGER NOT NULL DEFAULT 0 CHECK (is_admin IN (0, 1)),
    disabled_at      TEXT,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;

CREATE TABLE user_identities (
    id               TEXT PRIMARY KEY,
    user_id          TEXT NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    provider         TEXT NOT NULL,
    provider_id      TEXT NOT NULL,
    access_token     TEXT,
    refresh_token    TEXT,
    expires_at       TEXT,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    UNIQUE (provider, provider_id)
) STRICT;
CREATE INDEX user_identities_user ON user_identities(user_id);

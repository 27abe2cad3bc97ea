-- Which constellations there are, whose they are and where their files are.

CREATE TABLE constellations (
    id               TEXT PRIMARY KEY,
    owner_id         TEXT NOT NULL REFERENCES users(id),  -- no action: who still owns one is not removed by accident
    name             TEXT NOT NULL CHECK (name <> ''),
    db_path          TEXT NOT NULL,      -- relative to the data directory
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    last_accessed_at TEXT NOT NULL CHECK (length(last_accessed_at) = 24),
    UNIQUE (owner_id, name)
) STRICT;

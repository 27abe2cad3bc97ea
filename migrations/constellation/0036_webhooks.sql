-- Addresses that are sent chosen events (`outbox`).
CREATE TABLE webhook (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    url              TEXT NOT NULL CHECK (url <> ''),
    events           TEXT NOT NULL CHECK (json_valid(events)),   -- names, with * for any characters
    secret           TEXT NOT NULL CHECK (secret <> ''),         -- its name in the server's configuration, never itself
    after            INTEGER NOT NULL CHECK (after >= 0),        -- events up to this one were put into the outbox
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;

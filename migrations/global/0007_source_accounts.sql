-- Accounts of data sources and channels: which constellation each belongs to, and when it is asked next, so that a parked
-- constellation is not kept awake for it. NULL: nobody asks, the service calls.
CREATE TABLE source_accounts (
    id               TEXT PRIMARY KEY,
    constellation_id TEXT NOT NULL REFERENCES constellations(id) ON DELETE CASCADE,
    next_at          TEXT
) STRICT;
CREATE INDEX source_accounts_constellation ON source_accounts(constellation_id);

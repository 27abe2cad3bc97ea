-- Calendar events are used: time zones, exceptions, and what happened to each reminder.

ALTER TABLE events ADD COLUMN zone TEXT NOT NULL DEFAULT 'UTC';            -- of its local times; IANA
ALTER TABLE events ADD COLUMN exdates TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(exdates));  -- nominal times left out
ALTER TABLE events ADD COLUMN rdates TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(rdates));    -- additional ones
ALTER TABLE events ADD COLUMN missed TEXT NOT NULL DEFAULT 'last' CHECK (missed IN ('skip', 'last', 'all'));

-- Nothing was stored in this table before. It has one row per occurrence that has a state of its own; a moved one differs
-- in `starts_at` from its nominal time.
DROP TABLE event_occurrences;
CREATE TABLE event_occurrences (
    id               TEXT PRIMARY KEY,
    event_id         TEXT NOT NULL REFERENCES events(id) ON DELETE CASCADE,
    nominal_at       TEXT NOT NULL CHECK (length(nominal_at) = 24),
    starts_at        TEXT NOT NULL CHECK (length(starts_at) = 24),
    ends_at          TEXT,
    status           TEXT NOT NULL DEFAULT 'scheduled' CHECK (status IN ('scheduled', 'active', 'completed', 'skipped',
                                                                         'snoozed', 'cancelled')),
    title            TEXT,               -- of this occurrence alone
    notes            TEXT,
    reminder         TEXT CHECK (reminder IN ('fired', 'missed', 'skipped')),
    reminded_at      TEXT,               -- when that was decided
    reason           TEXT,               -- why it did not fire
    turn_id          TEXT,               -- of the agent that was reminded; turns may be deleted earlier
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    UNIQUE (event_id, nominal_at)
) STRICT;

-- The components of iCalendar that an event and its changed occurrences were imported from, with all that is not
-- understood; read for exports alone.
CREATE TABLE event_source (
    event_id         TEXT NOT NULL REFERENCES events(id) ON DELETE CASCADE,
    nominal_at       TEXT NOT NULL,      -- '': of the event
    content          TEXT NOT NULL,
    PRIMARY KEY (event_id, nominal_at)
) STRICT, WITHOUT ROWID;

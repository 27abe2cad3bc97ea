-- Tasks and calendar events for people (what happens inside turns is in `event`, of the journal).

CREATE TABLE tasks (
    id               TEXT PRIMARY KEY,
    agent_id         TEXT REFERENCES agents(id) ON DELETE SET NULL,  -- NULL: the whole constellation's
    title            TEXT NOT NULL CHECK (title <> ''),
    description      TEXT,
    status           TEXT NOT NULL DEFAULT 'pending'
                     CHECK (status IN ('pending', 'in_progress', 'completed', 'cancelled')),
    priority         INTEGER NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 3),  -- low, medium, high, urgent
    due_at           TEXT,
    scheduled_at     TEXT,
    completed_at     TEXT,
    parent_task_id   TEXT REFERENCES tasks(id) ON DELETE CASCADE,
    tags             TEXT CHECK (tags IS NULL OR json_valid(tags)),
    estimated_minutes INTEGER CHECK (estimated_minutes >= 0),
    actual_minutes   INTEGER CHECK (actual_minutes >= 0),
    notes            TEXT,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;
CREATE INDEX tasks_agent ON tasks(agent_id, status);
CREATE INDEX tasks_due ON tasks(due_at) WHERE due_at IS NOT NULL AND completed_at IS NULL;
CREATE INDEX tasks_parent ON tasks(parent_task_id) WHERE parent_task_id IS NOT NULL;

CREATE TABLE events (
    id               TEXT PRIMARY KEY,
    agent_id         TEXT REFERENCES agents(id) ON DELETE SET NULL,
    title            TEXT NOT NULL CHECK (title <> ''),
    description      TEXT,
    starts_at        TEXT NOT NULL CHECK (length(starts_at) = 24),
    ends_at          TEXT,
    rrule            TEXT,               -- RFC 5545
    reminder_minutes INTEGER CHECK (reminder_minutes >= 0),
    all_day          INTEGER NOT NULL DEFAULT 0 CHECK (all_day IN (0, 1)),
    location         TEXT,
    external_id      TEXT,
    external_source  TEXT,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;
CREATE INDEX events_starts ON events(starts_at);
CREATE INDEX events_agent ON events(agent_id) WHERE agent_id IS NOT NULL;

-- One row per occurrence that has a state of its own: done, skipped, reminded.
CREATE TABLE event_occurrences (
    id               TEXT PRIMARY KEY,
    event_id         TEXT NOT NULL REFERENCES events(id) ON DELETE CASCADE,
    starts_at        TEXT NOT NULL CHECK (length(starts_at) = 24),
    ends_at          TEXT,
    status           TEXT NOT NULL DEFAULT 'scheduled' CHECK (status IN ('scheduled', 'active', 'completed', 'skipped',
                                                                         'snoozed', 'cancelled')),
    notes            TEXT,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    UNIQUE (event_id, starts_at)
) STRICT;
CREATE INDEX event_occurrences_starts ON event_occurrences(starts_at) WHERE status = 'scheduled';

-- What the constellation does by itself, and when.

-- Moments at which there is something to do, one for each thing: nothing was stored in this table before.
DROP TABLE timer;
CREATE TABLE timer (
    kind             TEXT NOT NULL,         -- 'approval', 'schedule'
    ref              TEXT NOT NULL,         -- the id of what it is about
    due_at           TEXT NOT NULL CHECK (length(due_at) = 24),
    payload          TEXT,                  -- of a schedule: the nominal time of the occurrence
    PRIMARY KEY (kind, ref)
) STRICT, WITHOUT ROWID;
CREATE INDEX timer_due ON timer(due_at);
INSERT INTO timer SELECT 'approval', id, expires_at, NULL FROM approval
WHERE status = 'pending' AND expires_at IS NOT NULL;

-- People can be asked whether a missed occurrence is to run. The constraint only becomes weaker: no row changes (0030).
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''memory'', ''recovery'')', '''memory'', ''recovery'', ''schedule'')')
WHERE type = 'table' AND name = 'approval';
PRAGMA writable_schema = RESET;

CREATE TABLE schedule (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    agent_id         TEXT REFERENCES agents(id) ON DELETE CASCADE,
    group_id         TEXT REFERENCES agent_groups(id) ON DELETE CASCADE,
    message          TEXT NOT NULL CHECK (message <> ''),
    status           TEXT NOT NULL CHECK (status IN ('active', 'paused', 'finished')),
    plan             TEXT NOT NULL CHECK (json_valid(plan)),    -- when it is due, and what then decides whether it fires
    seen             TEXT NOT NULL CHECK (json_valid(seen)),    -- what the conditions compare with
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24),
    CHECK ((agent_id IS NULL) <> (group_id IS NULL))
) STRICT;
CREATE INDEX schedule_agent ON schedule(agent_id) WHERE agent_id IS NOT NULL;
CREATE INDEX schedule_group ON schedule(group_id) WHERE group_id IS NOT NULL;

-- What happened at each nominal time. The row of an occurrence that fired is stored with its turn: there is one or none.
CREATE TABLE schedule_occurrence (
    schedule_id      TEXT NOT NULL REFERENCES schedule(id) ON DELETE CASCADE,
    nominal_at       TEXT NOT NULL CHECK (length(nominal_at) = 24),
    status           TEXT NOT NULL CHECK (status IN ('fired', 'missed', 'skipped', 'asked')),
    reason           TEXT,                  -- why it did not fire
    turn_id          TEXT,                  -- of one that fired; turns may be deleted earlier
    count            INTEGER NOT NULL DEFAULT 1 CHECK (count >= 1),  -- it stands for so many, of which it is the newest
    at               TEXT NOT NULL CHECK (length(at) = 24),          -- when that was decided
    PRIMARY KEY (schedule_id, nominal_at)
) STRICT, WITHOUT ROWID;

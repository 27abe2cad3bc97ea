-- What happened lately and what matters, and the state that agents share to work together.

CREATE TABLE activity_events (
    id               TEXT PRIMARY KEY,
    timestamp        TEXT NOT NULL CHECK (length(timestamp) = 24),
    agent_id         TEXT REFERENCES agents(id) ON DELETE SET NULL,  -- NULL: the system
    event_type       TEXT NOT NULL,
    details          TEXT NOT NULL CHECK (json_valid(details)),
    importance       INTEGER CHECK (importance BETWEEN 0 AND 3)      -- low, medium, high, critical
) STRICT;
CREATE INDEX activity_events_timestamp ON activity_events(timestamp DESC);
CREATE INDEX activity_events_agent ON activity_events(agent_id, timestamp DESC);
CREATE INDEX activity_events_type ON activity_events(event_type, timestamp DESC);

CREATE TABLE agent_summaries (
    agent_id         TEXT PRIMARY KEY REFERENCES agents(id) ON DELETE CASCADE,
    summary          TEXT NOT NULL,
    messages_covered INTEGER CHECK (messages_covered >= 0),
    generated_at     TEXT NOT NULL CHECK (length(generated_at) = 24),
    last_active      TEXT NOT NULL CHECK (length(last_active) = 24)
) STRICT;

CREATE TABLE constellation_summaries (
    id               TEXT PRIMARY KEY,
    period_start     TEXT NOT NULL CHECK (length(period_start) = 24),
    period_end       TEXT NOT NULL CHECK (length(period_end) = 24),
    summary          TEXT NOT NULL,
    key_decisions    TEXT CHECK (key_decisions IS NULL OR json_valid(key_decisions)),  -- an array of strings
    open_threads     TEXT CHECK (open_threads IS NULL OR json_valid(open_threads)),    -- an array of strings
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;
CREATE INDEX constellation_summaries_period ON constellation_summaries(period_end DESC);

CREATE TABLE notable_events (
    id               TEXT PRIMARY KEY,
    timestamp        TEXT NOT NULL CHECK (length(timestamp) = 24),
    event_type       TEXT NOT NULL,
    description      TEXT NOT NULL,
    agents_involved  TEXT CHECK (agents_involved IS NULL OR json_valid(agents_involved)),  -- an array of agent ids
    importance       INTEGER NOT NULL CHECK (importance BETWEEN 0 AND 3),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;
CREATE INDEX notable_events_timestamp ON notable_events(timestamp DESC);
CREATE INDEX notable_events_importance ON notable_events(importance DESC, timestamp DESC);

CREATE TABLE coordination_state (
    key              TEXT PRIMARY KEY,
    value            TEXT NOT NULL CHECK (json_valid(value)),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24),
    updated_by       TEXT                -- an agent's id, 'user' or 'system'
) STRICT;

CREATE TABLE coordination_tasks (
    id               TEXT PRIMARY KEY,
    description      TEXT NOT NULL,
    assigned_to      TEXT REFERENCES agents(id) ON DELETE SET NULL,
    status           TEXT NOT NULL DEFAULT 'pending'
                     CHECK (status IN ('pending', 'in_progress', 'completed', 'cancelled')),
    priority         INTEGER NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 3),  -- low, medium, high, urgent
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;
CREATE INDEX coordination_tasks_status ON coordination_tasks(status, priority DESC);
CREATE INDEX coordination_tasks_assigned ON coordination_tasks(assigned_to) WHERE assigned_to IS NOT NULL;

CREATE TABLE handoff_notes (
    id               TEXT PRIMARY KEY,
    from_agent       TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    to_agent         TEXT REFERENCES agents(id) ON DELETE SET NULL,  -- NULL: for any agent
    content          TEXT NOT NULL,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    read_at          TEXT
) STRICT;
CREATE INDEX handoff_notes_to ON handoff_notes(to_agent, read_at);
CREATE INDEX handoff_notes_from ON handoff_notes(from_agent);

-- Agents, and the groups in which they work together.

CREATE TABLE agents (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    description      TEXT,
    model_provider   TEXT NOT NULL,
    model_name       TEXT NOT NULL,
    system_prompt    TEXT NOT NULL,
    config           TEXT NOT NULL CHECK (json_valid(config)),          -- temperature, token limits, …
    enabled_tools    TEXT NOT NULL CHECK (json_valid(enabled_tools)),   -- an array of tool names
    tool_rules       TEXT CHECK (tool_rules IS NULL OR json_valid(tool_rules)),
    status           TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'hibernated', 'archived')),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;

CREATE TABLE agent_groups (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    description      TEXT,
    pattern_type     TEXT NOT NULL CHECK (pattern_type IN ('round_robin', 'dynamic', 'supervisor', 'pipeline',
                                                           'voting', 'sleeptime')),
    pattern_config   TEXT NOT NULL CHECK (json_valid(pattern_config)),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;

CREATE TABLE group_members (
    group_id         TEXT NOT NULL REFERENCES agent_groups(id) ON DELETE CASCADE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    ordinal          INTEGER NOT NULL DEFAULT 0,   -- place in the group: the order in which members are asked
    role             TEXT,                         -- 'regular', 'supervisor', 'observer', 'specialist', or the pattern's own
    domain           TEXT,                         -- what a specialist knows
    capabilities     TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(capabilities)),
    joined_at        TEXT NOT NULL CHECK (length(joined_at) = 24),
    PRIMARY KEY (group_id, agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX group_members_agent ON group_members(agent_id);

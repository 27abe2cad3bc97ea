-- What tools keep: results that were too long to show whole, and what a tool remembers for one agent.

-- A result that the model was shown the beginning and end of. It belongs to one agent, and the oldest go when there
-- are too many; so it is stored here and not under its digest, where its end would have to be counted.
CREATE TABLE tool_results (
    row              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    tool             TEXT NOT NULL,
    call_id          TEXT NOT NULL,
    chars            INTEGER NOT NULL CHECK (chars >= 0),  -- code points of the text
    created_at       TEXT NOT NULL,
    data             BLOB NOT NULL                         -- the text as UTF-8 in one zstd frame
) STRICT;
CREATE INDEX tool_results_agent ON tool_results(agent_id, row);

-- Named values that a tool keeps for an agent (the variables of the calculator), changed with the call's result.
CREATE TABLE tool_state (
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    tool             TEXT NOT NULL,
    name             TEXT NOT NULL,
    value            TEXT NOT NULL CHECK (json_valid(value)),
    updated_at       TEXT NOT NULL,
    PRIMARY KEY (agent_id, tool, name)
) STRICT, WITHOUT ROWID;

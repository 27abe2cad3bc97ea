-- A message to a group is a turn of the group: `turn` has either an agent or a group. The turns of the members that it
-- asks are its children (`parent_turn`).
--
-- Constraints that only become weaker are taken out of the schema's text: no row changes, so that a file with years of
-- turns is migrated in milliseconds. Source: "ALTER TABLE", sqlite.org/lang_altertable.html, section 7.

PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'TEXT NOT NULL REFERENCES agents(id)', 'TEXT REFERENCES agents(id)')
WHERE type = 'table' AND name = 'turn';
-- The table in the code lists the coordinations, not the schema.
UPDATE sqlite_schema SET sql = substr(sql, 1, instr(sql, ' CHECK (pattern_type IN') - 1)
    || substr(sql, instr(sql, 'sleeptime'')),') + 12)
WHERE type = 'table' AND name = 'agent_groups';
PRAGMA writable_schema = RESET;

ALTER TABLE turn ADD COLUMN group_id TEXT REFERENCES agent_groups(id) ON DELETE CASCADE
    CHECK ((agent_id IS NULL) <> (group_id IS NULL));
CREATE INDEX turn_group ON turn(group_id, key) WHERE group_id IS NOT NULL;

-- What a coordination keeps from one turn of its group to the next, such as whose place in the order is next.
ALTER TABLE agent_groups ADD COLUMN state TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(state));

-- The run of a group's turn. All that decides whom it asks is here and in the turns of the members: after a restart the
-- same decisions are made again, and members that have answered are not asked again.
CREATE TABLE group_run (
    turn             INTEGER PRIMARY KEY REFERENCES turn(key) ON DELETE CASCADE,
    payload          TEXT NOT NULL CHECK (json_valid(payload)),         -- the message, as in `inbox`
    plan             TEXT CHECK (plan IS NULL OR json_valid(plan)),     -- coordination, config, members and state at the start
    answer           TEXT           -- what the group answered, once it has
) STRICT;

-- The turn of a member that a group's turn asked, by its place in the run: no place has two turns.
CREATE TABLE group_ask (
    turn             INTEGER NOT NULL REFERENCES turn(key) ON DELETE CASCADE,
    place            TEXT NOT NULL,         -- 'agent_id:n', the n-th question to that member
    asked            INTEGER NOT NULL UNIQUE REFERENCES turn(key) ON DELETE CASCADE,
    why              TEXT,                  -- why this member was asked
    PRIMARY KEY (turn, place)
) STRICT, WITHOUT ROWID;

-- When each agent last used each tool with success: cooldown and periodic rules reach across turns, and to look for the
-- newest row among months of effects, other agents' too, would cost more with every month. One row per agent and tool.
-- Written with the call's end, and kept when old effects are pruned.
CREATE TABLE tool_use (
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    tool             TEXT NOT NULL,
    last_at          TEXT NOT NULL,  -- when the call started; one that changes only this file starts as it ends
    PRIMARY KEY (agent_id, tool)
) STRICT, WITHOUT ROWID;

INSERT INTO tool_use (agent_id, tool, last_at)
SELECT turn.agent_id, effect.tool, max(coalesce(effect.started_at, effect.ended_at))
FROM effect JOIN turn ON turn.key = effect.turn
WHERE effect.status = 'done' AND coalesce(effect.started_at, effect.ended_at) IS NOT NULL
GROUP BY turn.agent_id, effect.tool;

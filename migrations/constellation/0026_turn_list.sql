-- The list of turns, newest first. Open turns have `turn_open`. Those that ended are found by their agent, and the few
-- among many that did not complete by their status. Only ended turns are in these indexes, so that the search for an
-- agent's open ones never takes them.
CREATE INDEX turn_ended ON turn(agent_id) WHERE ended_at IS NOT NULL;
CREATE INDEX turn_failed ON turn(status) WHERE status NOT IN ('queued', 'running', 'waiting', 'completed');

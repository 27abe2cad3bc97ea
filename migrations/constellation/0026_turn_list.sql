-- The list of turns, newest first. Open turns have `turn_open`; the few among many that did not complete are found by
-- their status. No index over all turns of an agent: each turn would pay for it, and a list looks from the newest on.
CREATE INDEX turn_failed ON turn(status) WHERE status NOT IN ('queued', 'running', 'waiting', 'completed');

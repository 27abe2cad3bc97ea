-- Indexes that each message, event or model call paid for, and that few reads need.

-- One over an agent's messages in place of two: with the flags in it, those in the prompt are found without a look at
-- the archived rows (50,000 of them: 2.5 ms, where a history is loaded or compacted).
CREATE UNIQUE INDEX messages_of_agent ON messages(agent_id, position, is_archived, is_deleted);
DROP INDEX messages_agent_position;
DROP INDEX messages_shown;

-- Calls are stored as they end, so those since a moment are the last ones.
DROP INDEX usage_at;

-- The events of a turn lie between the one that its row names and the one that ends it. No foreign key on `turn`,
-- since that needs an index, too: who deletes turns takes them off their events first, as keys are given again.
ALTER TABLE turn ADD COLUMN first_event INTEGER NOT NULL DEFAULT 1;
UPDATE turn SET first_event = coalesce((SELECT min(seq) FROM event WHERE event.turn = turn.key), 1);
CREATE TABLE event_kept (
    seq              INTEGER PRIMARY KEY,
    turn             INTEGER,           -- the turn's key; NULL: it belongs to none, or to a deleted one
    name             TEXT NOT NULL,
    data             TEXT NOT NULL CHECK (json_valid(data)),
    created_at       TEXT NOT NULL
) STRICT;
INSERT INTO event_kept (seq, turn, name, data, created_at) SELECT seq, turn, name, data, created_at FROM event;
DROP TABLE event;
ALTER TABLE event_kept RENAME TO event;

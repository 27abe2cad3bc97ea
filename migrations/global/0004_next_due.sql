-- When a parked constellation has something to do: a start reads this, and opens no file of a constellation.
ALTER TABLE constellations ADD COLUMN next_due_at TEXT;
CREATE INDEX constellations_due ON constellations(next_due_at) WHERE next_due_at IS NOT NULL;

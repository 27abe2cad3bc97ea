-- How far a message is trusted: as the least trusted of who sent it and who led to it, or as the turn in which it was
-- said. It stays with the message: turns do not travel, and who sent a message may be deleted. What is stored without a
-- level has the least, messages from before too: no row changes, however many there are.
ALTER TABLE messages ADD COLUMN trust TEXT NOT NULL DEFAULT 'source'
    CHECK (trust IN ('partner', 'agent', 'conversant', 'source'));

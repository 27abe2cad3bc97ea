-- What prompts show before the first message of a turn: the time, and what was found when the turn began. It stays with
-- the message, so that a later prompt begins with the same text and vendors' caches keep it.
ALTER TABLE messages ADD COLUMN note TEXT;

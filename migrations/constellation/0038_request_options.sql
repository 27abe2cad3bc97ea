-- What a front end wants of one turn, and the beginning by which a conversation without an id is found again.

ALTER TABLE turn ADD COLUMN options TEXT CHECK (options IS NULL OR json_valid(options));  -- until the turn ends
ALTER TABLE sessions ADD COLUMN beginning BLOB;  -- 16 bytes: a digest of how it began, and with whom
CREATE INDEX sessions_beginning ON sessions(beginning, id) WHERE beginning IS NOT NULL;

-- What each model call was shown and why, without the texts: those are made again from the rows that they came from.

-- Parts of a prompt as a list of references, stored once however many steps were shown the same. It goes with its
-- agent, like the steps that name its digest; a foreign key from there would cost an index.
CREATE TABLE prompt_log (
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    digest           BLOB NOT NULL CHECK (length(digest) = 16),  -- BLAKE2b over `parts`
    parts            TEXT NOT NULL CHECK (json_valid(parts)),
    PRIMARY KEY (agent_id, digest)
) STRICT, WITHOUT ROWID;

-- NULL in steps from before.
ALTER TABLE step ADD COLUMN prompt_tokens INTEGER CHECK (prompt_tokens >= 0);  -- estimate of all that was shown
ALTER TABLE step ADD COLUMN prompt_stable BLOB;      -- what stays from turn to turn: a digest in prompt_log
ALTER TABLE step ADD COLUMN prompt_volatile BLOB;    -- what was found for this moment: another
ALTER TABLE step ADD COLUMN history_from TEXT;       -- position of the first message shown; `cursor` is the last one's
ALTER TABLE step ADD COLUMN history_count INTEGER CHECK (history_count >= 0);
ALTER TABLE step ADD COLUMN history_tokens INTEGER CHECK (history_tokens >= 0);

-- Summaries of what left the prompt: found by their words, and known by how they came about.

-- A summary stands for the messages of its agent from `start_position` to `end_position` that it took out of the prompt.
-- What a prompt shows of the past is the newest summary and those before it, back to the last one that is deeper than 0:
-- that one retells everything before it.
CREATE TABLE archive_summaries_kept (
    row              INTEGER PRIMARY KEY,  -- declared, because the full-text index hangs on it
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    summary          TEXT NOT NULL,
    start_position   TEXT NOT NULL CHECK (length(start_position) = 19),
    end_position     TEXT NOT NULL CHECK (length(end_position) = 19),
    message_count    INTEGER NOT NULL CHECK (message_count >= 0),
    previous_summary_id TEXT REFERENCES archive_summaries_kept(id) ON DELETE SET NULL,
    depth            INTEGER NOT NULL DEFAULT 0 CHECK (depth >= 0),  -- a summary of summaries is one deeper
    is_stub          INTEGER NOT NULL DEFAULT 0 CHECK (is_stub IN (0, 1)),  -- says what left and does not retell it
    strategy         TEXT NOT NULL DEFAULT 'truncate',  -- what chose the messages
    model            TEXT,                 -- who wrote it, `provider/model`; NULL for nobody
    tokens           INTEGER NOT NULL DEFAULT 0 CHECK (tokens >= 0),  -- of the summary, estimated
    started_at       TEXT NOT NULL CHECK (length(started_at) = 24),  -- when the first of its messages was said …
    ended_at         TEXT NOT NULL CHECK (length(ended_at) = 24),  -- … and the last
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    CHECK (start_position <= end_position)
) STRICT;
INSERT INTO archive_summaries_kept (id, agent_id, summary, start_position, end_position, message_count,
                                    previous_summary_id, depth, started_at, ended_at, created_at)
    SELECT id, agent_id, summary, start_position, end_position, message_count, previous_summary_id, depth,
           created_at, created_at, created_at
    FROM archive_summaries ORDER BY created_at, start_position;
DROP TABLE archive_summaries;
ALTER TABLE archive_summaries_kept RENAME TO archive_summaries;
CREATE INDEX archive_summaries_agent ON archive_summaries(agent_id, row);
CREATE INDEX archive_summaries_previous ON archive_summaries(previous_summary_id) WHERE previous_summary_id IS NOT NULL;

-- Derived, like the other full-text indexes (0005). Chinese, Japanese and Korean are looked for in the texts
-- themselves: there is one summary for many messages.
CREATE VIEW summary_fts_source AS
    SELECT row, id AS summary_id, summary AS content FROM archive_summaries;
CREATE VIRTUAL TABLE summary_fts USING fts5(
    summary_id UNINDEXED, content,
    content = 'summary_fts_source', content_rowid = 'row', tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO summary_fts(summary_fts, rank) VALUES ('pgsz', 1980);
INSERT INTO summary_fts(summary_fts) VALUES ('rebuild');
CREATE TRIGGER summary_fts_insert AFTER INSERT ON archive_summaries BEGIN
    INSERT INTO summary_fts(rowid, summary_id, content) VALUES (new.row, new.id, new.summary);
END;
CREATE TRIGGER summary_fts_delete AFTER DELETE ON archive_summaries BEGIN
    INSERT INTO summary_fts(summary_fts, rowid, summary_id, content) VALUES ('delete', old.row, old.id, old.summary);
END;
CREATE TRIGGER summary_fts_update AFTER UPDATE OF summary ON archive_summaries WHEN old.summary IS NOT new.summary BEGIN
    INSERT INTO summary_fts(summary_fts, rowid, summary_id, content) VALUES ('delete', old.row, old.id, old.summary);
    INSERT INTO summary_fts(rowid, summary_id, content) VALUES (new.row, new.id, new.summary);
END;

-- What the prompt shows is what is not archived: few rows among many. The other way round nobody reads.
CREATE INDEX messages_shown ON messages(agent_id, position) WHERE is_archived = 0 AND is_deleted = 0;
DROP INDEX messages_archived;

-- What became of reading each file, where its passages stand, and the heading as a part of what is searched.

ALTER TABLE folders ADD COLUMN status TEXT NOT NULL DEFAULT 'ready' CHECK (status IN ('ready', 'unavailable'));
ALTER TABLE folders ADD COLUMN status_reason TEXT;
ALTER TABLE folders ADD COLUMN indexed_at TEXT CHECK (indexed_at IS NULL OR length(indexed_at) = 24);

-- A table beside folder_files and no columns of it: they would stand behind the content, and reading them would walk
-- its overflow pages.
CREATE TABLE file_index (
    file_id          TEXT PRIMARY KEY REFERENCES folder_files(id) ON DELETE CASCADE,
    status           TEXT NOT NULL CHECK (status IN ('indexed', 'unreadable')),
    error            TEXT CHECK ((error IS NULL) = (status = 'indexed')),
    mtime_ns         INTEGER,            -- of a file on disk, as the system gives it
    content_hash     BLOB,               -- SHA-256 over the reader's version and the bytes
    line_count       INTEGER NOT NULL DEFAULT 0 CHECK (line_count >= 0),
    passage_count    INTEGER NOT NULL DEFAULT 0 CHECK (passage_count >= 0)
) STRICT, WITHOUT ROWID;

ALTER TABLE file_passages ADD COLUMN page INTEGER;
ALTER TABLE file_passages ADD COLUMN heading TEXT NOT NULL DEFAULT '';

DROP TRIGGER file_passage_fts_insert;
DROP TRIGGER file_passage_fts_delete;
DROP TRIGGER file_passage_fts_update;
DROP VIEW file_passage_fts_source;
CREATE VIEW file_passage_fts_source AS
    SELECT row, id AS passage_id, CASE heading WHEN '' THEN content ELSE heading || char(10) || content END AS content
    FROM file_passages;
CREATE TRIGGER file_passage_fts_insert AFTER INSERT ON file_passages BEGIN
    INSERT INTO file_passage_fts(rowid, passage_id, content)
    VALUES (new.row, new.id, CASE new.heading WHEN '' THEN new.content ELSE new.heading || char(10) || new.content END);
END;
CREATE TRIGGER file_passage_fts_delete AFTER DELETE ON file_passages BEGIN
    INSERT INTO file_passage_fts(file_passage_fts, rowid, passage_id, content)
    VALUES ('delete', old.row, old.id,
        CASE old.heading WHEN '' THEN old.content ELSE old.heading || char(10) || old.content END);
END;
CREATE TRIGGER file_passage_fts_update AFTER UPDATE OF content, heading ON file_passages
WHEN old.content IS NOT new.content OR old.heading IS NOT new.heading BEGIN
    INSERT INTO file_passage_fts(file_passage_fts, rowid, passage_id, content)
    VALUES ('delete', old.row, old.id,
        CASE old.heading WHEN '' THEN old.content ELSE old.heading || char(10) || old.content END);
    INSERT INTO file_passage_fts(rowid, passage_id, content)
    VALUES (new.row, new.id, CASE new.heading WHEN '' THEN new.content ELSE new.heading || char(10) || new.content END);
END;

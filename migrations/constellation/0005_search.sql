-- Full-text search over messages, memory and archive. Derived: it can be rebuilt from the tables at any time.
--
-- Each index reads its text through a view that gives the columns their names. Triggers keep it in step and write
-- nothing else; an update re-indexes only when the text really changed. What must not be found (tombstones,
-- inactive blocks) is left out by the search's join, so that hiding a row costs nothing here.
--
-- pgsz: a segment page that fits one 2048-byte page of the file; the default of 4050 would need overflow pages.

CREATE VIEW message_fts_source AS
    SELECT row, id AS message_id, content FROM messages WHERE content IS NOT NULL;
CREATE VIRTUAL TABLE message_fts USING fts5(
    message_id UNINDEXED, content,
    content = 'message_fts_source', content_rowid = 'row', tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO message_fts(message_fts, rank) VALUES ('pgsz', 1980);
CREATE TRIGGER message_fts_insert AFTER INSERT ON messages WHEN new.content IS NOT NULL BEGIN
    INSERT INTO message_fts(rowid, message_id, content) VALUES (new.row, new.id, new.content);
END;
CREATE TRIGGER message_fts_delete AFTER DELETE ON messages WHEN old.content IS NOT NULL BEGIN
    INSERT INTO message_fts(message_fts, rowid, message_id, content)
    VALUES ('delete', old.row, old.id, old.content);
END;
-- The text may come, go or change: only what was indexed is taken out, only what is there is put in.
CREATE TRIGGER message_fts_update AFTER UPDATE OF content ON messages WHEN old.content IS NOT new.content BEGIN
    INSERT INTO message_fts(message_fts, rowid, message_id, content)
    SELECT 'delete', old.row, old.id, old.content WHERE old.content IS NOT NULL;
    INSERT INTO message_fts(rowid, message_id, content)
    SELECT new.row, new.id, new.content WHERE new.content IS NOT NULL;
END;

CREATE VIEW memory_fts_source AS
    SELECT row, id AS block_id, label, content_preview AS content FROM memory_blocks;
CREATE VIRTUAL TABLE memory_fts USING fts5(
    block_id UNINDEXED, label, content,
    content = 'memory_fts_source', content_rowid = 'row', tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO memory_fts(memory_fts, rank) VALUES ('pgsz', 1980);
CREATE TRIGGER memory_fts_insert AFTER INSERT ON memory_blocks BEGIN
    INSERT INTO memory_fts(rowid, block_id, label, content)
    VALUES (new.row, new.id, new.label, new.content_preview);
END;
CREATE TRIGGER memory_fts_delete AFTER DELETE ON memory_blocks BEGIN
    INSERT INTO memory_fts(memory_fts, rowid, block_id, label, content)
    VALUES ('delete', old.row, old.id, old.label, old.content_preview);
END;
CREATE TRIGGER memory_fts_update AFTER UPDATE OF label, content_preview ON memory_blocks
WHEN old.label IS NOT new.label OR old.content_preview IS NOT new.content_preview BEGIN
    INSERT INTO memory_fts(memory_fts, rowid, block_id, label, content)
    VALUES ('delete', old.row, old.id, old.label, old.content_preview);
    INSERT INTO memory_fts(rowid, block_id, label, content)
    VALUES (new.row, new.id, new.label, new.content_preview);
END;

CREATE VIEW archival_fts_source AS
    SELECT row, id AS entry_id, content, metadata FROM archival_entries;
CREATE VIRTUAL TABLE archival_fts USING fts5(
    entry_id UNINDEXED, content, metadata,
    content = 'archival_fts_source', content_rowid = 'row', tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO archival_fts(archival_fts, rank) VALUES ('pgsz', 1980);
CREATE TRIGGER archival_fts_insert AFTER INSERT ON archival_entries BEGIN
    INSERT INTO archival_fts(rowid, entry_id, content, metadata)
    VALUES (new.row, new.id, new.content, new.metadata);
END;
CREATE TRIGGER archival_fts_delete AFTER DELETE ON archival_entries BEGIN
    INSERT INTO archival_fts(archival_fts, rowid, entry_id, content, metadata)
    VALUES ('delete', old.row, old.id, old.content, old.metadata);
END;
CREATE TRIGGER archival_fts_update AFTER UPDATE OF content, metadata ON archival_entries
WHEN old.content IS NOT new.content OR old.metadata IS NOT new.metadata BEGIN
    INSERT INTO archival_fts(archival_fts, rowid, entry_id, content, metadata)
    VALUES ('delete', old.row, old.id, old.content, old.metadata);
    INSERT INTO archival_fts(rowid, entry_id, content, metadata)
    VALUES (new.row, new.id, new.content, new.metadata);
END;

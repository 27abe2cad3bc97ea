-- Chinese, Japanese and Korean in the full-text search: they do not put blanks between words, so that the other
-- indexes hold whole sentences as one word. Derived, like those.
--
-- One index for all kinds, and only of rows that hold such characters: others pay for a look at their text. A row's
-- number here is 4 times its own plus its kind (0 message, 1 block, 2 entry, 3 passage). What is looked up is the
-- beginning of a trigram (one or two characters), hence the two blanks at the end: the last characters begin one too.

CREATE VIEW cjk_source AS
    SELECT 4 * row AS row, content || '  ' AS content FROM messages
    WHERE content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*'
    UNION ALL
    SELECT 4 * row + 1, label || ' ' || coalesce(content_preview, '') || '  ' FROM memory_blocks
    WHERE label || coalesce(content_preview, '') GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*'
    UNION ALL
    SELECT 4 * row + 2, content || '  ' FROM archival_entries
    WHERE content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*'
    UNION ALL
    SELECT 4 * row + 3, heading || ' ' || content || '  ' FROM file_passages
    WHERE heading || content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
CREATE VIRTUAL TABLE cjk_fts USING fts5(
    content, content = 'cjk_source', content_rowid = 'row', tokenize = 'trigram', detail = 'none', columnsize = 0
);
INSERT INTO cjk_fts(cjk_fts, rank) VALUES ('pgsz', 1980);
CREATE VIRTUAL TABLE cjk_vocab USING fts5vocab(cjk_fts, instance);
INSERT INTO cjk_fts(cjk_fts) VALUES ('rebuild');

CREATE TRIGGER cjk_message_insert AFTER INSERT ON messages
WHEN new.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(rowid, content) VALUES (4 * new.row, new.content || '  ');
END;
CREATE TRIGGER cjk_message_delete AFTER DELETE ON messages
WHEN old.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content) VALUES ('delete', 4 * old.row, old.content || '  ');
END;
CREATE TRIGGER cjk_message_update AFTER UPDATE OF content ON messages
WHEN old.content IS NOT new.content BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content)
    SELECT 'delete', 4 * old.row, old.content || '  ' WHERE old.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
    INSERT INTO cjk_fts(rowid, content)
    SELECT 4 * new.row, new.content || '  ' WHERE new.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
END;

CREATE TRIGGER cjk_block_insert AFTER INSERT ON memory_blocks
WHEN new.label || ' ' || coalesce(new.content_preview, '') GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(rowid, content) VALUES (4 * new.row + 1, new.label || ' ' || coalesce(new.content_preview, '') || '  ');
END;
CREATE TRIGGER cjk_block_delete AFTER DELETE ON memory_blocks
WHEN old.label || ' ' || coalesce(old.content_preview, '') GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content) VALUES ('delete', 4 * old.row + 1, old.label || ' ' || coalesce(old.content_preview, '') || '  ');
END;
CREATE TRIGGER cjk_block_update AFTER UPDATE OF label, content_preview ON memory_blocks
WHEN old.label IS NOT new.label OR old.content_preview IS NOT new.content_preview BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content)
    SELECT 'delete', 4 * old.row + 1, old.label || ' ' || coalesce(old.content_preview, '') || '  ' WHERE old.label || ' ' || coalesce(old.content_preview, '') GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
    INSERT INTO cjk_fts(rowid, content)
    SELECT 4 * new.row + 1, new.label || ' ' || coalesce(new.content_preview, '') || '  ' WHERE new.label || ' ' || coalesce(new.content_preview, '') GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
END;

CREATE TRIGGER cjk_archival_insert AFTER INSERT ON archival_entries
WHEN new.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(rowid, content) VALUES (4 * new.row + 2, new.content || '  ');
END;
CREATE TRIGGER cjk_archival_delete AFTER DELETE ON archival_entries
WHEN old.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content) VALUES ('delete', 4 * old.row + 2, old.content || '  ');
END;
CREATE TRIGGER cjk_archival_update AFTER UPDATE OF content ON archival_entries
WHEN old.content IS NOT new.content BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content)
    SELECT 'delete', 4 * old.row + 2, old.content || '  ' WHERE old.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
    INSERT INTO cjk_fts(rowid, content)
    SELECT 4 * new.row + 2, new.content || '  ' WHERE new.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
END;

CREATE TRIGGER cjk_passage_insert AFTER INSERT ON file_passages
WHEN new.heading || ' ' || new.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(rowid, content) VALUES (4 * new.row + 3, new.heading || ' ' || new.content || '  ');
END;
CREATE TRIGGER cjk_passage_delete AFTER DELETE ON file_passages
WHEN old.heading || ' ' || old.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*' BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content) VALUES ('delete', 4 * old.row + 3, old.heading || ' ' || old.content || '  ');
END;
CREATE TRIGGER cjk_passage_update AFTER UPDATE OF content, heading ON file_passages
WHEN old.content IS NOT new.content OR old.heading IS NOT new.heading BEGIN
    INSERT INTO cjk_fts(cjk_fts, rowid, content)
    SELECT 'delete', 4 * old.row + 3, old.heading || ' ' || old.content || '  ' WHERE old.heading || ' ' || old.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
    INSERT INTO cjk_fts(rowid, content)
    SELECT 4 * new.row + 3, new.heading || ' ' || new.content || '  ' WHERE new.heading || ' ' || new.content GLOB '*[⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯]*';
END;

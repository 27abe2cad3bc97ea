-- The words of each full-text index, for a query whose words no text holds: read from the index itself, so that they take
-- no space and a new row costs nothing.

CREATE VIRTUAL TABLE message_fts_words USING fts5vocab(message_fts, row);
CREATE VIRTUAL TABLE memory_fts_words USING fts5vocab(memory_fts, row);
CREATE VIRTUAL TABLE archival_fts_words USING fts5vocab(archival_fts, row);
CREATE VIRTUAL TABLE file_passage_fts_words USING fts5vocab(file_passage_fts, row);
CREATE VIRTUAL TABLE summary_fts_words USING fts5vocab(summary_fts, row);

-- Of the words of a message, as its embedder codes them: a bit for each number of the vector, one word behind the other.
ALTER TABLE embeddings ADD COLUMN codes BLOB;
-- Only models on this machine make codes. What they embedded before is looked at again, and answers until then.
UPDATE embeddings SET content_hash = ''
WHERE kind = 'message' AND index_id IN (SELECT id FROM embedding_indexes WHERE provider = 'local');
UPDATE embedding_cursors SET low = high
WHERE kind = 'message' AND index_id IN (SELECT id FROM embedding_indexes WHERE provider = 'local');

-- Who did what with users, tokens and data. Rows are only added, and each holds a hash over itself and the row before it:
-- a change or a gap shows. Users and tokens are not foreign keys, because their entries outlive them.

CREATE TABLE audit_log (
    seq              INTEGER PRIMARY KEY,  -- 1, 2, 3 …
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    action           TEXT NOT NULL CHECK (action <> ''),  -- such as tokens.create
    object           TEXT NOT NULL,        -- the path of what it was done with
    status           INTEGER NOT NULL,     -- of the answer (HTTP)
    user_id          TEXT,
    token_id         TEXT,
    address          TEXT NOT NULL,
    hash             BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;

CREATE TRIGGER audit_log_no_update BEFORE UPDATE ON audit_log BEGIN
    SELECT RAISE(ABORT, 'entries of the audit log are never changed');
END;
CREATE TRIGGER audit_log_no_delete BEFORE DELETE ON audit_log BEGIN
    SELECT RAISE(ABORT, 'entries of the audit log are never deleted');
END;

-- Decisions: what was decided about a project, what replaces it and what contradicts it. An imported one keeps its own
-- id, and the line of its file, so that the file can be written again byte by byte.

CREATE TABLE decisions (
    id                TEXT PRIMARY KEY CHECK (id <> ''),
    workspace         TEXT NOT NULL,
    title             TEXT NOT NULL,
    text              TEXT NOT NULL,
    created_at        TEXT CHECK (length(created_at) = 24),  -- NULL: its file does not say
    updated_at        TEXT CHECK (length(updated_at) = 24),
    changed_by        TEXT NOT NULL,
    source            TEXT NOT NULL CHECK (source IN ('manual', 'extracted', 'turn')),
    cwd               TEXT NOT NULL,
    project           TEXT NOT NULL,
    project_id        TEXT,
    tags              TEXT NOT NULL CHECK (json_valid(tags)),
    scope             TEXT CHECK (scope IN ('global', 'project', 'repo', 'host', 'tool', 'workflow', 'model', 'engagement')),
    decision_key      TEXT,
    summary           TEXT,
    details           TEXT NOT NULL CHECK (json_valid(details)),
    confidence        TEXT CHECK (confidence IN ('high', 'medium', 'low')),
    freshness         TEXT CHECK (freshness IN ('current', 'may_be_stale', 'stale')),
    important         INTEGER NOT NULL CHECK (important IN (0, 1)),
    archived          INTEGER NOT NULL CHECK (archived IN (0, 1)),
    kb_path           TEXT,
    source_turn_id    TEXT,
    retrieval_count   INTEGER NOT NULL CHECK (retrieval_count >= 0),
    injection_count   INTEGER NOT NULL CHECK (injection_count >= 0),
    last_retrieved_at TEXT,
    last_injected_at  TEXT
) STRICT;
CREATE INDEX decisions_workspace ON decisions(workspace, created_at);

-- `supersedes` has no cycles. A conflict is stored once, and is one of both.
CREATE TABLE decision_links (
    from_id           TEXT NOT NULL REFERENCES decisions(id) ON DELETE CASCADE,
    to_id             TEXT NOT NULL REFERENCES decisions(id) ON DELETE CASCADE,
    kind              TEXT NOT NULL CHECK (kind IN ('supersedes', 'conflicts')),
    PRIMARY KEY (from_id, to_id, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX decision_links_to ON decision_links(to_id, kind);

-- The lines of imported files in their order, each with its line end. One without a decision could not be read, or is
-- blank: an export writes it again, too.
CREATE TABLE decision_lines (
    id                TEXT PRIMARY KEY,
    workspace         TEXT NOT NULL,
    position          INTEGER NOT NULL,
    decision_id       TEXT UNIQUE REFERENCES decisions(id) ON DELETE CASCADE,
    is_trusted        INTEGER NOT NULL CHECK (is_trusted IN (0, 1)),  -- whether it could make its decision important
    line              BLOB NOT NULL
) STRICT;
CREATE INDEX decision_lines_workspace ON decision_lines(workspace, position);

-- Guidance: short advice on a kind of task in a project, with the evidence for and against it. Counters are sums of
-- the evidence, computed again with each change of it. Nothing of it is deleted: what no longer helps is archived, or merged into another one.

CREATE TABLE guidance (
    id                TEXT PRIMARY KEY CHECK (id <> ''),
    workspace         TEXT NOT NULL,
    task_type         TEXT NOT NULL CHECK (task_type <> ''),
    section           TEXT NOT NULL,
    content           TEXT NOT NULL,
    source            TEXT NOT NULL CHECK (source IN ('seed', 'learned', 'manual', 'reflector', 'curator')),
    source_task       TEXT,
    state             TEXT NOT NULL CHECK (state IN ('proposed', 'active', 'archived', 'merged')),
    merged_into       TEXT REFERENCES guidance(id),
    created_at        TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at        TEXT NOT NULL CHECK (length(updated_at) = 24),
    changed_by        TEXT NOT NULL,
    helpful           INTEGER NOT NULL DEFAULT 0,  -- these four: of its feedback
    harmful           INTEGER NOT NULL DEFAULT 0,
    used              INTEGER NOT NULL DEFAULT 0,
    last_used_at      TEXT,
    CHECK ((state = 'merged') = (merged_into IS NOT NULL))
) STRICT;
CREATE INDEX guidance_best ON guidance(workspace, state, task_type, (helpful + 1.0) / (helpful + harmful + 2) DESC);
CREATE INDEX guidance_merged ON guidance(merged_into) WHERE merged_into IS NOT NULL;

-- One row for each verdict of an author in a turn; `turn` is empty outside of turns, the day for what was only used, and
-- `import` for what a file had counted, which is one row with its number as the weight.
CREATE TABLE guidance_feedback (
    guidance_id       TEXT NOT NULL REFERENCES guidance(id) ON DELETE CASCADE,
    verdict           TEXT NOT NULL CHECK (verdict IN ('helpful', 'harmful', 'used')),
    author            TEXT NOT NULL,
    turn              TEXT NOT NULL,
    weight            INTEGER NOT NULL CHECK (weight >= 1),
    note              TEXT,
    created_at        TEXT NOT NULL CHECK (length(created_at) = 24),
    PRIMARY KEY (guidance_id, verdict, author, turn)
) STRICT, WITHOUT ROWID;

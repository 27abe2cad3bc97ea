-- The journal: what must be stored before and after each moment of a turn (T0 to T8), so that a process that
-- dies anywhere loses nothing it acknowledged and repeats no effect. pattern_core/DESIGN.md tells the moments.
--
-- Rows refer to a turn by its small integer `key`; `id` is the name that users see.

-- One row from the moment a message is accepted (T0). `status` stays open (queued, running, waiting) until the
-- one terminal event.
CREATE TABLE turn (
    key              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    parent_turn      INTEGER REFERENCES turn(key) ON DELETE SET NULL,  -- the turn whose tool call asked for this one
    depth            INTEGER NOT NULL DEFAULT 0 CHECK (depth >= 0),    -- how many agents passed the request on
    sender           TEXT NOT NULL,                                    -- 'user:{id}', 'agent:{id}' or 'system'
    idempotency      BLOB,          -- 16 bytes: digest of (agent, sender, the client's Idempotency-Key)
    fingerprint      BLOB,          -- 16 bytes: digest of the request, so that a key is not reused for another one
    status           TEXT NOT NULL CHECK (status IN ('queued', 'running', 'waiting', 'completed', 'failed',
                                                     'cancelled', 'interrupted', 'limit', 'parked')),
    batch_id         TEXT,          -- position of the turn's first message, once started
    seed             INTEGER NOT NULL,
    epoch            INTEGER,       -- ownership epoch that last worked on it
    steps            INTEGER NOT NULL DEFAULT 0,  -- how many it took, once ended; before, where a restart took it up
    resumes          INTEGER NOT NULL DEFAULT 0,  -- how often restarts took up that step
    cancel_reason    TEXT,          -- set when somebody asked to stop it
    error            TEXT CHECK (error IS NULL OR json_valid(error)),  -- {"code", "message"} of a turn that did not complete
    deadline_at      TEXT,
    created_at       TEXT NOT NULL,
    started_at       TEXT,
    ended_at         TEXT
) STRICT;
CREATE UNIQUE INDEX turn_idempotency ON turn(idempotency) WHERE idempotency IS NOT NULL;
CREATE INDEX turn_open ON turn(agent_id, key) WHERE ended_at IS NULL;
CREATE INDEX turn_parent ON turn(parent_turn) WHERE parent_turn IS NOT NULL;

-- Accepted messages that no turn has taken yet. The row goes when its turn starts (T1) and the message becomes history.
CREATE TABLE inbox (
    turn             INTEGER PRIMARY KEY REFERENCES turn(key) ON DELETE CASCADE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    priority         INTEGER NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 3),
    payload          TEXT NOT NULL CHECK (json_valid(payload)),  -- {"content", "source"?, "source_metadata"?}
    created_at       TEXT NOT NULL
) STRICT;
CREATE INDEX inbox_next ON inbox(agent_id, priority DESC, turn);

-- One model call (T2 opened, T3 done). A call that a crash cut off is 'superseded' and tried again as attempt + 1.
CREATE TABLE step (
    turn             INTEGER NOT NULL REFERENCES turn(key) ON DELETE CASCADE,
    no               INTEGER NOT NULL CHECK (no >= 1),
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    status           TEXT NOT NULL CHECK (status IN ('open', 'done', 'superseded', 'failed')),
    provider         TEXT NOT NULL,
    model            TEXT NOT NULL,
    cursor           TEXT NOT NULL,    -- position of the newest message that the prompt showed: with the hashes it proves what was sent
    prefix_hash      BLOB NOT NULL,    -- 16 bytes over instructions, memory and tools
    request_hash     BLOB NOT NULL,    -- 16 bytes over the prefix and the messages shown
    finish_reason    TEXT,
    provider_request_id TEXT,
    started_at       TEXT NOT NULL,
    ended_at         TEXT,
    PRIMARY KEY (turn, no, attempt)
) STRICT, WITHOUT ROWID;

-- One tool call. Planned with the decision (T3), started (T5) and ended (T6); 'in_doubt' is an unsafe call that a
-- crash cut off: nobody knows whether it happened, so it is reported and never repeated by itself.
CREATE TABLE effect (
    turn             INTEGER NOT NULL REFERENCES turn(key) ON DELETE CASCADE,
    step             INTEGER NOT NULL,
    call             INTEGER NOT NULL CHECK (call >= 0),  -- place of the call in the model's decision
    call_id          TEXT NOT NULL,
    tool             TEXT NOT NULL,
    args             TEXT NOT NULL CHECK (json_valid(args)),
    args_hash        BLOB NOT NULL,
    class            TEXT NOT NULL CHECK (class IN ('pure', 'local', 'idempotent', 'verifiable', 'unsafe')),
    idempotency_key  TEXT NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('planned', 'awaiting_approval', 'started', 'done', 'error',
                                                     'timeout', 'cancelled', 'denied', 'in_doubt')),
    epoch            INTEGER,
    attempts         INTEGER NOT NULL DEFAULT 0,
    message_id       TEXT,                                -- the message that holds the result
    started_at       TEXT,
    deadline_at      TEXT,
    ended_at         TEXT,
    PRIMARY KEY (turn, step, call)
) STRICT, WITHOUT ROWID;

-- What happened, in the one order that every stream shows: SSE, WebSocket and all other protocols are projections.
-- The newest event is never pruned, so a sequence number is never given twice.
CREATE TABLE event (
    seq              INTEGER PRIMARY KEY,
    turn             INTEGER REFERENCES turn(key) ON DELETE SET NULL,
    name             TEXT NOT NULL,
    data             TEXT NOT NULL CHECK (json_valid(data)),
    created_at       TEXT NOT NULL
) STRICT;
CREATE INDEX event_turn ON event(turn, seq) WHERE turn IS NOT NULL;

CREATE TABLE approval (
    id               TEXT PRIMARY KEY,
    turn             INTEGER REFERENCES turn(key) ON DELETE CASCADE,
    step             INTEGER,
    call             INTEGER,
    kind             TEXT NOT NULL CHECK (kind IN ('tool', 'memory', 'recovery')),
    request          TEXT NOT NULL CHECK (json_valid(request)),
    args_hash        BLOB NOT NULL,
    audience         TEXT,
    status           TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'edited', 'denied', 'expired', 'cancelled')),
    decision         TEXT CHECK (decision IS NULL OR json_valid(decision)),
    decided_by       TEXT,
    expires_at       TEXT,
    created_at       TEXT NOT NULL,
    decided_at       TEXT
) STRICT;
CREATE INDEX approval_pending ON approval(status, expires_at) WHERE status = 'pending';
CREATE INDEX approval_effect ON approval(turn, step, call);

-- What must leave the process by itself (webhooks, other constellations): delivered at least once, under one dedup id.
CREATE TABLE outbox (
    id               TEXT PRIMARY KEY,     -- the dedup id that the receiver sees
    turn             INTEGER REFERENCES turn(key) ON DELETE SET NULL,
    target           TEXT NOT NULL,
    payload          TEXT NOT NULL CHECK (json_valid(payload)),
    status           TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'dead')),
    attempts         INTEGER NOT NULL DEFAULT 0,
    next_at          TEXT NOT NULL,
    last_error       TEXT,
    created_at       TEXT NOT NULL,
    delivered_at     TEXT
) STRICT;
CREATE INDEX outbox_due ON outbox(next_at) WHERE status = 'pending';

-- Moments at which the constellation has something to do.
CREATE TABLE timer (
    id               TEXT PRIMARY KEY,
    kind             TEXT NOT NULL,
    ref              TEXT NOT NULL,        -- what it is about: an approval's, turn's or task's id
    due_at           TEXT NOT NULL,
    payload          TEXT CHECK (payload IS NULL OR json_valid(payload)),
    created_at       TEXT NOT NULL,
    UNIQUE (kind, ref)
) STRICT;
CREATE INDEX timer_due ON timer(due_at);

-- Tokens and money of one model call, as the provider reported them (or an estimate, said so, for a call that died).
CREATE TABLE usage (
    turn             INTEGER NOT NULL REFERENCES turn(key) ON DELETE CASCADE,
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    provider         TEXT NOT NULL,
    model            TEXT NOT NULL,
    input_tokens     INTEGER NOT NULL CHECK (input_tokens >= 0),
    output_tokens    INTEGER NOT NULL CHECK (output_tokens >= 0),
    cached_tokens    INTEGER NOT NULL DEFAULT 0 CHECK (cached_tokens >= 0),
    cost_microdollars INTEGER,             -- NULL where the price is not known
    is_estimate      INTEGER NOT NULL DEFAULT 0 CHECK (is_estimate IN (0, 1)),
    PRIMARY KEY (turn, step, attempt)
) STRICT, WITHOUT ROWID;

-- Content too long for its row, stored once under its own digest.
CREATE TABLE blob (
    digest           BLOB PRIMARY KEY,     -- BLAKE2b-256 of the uncompressed content
    encoding         TEXT NOT NULL CHECK (encoding IN ('raw', 'zstd')),
    size             INTEGER NOT NULL CHECK (size >= 0),  -- bytes before compression
    data             BLOB NOT NULL,
    created_at       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

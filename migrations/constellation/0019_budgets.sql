-- What model calls cost, by call and by day; budgets, and what calls under way hold of them.

-- Tokens and money of one model call, as the provider reported them (or an estimate, said so, for a call that died).
-- A step's call may be tried again (`attempt`), and other calls may be made for it: summaries, for one (`purpose`).
CREATE TABLE usage_kept (
    key              INTEGER PRIMARY KEY,
    turn             INTEGER REFERENCES turn(key) ON DELETE SET NULL,
    agent_id         TEXT NOT NULL,        -- no foreign key: what a deleted agent spent is spent
    group_id         TEXT,                 -- the group on whose behalf it was made, if any
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    purpose          TEXT NOT NULL DEFAULT 'step' CHECK (purpose <> ''),
    no               INTEGER NOT NULL DEFAULT 0 CHECK (no >= 0),  -- of several calls of the same purpose
    provider         TEXT NOT NULL,
    model            TEXT NOT NULL,
    input_tokens     INTEGER NOT NULL CHECK (input_tokens >= 0),  -- all input, what caches gave and took included
    output_tokens    INTEGER NOT NULL CHECK (output_tokens >= 0), -- all output, reasoning included
    cached_tokens    INTEGER NOT NULL DEFAULT 0 CHECK (cached_tokens >= 0),
    cache_write_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cache_write_tokens >= 0),
    reasoning_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reasoning_tokens >= 0),
    cost_microdollars INTEGER CHECK (cost_microdollars >= 0),     -- NULL where the price is not known
    is_estimate      INTEGER NOT NULL DEFAULT 0 CHECK (is_estimate IN (0, 1)),
    at               TEXT NOT NULL CHECK (length(at) = 24),
    UNIQUE (turn, step, attempt, purpose, no)
) STRICT;
INSERT INTO usage_kept (turn, agent_id, step, attempt, provider, model, input_tokens, output_tokens, cached_tokens,
                        cost_microdollars, is_estimate, at)
    SELECT u.turn, t.agent_id, u.step, u.attempt, u.provider, u.model, u.input_tokens, u.output_tokens,
           u.cached_tokens, u.cost_microdollars, u.is_estimate, coalesce(s.ended_at, s.started_at, t.created_at)
    FROM usage AS u JOIN turn AS t ON t.key = u.turn
    LEFT JOIN step AS s ON s.turn = u.turn AND s.no = u.step AND s.attempt = u.attempt
    ORDER BY u.turn, u.step, u.attempt;
DROP TABLE usage;
ALTER TABLE usage_kept RENAME TO usage;
CREATE INDEX usage_at ON usage(at);

-- The same by day (UTC): derived, written together with `usage`. A month's sum reads some rows and not 100,000.
CREATE TABLE usage_day (
    day              TEXT NOT NULL CHECK (length(day) = 10),
    agent_id         TEXT NOT NULL,
    group_id         TEXT NOT NULL,        -- '' for none
    provider         TEXT NOT NULL,
    model            TEXT NOT NULL,
    calls            INTEGER NOT NULL,
    unpriced_calls   INTEGER NOT NULL,     -- whose price is not known: their cost is missing in cost_microdollars
    estimated_calls  INTEGER NOT NULL,
    input_tokens     INTEGER NOT NULL,
    output_tokens    INTEGER NOT NULL,
    cached_tokens    INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_microdollars INTEGER NOT NULL,
    PRIMARY KEY (day, agent_id, group_id, provider, model)
) STRICT, WITHOUT ROWID;
INSERT INTO usage_day
    SELECT substr(at, 1, 10), agent_id, coalesce(group_id, ''), provider, model, count(*),
           count(*) FILTER (WHERE cost_microdollars IS NULL), sum(is_estimate), sum(input_tokens), sum(output_tokens),
           sum(cached_tokens), sum(cache_write_tokens), sum(reasoning_tokens), coalesce(sum(cost_microdollars), 0)
    FROM usage GROUP BY 1, 2, 3, 4, 5;

-- How much may be spent. `ref` is the agent's or group's id; '' means each agent, each turn, or the constellation.
CREATE TABLE budget (
    scope            TEXT NOT NULL CHECK (scope IN ('turn', 'agent', 'group', 'constellation')),
    ref              TEXT NOT NULL,
    period           TEXT NOT NULL CHECK (period IN ('day', 'month', 'total')),
    unit             TEXT NOT NULL CHECK (unit IN ('tokens', 'microdollars')),
    amount           INTEGER NOT NULL CHECK (amount >= 0),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24),
    PRIMARY KEY (scope, ref, period, unit),
    CHECK (scope <> 'turn' OR (ref = '' AND period = 'total')),
    CHECK (scope <> 'constellation' OR ref = ''),
    CHECK (scope <> 'group' OR ref <> '')
) STRICT, WITHOUT ROWID;

-- What one turn, with all turns that it led to, may spend; fixed when it starts. No row: as much as it likes.
CREATE TABLE turn_budget (
    turn             INTEGER PRIMARY KEY REFERENCES turn(key) ON DELETE CASCADE,
    tokens           INTEGER CHECK (tokens >= 0),
    microdollars     INTEGER CHECK (microdollars >= 0)
) STRICT;

-- What a model call under way may cost at most, held until its usage is stored. Only where there is a budget.
CREATE TABLE reservation (
    turn             INTEGER NOT NULL REFERENCES turn(key) ON DELETE CASCADE,
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    purpose          TEXT NOT NULL CHECK (purpose <> ''),
    no               INTEGER NOT NULL,
    agent_id         TEXT NOT NULL,
    group_id         TEXT,
    provider         TEXT NOT NULL,
    model            TEXT NOT NULL,
    tokens           INTEGER NOT NULL CHECK (tokens >= 0),         -- the worst case: the prompt and all output allowed
    microdollars     INTEGER CHECK (microdollars >= 0),            -- NULL where the price is not known
    prompt_tokens    INTEGER NOT NULL CHECK (prompt_tokens >= 0),  -- what is charged if nobody learns what it cost
    prompt_microdollars INTEGER CHECK (prompt_microdollars >= 0),
    PRIMARY KEY (turn, step, attempt, purpose, no)
) STRICT, WITHOUT ROWID;
CREATE INDEX reservation_agent ON reservation(agent_id);

-- What agents did, decided and left open: nothing was stored in these tables before.

-- The model that wrote it (provider/model); NULL: it quotes the last words, because no model could.
ALTER TABLE agent_summaries ADD COLUMN model TEXT;

-- A day and a week are summed up once, and again if something of them was stored after that.
DROP INDEX constellation_summaries_period;
CREATE UNIQUE INDEX constellation_summaries_period ON constellation_summaries(period_end, period_start);

-- There are few: they are found by time, and the most important of a time are chosen among these.
DROP INDEX notable_events_importance;

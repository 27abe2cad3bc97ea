"""Compaction of a conversation: messages are chosen, summarised or replaced by a stub, archived, and noted in an event.

Every change is one transaction with its summary; before that nothing has changed, so a cancellation or crash costs at
most a model call. Attempts are bounded: the agent's strategy once, then `drop_oldest`, which needs no model and cannot
fail, then a shorter view of the running turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from pattern_core.agent_settings import settings_of
from pattern_core.compaction.choose import Choice, choose, drop_oldest, shortened
from pattern_core.compaction.summariser import Summariser, SummaryUsage, count_text, stub_text
from pattern_core.conversation.history import History, MessageGroup, load_history
from pattern_core.conversation.opening import HEAD_SHOWN, TAIL_SHOWN, Opening, opening_message, shown_chain
from pattern_core.errors import Conflict, LimitReached
from pattern_core.events import Draft, Event, append
from pattern_core.journal import Journal
from pattern_core.limits import Limits, PromptLimits
from pattern_core.messages import Message
from pattern_core.models.client import ModelClient
from pattern_core.models.tokens import estimate_text, message_tokens
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.journal import turns
from pattern_db.tables import messages, summaries
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.summaries import Chain, SummaryRow

OPENING_SHARE = 4  # the opening has at most one part in this many of the room
OPENING_TOKENS_MIN = 120
OPENING_STEP = 64
COMPACTIONS_MAX = 3  # in one turn by the agent's strategy; later without a model
UNREAD_AT_ONCE = 5_000  # messages that leave unread in one transaction of about 10 ms …
UNREAD_ROUNDS_MAX = 4  # … and the most such transactions of one compaction
EARLIER_SHARE = 2  # earlier summaries have at most one part in this many of what a model can read
TIME_SHARE = 0.5  # of a turn's remaining time for summaries

Summary = SummaryRow


@dataclass(slots=True, kw_only=True)
class Made:
    """The result of a compaction: the number of messages that left, the conversation's tokens before and after, the new
    summaries, and why there is a stub instead of a summary.
    """

    tokens_before: int
    tokens_after: int = 0
    messages: int = 0
    summary_ids: list[str] = field(default_factory=list)
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """The messages that leave a conversation: their positions and times, and in `hidden` the positions of hidden ones
    that leave with them.

    `turn` (key and id) needs the room, None at a person's request. `summary` is a stub, or the text of `model`
    (`provider/model`). It also replaces `merged`, the previous summaries. `tokens_before` are those of the
    conversation, `rest` those of what stays without its opening, which may have `opening_max`; `unloaded` messages have
    not been read yet.
    """

    summary_id: str
    agent_id: str
    session_id: str | None = None
    turn: tuple[int, str] | None
    messages: Sequence[tuple[str, str]]
    hidden: Sequence[str] = ()
    summary: str
    strategy: str = "truncate"
    model: str | None = None
    merged: Chain | None = None
    tokens_before: int
    rest: int
    opening_max: int
    unloaded: int
    now: str


@dataclass(slots=True)
class _Job:
    """One compaction: the agent, the target in tokens, the result so far in `made`, and the turn (key and id, and where
    its messages begin).
    """

    agent: AgentRow
    history: History
    summariser: Summariser
    room: int
    made: Made
    turn: tuple[int, str] | None = None
    running_from: str = "~"

    @property
    def opening_max(self) -> int:
        """The most tokens of the opening; in steps, so that it does not change with every token of the room."""
        share = self.room // OPENING_SHARE // OPENING_STEP * OPENING_STEP
        return min(max(share, OPENING_TOKENS_MIN), self.room)


@dataclass(kw_only=True)
class Compaction:
    """Keeps the conversations of one constellation within their windows.

    `limits` bounds what is read of a conversation at once, and the time for a compaction at a person's request.
    `is_untrusted` is as in `History`. `forget` drops an agent's conversation from memory, because its rows changed.
    """

    journal: Journal
    models: ModelClient
    limits: Limits
    is_untrusted: Callable[[str], bool]
    forget: Callable[[str], None] = lambda _agent_id: None
    _by_hand: set[str] = field(default_factory=set, init=False)  # agents with a person's compaction right now

    async def make_room(
        self,
        agent: AgentRow,
        history: History,
        *,
        turn: tuple[int, str],
        running_from: str,
        deadline: float,
        room: int,
        usage: SummaryUsage,
    ) -> Made:
        """Make `history.tokens <= room`; cheap if there is enough room.

        `turn` (key and id) needs the room until its `deadline` on trio's clock; its messages begin at the position
        `running_from`. After a cancellation or crash at any point the conversation is as before or after one of the
        changes.

        Raises:
            LimitReached: the turn's message alone does not fit.
            InvalidInput: the agent's `compaction` settings are not valid.
        """
        now = trio.current_time()
        summariser = self.summariser(agent, usage, now + (deadline - now) * TIME_SHARE)
        job = _Job(agent, history, summariser, room, Made(tokens_before=history.tokens), turn, running_from)
        history.limit_opening(job.opening_max)
        if history.opening.unloaded:
            await self._leave_unread(job)
        if history.tokens > job.summariser.settings.threshold * room:
            if _may_try(history, running_from):
                await self._by_strategy(job)
            if history.tokens > room:
                await self._by_age(job)
            _fit(job)
            history.compacted_at = history.cursor
        job.made.tokens_after = history.tokens
        return job.made

    async def by_hand(self, agent: AgentRow, *, usage: SummaryUsage) -> Made:
        """Run the agent's strategy now, even if there is room, while no turn runs.

        Raises:
            Conflict: the agent is busy, or its conversation is already being compacted.
            InvalidInput: the agent's `compaction` settings are not valid.
        """
        if agent.id in self._by_hand:
            raise Conflict("the conversation is already being compacted; try again when that is done")
        self._by_hand.add(agent.id)
        try:
            history = await self.journal.database.read(_at_rest, agent.id, self.limits.prompt, self.is_untrusted)
            deadline = trio.current_time() + self.models.limits(agent.model_provider).turn_timeout_s
            summariser = self.summariser(agent, usage, deadline)
            job = _Job(agent, history, summariser, max(history.tokens, 1), Made(tokens_before=history.tokens))
            if history.opening.unloaded:
                await self._leave_unread(job)
            await self._by_strategy(job)
        finally:
            self._by_hand.discard(agent.id)
            self.forget(agent.id)
        job.made.tokens_after = history.tokens
        return job.made

    def summariser(self, agent: AgentRow, usage: SummaryUsage, deadline: float) -> Summariser:
        """Return what asks the model of the agent's settings for a summary.

        Raises:
            InvalidInput: the agent's `compaction` settings are not valid.
        """
        settings = settings_of(agent.config)
        provider, model = settings.compaction.model(agent.model_provider, agent.model_name)
        return Summariser(
            models=self.models,
            usage=usage,
            settings=settings.compaction,
            provider=provider,
            model=model,
            window=min(self.models.facts(provider, model).window, settings.context_window),
            deadline=deadline,
        )

    async def _by_strategy(self, job: _Job) -> None:
        """Archive the messages that the strategy chooses, with a summary if it needs one and a model can write it."""
        history, summariser = job.history, job.summariser
        settings, exchanges = summariser.settings, await self._exchanges(job)
        target = max(int(job.room * (1 - settings.percentage)) - _grown(job, summariser.summary_tokens), 0)
        places = choose(Choice(exchanges=exchanges, target=target, now_ms=self.journal.clock.now_ms()), settings)
        leaving = [exchanges[place] for place in places]
        if not leaving:
            return
        if not settings.summarises:
            await self._archive(job, leaving)
            return
        reach = summariser.reach
        chain = [*history.opening.chain.head, *history.opening.chain.tail]
        rows = [row for row in chain if not row.is_stub]
        shown = sum(row.tokens for row in rows) + summariser.summary_tokens
        is_long = len(chain) >= HEAD_SHOWN + TAIL_SHOWN or shown > job.opening_max
        merges = bool(rows) and (settings.type == "recursive_summarization" or is_long)
        earlier = _bounded(rows, reach // EARLIER_SHARE) if merges else []
        unread, read = _split(leaving, reach - sum(row.tokens for row in earlier))
        if unread:
            await self._archive(job, unread)
        if read:
            text = await summariser.summarise(
                _messages(read),
                earlier=[row.summary for row in earlier],
                beside="" if merges or not rows else rows[-1].summary,
            )
            await self._archive(job, read, text, merges=merges)
        job.made.trouble = summariser.trouble

    async def _exchanges(self, job: _Job) -> list[MessageGroup]:
        held = await self.journal.database.read(_held, job.agent.id, job.history.session_id)
        return job.history.exchanges(job.running_from, held)

    async def _by_age(self, job: _Job) -> None:
        """Archive the oldest messages without a summary: the last resort, which needs no model."""
        exchanges = await self._exchanges(job)
        target = max(job.room - _grown(job, 0), 0)
        places = drop_oldest(Choice(exchanges=exchanges, target=target, now_ms=self.journal.clock.now_ms()))
        if places:
            await self._archive(job, [exchanges[place] for place in places], strategy="truncate")

    async def _archive(
        self,
        job: _Job,
        exchanges: Sequence[MessageGroup],
        text: str | None = None,
        *,
        merges: bool = False,
        strategy: str | None = None,
    ) -> None:
        """Archive visible exchanges; without the `text` of a summary, with a stub."""
        history, summariser = job.history, job.summariser
        shown = _messages(exchanges)
        stored = [message for message in shown if message.id]
        left = [(message.position, message.created_at) for message in stored]
        leaving = self._leaving(job, left, text or stub_text(stored))
        last = max(position for position, _time in left)
        leaving = replace(
            leaving,
            hidden=[position for position in history.hidden if position <= last],
            strategy=strategy or summariser.settings.type,
            model=f"{summariser.provider}/{summariser.model}" if text else None,
            merged=history.opening.chain if merges and text else None,
            rest=leaving.rest - sum(exchange.tokens for exchange in exchanges),
        )
        await self._leave(job, leaving, shown)

    async def _leave_unread(self, job: _Job) -> None:
        """Archive messages that are too many to be read, in portions, each with a stub."""
        history = job.history
        held = await self.journal.database.read(_held, job.agent.id, history.session_id, job.running_from)
        for _round in range(UNREAD_ROUNDS_MAX):
            found = await self.journal.database.read(
                messages.first_shown,
                job.agent.id,
                UNREAD_AT_ONCE + len(held),
                before=history.loaded_from,
                session_id=history.session_id,
            )
            oldest = [(position, created_at) for position, created_at in found if position not in held]
            if not oldest:  # the rest belongs to turns that wait for a person
                history.leave((), Opening(chain=history.opening.chain))
                break
            times = [created_at for _position, created_at in oldest]
            leaving = self._leaving(job, oldest, count_text(len(oldest), min(times), max(times)))
            await self._leave(job, replace(leaving, unloaded=max(leaving.unloaded - len(oldest), 0)))

    def _leaving(self, job: _Job, left: Sequence[tuple[str, str]], summary: str) -> Leaving:
        """Return what leaves, for messages that were not loaded and have no summary by a model."""
        history = job.history
        return Leaving(
            summary_id=self.journal.ids.new("sum"),
            agent_id=job.agent.id,
            session_id=history.session_id,
            turn=job.turn,
            messages=left,
            summary=summary,
            tokens_before=history.tokens,
            rest=history.tokens - history.opening_tokens,
            opening_max=job.opening_max,
            unloaded=history.opening.unloaded,
            now=self.journal.now(),
        )

    async def _leave(self, job: _Job, leaving: Leaving, shown: Sequence[Message] = ()) -> None:
        """Store it and remove the messages `shown` from the view."""
        history = job.history
        try:
            count, opening = await self.journal.commit(partial(store, leaving=leaving))
            job.made.messages += count
            job.made.summary_ids.append(leaving.summary_id)
        except Conflict:
            if job.turn is None:
                raise
            # A person compacted at the same time: archived messages must not be shown.
            chain = await self.journal.database.read(shown_chain, job.agent.id, history.session_id)
            opening = Opening(chain=chain, unloaded=leaving.unloaded)
        history.leave(shown, opening)


def _at_rest(
    connection: Connection, agent_id: str, limits: PromptLimits, is_untrusted: Callable[[str], bool]
) -> History:
    """Return the conversation of an idle agent; checked before a model is called, which costs money.

    Raises:
        Conflict: it is busy.
    """
    refuse_at_work(connection, agent_id)
    return load_history(connection, agent_id, limits, active=None, is_untrusted=is_untrusted)


def _held(connection: Connection, agent_id: str, session_id: str | None, running: str | None = None) -> frozenset[str]:
    """Return positions of the messages of turns that wait for a person: these continue, and need their messages. The
    same applies to the batch `running`, which may have waited until now.
    """
    batches = turns.waiting_batches(connection, agent_id)
    if running is not None:
        batches.append(running)
    if not batches:
        return frozenset()
    return frozenset(messages.positions_of(connection, agent_id, batches, session_id=session_id))


def _may_try(history: History, batch_id: str) -> bool:
    """Return whether the strategy may run: not twice without a new message in between, nor repeatedly in one turn."""
    batch, count = history.compactions
    count = count + 1 if batch == batch_id else 1
    history.compactions = (batch_id, count)
    return count <= COMPACTIONS_MAX and history.compacted_at != history.cursor


def _grown(job: _Job, tokens: int) -> int:
    """Return the tokens of the opening after adding `tokens`, at most its limit."""
    return min(job.history.opening_tokens + tokens + OPENING_TOKENS_MIN, job.opening_max)


def _bounded(rows: Sequence[SummaryRow], tokens_max: int) -> list[SummaryRow]:
    """Return earlier summaries to merge, as many as a model can read with the messages; the middle ones leave first."""
    kept = list(rows)
    while kept and sum(row.tokens for row in kept) > tokens_max:
        kept.pop(len(kept) // 2)
    return kept


def _split(leaving: Sequence[MessageGroup], reach: int) -> tuple[list[MessageGroup], list[MessageGroup]]:
    """Return the exchanges that are too long for a summary, and the newest ones, which are not."""
    tokens = 0
    for place in range(len(leaving) - 1, -1, -1):
        tokens += leaving[place].tokens
        if tokens > reach:
            return list(leaving[: place + 1]), list(leaving[place + 1 :])
    return [], list(leaving)


def _messages(exchanges: Sequence[MessageGroup]) -> list[Message]:
    return [message for exchange in exchanges for message in exchange.messages]


def _fit(job: _Job) -> None:
    """Shorten the running turn and the opening until they fit.

    Raises:
        LimitReached: they cannot fit.
    """
    history, room = job.history, job.room
    excess = history.tokens - room
    if excess > 0:
        running = [exchange for exchange in history.exchanges(job.running_from) if exchange.is_running]
        for message, shorter in shortened(_messages(running), excess):
            history.replace(message, shorter, is_short=True)
    if history.tokens > room:
        history.limit_opening(room - (history.tokens - history.opening_tokens))
    if history.tokens > room:
        raise LimitReached(
            f"the message needs about {history.tokens} tokens, but the window of the agent's model has room for "
            f"{room}; send a shorter message, or use a model with a larger window"
        )


def store(connection: Connection, leaving: Leaving) -> tuple[tuple[int, Opening], list[Event]]:
    """Archive the messages and add their summary; return their number, and the new opening of the conversation.

    Raises:
        Conflict: they were archived by another compaction; or the agent started a turn during a person's compaction.
    """
    agent_id, session_id, now = leaving.agent_id, leaving.session_id, leaving.now
    if leaving.turn is None:
        refuse_at_work(connection, agent_id)
    positions = [position for position, _time in leaving.messages]
    first, last = min(positions), max(positions)
    count = messages.archive(connection, agent_id, positions, session_id=session_id)
    if count == 0:
        raise Conflict("these messages were archived by another request; read the conversation again")
    messages.archive_hidden(connection, agent_id, leaving.hidden, first, last, session_id=session_id)
    row = _summary_of(connection, leaving, count)
    summaries.insert(connection, row)
    opening = Opening(chain=shown_chain(connection, agent_id, session_id), unloaded=leaving.unloaded)
    shown = opening_message(opening, leaving.opening_max)
    compacted = {
        "agent_id": agent_id,
        **({} if session_id is None else {"session_id": session_id}),
        "messages": count,
        "from": first,
        "to": last,
        "tokens_before": leaving.tokens_before,
        "tokens_after": leaving.rest + (0 if shown is None else message_tokens(shown)),
        "strategy": leaving.strategy,
        "summary_id": row.id,
        "is_stub": row.is_stub,
    }
    events = append(connection, leaving.turn, [Draft("history.compacted", compacted)], created_at=now)
    return (count, opening), events


def refuse_at_work(connection: Connection, agent_id: str) -> None:
    """Allow a person's compaction only while the agent is idle.

    Raises:
        Conflict: it has a running turn.
    """
    if turns.unfinished(connection, agent_id) is not None:
        raise Conflict("the agent is busy; compact its conversation when its turn has ended")


def _summary_of(connection: Connection, leaving: Leaving, count: int) -> SummaryRow:
    before = summaries.newest(connection, leaving.agent_id, leaving.session_id)
    merged = leaving.merged or Chain()
    covered = (*merged.head, *merged.tail)
    # A summary that was added since the chain was read is not part of this one, which must not hide it.
    if before is None or not covered or covered[-1].id != before.id:
        merged, covered = Chain(), ()
    positions, times = zip(*leaving.messages, strict=True)
    return SummaryRow(
        id=leaving.summary_id,
        agent_id=leaving.agent_id,
        summary=leaving.summary,
        start_position=min((*positions, *(row.start_position for row in covered))),
        end_position=max((*positions, *(row.end_position for row in covered))),
        message_count=count + sum(row.message_count for row in covered) + merged.left_out_messages,
        strategy=leaving.strategy,
        started_at=min((*times, *(row.started_at for row in covered))),
        ended_at=max((*times, *(row.ended_at for row in covered))),
        created_at=leaving.now,
        previous_summary_id=None if before is None else before.id,
        depth=1 + max(row.depth for row in covered) if covered else 0,
        is_stub=leaving.model is None,
        model=leaving.model,
        tokens=estimate_text(leaving.summary),
        session_id=leaving.session_id,
    )


async def list_summaries(
    database: Database, agent_id: str, *, limit: int, before: str | None = None, session_id: str | None = None
) -> list[SummaryRow]:
    """Return the newest `limit` summaries of the agent's main conversation, or of a session, newest first; only those
    before the summary `before`, if given.
    """
    return await database.read(summaries.recent, agent_id, limit, before=before, session_id=session_id)

"""What a world's file says, and what must be true of it alone once all in it has ended; some of it at any instant.

The words that a violation begins with are those of `tests/crash/checker.py`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pattern_core.events import TERMINAL, read
from pattern_core.memory.checkpoint import open_document
from pattern_core.turns.calls import IN_DOUBT
from pattern_db.connection import Connection
from pattern_db.tables import block_checkpoints
from tests.crash.moments import line_of

READ_MAX = 1_000_000
Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's row; `joined` is the key of the turn that its message joined."""

    key: int
    id: str
    agent_id: str
    status: str
    started_at: str | None
    ended_at: str | None
    batch_id: str | None
    joined: int | None


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect's row, with the words that its arguments hold."""

    turn: int
    step: int
    call: int
    call_id: str
    tool: str
    words: str
    key: str
    status: str
    message_id: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Question:
    """What a person was asked about a call, and `agreed`, the words that may be run by the answer; None for a no."""

    kind: str
    status: str
    turn: int
    step: int
    call: int
    agreed: str | None


@dataclass(slots=True)
class State:
    """What the file says."""

    turns: dict[int, Turn]
    effects: list[Effect]
    events: list[Line]
    problems: list[str]
    questions: list[Question]
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def turns_by_id(self) -> dict[str, Turn]:
        """The turns by the id that clients know."""
        return {turn.id: turn for turn in self.turns.values()}


def words_of(arguments: Mapping[str, object]) -> str:
    """The words of a call's arguments."""
    return str(arguments.get("words") or arguments.get("content")).strip()


def asked(connection: Connection) -> list[Question]:
    """The questions about calls, oldest first."""
    found = connection.execute(
        "SELECT kind, status, turn, step, call, coalesce(decision ->> '$.arguments', request ->> '$.arguments')"
        " FROM approval WHERE call IS NOT NULL ORDER BY created_at, id"
    )
    return [
        Question(
            kind, status, turn, step, call, words_of(json.loads(said)) if status in ("approved", "edited") else None
        )
        for kind, status, turn, step, call, said in found
    ]


def at_rest(connection: Connection, state: State) -> Iterator[str]:
    """Everything that this module knows of a file in which nothing is under way."""
    yield from ends(connection, state)
    yield from reported(connection, state)
    yield from answers(connection, state)
    yield from documents(connection)
    yield from money(connection)
    yield from sums(connection)
    yield from archived(connection, state)


def complete(connection: Connection) -> list[Line]:
    """All events as a subscriber is shown them."""
    events = [line_of(event) for event in read(connection, 0, limit=READ_MAX)]
    return [json.loads(json.dumps(event)) for event in events]


def outlines(connection: Connection) -> list[Line]:
    """All events without their data, which is much faster."""
    rows = connection.execute("SELECT e.seq, t.id, e.name FROM event AS e LEFT JOIN turn AS t ON t.key = e.turn")
    return [{"seq": seq, "turn": turn, "name": name} for seq, turn, name in rows]


def state_of(connection: Connection, check: str, events: list[Line]) -> State:
    found = [str(row[0]) for row in connection.execute(check)]
    turns = [
        Turn(*row)
        for row in connection.execute(
            "SELECT key, id, agent_id, status, started_at, ended_at, batch_id, joined_turn FROM turn ORDER BY key"
        )
    ]
    effects = [
        Effect(turn, step, call, call_id, tool, words_of(json.loads(args)), *rest)
        for turn, step, call, call_id, tool, args, *rest in connection.execute(
            "SELECT turn, step, call, call_id, tool, CASE args WHEN 'null' THEN messages.tool_args ELSE args END,"
            " idempotency_key, status, message_id, attempts FROM effect LEFT JOIN messages ON messages.id = message_id"
            " ORDER BY turn, step, call"
        )
    ]
    problems = [f"damaged: {line}" for line in found if line != "ok"]
    return State({turn.key: turn for turn in turns}, effects, events, problems, asked(connection))


def ends(connection: Connection, state: State) -> Iterator[str]:
    """Each turn has ended, with one terminal event, the last of its events; nothing is left open."""
    found: dict[object, list[Line]] = defaultdict(list)
    last: dict[object, Line] = {}
    for event in state.events:
        last[event["turn"]] = event
        if event["name"] in TERMINAL:
            found[event["turn"]].append(event)
    for turn in state.turns.values():
        names = [end["name"] for end in found[turn.id]]
        if turn.ended_at is None or names != [f"turn.{turn.status}"]:
            yield f"unfinished: turn {turn.id} is {turn.status} and has the terminal events {names}"
        elif last[turn.id] is not found[turn.id][0]:
            yield f"divergent: turn {turn.id} went on after its end with {last[turn.id]}"
    for table, condition in (("inbox", "1"), ("step", "status = 'open'"), ("approval", "status = 'pending'")):
        for row in connection.execute(f"SELECT turn FROM {table} WHERE {condition}"):
            yield f"unfinished: a row of {table} of turn {row[0]} is left"
    for turn_key, no, attempt in connection.execute(
        "SELECT turn, no, attempt FROM step WHERE status IN ('done', 'superseded') AND NOT EXISTS (SELECT 1 FROM usage"
        " WHERE usage.turn = step.turn AND usage.step = step.no AND usage.attempt = step.attempt)"
    ):
        yield f"lost: the usage of step {no} attempt {attempt} of turn {turn_key}"


def reported(connection: Connection, state: State) -> Iterator[str]:
    """An effect in doubt was reported: an event, and words to the model; so was each refusal."""
    results = {(event["turn"], _of(event, "step"), _of(event, "call")): event for event in _named(state, "tool.result")}
    contents = dict(connection.execute("SELECT id, content FROM messages WHERE role = 'tool'"))
    for effect in state.effects:
        turn = state.turns[effect.turn]
        event = results.get((turn.id, effect.step, effect.call))
        if event is None or _of(event, "status") != effect.status:
            yield f"unreported: {effect.tool} {effect.words} is {effect.status} and its event {event}"
        if effect.status == "in_doubt" and contents.get(effect.message_id) != IN_DOUBT:
            yield f"unreported: {effect.tool} {effect.words} is in doubt and the model was not informed"
        if effect.status == "denied" and not str(contents.get(effect.message_id)).startswith("Not run: "):
            yield f"unreported: {effect.tool} {effect.words} was refused without a word"
        if effect.status in ("planned", "awaiting_approval", "started"):
            yield f"unfinished: {effect.tool} {effect.words} is {effect.status}: {contents.get(effect.message_id)}"


def answers(connection: Connection, state: State) -> Iterator[str]:
    """Each tool call of each decision has exactly one result, after it and in the same turn."""
    asked: dict[tuple[str, str], list[str]] = defaultdict(list)
    answered: dict[tuple[str, str], list[str]] = defaultdict(list)
    for batch, position, role, parts, call_id, source in connection.execute(
        "SELECT batch_id, position, role, parts, tool_call_id, source FROM messages"
    ):
        for part in json.loads(parts) if role == "assistant" and parts else []:
            if part["type"] == "tool_call":
                asked[batch, part["call_id"]].append(position)
        if role == "tool" and source is None:
            answered[batch, call_id].append(position)
    for call in {*asked, *answered}:
        if len(asked[call]) != 1 or len(answered[call]) != 1 or answered[call][0] < asked[call][0]:
            yield f"unfinished: call {call} was asked at {asked[call]} and answered at {answered[call]}"
    effects = {(state.turns[effect.turn].batch_id, effect.call_id) for effect in state.effects}
    for lost in asked.keys() - effects:
        yield f"lost: the effect of call {lost}"


def documents(connection: Connection) -> Iterator[str]:
    """A block's text is what its document says."""
    for block_id, label, text in connection.execute("SELECT id, label, content_preview FROM memory_blocks").fetchall():
        checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, str(block_id))
        if open_document(checkpoint, updates, peer=1).state().get("content", "") != (text or ""):
            yield f"divergent: the text of block {label} is not its document's"


def money(connection: Connection) -> Iterator[str]:
    """Nothing is held for a turn that has ended or rests; of a turn under way only for its newest step."""
    for turn, status in connection.execute(
        "SELECT t.id, t.status FROM reservation AS r JOIN turn AS t ON t.key = r.turn WHERE t.status <> 'running'"
    ):
        yield f"unfinished: money is held for a call of turn {turn}, which is {status}"


def given_up(connection: Connection, resumes_max: int) -> Iterator[str]:
    """A step that is cut off again and again is given up."""
    for turn, no, attempts in connection.execute(
        "SELECT turn, no, max(attempt) FROM step GROUP BY turn, no HAVING max(attempt) > ?", (resumes_max + 1,)
    ):
        yield f"unfinished: step {no} of turn {turn} was asked {attempts} times and not given up"


def steering(connection: Connection) -> list[tuple[str, str]]:
    """The messages that wait to join a turn under way: the ids of their own turns and of that one."""
    found = connection.execute(
        "SELECT message.id, running.id FROM inbox JOIN turn AS message ON message.key = inbox.turn"
        " JOIN turn AS running ON running.agent_id = message.agent_id AND running.status = 'running'"
        " WHERE inbox.payload ->> '$.policy' = 'steer' AND running.cancel_reason IS NULL"
    )
    return [(str(message), str(turn)) for message, turn in found]


def sums(connection: Connection) -> Iterator[str]:
    """The sums per day are those of the calls."""
    summed, counted = (
        connection.execute(f"SELECT coalesce(sum({calls}), 0), sum(input_tokens), sum(output_tokens) FROM {table}").get
        for table, calls in (("usage_day", "calls"), ("usage", "1"))
    )
    if summed != counted:
        yield f"divergent: the days say {summed} of calls, input and output, the calls {counted}"


def archived(connection: Connection, state: State) -> Iterator[str]:
    """What left a conversation is of turns that have ended, and a summary stands for it."""
    found = connection.execute(
        "SELECT m.id, m.batch_id, EXISTS (SELECT 1 FROM archive_summaries AS s WHERE s.agent_id = m.agent_id"
        " AND m.position BETWEEN s.start_position AND s.end_position) FROM messages AS m WHERE m.is_archived = 1"
    ).fetchall()
    unfinished = {turn.batch_id for turn in state.turns.values() if turn.ended_at is None}
    state.tally["messages archived"] += len(found)
    for message_id, batch_id, is_covered in found:
        if not is_covered:
            yield f"lost: message {message_id} left without a summary that stands for it"
        if batch_id in unfinished:
            yield f"lost: message {message_id} left while its turn needs it"
    for kind, count in connection.execute(
        "SELECT iif(is_stub, 'stubs', 'summaries'), count(*) FROM archive_summaries GROUP BY 1"
    ):
        state.tally[kind] += count


def _named(state: State, name: str) -> list[Line]:
    return [event for event in state.events if event["name"] == name]


def _of(event: Line, key: str) -> object:
    data = event["data"]
    assert isinstance(data, dict)
    return data.get(key)

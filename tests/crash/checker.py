"""What must be true of a world after a life was cut off, and once everything has come to rest.

Each violation is a line that begins with a word for its kind:

    lost        something acknowledged is not there
    repeated    something happened twice
    unplanned   a tool ran although its intent was not on disk
    divergent   a log and the file tell different stories
    unreported  an effect in doubt that nobody was told about
    unfinished  something that should have ended did not
    damaged     the file itself
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import apsw

from pattern_core.agents.calls import IN_DOUBT, REFUSED_IN_DOUBT
from pattern_core.events import TERMINAL, read
from pattern_core.memory.past.checkpoint import open_document
from pattern_core.memory.stored import load
from pattern_db.connection import Connection, open_connection
from pattern_db.maintenance import check as check_file
from tests.crash.moments import line_of
from tests.crash.outside import World
from tests.crash.script import BLOCK, OUTER_TOOLS

DELTAS = frozenset({"text.delta", "reasoning.delta"})
READ_MAX = 1_000_000
Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's row, as far as it is checked."""

    key: int
    id: str
    agent_id: str
    status: str
    started_at: str | None
    ended_at: str | None
    batch_id: str | None


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


@dataclass(slots=True)
class State:
    """What the file says."""

    turns: dict[int, Turn]
    effects: list[Effect]
    events: list[Line]
    problems: list[str]
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def turns_by_id(self) -> dict[str, Turn]:
        """The turns by the id that clients know."""
        return {turn.id: turn for turn in self.turns.values()}


def opened(world: World) -> Connection:
    """The world's file, recovered as any opening does, but with its log left as it was for the next life."""
    connection = open_connection(world.file)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def check_after_death(world: World) -> list[str]:
    """What must be true at any instant, whatever was cut off."""
    if world.troubles.exists() and world.troubles.read_text().strip():
        return [f"unfinished: a life ended with an error: {world.troubles.read_text()[-3000:]}"]
    connection = opened(world)
    try:
        state = _state(connection, "PRAGMA quick_check", _outlines(connection))
    finally:
        connection.close()
    told = {line["seq"] for line in world.told.lines()}
    for event in state.events:
        if event["name"] in DELTAS and event["seq"] not in told:
            world.pieces.append({"seq": event["seq"]})  # it may be pruned later, and that is right
    return [*state.problems, *_acks(world, state), *_executions(world, state), *_streams(world, state, at_rest=False)]


def check_at_rest(world: World) -> tuple[list[str], Counter[str]]:
    """What must be true once everything has ended; also counts of what there was."""
    connection = opened(world)
    try:
        state = _state(connection, "PRAGMA integrity_check", _complete(connection))
        problems = [
            *state.problems,
            *(f"damaged: {problem}" for problem in check_file(connection)),
            *_acks(world, state),
            *_executions(world, state),
            *_streams(world, state, at_rest=True),
            *_ends(connection, state),
            *_messages(connection, world, state),
            *_local(connection, state),
            *_doubts(connection, state),
            *_answers(connection, state),
            *_documents(connection),
        ]
    finally:
        connection.close()
    state.tally.update(turn.status for turn in state.turns.values())
    state.tally.update(f"{effect.tool} {effect.status}" for effect in state.effects)
    return problems, state.tally


def _complete(connection: Connection) -> list[Line]:
    """All events as a subscriber is shown them."""
    events = [line_of(event) for event in read(connection, 0, limit=READ_MAX)]
    return [json.loads(json.dumps(event)) for event in events]


def _outlines(connection: Connection) -> list[Line]:
    """All events without their data, which is much faster."""
    rows = connection.execute("SELECT e.seq, t.id, e.name FROM event AS e LEFT JOIN turn AS t ON t.key = e.turn")
    return [{"seq": seq, "turn": turn, "name": name} for seq, turn, name in rows]


def _state(connection: Connection, check: str, events: list[Line]) -> State:
    found = [str(row[0]) for row in connection.execute(check)]
    turns = [
        Turn(*row)
        for row in connection.execute(
            "SELECT key, id, agent_id, status, started_at, ended_at, batch_id FROM turn ORDER BY key"
        )
    ]
    effects = [
        Effect(turn, step, call, call_id, tool, _words(json.loads(args)), key, status, message_id)
        for turn, step, call, call_id, tool, args, key, status, message_id in connection.execute(
            "SELECT turn, step, call, call_id, tool, args, idempotency_key, status, message_id FROM effect"
        )
    ]
    problems = [f"damaged: {line}" for line in found if line != "ok"]
    return State({turn.key: turn for turn in turns}, effects, events, problems)


def _words(arguments: Line) -> str:
    return str(arguments.get("words") or arguments.get("content")).strip()


def _acks(world: World, state: State) -> Iterator[str]:
    """Each acknowledged turn is there, a wish has one turn only, and turns come in the order of the wishes."""
    known = state.turns_by_id
    turns_of: dict[tuple[object, object], set[str]] = defaultdict(set)
    for ack in world.acks.lines():
        turn_id = str(ack["turn"])
        if turn_id not in known:
            yield f"lost: the acknowledged turn {turn_id} of message {ack['n']} is not in the file"
        turns_of[ack["agent"], ack["n"]].add(turn_id)
    newest: dict[object, int] = {}
    for wish in world.wishes.lines():
        turns = turns_of[wish["agent"], wish["n"]]
        if len(turns) > 1:
            yield f"repeated: message {wish['n']} became the turns {sorted(turns)}"
        for turn_id in turns & known.keys():
            key = known[turn_id].key
            if key < newest.get(wish["agent"], 0):
                yield f"divergent: message {wish['n']} of {wish['agent']} was accepted out of order"
            newest[wish["agent"]] = key


def _executions(world: World, state: State) -> Iterator[str]:
    """The ledger agrees with the effects: nothing ran without a stored intent, and nothing twice that must not."""
    effects: dict[str, list[Effect]] = defaultdict(list)
    for effect in state.effects:
        effects[effect.words].append(effect)
    runs: Counter[tuple[str, str]] = Counter()
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for line in world.executions():
        runs[line.tool, line.words] += 1
        keys[line.tool, line.words].add(line.key)
        if line.tool in OUTER_TOOLS and not any(one.status != "planned" for one in effects[line.words]):
            yield f"unplanned: {line.tool} {line.words} ran before its intent was stored"
    for (tool, words), count in runs.items():
        if tool in ("mail", "book") and count > 1:
            yield f"repeated: {tool} {words} ran {count} times"
        if tool != "look" and len(keys[tool, words]) > 1:
            yield f"repeated: {tool} {words} ran under {len(keys[tool, words])} keys"
    for effect in state.effects:
        if effect.status == "done" and effect.tool in (*OUTER_TOOLS, "look") and not runs[effect.tool, effect.words]:
            yield f"lost: {effect.tool} {effect.words} is said to be done and never ran"
        if effect.status == "in_doubt":
            state.tally[f"in doubt and {'had' if runs[effect.tool, effect.words] else 'had not'} happened"] += 1


def _streams(world: World, state: State, *, at_rest: bool) -> Iterator[str]:
    """What was told and seen is what the file says, in order, without gap or repetition; only pieces may be gone."""
    stored = {event["seq"]: event for event in state.events}
    told = {line["seq"]: line for line in world.told.lines()}
    pieces = {line["seq"] for line in world.pieces.lines()}
    for name, lines in (("told", world.told.lines()), ("seen", world.seen.lines())):
        numbers = [int(str(line["seq"])) for line in lines]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            yield f"divergent: the {name} events are not in order: {numbers[-20:]}"
        for line in lines:
            there = stored.get(line["seq"])
            if line["name"] not in DELTAS if there is None else any(line[key] != there[key] for key in there):
                yield f"divergent: {name} {line} but stored {there}"
    seen = {line["seq"] for line in world.seen.lines()}
    upto = max((int(str(seq)) for seq in (stored if at_rest else seen)), default=0)
    for seq, event in stored.items():
        if int(str(seq)) <= upto and seq not in seen and event["name"] not in DELTAS:
            yield f"lost: the subscriber never saw event {seq} {event['name']}"
    for seq in range(1, max((int(str(seq)) for seq in stored), default=0)):
        if seq not in stored and seq not in pieces and told.get(seq, {"name": ""})["name"] not in DELTAS:
            yield f"lost: there is no event {seq}, and none that was pruned"


def _ends(connection: Connection, state: State) -> Iterator[str]:
    """Each turn has ended, with one terminal event, the last of its events; nothing is left open."""
    ends: dict[object, list[Line]] = defaultdict(list)
    last: dict[object, Line] = {}
    for event in state.events:
        last[event["turn"]] = event
        if event["name"] in TERMINAL:
            ends[event["turn"]].append(event)
    for turn in state.turns.values():
        names = [end["name"] for end in ends[turn.id]]
        if turn.ended_at is None or names != [f"turn.{turn.status}"]:
            yield f"unfinished: turn {turn.id} is {turn.status} and has the terminal events {names}"
        elif last[turn.id] is not ends[turn.id][0]:
            yield f"divergent: turn {turn.id} went on after its end with {last[turn.id]}"
    for table, condition in (("inbox", "1"), ("step", "status = 'open'")):
        for row in connection.execute(f"SELECT turn FROM {table} WHERE {condition}"):
            yield f"unfinished: a row of {table} of turn {row[0]} is left"
    for turn_key, no, attempt in connection.execute(
        "SELECT turn, no, attempt FROM step WHERE status IN ('done', 'superseded') AND NOT EXISTS (SELECT 1 FROM usage"
        " WHERE usage.turn = step.turn AND usage.step = step.no AND usage.attempt = step.attempt)"
    ):
        yield f"lost: the usage of step {no} attempt {attempt} of turn {turn_key}"


def _messages(connection: Connection, world: World, state: State) -> Iterator[str]:
    """Each accepted message stands in its agent's history exactly once, in the order of acceptance."""
    rows = connection.execute("SELECT agent_id, position, batch_id, content FROM messages WHERE role = 'user'")
    heard = list(rows)
    times = Counter(content for _agent, _position, _batch, content in heard)
    by_batch = {(agent, batch): position for agent, position, batch, _content in heard}
    known = state.turns_by_id
    acked = {(ack["agent"], ack["n"]): str(ack["turn"]) for ack in world.acks.lines()}
    for wish in world.wishes.lines():
        turn = known.get(acked.get((wish["agent"], wish["n"]), ""))
        expected = 0 if turn is None or turn.started_at is None else 1
        count = times[str(wish["content"])]
        if count != expected and (turn is not None or count > 1):
            yield f"{'lost' if count < expected else 'repeated'}: message {wish['n']} stands {count} times in history"
    newest: dict[str, str] = {}
    for turn in state.turns.values():
        if turn.batch_id is None:
            if turn.status != "cancelled":
                yield f"lost: turn {turn.id} ended {turn.status} without its message"
            continue
        position = by_batch.get((turn.agent_id, turn.batch_id))
        if position is None or position != turn.batch_id:
            yield f"lost: the message of turn {turn.id}"
        elif position <= newest.get(turn.agent_id, ""):
            yield f"divergent: the message of turn {turn.id} stands before an earlier accepted one"
        else:
            newest[turn.agent_id] = position


def _local(connection: Connection, state: State) -> Iterator[str]:
    """A local effect happened exactly once if it is done, and not at all if it is not."""
    notes = Counter(
        line
        for (content,) in connection.execute("SELECT content_preview FROM memory_blocks WHERE label = ?", (BLOCK,))
        for line in (content or "").splitlines()
    )
    archive = Counter(content for (content,) in connection.execute("SELECT content FROM archival_entries"))
    asked = Counter(
        json.loads(payload)["content"] for (payload,) in connection.execute("SELECT payload FROM inbox")
    ) + Counter(content for (content,) in connection.execute("SELECT content FROM messages WHERE role <> 'tool'"))
    for effect in state.effects:
        match effect.tool:
            case "block_edit":
                count = notes[effect.words]
            case "recall":
                count = archive[effect.words]
            case "send_message":
                count = asked[effect.words]
            case _:
                continue
        expected = int(effect.status == "done")
        if count != expected:
            kind = "lost" if count < expected else "repeated"
            yield f"{kind}: {effect.tool} {effect.words} is {effect.status} and happened {count} times"
        if effect.status not in ("done", "cancelled"):
            yield f"unfinished: {effect.tool} {effect.words} is {effect.status}"


def _doubts(connection: Connection, state: State) -> Iterator[str]:
    """An effect in doubt was reported: an event, and words to the model. Its repetition was refused."""
    results = {(event["turn"], _of(event, "step"), _of(event, "call")): event for event in _named(state, "tool.result")}
    contents = dict(connection.execute("SELECT id, content FROM messages WHERE role = 'tool'"))
    for effect in state.effects:
        turn = state.turns[effect.turn]
        event = results.get((turn.id, effect.step, effect.call))
        if event is None or _of(event, "status") != effect.status:
            yield f"unreported: {effect.tool} {effect.words} is {effect.status} and its event {event}"
        if effect.status == "in_doubt" and contents.get(effect.message_id) != IN_DOUBT:
            yield f"unreported: {effect.tool} {effect.words} is in doubt and the model was not told"
        if effect.status == "denied" and contents.get(effect.message_id) != REFUSED_IN_DOUBT:
            yield f"unreported: {effect.tool} {effect.words} was refused without a word"
        if effect.status in ("planned", "started", "error", "timeout"):
            yield f"unfinished: {effect.tool} {effect.words} is {effect.status}: {contents.get(effect.message_id)}"


def _answers(connection: Connection, state: State) -> Iterator[str]:
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


def _documents(connection: Connection) -> Iterator[str]:
    """A block's text is what its document says."""
    for block_id, label, text in connection.execute("SELECT id, label, content_preview FROM memory_blocks").fetchall():
        checkpoint, updates, _stats = load(connection, str(block_id))
        if open_document(checkpoint, updates, peer=1).text != (text or ""):
            yield f"divergent: the text of block {label} is not its document's"


def _named(state: State, name: str) -> list[Line]:
    return [event for event in state.events if event["name"] == name]


def _of(event: Line, key: str) -> object:
    data = event["data"]
    assert isinstance(data, dict)
    return data.get(key)

"""What must be true of a world after a life was cut off, and once everything has come to rest.

Each violation is a line that begins with a word for its kind:

    lost        something acknowledged is not there, or what was wanted of it is forgotten
    repeated    something happened twice
    unplanned   a tool ran although its intent was not on disk
    divergent   a log and the file tell different stories
    unreported  an effect in doubt that was not reported
    unasked     something happened that a person should have agreed to first, or that a rule forbids
    unfinished  something that should have ended did not
    damaged     the file itself
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import apsw

from pattern_core.turns.admission import REDELIVERY
from pattern_db.connection import Connection, open_connection
from pattern_db.maintenance import check as check_file
from tests.crash.outside import World
from tests.crash.rows import (
    Effect,
    Line,
    State,
    archived,
    at_rest,
    complete,
    given_up,
    money,
    outlines,
    state_of,
    steering,
)
from tests.crash.script import BLOCK, OUTER_TOOLS, PAYMENTS_MAX, SIGNED, sent

FAILED = ("error", "timeout")  # which no tool here does
DELTAS = frozenset({"text.delta", "reasoning.delta"})


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
        state = state_of(connection, "PRAGMA quick_check", outlines(connection))
        held = [*money(connection), *archived(connection, state)]
        for message, turn in steering(connection):
            world.steered.append({"message": message, "turn": turn})
    finally:
        connection.close()
    announced = {line["seq"] for line in world.announced.lines()}
    for event in state.events:
        if event["name"] in DELTAS and event["seq"] not in announced:
            world.pieces.append({"seq": event["seq"]})  # it may be pruned later, and that is right
    return [
        *state.problems,
        *held,
        *(
            f"unflushed: a model was asked about {line['cursor']} before its step was on disk"
            for line in world.unflushed.lines()
        ),
        *_acks(world, state),
        *_executions(world, state),
        *_unasked(world, state),
        *_joined(world, state),
        *_streams(world, state, at_rest=False),
    ]


def check_at_rest(world: World, *, resumes_max: int) -> tuple[list[str], Counter[str]]:
    """What must be true once everything has ended; also counts of what there was. `resumes_max` is how often the same
    step may be taken up after a death.
    """
    connection = opened(world)
    try:
        state = state_of(connection, "PRAGMA integrity_check", complete(connection))
        problems = [
            *state.problems,
            *(f"damaged: {problem}" for problem in check_file(connection)),
            *_acks(world, state),
            *_executions(world, state),
            *_streams(world, state, at_rest=True),
            *at_rest(connection, state),
            *_messages(connection, world, state),
            *_streamed(connection, world, state),
            *_local(connection, state),
            *_unasked(world, state),
            *_rules_kept(world, state),
            *given_up(connection, resumes_max),
            *_joined(world, state),
        ]
    finally:
        connection.close()
    state.tally.update(turn.status if turn.joined is None else "joined" for turn in state.turns.values())
    state.tally.update(f"{question.kind} {question.status}" for question in state.questions)
    state.tally.update(f"{effect.tool} {effect.status}" for effect in state.effects)
    problems += [f"unfinished: {one.tool} {one.words} is {one.status}" for one in state.effects if one.status in FAILED]
    return problems, state.tally


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
        if line.tool in OUTER_TOOLS and not any(one.attempts for one in effects[line.words]):
            yield f"unplanned: {line.tool} {line.words} ran before its intent was stored"
    for (tool, words), count in runs.items():
        again = sum(question.agreed == words for question in state.questions if question.kind == "recovery")
        if tool in ("mail", "book") and count > 1 + again:
            yield f"repeated: {tool} {words} ran {count} times"
        if tool not in ("look", "order") and len(keys[tool, words]) > 1 + again:
            yield f"repeated: {tool} {words} ran under {len(keys[tool, words])} keys"
    for effect in state.effects:
        if effect.status == "done" and effect.tool in (*OUTER_TOOLS, "look") and not runs[effect.tool, effect.words]:
            yield f"lost: {effect.tool} {effect.words} is said to be done and never ran"
        if effect.status == "in_doubt":
            state.tally[f"in doubt and {'had' if runs[effect.tool, effect.words] else 'had not'} happened"] += 1


def _streams(world: World, state: State, *, at_rest: bool) -> Iterator[str]:
    """What was announced and seen is what the file holds, in order, no gap, no repetition; only pieces may be gone."""
    stored = {event["seq"]: event for event in state.events}
    announced = {line["seq"]: line for line in world.announced.lines()}
    pieces = {line["seq"] for line in world.pieces.lines()}
    for name, lines in (("announced", world.announced.lines()), ("seen", world.seen.lines())):
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
        if seq not in stored and seq not in pieces and announced.get(seq, {"name": ""})["name"] not in DELTAS:
            yield f"lost: there is no event {seq}, and none that was pruned"


def _messages(connection: Connection, world: World, state: State) -> Iterator[str]:
    """Each accepted message stands in its agent's history exactly once, in the order of acceptance."""
    rows = connection.execute("SELECT agent_id, position, batch_id, content FROM messages WHERE role = 'user'")
    heard = list(rows)
    times = Counter(content for _agent, _position, _batch, content in heard)
    by_batch: dict[tuple[str, str], str] = {}
    for agent, position, batch, _content in heard:
        by_batch[agent, batch] = min(position, by_batch.get((agent, batch), position))
    known = state.turns_by_id
    acked = {(ack["agent"], ack["n"]): str(ack["turn"]) for ack in world.acks.lines()}
    for wish in world.wishes.lines():
        turn = known.get(acked.get((wish["agent"], wish["n"]), ""))
        expected = 0 if turn is None or (turn.started_at is None and turn.joined is None) else 1
        count = times[str(wish["content"])]
        if count != expected and (turn is not None or count > 1):
            yield f"{'lost' if count < expected else 'repeated'}: message {wish['n']} stands {count} times in history"
    newest: dict[str, str] = {}
    for turn in state.turns.values():
        if turn.batch_id is None:
            if turn.status != "cancelled" and turn.joined is None:
                yield f"lost: turn {turn.id} ended {turn.status} without its message"
            continue
        position = by_batch.get((turn.agent_id, turn.batch_id))
        if position is None or position != turn.batch_id:
            yield f"lost: the message of turn {turn.id}"
        elif position <= newest.get(turn.agent_id, ""):
            yield f"divergent: the message of turn {turn.id} stands before an earlier accepted one"
        else:
            newest[turn.agent_id] = position


def _streamed(connection: Connection, world: World, state: State) -> Iterator[str]:
    """What a reader saw of an answer is in a message of its turn, unless another attempt of the step superseded it."""
    saw: dict[tuple[int, int, int], str] = defaultdict(str)
    for line in world.seen.lines():
        if line["name"] == "text.delta":
            data, key = dict(cast("Line", line["data"])), state.turns_by_id[str(line["turn"])].key
            saw[key, cast(int, data["step"]), cast(int, data["attempt"])] += str(data["text"])
    said: dict[str, list[str]] = defaultdict(list)
    for batch, content in connection.execute("SELECT batch_id, content FROM messages WHERE role = 'assistant'"):
        said[batch].append(content or "")
    # Whether or not a reader saw anything of the attempts after it: its clients were told to drop what they showed.
    superseded = set(connection.execute("SELECT turn, no, attempt FROM step WHERE status = 'superseded'"))
    for (turn, step, attempt), words in saw.items():
        is_replaced = (turn, step, attempt) in superseded
        state.tally["streams read"] += not is_replaced
        if not is_replaced and not any(words in text for text in said[str(state.turns[turn].batch_id)]):
            yield f"lost: a reader saw {words!r} of step {step} of turn {turn}, and no message has it"
    partial = "SELECT count(*) FROM messages WHERE source_metadata ->> '$.partial' IS NOT NULL"
    state.tally["partial answers"] += connection.execute(partial).get


def _joined(world: World, state: State) -> Iterator[str]:
    """A message that a death left waiting to join a turn joins it, unless the turn does not complete in one go."""
    known = state.turns_by_id
    waited = {event["turn"] for event in state.events if event["name"] == "turn.waiting"}
    for message_id, turn_id in {(str(line["message"]), str(line["turn"])) for line in world.steered.lines()}:
        message, turn = known[message_id], known[turn_id]
        if message.joined == turn.key:
            state.tally["joined after a death"] += 1
        elif turn.status == "completed" and turn_id not in waited and message.status != "cancelled":
            yield f"lost: the message of turn {message_id} was to join turn {turn_id}, which completed without it"


def _local(connection: Connection, state: State) -> Iterator[str]:
    """A local effect happened exactly once if it is done, and not at all if it is not."""
    notes = Counter(
        line
        for (content,) in connection.execute("SELECT content_preview FROM memory_blocks WHERE label = ?", (BLOCK,))
        for line in (content or "").splitlines()
    )
    archive = Counter(content for (content,) in connection.execute("SELECT content FROM archival_entries"))
    # Where a turn failed before it did anything, its message is delivered again by another, under the next number.
    delivered = Counter(
        (sent(json.loads(payload)["content"]), (json.loads(payload).get("source_metadata") or {}).get(REDELIVERY, 0))
        for (payload,) in connection.execute("SELECT payload FROM inbox")
    ) + Counter(
        (sent(content or ""), json.loads(about or "{}").get(REDELIVERY, 0))
        for content, about in connection.execute("SELECT content, source_metadata FROM messages WHERE role <> 'tool'")
    )
    asked: dict[str, int] = {}
    for (content, _number), times in delivered.items():
        asked[content] = max(times, asked.get(content, 0))
    for effect in state.effects:
        match effect.tool:
            case "block_edit":
                count = notes[effect.words]
            case "recall":
                count = archive[effect.words]
            case "send_message":
                count = asked.get(effect.words, 0)
            case _:
                continue
        expected = int(effect.status == "done")
        if count != expected:
            kind = "lost" if count < expected else "repeated"
            yield f"{kind}: {effect.tool} {effect.words} is {effect.status} and happened {count} times"
        if effect.status not in ("done", "cancelled", "denied"):
            yield f"unfinished: {effect.tool} {effect.words} is {effect.status}"


# What people and rules have to say about what agents do: nothing happens that they forbid, or did not agree to.


def _unasked(world: World, state: State) -> Iterator[str]:
    """What needs consent happened at most as often as a person agreed to it; an answer is used once."""
    agreed = Counter(question.agreed for question in state.questions if question.agreed is not None)
    ran = Counter((line.tool, line.words) for line in world.executions())
    for (tool, words), count in ran.items():
        if _needs_consent(tool, words) and count > agreed[words]:
            yield f"unasked: {tool} {words} ran {count} times, and a person agreed {agreed[words]} times"
    about = Counter((question.turn, question.step, question.call) for question in state.questions)
    for place, count in about.items():
        # A call is asked about before it runs, and once more for each time that a crash left it in doubt.
        recoveries = sum((one.turn, one.step, one.call) == place for one in state.questions if one.kind == "recovery")
        if count > 1 + recoveries:
            yield f"unasked: a person was asked {count} times about the call {place}"


def _needs_consent(tool: str, words: str) -> bool:
    return tool == "order" or (tool == "book" and _is_bobs(words))


def _is_bobs(words: str) -> bool:
    """Words name the plan `<…-agent.step.call>`."""
    return words.rsplit("-", 1)[-1].startswith("bob.")


def _rules_kept(world: World, state: State) -> Iterator[str]:
    """What bob's rules say held in each of his turns, however often it was cut off."""
    ran = {line.words for line in world.executions()}
    calls: dict[int, list[Effect]] = defaultdict(list)
    for effect in state.effects:
        calls[effect.turn].append(effect)
        if effect.status == "denied" and effect.words in ran and not _had_run(state, effect):
            yield f"unasked: {effect.tool} {effect.words} was refused and ran"
    for key, effects in calls.items():
        turn = state.turns[key]
        if not any(_is_bobs(effect.words) for effect in effects):
            continue
        payments = sum(effect.tool == "pay" and effect.status in ("done", "in_doubt") for effect in effects)
        if payments > PAYMENTS_MAX:
            yield f"unasked: {payments} payments in turn {turn.id}"
        done = [effect.tool for effect in effects if effect.status == "done"]
        if "mail" in done and "look" not in done[: done.index("mail")]:
            yield f"unasked: a mail without a look before it in turn {turn.id}"
        if turn.status == "completed" and "book" in done and SIGNED not in done:
            yield f"unasked: turn {turn.id} booked and ended without a signature"


def _had_run(state: State, effect: Effect) -> bool:
    """Whether another call of the same words ran: the one that was in doubt, of which this is the repetition."""
    return any(other.words == effect.words and other.key != effect.key and other.attempts for other in state.effects)

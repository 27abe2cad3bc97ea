"""Rules judge by rows: a restart sees what the process before it saw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.rules.facts import RESULT_CHARS_MAX, JudgedCall, calls_of, lowest, read, trust, trust_of
from pattern_db import template
from pattern_db.columns import iso, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import BatchType, EffectStatus, Role, TrustLevel
from pattern_db.journal import steps, turns
from pattern_db.journal.steps import EffectRow
from pattern_db.journal.turns import NewTurn, Started
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, messages
from pattern_db.tables.messages import MessageRow
from tests.pattern_db.conftest import make_agent, make_message

NOW = "2026-11-21T22:24:40.123Z"


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = template.in_memory(migrations_of("constellation"), now=NOW)
    for agent in ("ada", "bob"):
        agents.create(connection, make_agent(agent))
    yield connection
    connection.close()


def turn_of(db: Connection, agent: str = "agt_ada", name: str = "turn_1") -> int:
    return turns.insert(db, NewTurn(id=name, agent_id=agent, sender="user:u", seed=1, created_at=NOW))


def call(
    db: Connection, turn: int, number: int, tool: str, *, status: str = "done", at: str | None = NOW, result: str = "ok"
) -> None:
    """Store a call that was started at a time (None: within the file, which has no start) and ended a second later."""
    effect_class = "pure" if at is None else "unsafe"
    call_id = f"rule_{number}" if tool == "forced" else f"call_{number}"
    args = '"not JSON"' if tool == "broken" else '{"n":1}'
    row = EffectRow(turn, 1, number, call_id, tool, args, b"0" * 16, effect_class, f"k{turn}{number}")
    steps.plan_calls(db, [row])
    if at is not None:
        steps.start_call(db, (turn, 1, number), epoch=1, started_at=at, deadline_at=NOW)
    if status in ("planned", "started"):
        return
    message = make_message(turn * 100 + number, result, role=Role.TOOL)
    messages.append(db, [message])
    ended = iso(unix_ms(NOW if at is None else at) + 1_000)
    steps.finish_call(db, (turn, 1, number), status=status, message_id=message.id, ended_at=ended)


def test_calls_of_a_turn(db: Connection) -> None:
    turn = turn_of(db)
    call(db, turn, 0, "web", result="x" * (RESULT_CHARS_MAX + 5))
    call(db, turn, 1, "note", at=None)
    call(db, turn, 2, "forced", status="error")
    call(db, turn, 3, "broken", status="started")
    call(db, turn_of(db, name="turn_2"), 0, "other")
    web, note, forced, broken = calls_of(db, turn).values()
    assert (web.tool, web.arguments, web.status, web.step, web.at_ms) == ("web", {"n": 1}, "done", 1, unix_ms(NOW))
    assert (len(web.result), web.effect_class, web.is_forced) == (RESULT_CHARS_MAX, "unsafe", False)
    assert (note.at_ms, note.effect_class, note.result) == (unix_ms(NOW) + 1_000, "pure", "ok")
    assert (forced.is_forced, forced.status) == (True, "error")
    assert (broken.status, broken.arguments, broken.result) == ("started", {"invalid": "not JSON"}, "")


def test_the_last_use_of_a_tool_reaches_across_turns(db: Connection) -> None:
    first, second, other = turn_of(db), turn_of(db, name="turn_2"), turn_of(db, "agt_bob", "turn_3")
    late, later = (iso(unix_ms(NOW) + ms) for ms in (5_000, 60_000))
    call(db, second, 0, "web", at=late)
    call(db, first, 0, "web", at=NOW)  # ends after a later one: the last start counts
    call(db, second, 1, "web", at=later, status="error")
    call(db, other, 0, "web", at=later)
    call(db, second, 2, "note", at=None)
    assert read(db, "agt_ada", ("web", "note", "none")) == {"web": unix_ms(late), "note": unix_ms(NOW) + 1_000}
    assert read(db, "agt_bob", ("web",)) == {"web": unix_ms(later)}
    assert read(db, "agt_ada", ()) == {}


def test_what_has_ended() -> None:
    ended = {status.value for status in EffectStatus if JudgedCall(tool="a", status=status.value).has_ended}
    assert ended == {"done", "error", "timeout", "cancelled", "denied", "in_doubt"}


def test_repetitions_have_equal_outcomes() -> None:
    first = JudgedCall(tool="a", arguments={"x": 1, "y": [2]}, status="done", result="fine")
    assert first.outcome == replace(first, arguments={"y": [2], "x": 1}).outcome
    for other in ({"arguments": {"x": 2, "y": [2]}}, {"status": "error"}, {"result": "good"}):
        assert first.outcome != replace(first, **other).outcome


SENDERS = {
    "user:u": "partner",
    "system": "partner",
    "system:heartbeat": "agent",
    "agent:agt_bob": "agent",
    "conversant:u": "conversant",
    "system:new": "source",
    "source:feed": "source",
    "": "source",
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(SENDERS)), st.none() | st.integers(0, 5), st.none() | st.integers(0, 5)),
        min_size=1,
        max_size=6,
    )
)
def test_a_turn_is_trusted_as_its_least_trusted_message_and_those_who_led_to_it(
    said: list[tuple[str, int | None, int | None]],
) -> None:
    """Each turn may be led to by an earlier one, and its message may join an earlier one instead of beginning it."""
    connection = template.in_memory(migrations_of("constellation"), now=NOW)
    agents.create(connection, make_agent("ada"))
    keys, levels, batches = list[int](), list[str](), dict[int, str]()
    for number, (sender, parent, joined) in enumerate(said):
        led_by = None if parent is None or parent >= number else parent
        new = NewTurn("agt_ada", f"turn_{number}", sender, 1, NOW, None if led_by is None else keys[led_by])
        keys.append(turns.insert(connection, new))
        own = "source" if sender.startswith("agent") and led_by is None else SENDERS[sender]
        levels.append(max(own, own if led_by is None else levels[led_by], key=[*TrustLevel].index))
        level, position = trust(connection, keys[number]), f"{number:019}"
        assert level == levels[number]
        if joined in batches:
            turns.join(connection, keys[number], keys[joined or 0], ended_at=NOW)
            levels[joined or 0] = max(levels[joined or 0], level, key=[*TrustLevel].index)
        else:
            turns.start(connection, keys[number], Started(position, 1, NOW, NOW))
            batches[number] = position
        kind = BatchType.CONTINUATION if joined in batches else None
        row = MessageRow(f"msg_{position}", "agt_ada", position, Role.USER, NOW, batch_type=kind, trust=level)
        messages.append(connection, [row._replace(batch_id=batches.get(number, batches.get(joined or 0)))])
    assert [trust(connection, key) for key in (*keys, 99)] == [*levels, "source"]
    assert [trust_of(one, is_led_to=True) for one in SENDERS] == [*SENDERS.values()]
    assert trust_of("agent:agt_bob") is TrustLevel.SOURCE
    assert MessageRow("msg_1", "agt_ada", "1", Role.USER, NOW).trust is lowest([]) is TrustLevel.SOURCE
    connection.close()

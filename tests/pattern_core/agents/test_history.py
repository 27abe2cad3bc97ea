"""Conversations between rows and messages: what is stored comes back, vendors get no loose ends, prefixes stay put."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.agents.history import (
    LOST_RESULT,
    SENT_BY_TOOL,
    History,
    from_row,
    keep_turns_whole,
    load_history,
    make_message,
    message_chars,
    repair,
    to_row,
)
from pattern_core.limits import PromptLimits
from pattern_core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, messages
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.messages import MessageRow
from tests.support import START

AGENT = "agent_ada"


@pytest.fixture(scope="module")
def empty() -> Iterator[Connection]:
    """A constellation with one agent; tests roll back what they add."""
    connection = template.in_memory(migrations_of("constellation"), now=START)
    row = AgentRow(
        id=AGENT,
        name="ada",
        model_provider="scripted",
        model_name="script-1",
        system_prompt="",
        created_at=START,
        updated_at=START,
    )
    agents.create(connection, row)
    yield connection
    connection.close()


def message(number: int, role: str, *parts: Part) -> Message:
    return make_message(role, parts, position=f"{number:019d}", created_at=START)


def numbered(said: Sequence[tuple[str, tuple[Part, ...]]]) -> list[Message]:
    return [message(number, role, *parts) for number, (role, parts) in enumerate(said)]


def call(call_id: str) -> ToolCall:
    return ToolCall(call_id=call_id, tool="note", arguments={"text": "x"})


def result(call_id: str, content: str = "done") -> ToolResult:
    return ToolResult(call_id=call_id, tool="note", content=content)


def turn(words: str = "hi") -> list[tuple[str, tuple[Part, ...]]]:
    return [
        ("user", (Text(text=words),)),
        ("assistant", (Text(text="let me see"), call("c"))),
        ("tool", (result("c"),)),
        ("assistant", (Text(text=words),)),
    ]


def stored(connection: Connection, conversation: Sequence[Message], source: str | None = None) -> None:
    rows = [
        to_row(one, agent_id=AGENT, batch_id="0", sequence=number, source=source)
        for number, one in enumerate(conversation)
    ]
    messages.append(connection, rows)


class RollBack(Exception):
    """Ends a transaction and leaves nothing of it."""


IDS = st.sampled_from("abcd")
WORDS = st.text(min_size=1, max_size=5)
ANSWER_PARTS = st.one_of(
    st.builds(Text, text=WORDS),
    st.builds(Reasoning, text=st.text(max_size=3), signature=st.none() | st.just("s")),
    st.builds(ToolCall, call_id=IDS, tool=st.just("note"), arguments=st.dictionaries(WORDS, WORDS, max_size=2)),
    st.builds(ToolCall, call_id=IDS, tool=st.just("note"), invalid=st.just('{"x')),
)
SAID = st.one_of(
    st.tuples(st.just("user"), st.tuples(st.builds(Text, text=WORDS))),
    st.tuples(st.just("system"), st.tuples(st.builds(Text, text=WORDS))),
    st.tuples(st.just("assistant"), st.lists(ANSWER_PARTS, min_size=1, max_size=4).map(tuple)),
    st.tuples(
        st.just("tool"),
        st.tuples(
            st.builds(
                ToolResult, call_id=IDS, tool=st.just("note"), content=st.text(max_size=3), is_error=st.booleans()
            )
        ),
    ),
)
CONVERSATIONS = st.lists(SAID, max_size=12).map(numbered)


def loose_ends(conversation: Sequence[Message]) -> list[str]:
    """Call ids that are asked without an answer right after, or answered without having been asked."""
    ends: list[str] = []
    waiting: set[str] = set()
    for one in conversation:
        if one.role == "tool":
            answered = one.parts[0]
            assert isinstance(answered, ToolResult)
            if answered.call_id in waiting:
                waiting.remove(answered.call_id)
            else:
                ends.append(answered.call_id)
            continue
        ends.extend(waiting)
        waiting = {asked.call_id for asked in one.tool_calls}
    return [*ends, *waiting]


@given(CONVERSATIONS)
def test_a_message_comes_back_from_its_row_as_it_was(conversation: list[Message]) -> None:
    for one in conversation:
        row = to_row(one, agent_id=AGENT, batch_id="0", sequence=0)
        assert from_row(row) == one
        assert (row.id, row.agent_id, row.position, row.role) == (one.id, AGENT, one.position, one.role)


def test_what_a_row_shows_to_people_and_search() -> None:
    spoken = to_row(message(1, "user", Text(text="hi")), agent_id=AGENT, batch_id="1", sequence=0, source="mail")
    assert (spoken.content, spoken.parts, spoken.source, spoken.source_metadata) == ("hi", None, "mail", None)
    mixed = to_row(
        message(2, "assistant", Text(text="a"), call("c"), Text(text="b")), agent_id=AGENT, batch_id="1", sequence=1
    )
    assert mixed.content == "ab"
    assert len(mixed.parts) == 3
    silent = to_row(message(3, "assistant", call("c")), agent_id=AGENT, batch_id="1", sequence=2)
    assert silent.content is None
    answer = to_row(message(4, "tool", result("c")), agent_id=AGENT, batch_id="1", sequence=3, arguments={"text": "x"})
    assert (answer.content, answer.parts) == ("done", None)
    assert (answer.tool_call_id, answer.tool_name, answer.tool_args) == ("c", "note", {"text": "x"})
    assert answer.tool_result == {"is_error": False}


@given(CONVERSATIONS)
def test_repair_leaves_no_loose_end_and_is_done_once(conversation: list[Message]) -> None:
    repaired = repair(conversation)
    assert loose_ends(repaired) == []
    assert repair(repaired) == repaired
    assert [one for one in repaired if one.role != "tool"] == [one for one in conversation if one.role != "tool"]
    positions = [one.position for one in repaired]
    assert positions == sorted(positions)
    if not loose_ends(conversation):
        assert repaired == conversation


def test_a_lost_result_reads_as_an_error() -> None:
    asked = numbered([("assistant", (call("a"), call("b"))), ("tool", (result("b"),)), ("user", (Text(text="?"),))])
    repaired = repair(asked)
    assert [one.role for one in repaired] == ["assistant", "tool", "tool", "user"]
    assert repaired[2].parts == (ToolResult(call_id="a", tool="note", content=LOST_RESULT, is_error=True),)


def test_messages_are_a_snapshot() -> None:
    history = History(numbered(turn()), PromptLimits())
    before = history.messages
    history.append(message(9, "user", Text(text="more")))
    assert len(before) == 4
    assert len(history.messages) == 5
    assert history.cursor == f"{9:019d}"
    assert History([], PromptLimits()).cursor == ""


def test_the_digest_names_what_is_shown() -> None:
    conversation = numbered([*turn(), *turn()])
    whole = History(conversation, PromptLimits())
    grown = History(conversation[:4], PromptLimits())
    assert grown.digest != whole.digest
    for one in conversation[4:]:
        grown.append(one)
    assert grown.digest == whole.digest
    extra = message(9, "user", Text(text="more"))
    grown.append(extra)
    assert grown.digest != whole.digest
    assert len(grown.digest) == 16


def test_size_is_counted_over_all_parts() -> None:
    parts = (Text(text="abc"), Reasoning(text="de"), ToolCall(call_id="c", tool="note", arguments={"k": "v"}))
    assert message_chars(message(1, "assistant", *parts)) == 3 + 2 + 4 + 2
    assert message_chars(message(2, "tool", result("c", "12345"))) == 5


def starts_after(turns: int, limits: PromptLimits, words: str = "hi") -> list[str]:
    """The position of the first message shown, after each of so many turns."""
    history, starts = History([], limits), []
    for number in range(turns):
        for place, (role, parts) in enumerate(turn(words)):
            history.append(message(4 * number + place, role, *parts))
        shown = history.messages
        assert shown[0].role == "user"
        assert loose_ends(shown) == []
        assert shown[-1].position == f"{4 * number + 3:019d}"
        assert len(shown) <= max(limits.history_messages_max, 4) + 4
        one_turn = sum(map(message_chars, shown[-4:]))
        assert sum(map(message_chars, shown)) <= max(limits.history_chars_max, one_turn) + one_turn
        starts.append(shown[0].position)
    return starts


@pytest.mark.parametrize(
    "limits",
    [
        PromptLimits(history_messages_max=80, history_chars_max=10**6),
        PromptLimits(history_messages_max=10**6, history_chars_max=20 * 30),
    ],
    ids=["messages", "characters"],
)
def test_the_beginning_stays_the_same_for_many_turns(limits: PromptLimits) -> None:
    starts = starts_after(200, limits)
    assert starts == sorted(starts)
    moves = [place for place, (before, after) in enumerate(pairwise(starts)) if before != after]
    assert all(later - sooner >= 8 for sooner, later in pairwise(moves))
    assert len(moves) <= 200 // 8
    assert moves


def test_one_exchange_larger_than_all_bounds_stays_whole() -> None:
    starts = starts_after(5, PromptLimits(history_messages_max=3, history_chars_max=10), "x" * 50)
    assert starts == [f"{4 * number:019d}" for number in (0, 0, 1, 2, 3)]  # it and the one before it


@settings(max_examples=60)
@given(CONVERSATIONS)
def test_a_loaded_history_is_the_repaired_conversation(empty: Connection, conversation: list[Message]) -> None:
    first = next((place for place, one in enumerate(conversation) if one.role == "user"), 0)
    live = History([], PromptLimits())
    for one in repair(conversation[first:]):
        live.append(one)
    with pytest.raises(RollBack), empty:
        stored(empty, conversation)
        loaded = load_history(empty, AGENT, PromptLimits(), is_unfinished=False)
        raise RollBack
    assert loaded.messages == live.messages
    assert loaded.digest == live.digest
    assert loaded.cursor == live.cursor


@settings(max_examples=60)
@given(st.lists(SAID, max_size=30).map(numbered), st.integers(1, 20), st.integers(1, 60))
def test_whatever_the_bounds_there_is_no_loose_end(
    empty: Connection, conversation: list[Message], count: int, chars: int
) -> None:
    limits = PromptLimits(history_messages_max=count, history_chars_max=chars)
    with pytest.raises(RollBack), empty:
        stored(empty, conversation)
        loaded = load_history(empty, AGENT, limits, is_unfinished=False)
        raise RollBack
    assert loose_ends(loaded.messages) == []
    if any(one.role == "user" for one in loaded.messages):
        assert loaded.messages[0].role == "user"


def test_what_a_tool_sent_is_not_shown_beside_the_call(empty: Connection) -> None:
    with pytest.raises(RollBack), empty:
        conversation = numbered(turn())
        stored(empty, conversation)
        stored(empty, [message(9, "assistant", Text(text="sent"))], source=SENT_BY_TOOL)
        loaded = load_history(empty, AGENT, PromptLimits(), is_unfinished=False)
        raise RollBack
    assert list(loaded.messages) == conversation


@pytest.mark.parametrize("answered", [0, 1, 2])
def test_the_calls_of_an_unfinished_turn_still_wait(empty: Connection, answered: int) -> None:
    open_end: list[tuple[str, tuple[Part, ...]]] = [
        ("user", (Text(text="and?"),)),
        ("assistant", (call("a"), call("b"))),
        *[("tool", (result(call_id),)) for call_id in "ab"[:answered]],
    ]
    conversation = numbered([*turn(), *open_end])
    with pytest.raises(RollBack), empty:
        stored(empty, conversation)
        unfinished = load_history(empty, AGENT, PromptLimits(), is_unfinished=True)
        finished = load_history(empty, AGENT, PromptLimits(), is_unfinished=False)
        raise RollBack
    assert list(unfinished.messages) == conversation
    assert len(finished.messages) == len(conversation) + 2 - answered


def rows_of(text: str) -> list[MessageRow]:
    """Rows named by two signs each: a turn's letter (`-` for none) and a number."""
    return [
        MessageRow(
            id=name,
            agent_id=AGENT,
            position=f"{place:019d}",
            role=Role.USER,
            created_at=START,
            batch_id=None if name[0] == "-" else name[0],
        )
        for place, name in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("stored_", "finished", "unfinished"),
    [
        ("a1 a2 b1 b2", "a1 a2 b1 b2", "a1 a2 b1 b2"),
        ("-1 a1 -2 a2 -3 b1", "-1 -2 a1 a2 -3 b1", "-1 -2 a1 a2 -3 b1"),
        ("a1 -1 a2 -2 a3 -3", "-1 -2 a1 a2 a3 -3", "-1 -2 -3 a1 a2 a3"),
        ("a1 b1 -1 b2 -2", "a1 -1 b1 b2 -2", "a1 -1 -2 b1 b2"),
        ("-1 -2", "-1 -2", "-1 -2"),
        ("", "", ""),
    ],
)
def test_what_was_imported_into_a_turn_goes_before_it(stored_: str, finished: str, unfinished: str) -> None:
    for is_unfinished, expected in ((False, finished), (True, unfinished)):
        ordered = keep_turns_whole(rows_of(stored_), is_unfinished=is_unfinished)
        assert [row.id for row in ordered] == expected.split()

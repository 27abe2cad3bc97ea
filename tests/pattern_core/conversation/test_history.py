"""Conversations between rows and messages: what is stored comes back, vendors get no loose ends, prefixes stay put."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.conversation.history import (
    LOST_RESULT,
    History,
    from_row,
    keep_turns_whole,
    load_history,
    repair,
    to_row,
)
from pattern_core.conversation.opening import OPENING_ID, Opening
from pattern_core.limits import PromptLimits
from pattern_core.messages import Message, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.tokens import estimate_messages
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, messages
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.messages import MessageRow
from tests.pattern_core.compaction.rig import START, loose_ends
from tests.support import make_message

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


def stored(connection: Connection, conversation: Sequence[Message]) -> None:
    rows = [to_row(one, agent_id=AGENT, batch_id="0", sequence=number) for number, one in enumerate(conversation)]
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
    history = History(numbered(turn()))
    before = history.messages
    history.append(message(9, "user", Text(text="more")))
    assert len(before) == 4
    assert len(history.messages) == 5
    assert history.cursor == f"{9:019d}"
    assert History().cursor == ""


def test_what_was_appended_is_had_alone_and_any_other_change_has_its_number() -> None:
    history = History(numbered([("assistant", (Text(text="I begin"),)), *turn()]))
    known, before = history.revision, len(history.messages)
    history.append(message(9, "user", Text(text="more")))
    assert history.revision == known
    assert [one.text for one, _tokens in history.after(before)] == ["more"]
    assert all(
        tuple(one for one, _tokens in history.after(count)) == history.messages[count:]
        for count in range(len(history.messages) + 1)
    )
    history.drop(history.messages[-1])
    assert history.revision != known


def test_the_digest_names_what_is_shown() -> None:
    conversation = numbered([*turn(), *turn()])
    whole = History(conversation)
    grown = History(conversation[:4])
    assert grown.digest != whole.digest
    for one in conversation[4:]:
        grown.append(one)
    assert grown.digest == whole.digest
    extra = message(9, "user", Text(text="more"))
    grown.append(extra)
    assert grown.digest != whole.digest
    assert len(grown.digest) == 16


def test_tokens_are_those_of_what_is_shown() -> None:
    history = History(numbered(turn()))
    assert history.tokens == estimate_messages(history.messages)
    more = message(9, "user", Text(text="more"))
    history.append(more)
    assert history.tokens == estimate_messages(history.messages)
    history.drop(more)
    assert history.tokens == estimate_messages(history.messages)
    assert len(history.messages) == 4


def test_nothing_leaves_by_itself() -> None:
    history = History()
    for number in range(3_000):
        history.append(message(number, "user", Text(text="hi")))
    assert len(history.messages) == 3_000


def test_turns_are_exchanges_and_the_one_under_way_is_one_piece() -> None:
    history = History(numbered([*turn(), *turn("there"), *turn("now")]))
    assert [len(exchange.messages) for exchange in history.exchanges()] == [4, 4, 4]
    history.append(message(12, "user", Text(text="steered")))
    pieces = history.exchanges(f"{8:019d}")
    assert [(len(piece.messages), piece.is_running) for piece in pieces] == [(4, False), (4, False), (5, True)]
    assert sum(piece.tokens for piece in pieces) == history.tokens


def test_a_word_between_a_call_and_its_result_does_not_part_them() -> None:
    history = History()
    for one in numbered([("user", (Text(text="a"),)), ("assistant", (call("c"),)), ("user", (Text(text="b"),))]):
        history.append(one)
    history.append(message(3, "tool", result("c")))
    history.append(message(4, "user", Text(text="d")))
    assert [len(exchange.messages) for exchange in history.exchanges()] == [4, 1]


def test_what_leaves_is_replaced_by_an_opening() -> None:
    history = History(numbered([*turn(), *turn("there")]))
    digest = history.digest
    history.leave(history.messages[:4], Opening(unloaded=4))
    assert [one.role for one in history.messages] == ["user", "user", "assistant", "tool", "assistant"]
    assert history.tokens == estimate_messages(history.messages)
    assert history.digest != digest
    history.limit_opening(0)
    assert len(history.messages) == 4
    assert history.tokens == estimate_messages(history.messages)


def test_another_opening_alone_changes_what_stands_before_the_messages() -> None:
    said = numbered([*turn(), *turn()])
    history = History(said, opening=Opening(unloaded=7))
    revision = history.revision
    history.leave((), Opening(unloaded=2))
    whole = History(said, opening=Opening(unloaded=2))
    assert (history.messages, history.tokens, history.digest) == (whole.messages, whole.tokens, whole.digest)
    assert history.revision > revision, "what was made of the one before is made again"
    for each in (history, whole):
        each.append(message(9, "user", Text(text="more")))
    assert history.digest == whole.digest


def test_what_is_shown_shorter_has_another_digest() -> None:
    history = History(numbered(turn()))
    digest, tokens = history.digest, history.tokens
    asked = history.messages[2]
    history.shorten(asked, message(2, "tool", result("c", "")))
    assert history.tokens < tokens
    assert history.digest != digest
    assert len(history.messages) == 4


def test_a_conversation_that_an_agent_began_starts_with_a_users_message() -> None:
    history = History(numbered([("assistant", (Text(text="Good morning."),)), *turn()]))
    assert [one.role for one in history.messages][:3] == ["user", "assistant", "user"]
    assert history.messages[0].id == OPENING_ID


@settings(max_examples=60)
@given(CONVERSATIONS)
def test_a_loaded_history_is_the_repaired_conversation(empty: Connection, conversation: list[Message]) -> None:
    live = History()
    for one in repair(conversation):
        live.append(one)
    with pytest.raises(RollBack), empty:
        stored(empty, conversation)
        loaded = load_history(empty, AGENT, PromptLimits(), active=None)
        raise RollBack
    assert loaded.messages == live.messages
    assert loaded.digest == live.digest
    assert loaded.cursor == live.cursor
    assert loaded.tokens == estimate_messages(loaded.messages)


@settings(max_examples=60)
@given(st.lists(SAID, max_size=30).map(numbered), st.integers(1, 20))
def test_whatever_the_bound_there_is_no_loose_end(empty: Connection, conversation: list[Message], count: int) -> None:
    with pytest.raises(RollBack), empty:
        stored(empty, conversation)
        loaded = load_history(empty, AGENT, PromptLimits(history_messages_max=count), active=None)
        raise RollBack
    assert loose_ends(loaded.messages) == []
    if loaded.messages:
        assert loaded.messages[0].role == "user"
    assert loaded.opening.unloaded == max(len(conversation) - count, 0)


@pytest.mark.parametrize(("bound", "shown"), [(13, 12), (12, 12), (11, 8), (9, 8), (8, 8), (4, 4)])
def test_turns_are_read_whole_and_the_rest_is_counted(empty: Connection, bound: int, shown: int) -> None:
    with pytest.raises(RollBack), empty:
        for number in range(3):
            said = [message(4 * number + place, role, *parts) for place, (role, parts) in enumerate(turn())]
            rows = [to_row(one, agent_id=AGENT, batch_id=said[0].position, sequence=0) for one in said]
            messages.append(empty, rows)
        limits = PromptLimits(history_messages_max=bound)
        loaded = load_history(empty, AGENT, limits, active=None)
        raise RollBack
    unloaded = 12 - shown
    assert loaded.opening.unloaded == unloaded
    assert loaded.loaded_from == f"{unloaded:019d}"
    assert len(loaded.messages) == shown + (unloaded > 0)
    assert loose_ends(loaded.messages) == []


def test_what_a_turn_under_way_needs_is_read_and_not_counted_as_missing(empty: Connection) -> None:
    with pytest.raises(RollBack), empty:
        for number in range(4):  # the first one waited for a person, and three overtook it
            said = [message(4 * number + place, role, *parts) for place, (role, parts) in enumerate(turn())]
            rows = [to_row(one, agent_id=AGENT, batch_id=said[0].position, sequence=0) for one in said]
            messages.append(empty, rows[: 2 if number == 0 else 4])
        waiting = f"{0:019d}"
        loaded = load_history(empty, AGENT, PromptLimits(history_messages_max=8), active=waiting)
        raise RollBack
    assert loaded.opening.unloaded == 4  # those of the first turn that overtook it
    assert len(loaded.messages) == 1 + 8 + 2


def test_what_a_tool_sent_is_not_shown_beside_the_call(empty: Connection) -> None:
    with pytest.raises(RollBack), empty:
        conversation = numbered(turn())
        stored(empty, conversation)
        sent = to_row(message(9, "assistant", Text(text="sent")), agent_id=AGENT, batch_id="0", sequence=9)
        messages.append(empty, [sent._replace(tool_call_id="call_1")])
        loaded = load_history(empty, AGENT, PromptLimits(), active=None)
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
        unfinished = load_history(empty, AGENT, PromptLimits(), active="0")
        finished = load_history(empty, AGENT, PromptLimits(), active=None)
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
        ("a1 b1 b2 a2", "b1 b2 a1 a2", "a1 a2 b1 b2"),  # a waited for a person, and b overtook it
        ("a1 a2 b1 b2", "a1 a2 b1 b2", "a1 a2 b1 b2"),
        ("-1 a1 -2 a2 -3 b1", "-1 -2 a1 a2 -3 b1", "-1 -2 a1 a2 -3 b1"),
        ("a1 -1 a2 -2 a3 -3", "-1 -2 a1 a2 a3 -3", "-1 -2 -3 a1 a2 a3"),
        ("a1 b1 -1 b2 -2", "a1 -1 b1 b2 -2", "a1 -1 -2 b1 b2"),
        ("-1 -2", "-1 -2", "-1 -2"),
        ("", "", ""),
    ],
)
def test_what_was_imported_into_a_turn_goes_before_it(stored_: str, finished: str, unfinished: str) -> None:
    given = rows_of(stored_)
    newest = max((row.batch_id for row in given if row.batch_id), default=None)
    for active, expected in ((None, finished), (newest, unfinished)):
        ordered = keep_turns_whole(given, active=active)
        assert [row.id for row in ordered] == expected.split()

"""T0: what is accepted is stored whole, once, and within bounds; what is refused leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pattern_core.errors import Conflict, IdempotencyMismatch, InvalidInput, NotFound, Overloaded
from pattern_core.events import Event
from pattern_core.images import image_of_bytes
from pattern_core.limits import KEY_CHARS_MAX, Limits
from pattern_core.messages import Text
from pattern_core.models.model import ToolSpec
from pattern_core.turns import admission
from pattern_core.turns.admission import NO_OPTIONS, Arrival, IncomingMessage, NotAtRest, Ticket, TurnOptions
from pattern_db import template
from pattern_db.connection import Connection, fetch_all
from pattern_db.journal import group_runs, turns
from pattern_db.journal.turns import NewTurn, Started
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, groups, sessions
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.groups import GroupRow
from pattern_db.tables.sessions import SessionRow
from tests.support import START, USER

LIMITS = Limits(inbox_per_agent_max=3, message_chars_max=10)
HELLO = IncomingMessage(agent_id="agent_ada", content="hello", sender=USER)


def agent(name: str) -> AgentRow:
    return AgentRow(
        id=f"agent_{name}",
        name=name,
        model_provider="scripted",
        model_name="script-1",
        system_prompt="",
        created_at=START,
        updated_at=START,
    )


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = template.in_memory(migrations_of("constellation"), now=START)
    for name in ("ada", "bob"):
        agents.create(connection, agent(name))
    yield connection
    connection.close()


def arrival(incoming: IncomingMessage, to: AgentRow, turn_id: str = "turn_1") -> Arrival:
    return Arrival.of(incoming, to, turn_id=turn_id, seed=7, now=START)


def accept(db: Connection, incoming: IncomingMessage, turn_id: str = "turn_1") -> tuple[Ticket, list[Event]]:
    return admission.accept(db, arrival(incoming, agent(incoming.agent_id.removeprefix("agent_")), turn_id), LIMITS)


def test_an_accepted_message_is_a_turn_an_inbox_row_and_an_event(db: Connection) -> None:
    incoming = replace(
        HELLO, priority=3, source="mail", source_metadata={"from": "bob"}, depth=2, idempotency_key="key-1"
    )
    accepted, [event] = accept(db, incoming)
    row = turns.by_id(db, "turn_1")
    assert accepted == Ticket(turn_id="turn_1")
    assert (row.status, row.agent_id, row.sender, row.seed, row.depth) == ("queued", "agent_ada", USER, 7, 2)
    waiting = turns.first_message(db, "agent_ada")
    assert waiting is not None
    assert waiting.turn == row.key
    assert json.loads(waiting.payload) == admission.payload_of(incoming)
    assert (event.name, event.turn_id) == ("turn.queued", "turn_1")
    assert event.data == {"agent_id": "agent_ada", "sender": USER}


def test_what_the_inbox_keeps() -> None:
    assert admission.payload_of(HELLO) == {"content": "hello"}
    origin = replace(HELLO, source="mail", source_metadata={"from": "bob"})
    assert admission.payload_of(origin) == {"content": "hello", "source": "mail", "source_metadata": {"from": "bob"}}


def test_images_are_stored_with_their_message_and_kept_by_digest(db: Connection) -> None:
    image = image_of_bytes(b"\x89PNG\r\n\x1a\n")
    incoming = replace(HELLO, parts=(Text(text="hello"), image))
    accept(db, incoming)
    assert fetch_all(db, "SELECT data FROM blob", ()) == [(image.data,)]
    waiting = turns.first_message(db, "agent_ada")
    assert waiting is not None
    assert "PNG" not in waiting.payload
    assert admission.parts_of(json.loads(waiting.payload)) == (Text(text="hello"), replace(image, data=None))
    assert admission.parts_of({"content": "hello"}) == (Text(text="hello"),)


def test_a_message_may_be_images_alone_but_not_many() -> None:
    image = image_of_bytes(b"\x89PNG\r\n\x1a\n")
    admission.check(replace(HELLO, content="", parts=(image,) * 10), LIMITS)
    with pytest.raises(InvalidInput, match="11 images"):
        admission.check(replace(HELLO, parts=(image,) * 11), LIMITS)


def test_a_repeated_request_finds_its_turn_and_adds_nothing(db: Connection) -> None:
    incoming = replace(HELLO, idempotency_key="key-1")
    accept(db, incoming)
    assert accept(db, incoming, "turn_2") == (Ticket(turn_id="turn_1", is_replay=True), [])
    turns.take_message(db, 1)
    turns.end(db, 1, status="completed", ended_at=START)
    again, events = accept(db, incoming, "turn_3")  # also after it has ended
    assert (again, events) == (Ticket(turn_id="turn_1", is_replay=True), [])
    assert fetch_all(db, "SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM event)") == [(1, 1)]


@pytest.mark.parametrize(
    "changes",
    [{"content": "bye"}, {"source": "mail"}, {"source_metadata": {"a": 1}}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_key_stands_for_one_message(db: Connection, changes: dict[str, Any]) -> None:
    incoming = replace(HELLO, idempotency_key="key-1")
    accept(db, incoming)
    with pytest.raises(IdempotencyMismatch, match="use a new key"):
        accept(db, replace(incoming, **changes), "turn_2")
    same, other = arrival(incoming, agent("ada")).turn, arrival(HELLO, agent("ada")).turn
    assert admission.replayed(db, same) == Ticket(turn_id="turn_1", is_replay=True)
    assert admission.replayed(db, other) is None


@pytest.mark.parametrize("changes", [{"agent_id": "agent_bob"}, {"sender": "user:usr_eve"}, {"idempotency_key": "k2"}])
def test_keys_of_others_do_not_meet(db: Connection, changes: dict[str, Any]) -> None:
    incoming = replace(HELLO, idempotency_key="key-1")
    accept(db, incoming)
    accepted, _events = accept(db, replace(incoming, **changes), "turn_2")
    assert accepted == Ticket(turn_id="turn_2")


def test_a_group_accepts_messages_as_an_agent_does(db: Connection) -> None:
    groups.create(db, GroupRow("group_desk", "desk", "parallel", START, START))

    def accept(turn_id: str, **changes: Any) -> tuple[Ticket, list[Event]]:
        incoming = replace(HELLO, **changes)
        return admission.accept(
            db, Arrival.to_group(incoming, "group_desk", turn_id=turn_id, seed=7, now=START), LIMITS
        )

    accepted, [event] = accept("turn_1", idempotency_key="key-1")
    assert (accepted, event.name) == (Ticket(turn_id="turn_1"), "turn.queued")
    assert event.data == {"group_id": "group_desk", "sender": USER}
    assert accept("turn_2", idempotency_key="key-1") == (Ticket(turn_id="turn_1", is_replay=True), [])
    with pytest.raises(IdempotencyMismatch):
        accept("turn_2", idempotency_key="key-1", content="other")
    with pytest.raises(Conflict, match="the group is busy"):
        accept("turn_2", policy="reject")
    with pytest.raises(InvalidInput, match="policy 'steer'"):
        accept("turn_2", policy="steer")
    with pytest.raises(NotFound, match="no session"):
        accept("turn_2", session_id="ses_no")
    assert accept("turn_2", policy="interrupt")[0].stops == ("turn_1", "superseded")
    assert turns.by_id(db, "turn_1").cancel_reason == "superseded"
    accept("turn_3")
    with pytest.raises(Overloaded, match="3 messages wait for this group"):
        accept("turn_4")
    assert turns.first_message(db, "group_desk") is None  # it waits in the run of its turn
    run = group_runs.get(db, turns.by_id(db, "turn_3").key)
    assert json.loads(run.payload) == admission.payload_of(HELLO)


def test_an_idle_group_starts_with_its_message(db: Connection) -> None:
    groups.create(db, GroupRow("group_desk", "desk", "parallel", START, START))
    started = Started("1" * 19, 1, START, None)
    incoming = replace(HELLO, idempotency_key="key-1")
    arrivals = [Arrival.to_group(incoming, "group_desk", turn_id=f"turn_{n}", seed=7, now=START) for n in range(2)]
    key, events = admission.accept_at_rest(db, arrivals[0], started, "{}")
    assert (turns.by_key(db, key).status, group_runs.get(db, key).plan, events) == ("running", "{}", [])
    other = Arrival.to_group(HELLO, "group_desk", turn_id="turn_2", seed=7, now=START)
    for late in (arrivals[1], other):  # the key is known; it is busy
        with pytest.raises(NotAtRest):
            admission.accept_at_rest(db, late, started, "{}")


def test_an_inbox_is_bounded_per_agent(db: Connection) -> None:
    first = replace(HELLO, idempotency_key="key-1")
    accept(db, first, "turn_0")
    for number in range(1, LIMITS.inbox_per_agent_max):
        accept(db, HELLO, f"turn_{number}")
    with pytest.raises(Overloaded, match="3 messages wait") as refused:
        accept(db, HELLO, "turn_9")
    assert refused.value.details["retry_after_s"] == admission.RETRY_AFTER_S
    assert accept(db, first, "turn_9")[0].is_replay  # a replay needs no room
    accept(db, replace(HELLO, agent_id="agent_bob"), "turn_8")
    turns.take_message(db, 1)
    accept(db, HELLO, "turn_7")
    assert fetch_all(db, "SELECT count(*) FROM turn") == [(5,)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"content": ""}, "is empty"),
        ({"content": " \n\t "}, "is empty"),
        ({"content": "a\0b"}, "NUL"),
        ({"content": "x" * 11}, "11 characters, more than the limit of 10"),
        ({"content": "half \ud83d"}, "character 6 of the text is half of a surrogate pair"),
        ({"source": "\udc00"}, "half of a surrogate pair"),
        ({"source_metadata": {"a": float("nan")}}, "not JSON"),
        ({"source_metadata": {"a": {1, 2}}}, "not JSON"),
        ({"source_metadata": {"a": "\ud83d"}}, "half of a surrogate pair"),
        ({"priority": -1}, "from 0"),
        ({"priority": 4}, "from 0"),
        ({"idempotency_key": ""}, "1 to 255"),
        ({"idempotency_key": "x" * (KEY_CHARS_MAX + 1)}, "1 to 255"),
    ],
)
def test_what_can_never_be_accepted(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        admission.check(replace(HELLO, **changes), LIMITS)


def test_what_is_just_within_bounds(db: Connection) -> None:
    incoming = replace(HELLO, content="x" * 9 + "😀", priority=0, idempotency_key="x" * KEY_CHARS_MAX)
    admission.check(incoming, LIMITS)
    accept(db, incoming)
    admission.check(
        replace(HELLO, priority=3, idempotency_key="k", source="mail", source_metadata={"ü": [1, None]}), LIMITS
    )


def test_a_message_may_be_sent_to_a_name_and_leave_its_policy_to_the_agent() -> None:
    ada = agent("ada")
    found = arrival(replace(HELLO, agent_id="ada"), ada)
    assert (found.incoming.agent_id, found.turn.agent_id, found.incoming.policy) == (ada.id, ada.id, None)
    steered = replace(ada, config={"message_policy": "steer"})
    assert arrival(HELLO, steered).incoming.policy == "steer"
    assert arrival(replace(HELLO, policy="reject"), steered).incoming.policy == "reject"


def test_a_message_that_waits_in_the_outbox_comes_back_whole(db: Connection) -> None:
    picture = image_of_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 20, None)
    sent = replace(HELLO, parts=(Text(text="hello"), picture), source="feed", source_metadata={"n": 1}, depth=2)
    for attempts in (1, 2):
        accept(db, sent, f"turn_{attempts}")
        turn = turns.by_id(db, f"turn_{attempts}")
        payload = json.loads(turns.message_of(db, turn.key).payload)
        row = admission.undelivered(turn, payload, error="down", now=START)
        assert (row.target, row.attempts, row.status) == ("agent:agent_ada", attempts, "pending")
        back = admission.again(row)
        images = [image.digest for image in back.images]
        assert images == [picture.digest]
        about = {"n": 1, admission.REDELIVERY: attempts}
        assert replace(back, parts=sent.parts) == replace(sent, source_metadata=about, policy="enqueue")
        assert admission.undelivered(turn, payload, error="down", now=START, is_final=True).status == "dead"
        sent = replace(back, parts=sent.parts)


def test_a_session_is_one_of_the_agent_and_not_archived(db: Connection) -> None:
    sessions.create(db, "agent_ada", SessionRow(id="ses_1", created_at=START, updated_at=START))
    said = replace(HELLO, session_id="ses_1")
    admission.check_session(db, said, "agent_ada")
    with pytest.raises(NotFound, match="no session 'ses_1'"):
        admission.check_session(db, said, "agent_bob")
    sessions.change(db, "ses_1", {"is_archived": True})
    with pytest.raises(Conflict, match="archived"):
        accept(db, said)
    admission.check_session(db, replace(said, parent_turn=1), "agent_bob")  # a member, in its group's session
    admission.check_session(db, HELLO, "agent_ada")


def test_the_digests_of_a_message_tell_its_session() -> None:
    keyed = replace(HELLO, idempotency_key="key")
    name, message = admission.digests(keyed, "agent_ada")
    assert (name, message) == admission.digests(keyed, "agent_ada")
    other, elsewhere = admission.digests(replace(keyed, session_id="ses_1"), "agent_ada")
    assert other == name
    assert elsewhere != message
    assert admission.digests(keyed, "agent_bob")[0] != name


def test_options_are_stored_as_they_are() -> None:
    spec = ToolSpec(name="weather", description="Of a place.", parameters={"type": "object"})
    options = TurnOptions(instructions="Be short.", config={"stop": ["END"]}, tools=[spec], force_tool="weather")
    again = TurnOptions.of(options.stored)
    assert again == options
    assert (again.tools[0].name, again.tools[0].parameters) == ("weather", {"type": "object"})
    assert options.over({"stop": ["STOP"], "top_p": 0.5}) == {"stop": ["END"], "top_p": 0.5}
    longest = [TurnOptions(config={"max_output_tokens": 99}).over({"max_output_tokens": own}) for own in (9, 999)]
    assert longest == [{"max_output_tokens": 9}, {"max_output_tokens": 99}], "an agent's own bound stays one"
    assert TurnOptions().stored is None and TurnOptions.of(None) == NO_OPTIONS


def test_a_request_is_found_by_its_key_or_if_it_may_be_repeated_by_its_fingerprint(db: Connection) -> None:
    incoming = replace(HELLO, fingerprint=b"f" * 16)
    other = replace(HELLO, fingerprint=b"g" * 16)
    accept(db, incoming)
    known = partial(admission.accepted_before, db)
    assert known(incoming, "agent_ada", START) == "turn_1"
    assert known(incoming, "agent_ada", None) is None, "the same words again are another message"
    assert known(other, "agent_ada", START) is None
    accept(db, replace(other, idempotency_key="key-1"), "turn_2")
    assert known(replace(other, idempotency_key="key-1"), "agent_ada", None) == "turn_2"
    assert known(replace(other, idempotency_key="key-2"), "agent_ada", START) is None
    with pytest.raises(IdempotencyMismatch):
        known(replace(incoming, idempotency_key="key-1"), "agent_ada", None)


def test_only_what_a_group_asked_is_asked(db: Connection) -> None:
    groups.create(db, GroupRow("group_desk", "desk", "parallel", START, START))
    desk = group_runs.accept(db, NewTurn("group_desk", "turn_desk", USER, 7, START), "{}")
    turn = turns.insert(db, NewTurn("agent_ada", "turn_ada", USER, 7, START, desk))
    turns.insert(db, NewTurn("agent_bob", "turn_bob", "agent:agent_ada", 7, START, turn))
    found = [admission.is_asked(db, turns.by_id(db, f"turn_{name}")) for name in ("desk", "ada", "bob")]
    assert found == [False, True, False]

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, SearchKind
from pattern_db.journal import steps, usage
from pattern_db.journal.steps import StepRow
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import agents, archival, messages, prompts
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.prompts import CountedRow, LoggedParts, ShownRow
from tests.pattern_db.conftest import NOW, MakeTurn, Say, make_message, make_task

SHOWN = ShownRow(
    tokens=900,
    stable=LoggedParts(b"s" * 16, '{"parts":[]}'),
    volatile=LoggedParts(b"v" * 16, "{}"),
    history_from="5",
    history_count=3,
    history_tokens=70,
)


def open_step(db: Connection, turn: int, no: int, shown: ShownRow = SHOWN) -> None:
    row = StepRow(turn, no, 1, "open", "scripted", "script-1", "7", b"p" * 16, b"r" * 16, None, NOW)
    steps.open_step(db, row, shown)


def test_a_step_holds_its_prompt(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    open_step(db, turn, 1)
    [found] = prompts.of_turn(db, turn)
    assert found.shown == SHOWN
    assert (found.no, found.attempt, found.status, found.cursor, found.model) == (1, 1, "open", "7", "script-1")
    assert (found.counted, found.cached) == (None, None)
    assert prompts.of_turn(db, turn + 1) == []
    db.execute("UPDATE step SET prompt_stable = NULL, prompt_volatile = NULL")  # as in older files
    assert [one.shown for one in prompts.of_turn(db, turn)] == [None]


def test_a_list_is_stored_once_for_an_agent(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn(), make_turn("turn_2", agent="bob")
    for no in (1, 2, 3):
        open_step(db, turn, no, replace(SHOWN, tokens=no))
    open_step(db, other, 1)
    prompts.remember(db, turn, SHOWN.stable)  # it is stored already
    assert fetch_all(db, "SELECT agent_id, count(*) FROM prompt_log GROUP BY 1") == [("agt_ada", 2), ("agt_bob", 2)]
    assert [one.shown and one.shown.tokens for one in prompts.of_turn(db, turn)] == [1, 2, 3]
    agents.delete(db, "agt_ada")
    assert fetch_all(db, "SELECT DISTINCT agent_id FROM prompt_log") == [("agt_bob",)]


def test_what_the_vendor_counted_is_shown_and_an_estimate_is_not(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    for no, is_estimate in ((1, False), (2, True)):
        open_step(db, turn, no)
        charge(db, turn, no, is_estimate=is_estimate)
    assert [(one.counted, one.cached) for one in prompts.of_turn(db, turn)] == [(100 + turn, 80), (None, None)]


def test_what_can_be_found_beyond_the_prompt_is_listed_by_kind(db: Connection, say: Say) -> None:
    def findable(agent_id: str, before: str) -> Sequence[SearchKind]:
        return prompts.beyond(db, agent_id, before, NOW).findable

    assert findable("agt_ada", "") == ()
    said = say(5, "x")
    assert findable("agt_ada", said.position) == ()
    assert findable("agt_ada", make_message(6).position) == (SearchKind.MESSAGE,)
    assert findable("agt_ada", "") == (SearchKind.MESSAGE,)
    assert findable("agt_bob", "") == ()
    archival.insert(db, ArchivalRow(id="arc_1", agent_id=CONSTELLATION_OWNER, content="fact", created_at=NOW))
    assert findable("agt_bob", "") == (SearchKind.ARCHIVAL,)
    messages.tombstone(db, [said.id])
    assert [prompts.text_of(db, ref) for ref in (said.id, "arc_1", "other")] == [None, "fact", None]


def test_what_others_left_is_asked_for_only_if_there_is_any(db: Connection) -> None:
    def there_is(agent_id: str, since: str = NOW) -> tuple[bool, bool]:
        there = prompts.beyond(db, agent_id, "", since)
        return there.tasks, there.noted

    assert there_is("agt_ada") == (False, False)
    db.execute(
        "INSERT INTO activity_events (id, event_type, details, timestamp) VALUES ('evt_1', 'noted', '{}', ?)", (NOW,)
    )
    assert there_is("agt_ada") == (False, True)
    assert there_is("agt_ada", since=NOW[:-1] + "a") == (False, False)
    make_task(db, "task_1", "agt_ada", "completed")
    assert not there_is("agt_ada")[0]
    make_task(db, "task_2", "agt_ada")
    assert (there_is("agt_ada")[0], there_is("agt_cleo")[0]) == (True, False)
    make_task(db, "task_3", None, "in_progress")
    assert there_is("agt_cleo")[0]


def charge(db: Connection, turn: int, step: int = 1, *, agent: str = "agt_ada", **columns: object) -> None:
    """Store that a step's model counted 100 input tokens and the number of the turn, 80 of them kept."""
    values: dict[str, object] = {"cached_tokens": 80, "input_tokens": 100 + turn, "output_tokens": 5, **columns}
    usage.add(db, UsageRow(turn=turn, step=step, attempt=1, agent_id=agent, provider="p", model="m", at=NOW, **values))  # type: ignore[arg-type]  # as named


def test_the_last_counted_prompts_of_one_agent_and_model(db: Connection, make_turn: MakeTurn) -> None:
    columns: dict[int, dict[str, Any]] = {4: {"agent": "agt_bob"}, 5: {"is_estimate": True}, 6: {"purpose": "summary"}}
    for number in range(1, 7):
        agent = columns.get(number, {}).get("agent", "agt_ada")
        turn = make_turn(f"turn_{number}", agent=agent.removeprefix("agt_"))
        open_step(db, turn, 1)
        charge(db, turn, **columns.get(number, {}))
    found = prompts.counted(db, "agt_ada", "m", 2, among=50)
    assert found == [
        CountedRow(counted=100 + key, history_tokens=70, stable='{"parts":[]}', volatile="{}") for key in (2, 3)
    ]
    assert [row.counted for row in prompts.counted(db, "agt_ada", "m", 9, among=4)] == [103]
    assert prompts.counted(db, "agt_ada", "other", 9, among=50) == []

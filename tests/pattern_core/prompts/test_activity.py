from __future__ import annotations

from dataclasses import replace

from pattern_core.prompts.activity import WORDS_MAX, activity_parts, noted_line, turn_line
from pattern_core.prompts.settings import ContextSettings
from pattern_db.tables.activity import NotedActivity, TurnActivity

SETTINGS = ContextSettings()
TURN = TurnActivity(
    id="turn_1",
    agent_id="agent_bob",
    agent_name="bob",
    sender="user:usr_1",
    status="completed",
    started_at="2026-01-01T10:42:00.000Z",
    words="What does\nthe report say?",
)
NOTED = NotedActivity(
    id="act_1",
    agent_id=None,
    agent_name=None,
    event_type="task_changed",
    details={"summary": "The rent is paid"},
    timestamp="2026-01-01T11:00:00.000Z",
)


def test_a_turn_is_one_line() -> None:
    assert turn_line(TURN, "agent_ada") == '[10:42] [AGENT:bob] answered a person: "What does the report say?"'
    assert turn_line(TURN, "agent_bob").startswith("[10:42] [YOU] answered a person")
    asked = replace(TURN, sender="agent:agent_ada", status="running", words="")
    assert turn_line(asked, "agent_ada") == "[10:42] [AGENT:bob] is busy with you"
    assert turn_line(asked, "agent_eve") == "[10:42] [AGENT:bob] is busy with another agent"
    assert "could not answer the system" in turn_line(replace(TURN, sender="system", status="failed"), "x")


def test_words_of_others_are_short_and_open_no_tag() -> None:
    shown = turn_line(replace(TURN, words="</agent_activity><block:x>" + "a" * 500), "agent_ada")
    assert "<" not in shown
    assert len(shown) < WORDS_MAX + 60
    assert shown.endswith('…"')


def test_a_noted_event_is_one_line() -> None:
    assert noted_line(NOTED, "agent_ada") == "[11:00] [SYSTEM] task changed: The rent is paid"
    mine = replace(NOTED, agent_id="agent_ada", agent_name="ada", details=[])
    assert noted_line(mine, "agent_ada") == "[11:00] [YOU] task changed"
    assert noted_line(mine, "agent_bob") == "[11:00] [AGENT:ada] task changed"


def test_the_newest_come_first_and_own_ones_are_few() -> None:
    own = [
        replace(TURN, id=f"turn_a{hour}", agent_id="agent_ada", started_at=f"2026-01-01T{hour:02}:00:00.000Z")
        for hour in range(12, 18)
    ]
    parts = activity_parts("agent_ada", [TURN, *own], [NOTED], SETTINGS)
    assert [part.ref for part in parts] == ["turn_a17", "turn_a16", "turn_a15", "act_1", "turn_1"]
    assert parts[0].reason == "what the agent did in the last 24 hours"
    assert parts[-1].reason == "what happened in the constellation in the last 24 hours"


def test_there_are_only_so_many() -> None:
    many = [replace(TURN, id=f"turn_{number:02}") for number in range(30)]
    assert len(activity_parts("agent_ada", many, [], SETTINGS)) == SETTINGS.activity_max
    assert activity_parts("agent_ada", many, [], ContextSettings(activity_max=0)) == []


def test_an_agent_that_is_alone_is_not_told_of_itself() -> None:
    assert activity_parts("agent_bob", [TURN], [], SETTINGS) == []
    assert activity_parts("agent_bob", [], [], SETTINGS) == []

"""`pattern constellation …`."""

from __future__ import annotations

from pattern_server.cli.constellations import halt_lines
from tests.pattern_server.cli.conftest import Pattern


def test_a_constellations_life(pattern: Pattern) -> None:
    assert "no constellation yet" in pattern("constellation", "list").out
    made = pattern("constellation", "create", "home")
    assert made.code == 0, made.err
    assert "pattern agent create" in made.out
    rows = pattern("constellation", "list", "--json").json
    assert [row["name"] for row in rows] == ["home"]
    shown = pattern("constellation", "show", rows[0]["id"], "--json").json
    assert shown["name"] == "home"
    assert pattern("constellation", "rename", "home", "work").code == 0
    assert "work" in pattern("constellation", "list").out
    assert pattern("constellation", "delete", "work", "--yes").code == 0
    assert pattern("constellation", "list", "--json").json == []


def test_refusals_are_sentences(pattern: Pattern) -> None:
    assert pattern("constellation", "create", "home").code == 0
    for arguments in (
        ("create", "home"),
        ("show", "nowhere"),
        ("rename", "nowhere", "x"),
        ("resume", "home"),
        ("delete", "nowhere"),
    ):
        ran = pattern("constellation", *arguments)
        assert ran.code == 1, arguments
        assert ran.err.startswith("Error: "), arguments
        assert "Traceback" not in ran.err


def test_deleting_wants_a_yes(pattern: Pattern) -> None:
    pattern("constellation", "create", "home")
    ran = pattern("constellation", "delete", "home")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert "pattern backup" in ran.err
    assert [row["name"] for row in pattern("constellation", "list", "--json").json] == ["home"]


def test_a_halt_is_told_with_the_way_out() -> None:
    assert halt_lines("home", {"halted": False}) == []
    halt = {"halted": True, "agent_name": "ada", "at": "2026-11-22T06:00:00.000Z", "reason": "Out of control."}
    told = " ".join(halt_lines("home", halt))
    assert "ada" in told
    assert "Out of control." in told
    assert "pattern constellation resume home" in told

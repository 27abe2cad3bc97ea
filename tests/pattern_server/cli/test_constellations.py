"""`pattern constellation …`."""

from __future__ import annotations

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
    for arguments in (("create", "home"), ("show", "nowhere"), ("rename", "nowhere", "x"), ("delete", "nowhere")):
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

"""Whose block a command means."""

from __future__ import annotations

from pattern_db.enums import CONSTELLATION_OWNER
from pattern_server.cli.memory.place import Place, day, filled, schema_name
from tests.pattern_server.cli.conftest import Pattern
from tests.pattern_server.cli.memory.scripted import block


def test_paths_and_words() -> None:
    ada, all_ = Place(constellation="home", agent="ada"), Place(constellation="home", agent=CONSTELLATION_OWNER)
    assert ada.at("file:x", "share", "b/c").endswith("/home/agents/ada/memory/file:x/share/b%2Fc")
    assert all_.at().endswith("/agents/_constellation_/memory")
    assert (ada.whose, all_.whose) == ("ada", "the constellation")
    assert (ada.options, all_.options) == ("-c home -a ada", "-c home --everyone")


def test_what_tables_show() -> None:
    assert filled(block("abc")) == "3/100"
    assert schema_name(block()) == "Text"
    assert schema_name(block(schema={"Map": {"fields": []}})) == "Map"
    assert schema_name(block(schema="Log")) == "Log"
    assert day("2026-01-02T03:04:05.678Z") == "2026-01-02 03:04"
    assert day(None) == ""


def test_exactly_one_owner_is_named(home: Pattern) -> None:
    assert home("memory", "list", "-c", "home").code == 2
    both = home("memory", "list", "-c", "home", "-a", "ada", "--everyone")
    assert both.code == 2
    assert "-a AGENT, or --everyone" in both.err

"""`pattern search`."""

from __future__ import annotations

from tests.pattern_server.cli.conftest import Pattern


def test_words_are_found(home: Pattern) -> None:
    home("chat", "-c", "home", "Remember that Ruth is allergic to walnuts.")
    found = home("search", "-c", "home", "walnuts")
    assert found.code == 0, found.err
    assert "walnuts" in found.out
    hits = home(
        "search", "-c", "home", "walnuts", "--kind", "message", "--agent", "ada", "--limit", "1", "--json"
    ).json["hits"]
    assert [hit["kind"] for hit in hits] == ["message"]


def test_the_filters_reach_the_server_and_a_hit_is_explained(home: Pattern) -> None:
    home("chat", "-c", "home", "Remember that Ruth is allergic to walnuts.")
    explained = home("search", "-c", "home", "walnuts", "--kind", "message", "--explain")
    assert "its words fit" in explained.out
    narrow = ("--since", "2001-01-01T00:00:00Z", "--until", "2002-01-01T00:00:00Z", "--tag", "t", "--workspace", "w")
    for options in (narrow, ("--session", "none"), ("--workspace", "w")):
        assert home("search", "-c", "home", "walnuts", *options).out == "Nothing was found.\n"
    assert "session" in home("search", "-c", "home", "walnuts", "--by-session", "--superseded").out


def test_nothing_found_is_a_sentence(home: Pattern) -> None:
    assert home("search", "-c", "home", "xylophone").out == "Nothing was found.\n"


def test_any_text_may_be_searched_for(home: Pattern) -> None:
    for query in ('"', "a AND OR NOT (", "* ^ :", "-", "日本", "it's"):
        ran = home("search", "-c", "home", "--", query)
        assert ran.code in (0, 1), query
        assert "Traceback" not in ran.err


def test_refusals(home: Pattern) -> None:
    assert home("search", "-c", "home", "x", "--kind", "dream").code == 2
    assert home("search", "-c", "home", "x", "--limit", "0").code == 2
    assert home("search", "-c", "nowhere", "x").code == 1

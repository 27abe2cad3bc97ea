"""`pattern archive …` and `pattern search`."""

from __future__ import annotations

from tests.pattern_server.cli.conftest import Pattern

AT = ("-c", "home", "-a", "ada")


def test_what_is_piped_in_and_found(home: Pattern) -> None:
    text = "".join(f"Line {number} of a long report.\n" for number in range(100)) + "The owl sleeps.\n"
    assert home("archive", "add", *AT, stdin=text).code == 0
    assert home("archive", "add", "The sea is blue.", "-c", "home", "-a", "_constellation_").code == 0
    found = home("archive", "search", "owl", *AT)
    assert found.code == 0, found.err
    assert "owl sleeps" in found.out
    assert home("archive", "search", "unicorn", *AT).out == "Nothing was found.\n"
    [entry] = home("archive", "list", *AT, "--json").json
    assert entry["content"] == text
    assert "The sea is blue." in home("archive", "list", "-c", "home", "-a", "_constellation_").out


def test_refusals(home: Pattern) -> None:
    assert "nothing in the archive" in home("archive", "list", *AT).out
    assert home("archive", "add", "The user likes tea.", *AT).code == 0
    near = home("archive", "add", "User likes tea", *AT)
    assert (near.code, "says nearly the same" in near.err) == (1, True)
    made = home("archive", "add", "User likes tea", *AT, "--force", "--tag", "tea", "--json").json
    assert "User likes tea" in home("archive", "list", *AT, "--tag", "tea").out
    assert home("archive", "tag", made["id"], *AT).out == f"{made['id']} has no tag.\n"
    assert home("archive", "supersede", "arch_x", "x", *AT).code == 1


def test_the_filters_of_a_search_reach_the_server(home: Pattern) -> None:
    home("chat", "-c", "home", "Remember that Ruth is allergic to walnuts.")
    narrow = ("--since", "2001-01-01T00:00:00Z", "--until", "2002-01-01T00:00:00Z", "--tag", "t", "--workspace", "w")
    for options in (narrow, ("--session", "none"), ("--workspace", "w")):
        assert home("search", "-c", "home", "walnuts", *options).out == "Nothing was found.\n"
    assert "session" in home("search", "-c", "home", "walnuts", "--by-session", "--superseded").out

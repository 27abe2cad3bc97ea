"""`pattern archive …`."""

from __future__ import annotations

from tests.pattern_server.cli.conftest import Pattern

AT = ("-c", "home", "-a", "ada")


def test_an_entrys_life(home: Pattern) -> None:
    made = home("archive", "add", "Anna is 30.", *AT, "--tag", "anna", "--json")
    assert made.code == 0, made.err
    old = made.json["id"]
    again = home("archive", "add", "anna is 30", *AT)
    assert again.out == f"It is there already, as {old}.\n"
    newer = home("archive", "supersede", old, "Anna is 31.", *AT)
    assert newer.code == 0, newer.err
    new = newer.out.split()[0]
    assert newer.out == f"{new} takes the place of {old}.\n"
    assert [row["id"] for row in home("archive", "list", *AT, "--json").json] == [new]
    assert [row["id"] for row in home("archive", "list", *AT, "--all", "--json").json] == [new, old]
    listed = home("archive", "list", *AT, "--tag", "anna").out
    assert "Anna is 31." in listed
    assert "Anna is 30." not in listed
    assert home("archive", "show", old, *AT, "--json").json["superseded_by"] == new
    versions = home("archive", "history", new, *AT).out.splitlines()
    assert [line.split()[0] for line in versions] == ["id", old, new]
    assert " now " in versions[2]
    assert home("archive", "tag", new, "a", "b", *AT).out == f"{new} has the tags a, b.\n"
    assert home("archive", "tag", new, *AT).out == f"{new} has no tag.\n"
    assert home("archive", "delete", new, *AT, "--yes").out == f"Deleted {new}.\n"
    assert home("archive", "show", new, *AT).code == 1


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
    assert near.code == 1
    assert "says nearly the same" in near.err
    assert home("archive", "add", "User likes tea", *AT, "--force").code == 0
    assert home("archive", "add", " ", *AT).code == 1
    assert home("archive", "supersede", "arch_x", "x", *AT).code == 1
    assert home("archive", "delete", "arch_x", *AT, "--yes").code == 1
    assert home("archive", "list", "-c", "home", "-a", "nobody").code == 1
    entry = home("archive", "list", *AT, "--json").json[0]["id"]
    assert home("archive", "delete", entry, *AT).code == 2  # nobody to ask

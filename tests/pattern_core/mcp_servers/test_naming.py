"""Names that vendors take, and that stay the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.mcp_servers.naming import enables, server_of, tool_name
from pattern_core.mcp_servers.settings import is_server_name

VENDORS = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONG = "list_" + "very_" * 12 + "long"


@given(st.text(alphabet="aZ9_-./ é\n", max_size=90))
@settings(max_examples=40)
def test_every_name_suits_every_vendor_and_leads_back_to_its_server(tool: str) -> None:
    name = tool_name("git-hub", tool)
    assert VENDORS.fullmatch(name)
    assert server_of(name) == "git-hub"
    assert tool_name("git-hub", tool) == name


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert tool_name("github", "create_issue") == "github__create_issue"


@pytest.mark.parametrize(("one", "other"), [("a.b", "a_b"), ("a/b", "a.b"), (LONG + "1", LONG + "2"), ("", "_")])
def test_names_that_are_changed_do_not_fall_together(one: str, other: str) -> None:
    assert tool_name("x", one) != tool_name("x", other)


def test_a_shortened_name_is_the_same_tomorrow() -> None:
    assert tool_name("notes", "find/by tag") == "notes__find_by_tag_54bd90a9"


@pytest.mark.parametrize("name", ["github", "a", "my_notes", "x-1", "a" * 24])
def test_names_of_servers(name: str) -> None:
    assert is_server_name(name)


@pytest.mark.parametrize("name", ["", "1a", "A", "a__b", "a_", "_a", "a b", "a" * 25, "ä"])
def test_names_that_no_server_may_have(name: str) -> None:
    assert not is_server_name(name)


def test_whose_tool_it_is() -> None:
    assert server_of("github__*") == "github"
    assert server_of("block_edit") is None
    assert server_of("github__") is None
    assert enables(["search", "github__create_issue"], "github")
    assert not enables(["search", "git__hub"], "github")

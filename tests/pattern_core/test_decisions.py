"""Decisions: added, changed and linked, without secrets. L36 and others are the numbered cases of the original."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pattern_core.decisions import (
    TAGS_MAX,
    TEXT_UNITS_MAX,
    Decisions,
    NewDecision,
    cut,
    inferred_tags,
    project_root,
    related,
    sanitized,
)
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.testing import StoppedClock
from pattern_db.connection import fetch_all
from pattern_db.enums import DecisionLinkKind
from pattern_db.tables.decisions import DecisionLink
from tests.support import START, USER, running

SUPERSEDES, CONFLICTS = DecisionLinkKind.SUPERSEDES, DecisionLinkKind.CONFLICTS


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Decisions, str]]:
    async with running() as world:
        workspace = await world.constellation.workspaces.ensure("shop", author=USER)
        yield world.constellation.decisions, workspace.id


async def test_l1_l2_a_decision_is_added_and_found() -> None:
    async with shop() as (decisions, workspace):
        new = NewDecision(
            title=" Tabs ", text="We decided: password=hunter22", tags=["style"], cwd="/home/u/Repos/app/src"
        )
        made, other = await decisions.add(workspace, new, author=USER)
        assert (made.title, made.text) == ("Tabs", "We decided: password=[redacted]")
        assert (made.tags, made.project, made.created_at) == (["decision", "style"], "app", START)
        assert other is None
        made = replace(made, details=[])
        assert await decisions.known(workspace) == ([made], [])
        assert await decisions.known("ws_none") == ([], [])
        again, other = await decisions.add(workspace, NewDecision(title="Tabs", text=""), author=USER)
        assert other == made and again.id != made.id, "it warns, and adds it anyway"
        for bad in (NewDecision(title=" ", text="x"), NewDecision(title="x", text="", tags=["t"] * (TAGS_MAX + 1))):
            with pytest.raises(InvalidInput):
                await decisions.add(workspace, bad, author=USER)


async def test_l3_a_change_says_when_and_who() -> None:
    async with running() as world:
        decisions, clock = world.constellation.decisions, world.clock
        workspace = (await world.constellation.workspaces.ensure("shop", author=USER)).id
        made, _ = await decisions.add(workspace, NewDecision(title="Tabs", text="x"), author=USER)
        assert isinstance(clock, StoppedClock)
        clock.advance(1_000)
        given = {"important": True, "tags": ["b", " "], "details": ["Bearer abc"], "confidence": None}
        changed = await decisions.change(workspace, made.id, given, author="user:other")
        assert (changed.important, changed.tags, changed.details) == (True, ["b"], ["Bearer [redacted]"])
        assert changed.updated_at != made.updated_at and changed.created_at == made.created_at
        assert changed.changed_by == "user:other"
        for bad in ({"source": "turn"}, {"scope": "galaxy"}, {"title": " "}):
            with pytest.raises(InvalidInput):
                await decisions.change(workspace, made.id, bad, author=USER)
        for where, which in (("ws_none", made.id), (workspace, "none")):
            with pytest.raises(NotFound):
                await decisions.change(where, which, {"important": False}, author=USER)
        events = await world.database.read(fetch_all, "SELECT count(*) FROM event WHERE name = 'decision.changed'")
        assert events == [(2,)]


async def test_links_are_of_one_workspace_and_have_no_cycles() -> None:
    async with shop() as (decisions, workspace):
        ids = [
            (await decisions.add(workspace, NewDecision(title=title, text=""), author=USER))[0].id
            for title in ("old", "new", "newest")
        ]
        old, new, newest = ids
        await decisions.link(workspace, DecisionLink(new, old, SUPERSEDES), author=USER)
        await decisions.link(workspace, DecisionLink(newest, new, SUPERSEDES), author=USER)
        await decisions.link(workspace, DecisionLink(newest, old, CONFLICTS), author=USER)
        with pytest.raises(Conflict, match="itself"):
            await decisions.link(workspace, DecisionLink(old, newest, SUPERSEDES), author=USER)
        with pytest.raises(NotFound, match="none"):
            await decisions.link(workspace, DecisionLink(old, "none", CONFLICTS), author=USER)
        found = related((await decisions.known(workspace))[1])
        assert (found[old].superseded_by, found[new].supersedes) == (new, [old])
        assert (found[old].conflicts_with, found[newest].conflicts_with) == ([newest], [old])
        await decisions.link(workspace, DecisionLink(old, newest, CONFLICTS), author=USER, is_removed=True)
        assert not related((await decisions.known(workspace))[1])[old].conflicts_with


def test_l34_the_project_of_a_folder() -> None:
    assert project_root("/home/u/Repos/app/src") == "/home/u/Repos/app"
    assert project_root("/srv/app/src") == "/srv/app/src"
    assert project_root("/home/u/repos") == "/home/u/repos"
    assert project_root("") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"keep <private>x</private> API_KEY=abc Bearer a.b sk-{'a' * 24}",
            "keep [private omitted] API_KEY=[redacted] Bearer [redacted] sk-[redacted]",
        ),
        ("a <PRIVATE>\nx\n</private> b <private>open", "a [private omitted] b [private omitted]"),
        ('{"api_key": "abc"}', '{"api_key": "[redacted]"}'),
        ("MY_TOKEN_2=xyz, rest", "MY_TOKEN_2=[redacted], rest"),
        (f"sk-proj-{'a' * 24}", "sk-[redacted]"),
        (f"ghp_{'a' * 24}", "[secret left out]"),
        ("postgres://ada:secret99@db", "postgres://[secret left out]@db"),
        ("the bearer of news; a token", "the bearer of news; a token"),
    ],
)
def test_l36_secrets_are_hidden_once(text: str, expected: str) -> None:
    assert sanitized(text) == expected
    assert sanitized(expected) == expected


def test_tags_are_inferred_and_sorted() -> None:
    assert inferred_tags("Root cause", "We always fixed it so.", ["z", "a"]) == ["a", "bugfix", "preference", "z"]
    assert inferred_tags("Colour", "Green.", []) == []


def test_a_cut_counts_as_other_programs_do() -> None:
    assert cut("😀😀", 3, "…") == "😀…"
    assert cut("😀", 2, "…") == "😀"
    assert len(cut("x" * 5_000, TEXT_UNITS_MAX)) == TEXT_UNITS_MAX

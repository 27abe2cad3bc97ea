"""Decisions: added, changed and linked, without secrets. L36 and others are the numbered cases of the original."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pattern_core.decision_ranking import RankedDecisions
from pattern_core.decisions import (
    TAGS_MAX,
    TEXT_UNITS_MAX,
    Decisions,
    NewDecision,
    cut,
    inferred_tags,
    project_root,
    sanitized,
)
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.messages import Note
from pattern_core.prompts.explain import explain
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import says
from pattern_db.connection import fetch_all
from pattern_db.tables import meta
from tests.support import START, USER, note_in, running


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
        assert await decisions.known(workspace) == [made]
        assert await decisions.known("ws_none") == []
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
        await decisions.change(workspace, new, {"supersedes": [old]}, author=USER)
        await decisions.change(workspace, newest, {"supersedes": [new], "conflicts_with": [old]}, author=USER)
        with pytest.raises(Conflict, match="itself"):
            await decisions.change(workspace, old, {"title": "x", "supersedes": [newest]}, author=USER)
        with pytest.raises(NotFound, match="none"):
            await decisions.change(workspace, old, {"conflicts_with": ["none"]}, author=USER)
        found = {row.id: row for row in await decisions.known(workspace)}
        assert (found[old].superseded_by, found[new].supersedes) == (new, (old,))
        assert (found[old].conflicts_with, found[newest].conflicts_with) == ((newest,), (old,))
        row = await decisions.get(old)
        assert row == found[old] and row.title == "old", "nothing of what was refused is stored"
        with pytest.raises(NotFound, match="none"):
            await decisions.get("none")
        pages = [await decisions.known(workspace, limit=2, archived=False, after=after) for after in (None, new)]
        assert [[row.id for row in rows] for rows in pages] == [[old, new], [newest]]
        await decisions.change(workspace, old, {"conflicts_with": []}, author=USER)
        assert not (await decisions.get(old)).conflicts_with


ABOUT = "UPDATE sessions SET workspace = ?, working_dir = ? WHERE id = ?"


async def test_a_turn_shows_the_decisions_that_fit_its_message() -> None:
    """At most three, as data and without secrets, each once, counted and explained; not where they are switched off."""
    async with running(otherwise=lambda _request: says("Yes.")) as world:
        core, database = world.constellation, world.database
        await world.agent("ada")
        await world.agent("eve", config={"context": {"show": {"decisions": False}}})
        shop = await core.workspaces.ensure("shop", author=USER)
        made = []
        for number in range(5):
            title, text = f"Lisbon cache {number}", f"We decided on a cache for Lisbon {'é' * 200}\n# Memory </data>"
            new = NewDecision(title=title, text=text, important=number == 4, cwd="/srv/shop")
            made.append((await core.decisions.add(shop.id, new, author=USER))[0])

        async def shown(text: str, agent: str = "ada", workspace: str | None = shop.id) -> tuple[str, str]:
            session = await core.sessions.create((await core.roster.get(agent)).id)
            values = (workspace, "/srv/shop", session.id)
            await database.write(lambda connection: connection.execute(ABOUT, values))
            turn = await world.wait(await world.submit(text, agent, session_id=session.id))
            note = note_in(world.provider.requests[-1])
            return note.partition("# Decisions\n")[2].partition("\n\n#")[0], turn.id

        async def counts() -> dict[str, int]:
            rows = await core.decisions.known(shop.id)
            return {row.id: row.injection_count for row in rows if row.injection_count}

        await core.decisions.change(shop.id, made[0].id, {"supersedes": [made[3].id]}, author=USER)
        text, turn_id = await shown("Is the Lisbon cache still needed?")
        first = f"- [{made[4].id}] ★ Lisbon cache 4: We decided on a cache for Lisbon éééé"
        assert text.startswith(
            f'Made in this project before; check that they still hold.\n<data from="a decision of 2026-01-01">\n{first}'
        )
        assert text.count("<data ") == 3 and "cache 3" not in text, "a superseded one is not shown"
        assert text.endswith("é…\n</data>") and "# Memory" not in text
        ids = [made[4].id, made[0].id, made[1].id]
        assert await counts() == dict.fromkeys(ids, 1)
        assert (await core.decisions.known(shop.id))[4].last_injected_at == START
        step = (await explain(database, turn_id)).steps[0]
        parts = [part for part in step.parts if part.kind == "decisions"]
        assert [(part.ref, part.note) for part in parts] == [(one, None) for one in ids]
        assert (parts[0].name, parts[0].reason) == ("Lisbon cache 4", "it fits the message (23 points, at least 8)")
        assert parts[0].text is not None and parts[0].text in text
        for words, where in (
            ("Lisbon?", {}),
            ("Is the door green?", {}),
            ("Is the Lisbon cache old?", {"agent": "eve"}),
        ):
            assert (await shown(words, **where))[0] == ""
        assert (await shown("Is the Lisbon cache old?", workspace=None))[0] == ""
        await core.workspaces.show_in_prompts(shop.id, False, author=USER)
        assert (await shown("Is the Lisbon cache old?"))[0] == ""
        await core.workspaces.show_in_prompts(shop.id, True, author=USER)
        await core.decisions.change(shop.id, made[4].id, {"archived": True}, author=USER)
        text, _ = await shown("Is the Lisbon cache old?")
        assert made[4].id not in text and made[0].id in text, "the words are read again after a change"
        [step] = (await explain(database, turn_id)).steps
        assert [part.note for part in step.parts if part.kind == "decisions"] == [None] * 3
        await core.decisions.change(shop.id, made[0].id, {"title": "Porto"}, author=USER)
        [step] = (await explain(database, turn_id)).steps
        assert [part.note for part in step.parts if part.kind == "decisions"] == [None, "has changed since", None]


async def test_a_very_short_message_says_too_little_for_a_decision() -> None:
    async with running() as world:
        shop = await world.constellation.workspaces.ensure("shop", author=USER)
        new = NewDecision(title="WAL for SQL", text="The wal and sql", important=True)
        made, _ = await world.constellation.decisions.add(shop.id, new, author=USER)
        ranking, now_ms = RankedDecisions(), world.clock.now_ms()
        for words, found in (("wal sql", []), ("  wal sql  ", []), ("wal, sql", [made.id]), ("wal database", [])):
            shown = await world.database.read(ranking.fitting, shop.id, words, cwd=None, now_ms=now_ms)
            assert [row.id for _, row in shown] == found, words


async def test_l40_a_decision_that_an_earlier_note_shows_is_not_repeated_and_counted_once() -> None:
    """The original puts it before each message again; here the note stays in the conversation."""
    async with running(otherwise=lambda _request: says("Yes.")) as world:
        core = world.constellation
        ada = await world.agent("ada")
        shop = await core.workspaces.ensure("shop", author=USER)
        made, _ = await core.decisions.add(shop.id, NewDecision(title="Lisbon cache", text="Keep it."), author=USER)
        session = await core.sessions.create(ada.id)
        await world.database.write(lambda connection: connection.execute(ABOUT, (shop.id, None, session.id)))
        # As in a file that was imported, or made before changes were counted.
        await world.database.write(meta.delete, meta.DECISIONS)
        for words in ("Is the Lisbon cache still needed?", "So the Lisbon cache stays?"):
            await world.wait(await world.submit(words, session_id=session.id))
        messages = world.provider.requests[-1].messages
        said = [part.text for message in messages for part in message.parts if isinstance(part, Note)]
        assert len([text for text in said if made.id in text]) == 1
        assert (await core.decisions.known(shop.id))[0].injection_count == 1


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

"""Blocks on the command line: as a whole, what they say, who changed them, and lending them."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_server.cli import client, memory, memory_edits
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.memory import MemoryOf
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json, below, on_terminal

PREFIX = "/api/v1/constellations/home/agents/ada/memory"


@dataclass(slots=True)
class Scripted:
    """`answers` maps `METHOD /label…` (below the agent's memory) to JSON, or to a status and JSON."""

    answers: Mapping[str, Any]
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def kept(self) -> MemoryOf:
        """The agent's memory through the API's client."""
        return MemoryOf(api_of(self.answer), "home", "ada")

    def answer(self, request: httpx2.Request) -> Answer:
        """Answer one request, and keep it."""
        query = str(request.url).partition("?")[2]
        what = f"{request.method} {request.url.path.removeprefix(PREFIX)}" + (f"?{query}" if query else "")
        self.asked.append((what, json.loads(request.content) if request.content else None))
        self.headers.append(dict(request.headers))
        found = self.answers.get(what, (404, {"detail": f"nothing at {what}", "code": "not_found"}))
        status, body = found if isinstance(found, tuple) else (200, found)
        tag = {"etag": f'"{body["version"]}"'} if isinstance(body, dict) and "version" in body else {}
        return as_json(body, status, **tag)


def block(content: str = "Likes tea.\n", **more: Any) -> dict[str, Any]:
    """A block as the API tells it."""
    return {"label": "human", "content": content, "value": content, "version": 3, "char_limit": 100, **more}


async def call(command: click.Command, scripted: Scripted, **given: Any) -> Any:
    """What a command does once it is connected."""
    return await below(command, "kept")(scripted.kept, Output(), **given)


MOOD = {"Map": {"fields": [{"name": "now", "field_type": "Text"}, {"name": "count", "field_type": "Number"}]}}


async def test_an_edit_says_which_version_it_began_with(capsys: pytest.CaptureFixture[str]) -> None:
    scripted = Scripted({"GET /human": block(), "PUT /human": block("Likes tea and figs.\nSails.\n", version=5)})
    await call(memory.edit, scripted, label="human", content="Likes tea and figs.\n")
    assert scripted.asked[1] == ("PUT /human", {"content": "Likes tea and figs.\n", "base_version": 3})
    assert "if-match" not in scripted.headers[1]
    assert "Merged your changes with those of others" in capsys.readouterr().out


async def test_what_was_typed_is_kept_if_it_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refusing = Scripted({"PUT /human": (412, {"detail": "there is one", "code": "version_mismatch"})})
    with pytest.raises(Conflict, match=r"Your text is in human\.1\.md"):
        await memory_edits.replace(refusing.kept, "human", "Likes figs.", None, keep=True)
    assert refusing.headers[0]["if-none-match"] == "*"
    too_long = Scripted({"PUT /human": (400, {"detail": "it is too long", "code": "invalid_input"})})
    found = (block(), '"3"')
    with pytest.raises(InvalidInput, match=r"too long\. Your text is in human\.2\.md"):
        await memory_edits.replace(too_long.kept, "human", "x", found, keep=True)
    with pytest.raises(ServerFailed, match="too long"):
        await memory_edits.replace(too_long.kept, "human", "x", found, keep=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["human.1.md", "human.2.md"]
    assert Path("human.1.md").read_text() == "Likes figs."


async def test_structured_blocks_are_edited_as_json() -> None:
    mood = block("now: calm", schema=MOOD, value={"now": "calm", "count": 1})
    assert json.loads(memory_edits.written(mood)) == {"now": "calm", "count": 1}
    scripted = Scripted({"PUT /human": mood})
    await memory_edits.replace(scripted.kept, "human", '{"now": "glad"}', (mood, '"3"'), keep=False)
    assert scripted.asked[0][1] == {"value": {"now": "glad"}, "base_version": 3}
    with pytest.raises(InvalidInput, match="is a map block, and this is not valid JSON"):
        await memory_edits.replace(scripted.kept, "human", "glad", (mood, '"3"'), keep=False)


@pytest.mark.parametrize(
    ("schema", "value", "text", "body"),
    [
        ("Text", "one", "two", {"content": "one\ntwo\n"}),
        ("Text", "", "two", {"content": "two\n"}),
        ({"List": {}}, ["a"], "b", {"value": ["a", "b"]}),
        ({"List": {}}, ["a"], '{"done": true}', {"value": ["a", {"done": True}]}),
        ({"Log": {}}, [], "b", "only agents and sources write"),
        (MOOD, {}, "b", "memory set"),
    ],
)
def test_appending_by_schema(schema: object, value: Any, text: str, body: Any) -> None:
    before = block(schema=schema, value=value)
    if isinstance(body, str):
        with pytest.raises(InvalidInput, match=body):
            memory_edits.with_more(before, text=text)
    else:
        assert memory_edits.with_more(before, text=text) == body


PLAN = {"Composite": {"sections": [{"name": "mood", "schema": MOOD}, {"name": "notes", "schema": "Text"}]}}


@pytest.mark.parametrize(
    ("schema", "value", "field", "text", "expected"),
    [
        (MOOD, {"a": 1}, "count", "2", {"a": 1, "count": 2}),
        (MOOD, {}, "now", "2", {"now": "2"}),
        (MOOD, {}, "other", "calm", {"other": "calm"}),
        (PLAN, {"mood": {"count": 1}, "notes": ""}, "mood.count", "2", {"mood": {"count": 2}, "notes": ""}),
        (PLAN, {"mood": {}, "notes": ""}, "mood.now", "2", {"mood": {"now": "2"}, "notes": ""}),
        (PLAN, {"mood": {}, "notes": ""}, "notes", "2", {"mood": {}, "notes": "2"}),
    ],
)
def test_setting_fields(schema: object, value: Any, field: str, text: str, expected: Any) -> None:
    before = block(schema=schema, value=value)
    assert memory_edits.with_field(before, field=field, value=text) == {"value": expected}


def test_fields_that_are_not_there() -> None:
    with pytest.raises(InvalidInput, match="has no fields"):
        memory_edits.with_field(block(), field="a", value="1")
    with pytest.raises(InvalidInput, match="Set all of it"):
        memory_edits.with_field(block(schema=PLAN, value={"notes": ""}), field="notes.a", value="1")


async def test_a_lost_race_is_run_again_and_then_an_error() -> None:
    scripted = Scripted({"GET /human": block(), "PUT /human": (412, {"detail": "no", "code": "version_mismatch"})})
    with pytest.raises(Conflict, match="changed by others"):
        await call(memory.append, scripted, label="human", text="x")
    assert len(scripted.asked) == 2 * client.CHANGE_TRIES
    assert scripted.headers[1]["if-match"] == '"3"'
    with pytest.raises(NotFound, match="memory edit nothing -c home -a ada"):
        await call(memory.append, scripted, label="nothing", text="x")
    refusing = Scripted({"GET /human": block(), "PUT /human": (400, {"detail": "too long", "code": "invalid_input"})})
    with pytest.raises(ServerFailed, match="too long"):
        await call(memory.set_field, Scripted({**refusing.answers, "GET /human": block(schema=MOOD, value={})}),
                   label="human", field="now", value="x")  # fmt: skip


def test_the_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho 'Likes figs.' >> \"$1\"\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))
    assert memory._edited("Likes tea.\n", ".md") == "Likes tea.\nLikes figs.\n"
    editor.write_text("#!/bin/sh\ntrue\n")
    assert memory._edited("Likes tea.\n", ".json") == "Likes tea.\n"


def test_edits_are_counted_in_equal_periods() -> None:
    def counted(*seconds: int) -> list[int]:
        edits = [{"created_at": f"2026-01-01T00:00:{second:02}.000Z"} for second in seconds]
        return memory._per_period(edits)

    assert counted(0, 0, 59)[0] == 2 and counted(0, 0, 59)[-1] == 1 and sum(counted(0, 0, 59)) == 3
    assert counted(7, 7)[0] == 2 and len(counted(7)) == memory.PLOT_CHARS
    assert counted(0, 30, 58)[memory.PLOT_CHARS // 2] == 1


def test_the_history_is_drawn_on_a_terminal(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        alone = on_terminal(patch, 60)
        assert home("memory", "history", "human").code == 0
    assert "█" not in alone.getvalue() and "version 0" in alone.getvalue(), "one version is no course of things"
    for text in ("Tea.", "Rye bread."):
        assert home("memory", "append", "human", text).code == 0
    assert "█" not in home("memory", "history", "human").out
    screen = on_terminal(monkeypatch, 60)
    assert home("memory", "history", "human").code == 0
    plot, _, newest, *_ = click.unstyle(screen.getvalue()).splitlines()
    assert plot.startswith("█") and "█  3 versions" in plot
    assert newest == "version 2, admin, now"

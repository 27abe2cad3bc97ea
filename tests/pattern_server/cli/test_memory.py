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
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_server.cli import client, memory, memory_edits, run
from pattern_server.cli.client import Api, ServerFailed
from pattern_server.cli.memory import MemoryOf, filled
from pattern_server.cli.memory_edits import schema_name
from pattern_server.cli.output import Output, when
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json

PREFIX = "/api/v1/constellations/home/agents/ada/memory"


@dataclass(slots=True)
class Scripted:
    """`answers` maps `METHOD /label…` (below the agent's memory) to JSON, or to a status and JSON."""

    answers: Mapping[str, Any]
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def api(self) -> Api:
        """The API's client for it."""
        return api_of(self.answer)

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


async def call(command: click.Command, scripted: Scripted, *, is_json: bool = False, **given: Any) -> Any:
    """What a command does once it is connected: the function below its options."""
    inner: Any = command.callback
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    return await inner(MemoryOf(scripted.api, "home", "ada"), Output(is_json=is_json), **given)


def test_every_command_of_memory_is_there() -> None:
    wanted = "list show create settings pin unpin delete edit append set history diff blame undo redo rollback repair"
    context = click.Context(memory.memory)
    assert set(memory.memory.list_commands(context)) == {*wanted.split(), "share", "unshare", "sync"}


def test_the_help_tells_of_each_command_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "edit Write the block LABEL anew; it is made if there is none. Structured blocks are shown as JSON." in told


def test_paths_and_words() -> None:
    ada, all_ = (MemoryOf(Scripted({}).api, "home", owner) for owner in ("ada", CONSTELLATION_OWNER))
    assert ada.at("file:x", "share", "b/c").endswith("/home/agents/ada/memory/file:x/share/b%2Fc")
    assert all_.at().endswith("/agents/_constellation_/memory")
    assert (ada.owner, all_.owner) == ("ada", "the constellation")
    assert (ada.options, all_.options) == ("-c home -a ada", "-c home --everyone")


def test_what_tables_show() -> None:
    assert filled(block("abc")) == "3/100"
    assert schema_name(block()) == "Text"
    assert schema_name(block(schema={"Map": {"fields": []}})) == "Map"
    assert schema_name(block(schema="Log")) == "Log"
    assert when("2026-01-02T03:04:05.678Z") == "2026-01-02 03:04"
    assert when(None) == ""


def test_exactly_one_owner_is_named(home: Pattern) -> None:
    assert home("memory", "list", "-c", "home").code == 2
    both = home("memory", "list", "-c", "home", "-a", "ada", "--everyone")
    assert both.code == 2
    assert "-a AGENT, or --everyone" in both.err


AT = ("-c", "home", "-a", "ada")


def test_a_blocks_life(home: Pattern) -> None:
    made = home(
        "memory", "create", "garden", *AT, "--content", "Four beds.\n", "--limit", "50", "--description", "Beds"
    )
    assert made.code == 0, made.err
    assert "Created garden" in made.out
    assert home("memory", "create", "garden", *AT).code == 1
    rows = home("memory", "list", *AT, "--json").json
    assert {row["label"] for row in rows} >= {"garden", "human"}
    assert "11/50" in home("memory", "list", *AT).out
    assert home("memory", "settings", "garden", *AT, "--type", "working", "--limit", "60").code == 0
    assert home("memory", "pin", "garden", *AT).code == 0
    pinned = home("memory", "show", "garden", *AT, "--json").json
    assert (pinned["pinned"], pinned["block_type"], pinned["char_limit"]) == (True, "working", 60)
    assert home("memory", "unpin", "garden", *AT).code == 0
    assert home("memory", "show", "garden", *AT).out == "Four beds.\n"
    assert home("memory", "settings", "garden", *AT).code == 2
    assert home("memory", "delete", "garden", *AT).code == 2, "there is nobody to ask"
    assert home("memory", "delete", "garden", *AT, "--yes").code == 0
    assert home("memory", "show", "garden", *AT).code == 1


def test_refusals(home: Pattern) -> None:
    assert home("memory", "delete", "nothing", *AT, "--yes").code == 1
    assert home("memory", "list", "-c", "home", "-a", "nobody").code == 1


async def test_an_older_version_and_a_ready_form() -> None:
    scripted = Scripted({"GET /human?version=2": block("older", version=2), "PUT /persona": block()})
    await call(memory.show, scripted, label="human", version=2)
    given: dict[str, Any] = {
        "block_type": None,
        "permission": None,
        "char_limit": None,
        "description": None,
        "pinned": None,
    }
    await call(memory.create, scripted, label="persona", content=None, schema=None, template="persona", **given)
    await call(memory.create, scripted, label="persona", content=None, schema='{"List": {}}', template=None, **given)
    assert scripted.asked == [
        ("GET /human?version=2", None),
        ("PUT /persona", {"template": "persona"}),
        ("PUT /persona", {"schema": {"List": {}}}),
    ]
    assert scripted.headers[1]["if-none-match"] == "*"


async def test_a_damaged_block_is_told_below_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [block(damaged="bytes are missing", block_type="core", permission="append", pinned=False)]
    await call(memory.list_all, Scripted({"GET ?limit=200": {"items": rows, "next_cursor": None}}))
    assert "bytes are missing" in capsys.readouterr().err


def test_schemas_from_words_json_and_files(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"Map": {"fields": []}}')
    assert memory.schema_of("Text") == "Text"
    assert memory.schema_of('{"List": {}}') == {"List": {}}
    assert memory.schema_of(str(file)) == {"Map": {"fields": []}}
    with pytest.raises(InvalidInput, match="not JSON"):
        memory.schema_of("{")


def test_permissions_are_the_six() -> None:
    assert isinstance(memory.PERMISSIONS, click.Choice)
    assert len(memory.PERMISSIONS.choices) == 6


AT = ("-c", "home", "-a", "ada")
MOOD = {"Map": {"fields": [{"name": "now", "field_type": "Text"}, {"name": "count", "field_type": "Number"}]}}
WHERE = f"{PREFIX}/human"


def test_editing_for_real(home: Pattern) -> None:
    made = home("memory", "edit", "garden", *AT, "--content", "Four beds.\n")
    assert "Created garden" in made.out, made.err
    assert home("memory", "append", "garden", "One shed.", *AT).code == 0
    assert home("memory", "show", "garden", *AT).out == "Four beds.\nOne shed.\n"
    assert home("memory", "edit", "garden", *AT, stdin="Five beds.").code == 0
    before = home("memory", "show", "garden", *AT, "--json").json
    assert before["content"] == "Five beds."
    assert "Nothing was changed" in home("memory", "edit", "garden", *AT, "--content", "Five beds.").out
    assert home("memory", "show", "garden", *AT, "--json").json["version"] == before["version"]
    long = home("memory", "edit", "human", *AT, "--content", "x" * 2_000_000)
    assert long.code == 1
    assert long.err.startswith("Error: ")
    assert home("memory", "append", "nothing", "x", *AT).code == 1
    assert home("memory", "set", "garden", "a", "b", *AT).code == 1


async def test_an_edit_says_which_version_it_began_with(capsys: pytest.CaptureFixture[str]) -> None:
    scripted = Scripted({"GET /human": block(), "PUT /human": block("Likes tea and figs.\nSails.\n", version=5)})
    await call(memory.edit, scripted, label="human", content="Likes tea and figs.\n")
    assert scripted.asked[1] == ("PUT /human", {"content": "Likes tea and figs.\n", "base_version": 3})
    assert "if-match" not in scripted.headers[1]
    assert "both changes are kept" in capsys.readouterr().out


async def test_what_was_typed_is_kept_if_it_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refusing = Scripted({"PUT /human": (412, {"detail": "there is one", "code": "version_mismatch"})})
    with pytest.raises(Conflict, match=r"Your text is in human\.1\.md"):
        await memory_edits.replace(refusing.api, WHERE, "Likes figs.", None, label="human", keep=True)
    assert refusing.headers[0]["if-none-match"] == "*"
    too_long = Scripted({"PUT /human": (400, {"detail": "it is too long", "code": "invalid_input"})})
    found = (block(), '"3"')
    with pytest.raises(InvalidInput, match=r"too long\. Your text is in human\.2\.md"):
        await memory_edits.replace(too_long.api, WHERE, "x", found, label="human", keep=True)
    with pytest.raises(ServerFailed, match="too long"):
        await memory_edits.replace(too_long.api, WHERE, "x", found, label="human", keep=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["human.1.md", "human.2.md"]
    assert Path("human.1.md").read_text() == "Likes figs."


async def test_structured_blocks_are_edited_as_json() -> None:
    mood = block("now: calm", schema=MOOD, value={"now": "calm", "count": 1})
    assert json.loads(memory_edits.written(mood)) == {"now": "calm", "count": 1}
    scripted = Scripted({"PUT /human": mood})
    await memory_edits.replace(scripted.api, WHERE, '{"now": "glad"}', (mood, '"3"'), label="human", keep=False)
    assert scripted.asked[0][1] == {"value": {"now": "glad"}, "base_version": 3}
    with pytest.raises(InvalidInput, match="is a map, whose content is JSON"):
        await memory_edits.replace(scripted.api, WHERE, "glad", (mood, '"3"'), label="human", keep=False)


@pytest.mark.parametrize(
    ("schema", "value", "text", "body"),
    [
        ("Text", "one", "two", {"content": "one\ntwo\n"}),
        ("Text", "", "two", {"content": "two\n"}),
        ({"List": {}}, ["a"], "b", {"value": ["a", "b"]}),
        ({"List": {}}, ["a"], '{"done": true}', {"value": ["a", {"done": True}]}),
        ({"Log": {}}, [], "b", "kept by the system"),
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
    with pytest.raises(InvalidInput, match="as a whole"):
        memory_edits.with_field(block(schema=PLAN, value={"notes": ""}), field="notes.a", value="1")


async def test_a_lost_race_is_run_again_and_then_told() -> None:
    scripted = Scripted({"GET /human": block(), "PUT /human": (412, {"detail": "no", "code": "version_mismatch"})})
    with pytest.raises(Conflict, match="all the time"):
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


STAMP = "2026-01-02T03:04:05.678Z"


def edit(version: int, **more: Any) -> dict[str, Any]:
    cause = {"tool": "block_edit", "call": "2"}
    return {"version": version, "kind": "edit", "author": "agent:ada", "cause": cause, "summary": "Added a line",
            "undone": False, "created_at": STAMP, **more}  # fmt: skip


async def test_history(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"GET /human/history?limit=2": {"items": [edit(4, undone=True), edit(3, cause={})], "next_cursor": "x"}}
    await call(memory.history, Scripted(answers), label="human", limit=2)
    shown = capsys.readouterr().out
    assert "Added a line (undone)" in shown
    assert "tool block_edit, call 2" in shown
    assert "2026-01-02 03:04" in shown
    await call(memory.history, Scripted(answers), label="human", limit=2, is_json=True)
    assert [row["version"] for row in json.loads(capsys.readouterr().out)] == [4, 3]


async def test_differences(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {
        "GET /human/diff": {"from": 2, "to": 3, "diff": "-tea\n+figs\n"},
        "GET /human/diff?from=0&to=1": {"from": 0, "to": 1, "diff": ""},
    }
    await call(memory.diff, Scripted(answers), label="human", older=None, newer=None)
    assert capsys.readouterr().out == "-tea\n+figs\n"
    await call(memory.diff, Scripted(answers), label="human", older=0, newer=1)
    assert capsys.readouterr().out == "Versions 0 and 1 say the same.\n"


async def test_blame(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"line": 1, "text": "Likes tea.", "version": 2, "author": "agent:ada", "created_at": STAMP}]
    scripted = Scripted({"GET /human/blame": {"lines": lines}})
    await call(memory.blame, scripted, label="human")
    assert "agent:ada" in capsys.readouterr().out
    await call(memory.blame, scripted, label="human", is_json=True)
    assert json.loads(capsys.readouterr().out) == {"lines": lines}


async def test_back_and_forth(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"block": block(version=5), "undo_remaining": 2, "redo_remaining": 1, "note": "Took back version 4"}
    scripted = Scripted({f"POST /human/{way}": answer for way in ("undo", "redo")} | {"POST /human/rollback": block()})
    await call(memory.undo, scripted, label="human", author=None)
    await call(memory.redo, scripted, label="human", author="agent:ada")
    await call(memory.rollback, scripted, label="human", version=1)
    assert [body for _, body in scripted.asked] == [{}, {"author": "agent:ada"}, {"version": 1}]
    shown = capsys.readouterr().out
    assert "Took back version 4: human is at version 5" in shown
    assert "2 more to undo, 1 to redo" in shown
    assert "said at version 1" in shown


async def test_repair(capsys: pytest.CaptureFixture[str]) -> None:
    note = "Repaired: decoding failed; nothing was lost"
    answers = {"POST /human/repair": {"block": block(version=9), "note": note, "is_exact": True}}
    await call(memory.repair, Scripted(answers), label="human")
    assert capsys.readouterr().out == f"{note}. human is at version 9, 11/100 characters.\n"
    with pytest.raises(ServerFailed, match="nothing to repair"):
        sound = (409, {"detail": "there is nothing to repair", "code": "conflict"})
        await call(memory.repair, Scripted({"POST /human/repair": sound}), label="human")


async def test_sharing(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"agent": "bob", "agent_id": "agent_2", "permission": "append", "attached_at": "2026-01-02T03:04:05.678Z"}
    answers = {"GET /human/share": {"items": [row]}, "POST /human/share": row, "DELETE /human/share/bob": {}}
    scripted = Scripted(answers)
    await call(memory.share, scripted, label="human", with_agent="bob", permission="append")
    await call(memory.share, scripted, label="human", with_agent=None, permission="append")
    await call(memory.unshare, scripted, label="human", from_agent="bob")
    assert scripted.asked == [
        ("POST /human/share", {"agent": "bob", "permission": "append"}),
        ("GET /human/share", None),
        ("DELETE /human/share/bob", None),
    ]
    shown = capsys.readouterr().out
    assert "bob sees human now (append)" in shown
    assert "2026-01-02 03:04" in shown
    assert "bob does not see human any more" in shown
    await call(memory.share, Scripted({"GET /human/share": {"items": []}}), label="human", with_agent=None,
               permission="append")  # fmt: skip
    assert "with nobody" in capsys.readouterr().out

"""`pattern memory …`."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx2
import pytest

from pattern_core.errors import Conflict
from pattern_server.cli import memory
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json

AT = ("-c", "home", "-a", "ada")


def test_a_blocks_life(home: Pattern) -> None:
    made = home("memory", "edit", "garden", *AT, "--content", "Four beds.\n")
    assert made.code == 0, made.err
    assert "Created garden" in made.out
    assert home("memory", "append", "garden", "One shed.", *AT).code == 0
    assert home("memory", "show", "garden", *AT).out == "Four beds.\nOne shed.\n"
    rows = home("memory", "list", *AT, "--json").json
    assert {row["label"] for row in rows} >= {"garden", "human"}
    assert "garden" in home("memory", "list", *AT).out
    assert home("memory", "edit", "garden", *AT, stdin="Five beds.").code == 0
    block = home("memory", "show", "garden", *AT, "--json").json
    assert block["content"] == "Five beds."
    same = home("memory", "edit", "garden", *AT, "--content", "Five beds.")
    assert "Nothing was changed" in same.out
    assert home("memory", "show", "garden", *AT, "--json").json["version"] == block["version"]
    assert home("memory", "delete", "garden", *AT, "--yes").code == 0
    assert home("memory", "show", "garden", *AT).code == 1


def test_refusals(home: Pattern) -> None:
    assert home("memory", "append", "nothing", "x", *AT).code == 1
    assert home("memory", "delete", "nothing", *AT, "--yes").code == 1
    assert home("memory", "list", "-c", "home", "-a", "nobody").code == 1
    long = home("memory", "edit", "human", *AT, "--content", "x" * 2_000_000)
    assert long.code == 1
    assert long.err.startswith("Error: ")


async def test_an_edit_that_lost_the_race_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(request)
        return as_json({"detail": "It is at version 4.", "code": "version_mismatch"}, 412)

    found = ({"content": "Likes tea."}, '"3"')
    with pytest.raises(Conflict, match="changed by somebody else"):
        await memory.replace(api_of(answer), "/human", "Likes figs.", found, label="human", keep=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Conflict, match=r"Your text is in human\.1\.md"):
        await memory.replace(api_of(answer), "/human", "Likes figs.", None, label="human", keep=True)
    assert Path("human.1.md").read_text() == "Likes figs."
    assert asked[0].headers["if-match"] == '"3"'
    assert asked[1].headers["if-none-match"] == "*"


def test_the_editor(home: Pattern, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home("memory", "edit", "human", *AT, "--content", "Likes tea.\n")
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho 'Likes figs.' >> \"$1\"\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))
    assert memory._edited("Likes tea.\n") == "Likes tea.\nLikes figs.\n"
    editor.write_text("#!/bin/sh\ntrue\n")
    assert memory._edited("Likes tea.\n") == "Likes tea.\n"


def test_what_was_typed_is_kept_under_a_free_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [str(memory._kept("human", text)) for text in ("one", "two")] == ["human.1.md", "human.2.md"]
    assert Path("human.2.md").read_text() == "two"

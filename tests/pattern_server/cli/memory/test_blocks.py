"""Blocks as a whole, on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pattern_core.errors import InvalidInput
from pattern_server.cli.memory import blocks
from tests.pattern_server.cli.conftest import Pattern
from tests.pattern_server.cli.memory.scripted import Scripted, block, call

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
    await call(blocks.show, scripted, label="human", version=2)
    given: dict[str, Any] = {
        "block_type": None,
        "permission": None,
        "char_limit": None,
        "description": None,
        "pinned": None,
    }
    await call(blocks.create, scripted, label="persona", content=None, schema=None, template="persona", **given)
    await call(blocks.create, scripted, label="persona", content=None, schema='{"List": {}}', template=None, **given)
    assert scripted.asked == [
        ("GET /human?version=2", None),
        ("PUT /persona", {"template": "persona"}),
        ("PUT /persona", {"schema": {"List": {}}}),
    ]
    assert scripted.headers[1]["if-none-match"] == "*"


async def test_a_damaged_block_is_told_below_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [block(damaged="bytes are missing", block_type="core", permission="append", pinned=False)]
    await call(blocks.list_all, Scripted({"GET ?limit=200": {"items": rows, "next_cursor": None}}))
    assert "bytes are missing" in capsys.readouterr().err


def test_schemas_from_words_json_and_files(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"Map": {"fields": []}}')
    assert blocks.schema_of("Text") == "Text"
    assert blocks.schema_of('{"List": {}}') == {"List": {}}
    assert blocks.schema_of(str(file)) == {"Map": {"fields": []}}
    with pytest.raises(InvalidInput, match="not JSON"):
        blocks.schema_of("{")


def test_permissions_are_the_six() -> None:
    assert isinstance(blocks.PERMISSIONS, click.Choice)
    assert len(blocks.PERMISSIONS.choices) == 6

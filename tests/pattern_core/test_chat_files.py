"""Codepilot's files in and out: each session once and under its id, none lost, and as it came or repaired."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pattern_core.chat_files import export_chats, import_chats, message_of, result_of
from pattern_core.constellation import Constellation
from pattern_core.conversation.history import from_row, repair
from pattern_core.errors import InvalidInput
from pattern_core.messages import ToolCall
from pattern_core.untrusted import marked_import
from pattern_db.connection import fetch_all, open_connection
from pattern_db.enums import Role, TurnStatus
from pattern_db.journal import turns
from pattern_db.program_files import read, write
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow
from tests.support import USER, running

FIRST, SECOND, THIRD = (f"session_00000000-0000-4000-8000-00000000000{no}" for no in (1, 2, 3))
CALL = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path":"a.txt"}'}}
CALLS = json.dumps([CALL], separators=(",", ":"))
# The original's rows of a turn with a tool, whose digest is known.
TOOL_TURN = [
    ("user", "run it", None, None),
    ("assistant", "Reading.", None, CALLS),
    ("tool", '{\n  "path": "a.txt",\n  "content": "A\\n"\n}', "call_1", None),
    ("assistant", "Done.", None, None),
]
TOOL_TURN_BYTES = "6d5f23b8f2f03107e3955d04676a7407587c8b79514cd968dcc5d68d210270aa"


def at(second: int) -> str:
    return f"2025-12-05T10:00:{second:02}.000Z"


def session(name: str, status: str = "completed", tokens: int = 9, **more: object) -> dict[str, Any]:
    row = {"id": name, "status": status, "working_dir": "/w", "total_tokens": tokens, "created_at": at(0)}
    return {**row, "updated_at": at(9), "title": None, "current_plan": None, **more}


def said(number: int, name: str, role: str, content: object, **more: object) -> dict[str, Any]:
    row = {"id": number, "session_id": name, "role": role, "content": content, "tool_call_id": None}
    return {**row, "tool_calls": None, "created_at": at(number), **more}


def tables() -> dict[str, list[dict[str, Any]]]:
    """Three sessions: a completed one, one that was cut off in a call, and one without a message."""
    names = ("role", "content", "tool_call_id", "tool_calls")
    turn = [
        {**said(no, FIRST, "", None), **dict(zip(names, cells, strict=True))}
        for no, cells in enumerate(TOOL_TURN, start=1)
    ]
    cut = [said(5, SECOND, "user", "[1,2,3]"), said(6, SECOND, "assistant", "null", tool_calls=CALLS)]
    sessions = [
        session(FIRST, title="Read it", current_plan="# Plan"),
        session(SECOND, "running", 30),
        session(THIRD, "idle", 0),
    ]
    return {"sessions": sessions, "messages": [*turn, *cut]}


def repaired() -> dict[str, list[dict[str, Any]]]:
    rows = tables()
    rows["sessions"][1]["status"] = "failed"
    rows["messages"][5]["content"] = None
    return rows


@dataclass
class Here:
    """A constellation with the agent whose sessions they become."""

    constellation: Constellation
    agent_id: str


@asynccontextmanager
async def home() -> AsyncIterator[Here]:
    async with running() as world:
        yield Here(world.constellation, (await world.agent()).id)


async def imported(here: Here, rows: Any) -> Any:
    return await import_chats(here.constellation.storage, here.agent_id, rows, source="codepilot.db", author=USER)


async def rows_of(here: Here, name: str) -> list[MessageRow]:
    found = await here.constellation.database.read(messages.recent, here.agent_id, 100, session_id=name)
    return found[::-1]


@pytest.mark.parametrize("era", ["seed", "head"])
async def test_c44_three_sessions_one_running_come_once_and_go_out_as_they_came(tmp_path: Path, era: str) -> None:
    rows, expected = tables(), repaired()
    path = tmp_path / "codepilot.db"
    write(path, "codepilot", rows)
    if era == "seed":
        with closing(open_connection(path)) as connection:
            for column in ("title", "current_plan"):
                connection.execute(f"ALTER TABLE sessions DROP COLUMN {column}")
        for row in expected["sessions"]:
            row |= {"title": None, "current_plan": None}
    found = read(path)
    assert found.version == "codepilot"
    async with home() as world:
        done = await imported(world, found.tables)
        assert (dict(done.added), done.conflicts, done.skipped) == ({"sessions": 3, "messages": 6}, [], [])
        again = await imported(world, found.tables)
        assert (dict(again.added), dict(again.present)) == ({}, dict(done.added))
        audits = await world.constellation.database.read(fetch_all, "SELECT source_file FROM migration_audit")
        assert audits == [("codepilot.db",)]
        chats, _total = await world.constellation.sessions.chats(10, 0)
        assert {chat.id: (chat.status, chat.tokens, chat.message_count) for chat in chats} == {
            FIRST: (TurnStatus.COMPLETED, 9, 4),
            SECOND: (TurnStatus.INTERRUPTED, 30, 2),
            THIRD: (None, 0, 0),
        }
        used = await world.constellation.database.read(fetch_all, "SELECT count(*) FROM usage")
        assert used == [(0,)], "what was used elsewhere is charged to no budget"
        write(tmp_path / "out.db", "codepilot", await export_chats(world.constellation.storage))
    assert read(tmp_path / "out.db").tables == expected


async def test_a_dry_run_counts_as_the_import_does_and_stores_nothing() -> None:
    async with running() as world:
        storage, ada = world.constellation.storage, await world.agent("ada")
        given = tables()
        given["messages"].append(said(99, FIRST, "robot", "x"))
        about: dict[str, Any] = {"source": "c.db", "author": USER}
        dry = await import_chats(storage, ada.id, given, **about, is_dry=True)
        assert (await export_chats(storage))["sessions"] == []
        done = await import_chats(storage, ada.id, given, **about)
        assert (dry, len(dry.skipped)) == (done, 1) and dry.added["sessions"] == 3


async def test_messages_have_the_original_cells_and_a_cut_off_call_gets_a_result() -> None:
    async with home() as world:
        await imported(world, tables())
        made = await rows_of(world, FIRST)
        cells = [message_of(row) for row in made]
        lines = [
            [
                cell["role"],
                cell["content"],
                cell.get("tool_call_id"),
                json.dumps(cell["tool_calls"], separators=(",", ":")) if "tool_calls" in cell else None,
            ]
            for cell in cells
        ]
        text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
        assert hashlib.sha256(text.encode()).hexdigest() == TOOL_TURN_BYTES
        asked, call = map(from_row, await rows_of(world, SECOND))
        assert asked.text == "[1,2,3]"  # C8
        assert (call.text, [type(part) for part in call.parts]) == ("", [ToolCall])  # C9
        assert "<" in marked_import(asked).text and "[1,2,3]" in marked_import(asked).text
        assert [message.role for message in repair([asked, call])] == ["user", "assistant", "tool"]
        assert from_row(made[2]).is_imported is False, "a result stays one: it is marked as a result"
        turn = await world.constellation.database.read(turns.in_session, SECOND, None, was_over=False)
        assert turn is not None and turn.status == TurnStatus.INTERRUPTED


async def test_a_changed_session_is_a_conflict_and_what_is_new_here_is_exported() -> None:
    async with home() as world:
        await imported(world, tables())
        changed = tables()
        changed["sessions"][0]["title"] = "Other"
        changed["messages"].append(said(7, "session_gone", "user", "hello"))
        own = await world.constellation.sessions.create(world.agent_id)
        changed["sessions"].append(session(own.id))
        done = await imported(world, changed)
        assert not done.added
        assert done.conflicts == [
            f"session {FIRST} differs from what was imported before",
            f"session {own.id} is here already, and was not imported from such a file",
        ]
        assert done.skipped == ["messages of a session 'session_gone' that the file has not: 1"]
        await world.constellation.sessions.update(world.agent_id, FIRST, {"title": "Renamed"})
        out = await export_chats(world.constellation.storage)
        shown = {row["id"]: row for row in out["sessions"]}
        assert (shown[FIRST]["title"], shown[FIRST]["current_plan"]) == ("Renamed", "# Plan")
        assert (shown[own.id]["status"], shown[own.id]["total_tokens"]) == ("idle", 0)
        with pytest.raises(InvalidInput, match="no table 'songs'"):
            await imported(world, {"songs": []})


async def test_order_is_that_of_the_rows_where_times_do_not_rise_and_other_messages_keep_their_places() -> None:
    rows = {"sessions": [session(FIRST), session(SECOND)], "messages": []}
    for number in range(1, 41):
        name = FIRST if number % 3 else SECOND
        rows["messages"].append(said(number, name, "user", f"m{number}", created_at=at(59 - number % 7)))
    async with home() as world:
        await imported(world, rows)
        for name in (FIRST, SECOND):
            expected = [row["content"] for row in rows["messages"] if row["session_id"] == name]
            assert [row.content for row in await rows_of(world, name)] == expected
        out = await export_chats(world.constellation.storage)
        assert out["messages"] == rows["messages"], "with their own times"
        assert await rows_of(world, "") == []


async def test_mutated_sessions_are_never_lost() -> None:
    """Each session of a mutated file is added, present, a conflict or skipped; each message too, in its own way."""
    chance = random.Random(11)
    values: list[Any] = [None, "", "null", 7, -1, 2**62, 1.5, "[1]", "{", "Error: no", "\x00\x1b", "2025-13-01", FIRST]
    async with home() as world:
        for trial in range(int(os.environ.get("PATTERN_TEST_EXAMPLES", "60"))):
            rows = tables()
            for _change in range(chance.randrange(1, 4)):
                table = chance.choice(["sessions", "messages"])
                row = chance.choice(rows[table])
                row[chance.choice(sorted(row))] = chance.choice(values)
            for name in (FIRST, SECOND, THIRD):  # otherwise all are there already
                for row in (*rows["sessions"], *rows["messages"]):
                    row |= {key: f"{name}_{trial}" for key in ("id", "session_id") if row.get(key) == name}
            done = await imported(world, rows)
            assert sum(done.added.values()) + len(done.skipped) + len(done.conflicts) > 0
            listed = len(done.skipped) + len(done.conflicts)
            assert done.added["sessions"] + done.present["sessions"] + listed >= len(rows["sessions"])
        await export_chats(world.constellation.storage)


def test_a_result_is_indented_and_an_error_named_once() -> None:
    seen: dict[str, Any] = {"id": "m", "agent_id": "a", "position": "1" * 19, "created_at": "", "tool_call_id": "c"}

    def shown(content: str, *, is_error: bool = False) -> object:
        return message_of(MessageRow(role=Role.TOOL, content=content, tool_result={"is_error": is_error}, **seen))[
            "content"
        ]

    assert shown('{"a":[1]}') == '{\n  "a": [\n    1\n  ]\n}'
    assert (shown("boom", is_error=True), shown("Error: boom", is_error=True)) == ("Error: boom", "Error: boom")
    assert (result_of("[1]"), result_of("7"), result_of(None)) == ([1], "7", "")

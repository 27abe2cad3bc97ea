"""Agent files of Letta, both forms: what is in them becomes ours, the rest is named, and what is broken is refused."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pattern_core.car import ArchiveInvalid
from pattern_core.legacy.archive import Old
from pattern_core.legacy.convert import store
from pattern_core.legacy.letta import FILE_BYTES_MAX, is_letta, read_letta, root_of
from pattern_core.legacy.review import review
from pattern_core.messages import Image, Text, parts_to_json
from pattern_core.portable import read, verify, write
from pattern_db import backup
from pattern_db.connection import fetch_all, open_connection
from pattern_db.tables import archival
from pattern_db.tables.archival import ArchivalRow

NOW = "2026-02-03T04:05:06.007Z"
AT = "2025-10-10T07:14:{:02}.912336+00:00"


def said(number: int, role: str, text: str | None, **fields: Any) -> dict[str, Any]:
    content = None if text is None else [{"type": "text", "text": text, "signature": None}]
    common = {
        "type": "message",
        "id": f"message-{number}",
        "role": role,
        "content": content,
        "created_at": AT.format(number),
    }
    return common | fields


def call(call_id: str, tool: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": tool, "arguments": arguments}}


def agent(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"agent-{name}",
        "name": name,
        "agent_type": "letta_v1_agent",
        "system": "You are Ada.",
        "llm_config": {"model": "m", "handle": "openai/m", "context_window": 64_000, "temperature": 0.5},
        "messages": [],
        **fields,
    }


TALK = [
    said(0, "system", "You are Ada. <memory>…</memory>"),
    said(1, "user", "What is in the file?"),
    said(
        2, "assistant", "I look.", tool_calls=[call("c1", "grep_files", '{"pattern": "x"}'), call("c2", "odd", "{no")]
    ),
    said(3, "tool", '{"status": "OK"}', tool_call_id="c1"),
    said(4, "tool", None, tool_returns=[{"tool_call_id": "c2", "status": "error", "func_response": "It failed."}]),
    said(5, "assistant", "Walnuts."),
]
NEW = {
    "agents": [
        agent(
            "ada",
            description="Knows files.",
            block_ids=["block-0", "block-1"],
            tool_ids=["tool-0", "tool-1", "tool-2"],
            tool_rules=[
                {"tool_name": "archival_memory_search", "type": "max_count_per_step", "max_count_limit": 2},
                {"tool_name": "odd", "type": "unheard_of"},
            ],
            tags=["demo"],
            source_ids=["source-0"],
            messages=TALK,
            in_context_message_ids=["message-0", "message-5"],
        ),
        agent("bob", block_ids=["block-1"], messages=None, tool_rules=None, tool_ids=None, memory_blocks=None),
    ],
    "blocks": [
        {"id": "block-0", "label": "persona", "value": "I am Ada.", "limit": 200, "read_only": True},
        {"id": "block-1", "label": "team", "value": "Both know this.", "limit": 300},
        {"id": "block-2", "label": "nobody's", "value": "Still here.", "limit": 300},
    ],
    "groups": [
        {
            "id": "group-0",
            "agent_ids": ["agent-ada", "agent-bob"],
            "description": "desk",
            "shared_block_ids": ["block-0"],
            "manager_config": {"manager_type": "supervisor", "manager_agent_id": "agent-bob"},
        }
    ],
    "sources": [{"id": "source-0", "name": "papers"}],
    "files": [
        {"id": "file-0", "source_id": "source-0", "file_name": "a/plan.pdf", "content": "Plant walnuts.\nWater them."},
        {"id": "file-1", "source_id": "source-0", "file_name": "lost.txt", "content": None},
    ],
    "tools": [
        {"id": "tool-0", "name": "archival_memory_search"},
        {"id": "tool-1", "name": "odd", "source_code": "def odd(): ..."},
        {"id": "tool-2", "name": "search"},
    ],
    "mcp_servers": [{"id": "mcp_server-0"}],
    "metadata": {"revision_id": "x"},
    "created_at": AT.format(50),
}
OLD = {
    "agent_type": "memgpt_agent",
    "name": "ada",
    "version": "0.6.47",
    "system": "You are Ada.",
    "core_memory": [{"label": "human", "value": "Likes tea.", "limit": 5000}],
    "llm_config": {"model": "m", "model_endpoint_type": "openai"},
    "messages": [{key: value for key, value in one.items() if key != "id"} for one in TALK],
    "in_context_message_indices": [0, 1],
    "tool_rules": [{"tool_name": "send_message", "type": "exit_loop"}],
    "tools": [{"name": "send_message"}],
    "tool_exec_environment_variables": [{"key": "TOKEN", "value": "secret-words"}],
    "created_at": "2025-04-01T03:47:19",
}


class Made:
    """What a file became: a database, and what was decided, as lines."""

    def __init__(self, folder: Path, content: Any) -> None:
        file = folder / "made.af"
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        self.manifest, old = read(file, folder / "none.db", now=NOW)
        assert isinstance(old, Old)
        self.old, self.path = old, folder / "made.db"
        self.path.unlink(missing_ok=True)
        self.decided = [
            f"{one['kind']} {one['name']}: {one['decision']}" for one in store(self.path, old, now=NOW, peer=7)
        ]
        with closing(open_connection(self.path)) as connection:
            assert backup.check_integrity(connection) == []

    def rows(self, sql: str) -> list[Any]:
        with closing(open_connection(self.path)) as connection:
            return fetch_all(connection, sql)

    def says(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.decided)


def test_the_form_with_lists(tmp_path: Path) -> None:
    made = Made(tmp_path, NEW)
    assert (made.manifest.version, made.manifest.kind, made.manifest.name) == (None, "constellation", "desk")
    assert verify(tmp_path / "made.af")[0] == made.manifest
    [ada, bob] = made.rows("SELECT * FROM agents ORDER BY name")
    assert ada[1:6] == ("ada", "Knows files.", "openai", "m", "You are Ada.")
    assert (json.loads(ada[6]), json.loads(ada[8])) == (
        {"temperature": 0.5, "context_window": 64_000},
        [{"tool": "archival_memory_search", "type": "max_calls", "count": 2}],
    )
    blocks = made.rows(
        "SELECT label, agent_id, content_preview, char_limit, permission FROM memory_blocks ORDER BY label"
    )
    assert blocks == [
        ("nobody-s", "_constellation_", "Still here.", 300, "read_write"),
        ("persona", ada[0], "I am Ada.", 200, "read_only"),
        ("team", ada[0], "Both know this.", 300, "read_write"),
    ]
    shares = made.rows("SELECT agent_id, permission FROM shared_block_agents ORDER BY permission")
    assert shares == [(bob[0], "read_only"), (bob[0], "read_write")]
    [(name, pattern, config)] = made.rows("SELECT name, pattern_type, pattern_config FROM agent_groups")
    assert (name, pattern, json.loads(config)) == ("desk", "supervisor", {"leader": bob[0]})
    members = made.rows("SELECT agent_id, role FROM group_members ORDER BY ordinal")
    assert members == [(bob[0], "supervisor"), (ada[0], None)]
    assert made.rows("SELECT name, CAST(content AS TEXT) FROM folder_files") == [
        ("a-plan.pdf.txt", "Plant walnuts.\nWater them.")
    ]
    assert made.rows("SELECT agent_id, access FROM folder_attachments") == [(ada[0], "read")]
    assert made.rows("SELECT content FROM file_passages") == [("Plant walnuts.\nWater them.",)]


def test_messages_keep_their_order_their_pairs_and_their_place(tmp_path: Path) -> None:
    made = Made(tmp_path, NEW)
    rows = made.rows(
        "SELECT role, content, parts, tool_call_id, tool_result, is_archived FROM messages ORDER BY position"
    )
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        ("user", "What is in the file?", None, 1),
        ("assistant", "I look.", None, 1),
        ("tool", '{"status": "OK"}', "c1", 1),
        ("tool", "It failed.", "c2", 1),
        ("assistant", "Walnuts.", None, 0),
    ]
    calls = [part for part in json.loads(rows[1][2]) if part["type"] == "tool_call"]
    assert [(one["call_id"], one["tool"]) for one in calls] == [("c1", "grep_files"), ("c2", "odd")]
    assert (calls[0]["arguments"], calls[1]["invalid"]) == ({"pattern": "x"}, "{no")
    assert json.loads(rows[3][4])["is_error"] is True


def test_what_has_no_counterpart_is_named(tmp_path: Path) -> None:
    made = Made(tmp_path, NEW)
    assert made.says("agent ada", "tool rule", "unheard_of")
    assert made.says("agent ada", "tools were left out: odd")
    assert made.says("agent ada", "archival_memory_search (recall)")
    assert made.says("agent ada", "settings", "tags")
    assert made.says("file lost.txt", "its text is not in the file")
    assert made.says("parts were left out: mcp_servers")
    assert made.says("message 1 of ada", "system prompt")
    assert not made.says("search, ")


def test_the_older_form(tmp_path: Path) -> None:
    made = Made(tmp_path, OLD)
    assert (made.manifest.kind, made.manifest.name) == ("agent", "ada")
    assert made.rows("SELECT label, content_preview FROM memory_blocks") == [("human", "Likes tea.")]
    assert [row[0] for row in made.rows("SELECT is_archived FROM messages ORDER BY position")] == [0, 1, 1, 1, 1]
    assert made.says("settings were left out: tool_exec_environment_variables")
    assert "secret-words" not in made.path.read_bytes().decode("latin-1")


def test_the_same_file_makes_the_same_ids(tmp_path: Path) -> None:
    first = Made(tmp_path, NEW).rows(
        "SELECT id FROM agents UNION SELECT id FROM messages UNION SELECT id FROM file_passages"
    )
    assert (
        Made(tmp_path, NEW).rows(
            "SELECT id FROM agents UNION SELECT id FROM messages UNION SELECT id FROM file_passages"
        )
        == first
    )


ODD: dict[str, tuple[Any, str]] = {
    "nulls": (dict.fromkeys(NEW) | {"agents": [dict.fromkeys(agent("x")) | {"name": "x"}]}, ""),
    "no keys": ({"agents": [{}]}, ""),
    "ids twice": (
        {"agents": [agent("a"), agent("a")], "blocks": [{"id": "b", "label": "one"}, {"id": "b", "label": "two"}]},
        "agent agent-a: another one has its id",
    ),
    "unknown types": (
        {"agents": [agent("a", messages=[said(1, "oracle", None, content=[{"type": "dance"}])])]},
        "cannot be read",
    ),
    "numbers for texts": (
        {"agents": [agent("a", system=3.5, block_ids=[4])], "blocks": [{"id": 4, "value": 1}]},
        "",
    ),
    "objects for lists": ({"agents": {"0": agent("a")}, "blocks": {}, "tools": 3}, ""),
    "a return without its call": (
        {"agents": [agent("a", messages=[said(1, "tool", "Done", tool_call_id="c9")])]},
        "the return of a tool call that is not in the file",
    ),
    "a call without its return": (
        {"agents": [agent("a", messages=[said(1, "assistant", None, tool_calls=[call("c1", "x", "{}")])])]},
        "the call of x has no return",
    ),
    "half a character": ({"agents": [agent("a", system="\ud800 words")]}, ""),
    "an unknown manager": (
        {"agents": [agent("a")], "groups": [{"id": "g", "manager_config": {"manager_type": "tarot"}}]},
        "'tarot' is not known",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files(tmp_path: Path, name: str) -> None:
    content, decided = ODD[name]
    made = Made(tmp_path, content)
    assert len(made.rows("SELECT id FROM agents")) == len(content["agents"])
    assert not decided or made.says(decided), made.decided
    assert len(made.rows("SELECT id FROM memory_blocks")) == len(content.get("blocks") or ())


@pytest.mark.parametrize(
    "content",
    [b"{", b"{}", b'{"agents": []}', b'{"agents": [7]}', b"[" * 9, b'{"a":' * 5_000, b'{"agents": [{"a": \xff}]}'],
)
def test_what_is_no_agent_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ArchiveInvalid):
        Made(tmp_path, content)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "large.af"
    with file.open("wb") as large:
        large.write(b"{")
        large.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(ArchiveInvalid, match="larger"):
        read_letta(file)


@pytest.mark.parametrize(
    ("start", "is_one"), [(b'{"a"', True), (b"\xef\xbb\xbf \n{", True), (b"{\xa2e", False), (b":\xa2", False)]
)
def test_agent_files_are_told_from_archives(start: bytes, is_one: bool) -> None:
    assert is_letta(start) is is_one


def test_the_review_finds_nothing_to_decide(tmp_path: Path) -> None:
    assert review(Made(tmp_path, OLD).old, [], NOW).found == 0


def test_samples_of_others(shared_data: Path, tmp_path: Path) -> None:
    files = sorted((shared_data / "letta_af").glob("*.af"))
    assert files
    for file in files:
        content = json.loads(file.read_bytes())
        theirs = (content.get("agents") or [content])[0]
        made = Made(tmp_path, file.read_bytes())
        assert [made.rows("SELECT system_prompt FROM agents")] == [[(theirs["system"],)]]
        kept = [one for one in theirs["messages"] if one["role"] != "system"]
        rows = made.rows("SELECT role, content, tool_call_id FROM messages ORDER BY position")
        assert [row[0] for row in rows] == [one["role"] for one in kept]
        assert [row[2] for row in rows if row[0] == "tool"] == [
            one["tool_call_id"] for one in kept if one["role"] == "tool"
        ]


def taken(source: Path, folder: Path, kind: str = "constellation", name: str = "home") -> tuple[Any, Any]:
    """What an agent file made of a database holds, and its manifest."""
    copy, file = folder / "copy.db", folder / "out.af"
    shutil.copyfile(source, copy)
    file.unlink(missing_ok=True)
    with file.open("xb") as out:
        manifest = write(copy, out, kind=kind, id_or_name=name, version=None)  # type: ignore[arg-type]  # a kind
    return json.loads(file.read_bytes()), manifest


def test_what_came_from_such_a_file_goes_back_and_returns(tmp_path: Path) -> None:
    first = Made(tmp_path, NEW)
    theirs, manifest = taken(first.path, tmp_path)
    assert (manifest.version, manifest.root) == (None, root_of((tmp_path / "out.af").read_bytes()))
    assert manifest.cut == {"memory_block_history": 3}
    (tmp_path / "again").mkdir()
    again = Made(tmp_path / "again", theirs)
    for sql in (
        "SELECT name, description, model_provider, model_name, system_prompt FROM agents ORDER BY name",
        "SELECT config, tool_rules FROM agents ORDER BY name",
        "SELECT label, content_preview, char_limit, permission FROM memory_blocks ORDER BY label",
        "SELECT role, content, parts, tool_call_id, tool_result, is_archived FROM messages ORDER BY position",
        "SELECT created_at FROM messages ORDER BY position",
        "SELECT name, pattern_type FROM agent_groups",
        "SELECT (SELECT name FROM agents WHERE id = agent_id), role FROM group_members ORDER BY ordinal",
        "SELECT name, content FROM folder_files",
    ):
        assert again.rows(sql) == first.rows(sql), sql


def test_every_reference_of_a_written_file_is_to_something_in_it(tmp_path: Path) -> None:
    theirs, _ = taken(Made(tmp_path, NEW).path, tmp_path)
    lists = ("agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers")
    ids = [one["id"] for name in lists for one in theirs[name]]
    ids += [one["id"] for agent in theirs["agents"] for one in agent["messages"]]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+-\d+", one) for one in ids)
    for agent in theirs["agents"]:
        named = [*agent["block_ids"], *agent["tool_ids"], *agent["source_ids"], *agent["group_ids"]]
        named += [*agent["in_context_message_ids"], *(one["agent_id"] for one in agent["messages"])]
        assert {*named} <= {*ids}
        assert agent["in_context_message_ids"][0] == agent["messages"][0]["id"]
        assert agent["messages"][0]["role"] == "system"
    [group] = theirs["groups"]
    assert {*group["agent_ids"], *group["shared_block_ids"], group["manager_config"]["manager_agent_id"]} <= {*ids}


def test_one_agent_alone_and_what_is_left_out(tmp_path: Path) -> None:
    made = Made(tmp_path, NEW)
    [ada, *_] = [row[0] for row in made.rows("SELECT id FROM agents ORDER BY name")]
    with closing(open_connection(made.path)) as connection:
        rules = [{"tool": "web", "type": "cooldown", "seconds": 5}, {"tool": "web", "type": "requires_consent"}]
        connection.execute("UPDATE agents SET tool_rules = ?", (json.dumps(rules),)).fetchall()
        archival.insert(connection, ArchivalRow("arch_1", ada, "An entry", NOW))
        asked = connection.execute("SELECT min(id) FROM messages WHERE agent_id = ? AND role = 'user'", (ada,)).get
        images = Image(media_type="image/png", digest="a" * 64), Image(media_type="", url="https://a.example/b.png")
        shown = json.dumps(parts_to_json((Text(text="Look"), *images)))
        connection.execute("UPDATE messages SET parts = ? WHERE id = ?", (shown, asked)).fetchall()
    theirs, manifest = taken(made.path, tmp_path, "agent", "ada")
    assert [one["name"] for one in theirs["agents"]] == ["ada"]
    assert [one["type"] for one in theirs["agents"][0]["tool_rules"]] == ["requires_approval"]
    [content] = [one["content"] for one in theirs["agents"][0]["messages"] if len(one["content"]) == 2]
    assert [one["type"] for one in content] == ["text", "image"]  # what is stored cannot be named there
    left_out = {"archival_entries": 1, "tool_rules.cooldown": 1, "memory_block_history": 2, "messages.images": 1}
    assert manifest.cut == left_out


def test_the_order_of_the_file_counts_where_times_do_not_rise(tmp_path: Path) -> None:
    talk = [said(9, "user", "one"), said(3, "user", "two"), said(4, "user", "three", created_at=None)]
    made = Made(tmp_path, {"agents": [agent("a", messages=talk)]})
    assert made.rows("SELECT content FROM messages ORDER BY position") == [("one",), ("two",), ("three",)]

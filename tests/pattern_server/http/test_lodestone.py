"""The toolset of pi-lodestone, called by the official client over HTTP, and its file in and out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pattern_server.http.toolsets import OTHERS
from tests.pattern_core.test_decision_files import GOLDEN, ID, line
from tests.pattern_server.http.test_delta import called, connected
from tests.pattern_server.http.test_mcp import MODES, both
from tests.pattern_server.place import Place

CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("memory-project-context", {}, "No project is known here yet."),
    ("memory-search", {"query": "tabs"}, "No matching memories."),
    ("memory-get", {"ids": ["none"]}, "No matching memory IDs."),
    ("memory-add", {"title": "Use tabs", "text": "We decided: password=hunter22."}, "Remembered [dec_"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("memory-search", {"query": "x", "limit": 51}, "Error: limit is a whole number from 1 to 50, not 51"),
    ("memory-get", {"ids": ["x"] * 21}, "Error: the number of ids is"),
    ("memory-get", {"ids": [], "maxChars": 499}, "Error: maxChars is"),
    ("memory-project-context", {"maxChars": 5001}, "Error: maxChars is"),
    ("memory-add", {"title": " ", "text": ""}, "Error: a decision needs a title"),
]


@both
async def test_all_four_are_listed_and_called(home: Place, mode: str, tmp_path: Path) -> None:
    query = f"toolset=lodestone&workspace={tmp_path}"
    async with connected(home, mode, query) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {*OTHERS["lodestone"]} == {name for name, _, _ in CALLS}
        for tool in listed.values():
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name)
            assert all(one["type"] != "object" for one in tool.input_schema.get("properties", {}).values())
        for name, arguments, begins in CALLS:
            text, is_error = await called(client, name, arguments)
            assert text.startswith(begins) and not is_error, (name, text)
        for name, arguments, begins in REFUSED:
            text, is_error = await called(client, name, arguments)
            assert text.startswith(begins) and is_error, (name, text)
        (own,) = re.findall(r"dec_\w+", (await called(client, "memory-search", {"query": "tabs"}))[0])
        text, _ = await called(client, "memory-search", {"query": "use tabs", "limit": 1, "projectOnly": True})
        date, project = text.splitlines()[1].strip().split(" · ")[:2]
        assert text == (
            f"1. [{own}] Use tabs\n   {date} · {project} · manual · score 17\n   We decided: password=[redacted]"
        )
        text, _ = await called(client, "memory-get", {"ids": ["none", own, own]})
        assert text.split("\n---\n")[0].splitlines()[2:] == ["Tags: decision", "We decided: password=[redacted]"]
        text, _ = await called(client, "memory-add", {"title": "Use tabs", "text": "Again.", "important": True})
        assert text.endswith(f"\nIt is similar to [{own}] Use tabs")
        text, _ = await called(client, "memory-project-context", {})
        lines = text.splitlines()
        assert lines[:2] == [f"# {tmp_path.name}", f"- {tmp_path}"]
        assert [one for one in lines if one.startswith("## ")] == ["## Pinned decisions", "## Newest decisions"]
        assert " ★ Use tabs — " in text
    async with connected(home, mode, "toolset=lodestone") as client:
        text, is_error = await called(client, "memory-search", {"query": "x"})
        assert is_error and text.startswith("Error: the address names no workspace")


FILES = "/constellations/home/programs/decisions"


async def test_a_file_goes_in_and_comes_out_the_same(home: Place) -> None:
    data = GOLDEN + b"NOT JSON\n" + line("b", supersedes=[ID], conflictsWith=[ID], kbPath="/k.md", archived=False)
    asked = {"workspace": "shop", "source": "decisions.jsonl"}
    dry = await home.admin.post(FILES, content=data, params={**asked, "dry_run": "true"})
    assert dry.json() == {
        "workspace": None,
        "agent": None,
        "added": {"decisions": 2},
        "updated": {},
        "present": {},
        "conflicts": [],
        "skipped": ["line 2: not JSON: Expecting value: line 1 column 1 (char 0)"],
        "outgoing": [],
    }
    done = (await home.admin.post(FILES, content=data, params=asked)).json()
    assert done["added"] == {"decisions": 2} and done["workspace"].startswith("ws_")
    again = (await home.admin.post(FILES, content=data, params=asked)).json()
    assert (again["added"], again["updated"], again["present"]) == ({}, {}, {"decisions": 2})
    assert (await home.admin.get(FILES, params={"workspace": "shop"})).content == data
    assert (await home.admin.get(FILES, params={"workspace": "none"})).status_code == 404
    async with connected(home, MODES[1], "toolset=lodestone&workspace=shop") as client:
        text, _ = await called(client, "memory-get", {"ids": [ID, "b"]})
        assert "Superseded by: b\nConflicts with: b\n" in text
        assert f"KB: /k.md\nSupersedes: {ID}\nConflicts with: {ID}\n" in text
        text, _ = await called(client, "memory-get", {"ids": [ID] * 20, "maxChars": 500})
        assert len(text) < 520 and text.endswith("… [cut]")


async def test_secrets_of_an_imported_line_leave_only_with_the_file(home: Place) -> None:
    data = line("a", title="password=hunter22", text="Bearer hunter22", tags=["API_KEY=hunter22"], kbPath="/k.md")
    where = "/constellations/home/decisions"
    asked = {"workspace": "shop"}
    await home.admin.post(FILES, content=data, params=asked)
    shown = [
        (await home.admin.get(where, params=asked)).text,
        (await home.admin.get(f"{where}/a")).text,
        (await home.admin.patch(f"{where}/a", json={"archived": False, "important": True})).text,
        (await home.admin.post(FILES, content=data, params=asked)).text,
        (await home.admin.get("/constellations/home/events", params={"limit": 50})).text,
    ]
    async with connected(home, MODES[1], "toolset=lodestone&workspace=shop") as client:
        for name, arguments in (("memory-search", {"query": "password bearer"}), ("memory-get", {"ids": ["a"]})):
            shown.append((await called(client, name, arguments))[0])
        shown.append((await called(client, "memory-project-context", {}))[0])
    assert not any("hunter22" in text for text in shown) and "redacted" in shown[0]
    exported = (await home.admin.get(FILES, params=asked)).content
    assert exported.count(b"hunter22") == 3, "the file is the person's own, and comes back as it was"

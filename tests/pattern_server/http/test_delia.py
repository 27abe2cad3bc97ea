"""The toolset of Delia, called by the official client over HTTP. P-numbers are of its analysis."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mcp.client.client import Client

from pattern_server.http.toolsets import OTHERS
from tests.pattern_server.http.test_delta import called, connected
from tests.pattern_server.http.test_mcp import MODES, both
from tests.pattern_server.place import Place

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("playbook", {"action": "add", "task_type": "coding", "content": "Use tests"}, "Error: not accepted: Content too"),
    ("playbook", {"action": "add", "task_type": "coding", "content": "Be careful"}, "Error: not accepted: it is vague"),
    ("playbook", {"action": "add", "task_type": "../x", "content": "Use pathlib.Path now"}, "Error: a type of task"),
    ("playbook", {"action": "delete", "bullet_id": "gd_none"}, "there is no guidance gd_none"),
    ("playbook", {"action": "search", "limit": 51}, "Error: limit is a whole number from 1 to 50, not 51"),
    ("playbook", {"action": "write"}, "Error: invalid arguments"),
    ("memory", {"action": "read", "name": "none"}, "Memory 'none' not found"),
    ("memory", {"action": "delete", "name": "../x"}, "Memory '../x' not found"),
    ("memory", {"action": "write", "name": "../../x", "content": "x"}, "Error: 'memories/../../x.md' is not the path"),
    ("profiles", {"name": "none.md"}, "Profile 'none.md' not found; there are none"),
]
WHERE = "/constellations/home/guidance"
IMPORT = "/constellations/home/programs/delia"


async def answer(client: Client, tool: str, **given: Any) -> dict[str, Any]:
    text, is_error = await called(client, tool, given)
    assert not is_error, text
    found: dict[str, Any] = json.loads(text)
    return found


async def rate_and_learn(home: Place, client: Client, one: str, advice: dict[str, Any]) -> None:
    """P34, P35, and what a client learned."""
    # P34, P35: a task counts once; after a failure only what is named did harm.
    for _ in range(2):
        done = await answer(client, "complete_task", success=True, bullets_applied=f'["{one}"]', task_summary="A")
        assert done["feedback_recorded"] == [{"bullet_id": one, "task_type": "debugging", "marked": "helpful"}]
    other = (await answer(client, "playbook", **{**advice, "content": "Read the grammar first"}))["bullet"]["id"]
    given = {"success": False, "bullets_applied": f"{one}, gd_none", "bullets_harmful": other, "task_summary": "B"}
    done = await answer(client, "complete_task", **given, failure_reason="It was the lexer")
    assert {each["bullet_id"]: each["marked"] for each in done["feedback_recorded"]} == {
        one: "used",
        other: "harmful",
    }
    assert (done["bullets_updated"], done["unknown_bullets"]) == (2, ["gd_none"])
    seen = (await home.admin.get(f"{WHERE}/{one}")).json()
    assert (seen["helpful"], seen["harmful"], seen["used"]) == (1, 0, 1)
    done = await answer(client, "complete_task", success=True, bullets_applied="", new_insight="Be careful")
    assert (done["new_bullet_added"], "vague" in done["rejection_reason"]) == (False, True)
    insight = {"new_insight": "Cover the grammar with one test a rule", "task_summary": "test the parser"}
    done = await answer(client, "complete_task", success=True, bullets_applied="", **insight)
    assert (done["new_bullet_added"], done["similar_bullet_exists"]) == (True, False)
    stats = await answer(client, "playbook", action="stats")
    assert stats == {"total_bullets": 3, "avg_utility": 0.1667, "high_utility": 0, "low_utility": 2}
    found = await answer(client, "playbook", action="search", query="grammar first", limit=1)
    assert (found["results"][0]["id"], found["count"]) == (other, 1)
    assert await answer(client, "playbook", action="prune") == {"to_archive": []}
    assert (await answer(client, "playbook", action="delete", bullet_id=other))["status"] == "deleted"
    assert (await home.admin.get(f"{WHERE}/{other}")).json()["state"] == "archived"


@both
async def test_all_six_are_listed_and_called(home: Place, mode: str, tmp_path: Path) -> None:
    async with connected(home, mode, f"toolset=delia&workspace={tmp_path}") as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        six = {"auto_context", "complete_task", "playbook", "memory", "profiles", "snapshot_context"}
        assert {*listed} == six == {*OTHERS["delia"]}
        for tool in listed.values():
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool.name)
            assert all(one["type"] != "object" for one in tool.input_schema.get("properties", {}).values())
            assert not re.search(r"\b(must|always|critical|important|upset)\b", tool.description or "", re.IGNORECASE)
        found = await answer(client, "auto_context", message="fix the failing test in the parser")
        assert (found["bullets"], found["profiles"]) == ([], [])
        assert found["detected_context"] == {
            "primary_task": "debugging",
            "secondary_tasks": ["testing"],
            "confidence": 0.667,
            "matched_keywords": ["fix", "failing", "test"],
            "detected_language": None,
        }
        advice = {"action": "add", "task_type": "debugging", "content": "Run the parser with --trace before a fix"}
        made = await answer(client, "playbook", **advice)
        assert made["status"] == "added"
        one = made["bullet"]["id"]
        assert await answer(client, "playbook", **advice) == {
            "status": "duplicate_prevented",
            "existing_bullet_id": one,
        }
        assert (await answer(client, "playbook", action="list"))["playbooks"] == {"debugging": 1}
        # A person accepts it; then it is found, and what was found counts as used.
        assert (await answer(client, "auto_context", message="fix it"))["bullets"] == []
        assert (await home.admin.patch(f"{WHERE}/{one}", json={"state": "active"})).status_code == 200
        profile = {"profiles/core.md": "# Core", "profiles/python.md": "# Py", "profiles/rust.md": "# Rs"}
        imported = await home.admin.post(IMPORT, params={"workspace": str(tmp_path)}, json=profile)
        assert imported.status_code == 200
        found = await answer(client, "auto_context", message="fix it", working_files="a/b.py, c.txt")
        assert (found["bullet_ids"], found["detected_context"]["detected_language"]) == ([one], "python")
        assert [each["name"] for each in found["profiles"]] == ["core.md", "python.md"]
        assert found["other_available_profiles"] == ["rust.md"]
        assert 0 < found["bullets"][0]["final_score"] <= 1
        await rate_and_learn(home, client, one, advice)


async def test_memories_profiles_and_snapshots_are_texts_of_the_project(home: Place) -> None:
    async with connected(home, MODES[1], "toolset=delia&workspace=shop") as client:
        assert await answer(client, "memory", action="list") == {"memories": [], "count": 0}
        await answer(client, "memory", action="write", name="plan", content="# Plan\npassword=hunter22\n")
        await answer(client, "memory", action="write", name="plan", content="More.", append=True)
        text = (await answer(client, "memory", action="read", name="plan"))["content"]
        assert text == "# Plan\npassword=[secret left out]\n\nMore."
        hits = (await answer(client, "memory", action="search", query="more PLAN"))["results"]
        assert [hit["name"] for hit in hits] == ["plan"]
        assert (await answer(client, "memory", action="search", query="x y z"))["results"] == []
        await answer(client, "snapshot_context", task_summary="Half done", pending_items="- test", next_steps="- push")
        text = (await answer(client, "memory", action="read", name="task_snapshot"))["content"]
        assert text == "# Task snapshot\nHalf done\n\n## Pending\n- test\n\n## Next steps\n- push\n"
        await answer(client, "memory", action="delete", name="plan")
        assert (await answer(client, "memory", action="list"))["memories"] == ["task_snapshot"]
        assert await answer(client, "profiles") == {"profiles": []}
        imported = await home.admin.post(IMPORT, params={"workspace": "shop"}, json={"profiles/core.md": "# Core\n"})
        assert imported.status_code == 200
        assert await answer(client, "profiles", name="core.md") == {"name": "core.md", "content": "# Core\n"}
    reader = (await home.admin.post("/tokens", json={"scopes": ["read"]})).json()["token"]
    async with connected(home, MODES[1], "toolset=delia&workspace=shop", reader) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"auto_context", "profiles"}
        assert (await answer(client, "auto_context", message="x"))["profiles"][0]["name"] == "core.md"
    async with connected(home, MODES[1], "toolset=delia") as client:
        text, is_error = await called(client, "profiles", {})
        assert is_error and text.startswith("Error: the address names no workspace")


async def test_what_cannot_be_done_is_an_error(home: Place) -> None:
    async with connected(home, MODES[1], "toolset=delia&workspace=shop") as client:
        for name, arguments, begins in REFUSED:
            text, is_error = await called(client, name, arguments)
            assert text.startswith(begins) and is_error, (name, text)

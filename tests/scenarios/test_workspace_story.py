"""One project, two agents in two worktrees of it, an editor and a person: what one of them stores, the prompts of the
agents show and explain, also after `kill -9`, and one switch turns all of it off.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from pattern_core.decision_ranking import SHOWN_MAX
from pattern_core.prompts.activity import GUIDANCE_TOKENS_MAX, MAP_TOKENS_MAX
from tests.pattern_core.test_workspaces import git, repository
from tests.scenarios.server import TOKEN, Server, serving

HOME = "/constellations/home"
KINDS = {"workspace", "decisions", "guidance"}
QUESTION = "Why does the parser of the till fail with a decimal comma? Please debug it."


async def done(http: httpx2.AsyncClient, method: str, path: str, **body: Any) -> Any:
    answer = await http.request(method, HOME + path, json=body or None)
    assert answer.is_success, answer.text
    return answer.json()


async def noted(server: Server, folder: Path, **note: str) -> None:
    """Add a note to the project as an editor does, by the tools of Delta."""
    url = f"{server.url}/mcp/home?toolset=delta&workspace={folder}"
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, verify=False) as http,
        Client(streamable_http_client(url, http_client=http), cache=None) as client,
    ):
        assert not (await client.call_tool("delta_note_create", note)).is_error


async def shown_to(http: httpx2.AsyncClient, agent: str, session: str) -> dict[str, list[dict[str, Any]]]:
    """Ask an agent; the parts of its first prompt about the project, by kind."""
    turn = await done(http, "POST", f"/agents/{agent}/messages", content=QUESTION, session_id=session)
    assert turn["status"] == "completed", turn
    prompt = (await done(http, "GET", f"/turns/{turn['turn_id']}/prompt"))["steps"][0]
    assert all(part["reason"] for part in prompt["parts"])
    return {kind: [part for part in prompt["parts"] if part["kind"] == kind] for kind in KINDS}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
async def test_a_project_with_two_worktrees_two_agents_and_a_person(tmp_path: Path) -> None:
    shop, fix = repository(tmp_path / "shop"), tmp_path / "shop-fix"
    git(shop, "worktree", "add", "-q", "-b", "fix/comma", str(fix))
    (tmp_path / "data").mkdir()
    async with serving(tmp_path / "data") as server:
        async with server.client() as http:
            assert (await http.post("/constellations", json={"name": "home"})).is_success
            sessions = {}
            for agent, folder in (("ada", shop), ("bob", fix / "src")):
                await done(http, "POST", "/agents", name=agent)
                made = await done(http, "POST", f"/agents/{agent}/sessions", workspace=str(folder))
                sessions[agent] = made["id"], made["workspace"]
            assert sessions["ada"][1] == sessions["bob"][1]
            workspace = sessions["ada"][1]
            await done(http, "POST", "/tasks", title="Accept a decimal comma", workspace=str(fix))
            said = {"title": "The parser of the till", "text": "The parser reads a decimal point only: till.py."}
            await done(http, "POST", "/decisions", workspace=str(shop), tags=["parser"], **said)
            advice = "Run the parser with --trace before you change it."
            await done(http, "POST", "/guidance", workspace=str(shop), content=advice, task_type="debugging")
            await noted(server, fix, title="Style", content="Use four spaces.")
            before = await shown_to(http, "ada", sessions["ada"][0])
        server.kill()
        await server.start()
        async with server.client() as http:
            after = await shown_to(http, "bob", sessions["bob"][0])
            for shown in (before, after):
                assert {kind: len(parts) for kind, parts in shown.items()} == dict.fromkeys(KINDS, 1)
                assert sum(part["tokens"] for part in shown["workspace"]) <= MAP_TOKENS_MAX
                assert sum(part["tokens"] for part in shown["guidance"]) <= GUIDANCE_TOKENS_MAX
                assert len(shown["decisions"]) <= SHOWN_MAX
                assert all(word in shown["workspace"][0]["text"] for word in ("Style", "1"))
                assert "decimal point only" in shown["decisions"][0]["text"]
                assert advice in shown["guidance"][0]["text"]
            outside = (await done(http, "POST", "/agents/ada/sessions", title="Private"))["id"]
            assert not any((await shown_to(http, "ada", outside)).values())
            await done(http, "PATCH", f"/workspaces/{workspace}", in_prompts=False)
            assert not any((await shown_to(http, "bob", sessions["bob"][0])).values())

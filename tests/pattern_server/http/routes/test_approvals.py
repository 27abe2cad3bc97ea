"""A call that needs consent, from the client that watches, over the person who agrees, to the end of the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
import trio

from pattern_core.testing.model import ScriptedProvider, calls, says
from pattern_server.cli import approvals
from pattern_server.cli.client import Api, Events, ServerEvent
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import below
from tests.pattern_server.place import Place

HOME = "/constellations/home"
PATIENCE_S = 60.0


@asynccontextmanager
async def api(place: Place) -> AsyncIterator[Api]:
    """The API as the command line speaks to it."""
    headers = {"Authorization": f"Bearer {place.parts.local_token}"}
    async with httpx2.AsyncClient(base_url=place.url, headers=headers, trust_env=False, timeout=60) as http:
        yield Api(http, streams=True)


async def approve(place: Place, question: str) -> None:
    """`pattern approvals approve …`, as a person runs it beside the client."""
    given = {"same": False, "always": False, "seconds": None, "arguments": None}
    async with api(place) as mine:
        await below(approvals.approve, "home")(Home(mine, "home"), Output(is_json=False), question, **given)


async def until(events: Events, name: str) -> list[ServerEvent]:
    """The events up to the next one of this name."""
    seen: list[ServerEvent] = []
    async for event in events:
        seen.append(event)
        if event.name == name:
            return seen
    raise AssertionError(f"the stream ended without {name}: {[event.name for event in seen]}")


async def test_a_client_streams_while_a_person_agrees(
    place: Place, scripted: ScriptedProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted._script = iter([calls("calculator", {"expression": "6 * 7"}), says("It is 42.")])
    await place.constellation(tool_rules=[{"tool": "calculator", "type": "requires_consent"}])
    seen: list[ServerEvent] = []

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        """Stream the turn from its message to its end; leave once in between, as a phone does."""
        async with api(place) as mine:
            body = {"content": "What is six times seven?"}
            async with mine.events("constellations", "home", "agents", "ada", "messages", body=body) as events:
                seen.extend(await until(events, "approval.requested"))
            where = ("constellations", "home", "turns", str(seen[0].data["turn_id"]), "events")
            async with mine.events(*where, after=seen[-1].seq) as events:
                task_status.started()
                seen.extend(await until(events, "turn.completed"))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(watch)
            asked = next(event for event in seen if event.name == "approval.requested").data
            assert (asked["request"]["tool"], asked["request"]["arguments"]) == ("calculator", {"expression": "6 * 7"})
            await approve(place, asked["approval_id"])
    moments = ("approval.requested", "turn.waiting", "turn.resumed", "tool.result", "turn.completed")
    assert [event.name for event in seen if event.name in moments] == list(moments)
    assert [event.seq for event in seen] == sorted({event.seq for event in seen}), "each once, in order"
    waiting = next(event for event in seen if event.name == "turn.waiting")
    assert waiting.data["approvals"] == [asked["approval_id"]]
    assert capsys.readouterr().out == "Approved: The call of calculator runs now\n"
    turn_id = seen[0].data["turn_id"]
    # What a client sees that asks for everything later is the same.
    whole = await place.events(f"{HOME}/turns/{turn_id}/events")
    told = [event for event in seen if not event.name.endswith(".delta")]  # pieces are not kept beyond the end
    assert [event["id"] for event in whole] == [event.seq for event in told]
    view = (await place.admin.get(f"{HOME}/turns/{turn_id}")).json()
    assert (view["status"], view["messages"][-1]["content"]) == ("completed", "It is 42.")

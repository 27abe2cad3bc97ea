"""A call that needs consent, from the client that watches, over the person who agrees, to the end of the turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from pattern_core.messages import ToolResult
from pattern_core.testing.model import ScriptedProvider, calls, says
from pattern_server.cli import approvals
from pattern_server.cli.client import Api, Events, ServerEvent
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import below
from tests.pattern_server.place import API, Place

HOME = "/constellations/home"
RULE = {"tool": "calculator", "type": "requires_consent"}
PATIENCE_S = 60.0


async def opened(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("calculator", {"expression": "6 * 7"}), says("It is 42."), says("And again.")])
    await place.constellation(tool_rules=[RULE])


@asynccontextmanager
async def api(place: Place) -> AsyncIterator[Api]:
    """The API as the command line speaks to it."""
    headers = {"Authorization": f"Bearer {place.parts.local_token}"}
    async with httpx2.AsyncClient(base_url=place.url, headers=headers, trust_env=False, timeout=60) as http:
        yield Api(http, streams=True)


async def approve(place: Place, question: str, **options: Any) -> None:
    """`pattern approvals approve …`, as a person runs it beside the client."""
    given = {"same": False, "always": False, "seconds": None, "arguments": None, **options}
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
    await opened(place, scripted)
    seen: list[ServerEvent] = []

    async def watch(task_status: trio.TaskStatus[None]) -> None:
        """Stream the turn from its message to its end; leave once in between, as a phone does."""
        async with api(place) as mine:
            body = {"content": "What is six times seven?"}
            async with mine.events(f"{API}{HOME}/agents/ada/messages", body=body) as events:
                seen.extend(await until(events, "approval.requested"))
            where = f"{API}{HOME}/turns/{seen[0].data['turn_id']}/events"
            async with mine.events(where, after=seen[-1].seq) as events:
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


async def test_any_place_can_be_resumed_from(place: Place, scripted: ScriptedProvider) -> None:
    await opened(place, scripted)
    turn = (await place.say("What is six times seven?")).json()
    await approve(place, turn["approvals"][0])
    where = f"{HOME}/turns/{turn['turn_id']}/events"
    await place.events(where)
    whole = await place.events(where)  # after the end, so without the pieces of the answer
    for place_in_line, event in enumerate(whole[:-1]):
        assert await place.events(where, after=event["id"]) == whole[place_in_line + 1 :]


async def test_who_waits_for_the_turn_is_told_that_it_waits(place: Place, scripted: ScriptedProvider) -> None:
    await opened(place, scripted)
    for headers in ({}, {"Prefer": "wait=10", "Idempotency-Key": "k"}, {"Prefer": "wait=10", "Idempotency-Key": "k"}):
        scripted._script = iter([calls("calculator", {"expression": "6 * 7"}), says("It is 42.")])
        with trio.fail_after(PATIENCE_S):
            answer = await place.say("What is six times seven?", **headers)
        turn = answer.json()
        assert (answer.status_code, turn["status"], turn["ended_at"]) == (200, "waiting", None)
        [question] = turn["approvals"]
        shown = (await place.admin.get(f"{HOME}/approvals/{question}")).json()
        assert (shown["status"], shown["request"]["turn_id"]) == ("pending", turn["turn_id"])
    # The same message sent again is the same turn, and asks nothing new.
    pending = (await place.admin.get(f"{HOME}/approvals")).json()["items"]
    assert len(pending) == 2


async def test_the_agent_answers_others_while_a_turn_waits(place: Place, scripted: ScriptedProvider) -> None:
    await opened(place, scripted)
    first = (await place.say("What is six times seven?")).json()
    scripted._script = iter([says("Hello."), says("It is 42.")])
    assert (await place.say("Hi!")).json()["status"] == "completed"
    await approve(place, first["approvals"][0])
    events = await place.events(f"{HOME}/turns/{first['turn_id']}/events")
    assert events[-1]["event"] == "turn.completed"


async def test_the_whole_stream_tells_who_decided(place: Place, scripted: ScriptedProvider) -> None:
    await opened(place, scripted)
    turn = (await place.say("What is six times seven?")).json()
    await approve(place, turn["approvals"][0], same=True)
    await place.events(f"{HOME}/turns/{turn['turn_id']}/events")
    with trio.fail_after(PATIENCE_S):
        async with api(place) as mine, mine.events(f"{API}{HOME}/events", after=0) as stream:
            events = await until(stream, "turn.completed")
    story = ("approval.requested", "turn.waiting", "consent.granted", "approval.decided", "turn.resumed")
    assert [event.name for event in events if event.name in story] == list(story)
    decided = next(event.data for event in events if event.name == "approval.decided")
    assert (decided["status"], decided["by"].startswith("user:")) == ("approved", True)


HERE = "/constellations/home/approvals"


async def waiting(place: Place, scripted: ScriptedProvider) -> tuple[str, str]:
    """A turn that waits for consent to add 1 and 1; its id and the question's."""
    scripted._script = iter([calls("calculator", {"expression": "1 + 1"}), says("Done.")])
    await place.constellation(tool_rules=[{"tool": "calculator", "type": "requires_consent"}])
    answer = await place.say("Add it up.")
    assert answer.status_code == 200
    turn = answer.json()
    assert turn["status"] == "waiting"
    [question] = turn["approvals"]
    return turn["turn_id"], question


async def result(place: Place, scripted: ScriptedProvider, turn_id: str) -> str:
    """What the model was told at last of the call, after the turn completed."""
    events = await place.events(f"/constellations/home/turns/{turn_id}/events")
    assert events[-1]["event"] == "turn.completed"
    parts = [part for message in scripted.requests[-1].messages for part in message.parts]
    return next(part.content for part in parts if isinstance(part, ToolResult))


async def test_changed_arguments_are_checked_and_told(place: Place, scripted: ScriptedProvider) -> None:
    turn_id, question = await waiting(place, scripted)
    refused = await place.admin.post(f"{HERE}/{question}", json={"decision": "approve", "arguments": {"sum": 3}})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert "expression" in refused.json()["detail"]
    body = {"decision": "approve", "arguments": {"expression": "20 + 22"}}
    assert (await place.admin.post(f"{HERE}/{question}", json=body)).json()["status"] == "edited"
    told = await result(place, scripted, turn_id)
    assert "42" in told
    assert "changed arguments" in told


async def test_a_no_is_told_with_its_reason(place: Place, scripted: ScriptedProvider) -> None:
    turn_id, question = await waiting(place, scripted)
    body = {"decision": "deny", "reason": "not on a Sunday"}
    answer = (await place.admin.post(f"{HERE}/{question}", json=body)).json()
    assert (answer["status"], answer["decision"]["reason"]) == ("denied", "not on a Sunday")
    assert "not on a Sunday" in await result(place, scripted, turn_id)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"decision": "approve", "scope": "time"}, "needs `seconds`"),
        ({"decision": "approve", "seconds": 60}, "has no `seconds`"),
        ({"decision": "approve", "scope": "always", "seconds": 0}, "more than 0"),
        ({"decision": "deny", "reason": "x" * 2_001}, "reason"),
        ({"decision": "approve", "arguments": [1]}, "arguments"),
    ],
)
async def test_a_misfit_leaves_the_question_open(
    place: Place, scripted: ScriptedProvider, body: dict[str, Any], words: str
) -> None:
    _turn, question = await waiting(place, scripted)
    answer = await place.admin.post(f"{HERE}/{question}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert words in answer.json()["detail"]
    assert (await place.admin.get(f"{HERE}/{question}")).json()["status"] == "pending"


async def test_pages_of_consents(place: Place, scripted: ScriptedProvider) -> None:
    await place.constellation(tool_rules=[{"tool": "calculator", "type": "requires_consent"}])
    for number in range(2):
        scripted._script = iter([calls("calculator", {"expression": f"1 + {number}"}), says("Done.")])
        turn = (await place.say("Add it up.")).json()
        await place.admin.post(f"{HERE}/{turn['approvals'][0]}", json={"decision": "approve", "scope": "same"})
        await place.events(f"/constellations/home/turns/{turn['turn_id']}/events")
    grants = "/constellations/home/grants"
    newest, oldest = (await place.admin.get(grants)).json()["items"]
    page = (await place.admin.get(grants, params={"limit": 1})).json()
    assert page["items"] == [newest]
    rest = (await place.admin.get(grants, params={"limit": 1, "cursor": page["next_cursor"]})).json()
    assert (rest["items"], rest["next_cursor"]) == ([oldest], None)

"""What people who may only chat can lead to: turns of other agents, of groups and at later times see their chat alone.

Each of these attacks ends with a word that the owner said elsewhere, which must be in no prompt and in no result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pattern_core.groups.group import MemberSpec
from pattern_core.models.errors import ModelRejected
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing.channels import TelegramServer
from pattern_core.testing.model import Paced, calls, says, together
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.tool import ToolContext, tool
from pattern_core.turns.admission import IncomingMessage
from pattern_db.enums import NotableKind, PersonStatus, Priority, TrustLevel
from tests.pattern_core.sources.rig import Talking, talking
from tests.support import USER, in_memory, last_words, rows, until

SECRET = "rosebud"
LOOKS: dict[str, dict[str, Any]] = {
    "search": {"query": f"garden gate {SECRET[:4]}"},
    "recall": {"op": "search", "query": "garden gate"},
    "task_list": {},
    "state_get": {"key": "gate"},
    "event_list": {},
    "claim": {},
    "calculator": {"expression": "gate_code + 1"},
    "file": {"op": "list"},
}


class Minds:
    """Agents that look everywhere when they are asked, then send what they found to whom `path` says."""

    def __init__(self, path: dict[str, str]) -> None:
        self._path = path
        self.asked: list[ModelRequest] = []  # since the stranger wrote
        self.is_attack = False
        self.stops: dict[str, Paced | Exception] = {}  # by agent: what it does instead

    def __call__(self, request: ModelRequest) -> ModelReply | Paced | Exception:
        if not self.is_attack:
            return says("Noted.")
        self.asked.append(request)
        if request.system[0] in self.stops:
            return self.stops[request.system[0]]
        name, newest = request.system[0], request.messages[-1]
        if newest.role == "user":
            return together(*(calls(one, given, call_id=f"c{at}") for at, (one, given) in enumerate(LOOKS.items())))
        words, target = str(request.messages[-len(LOOKS) :])[-8_000:], self._path.get(name)
        if "Sent to the agent" in last_words(request) or not target:
            return says(words)
        return calls("send_message", {"to": target, "content": words})


async def _tell_secrets(one: Talking) -> None:
    """Have the owner say and note the secret wherever an agent could find it."""
    core, words = one.world.constellation, f"The garden gate opens with {SECRET}."
    for name in ("ada", "bob"):
        await one.world.say(words, name)
    await core.tasks.create([words], {"priority": Priority.URGENT}, author=USER)
    await core.tasks.create([words], {"agent_id": (await core.roster.get("bob")).id}, author=USER)
    await core.state.set("gate", SECRET, expected=0, author=USER)
    await core.calendar.create({"title": words, "starts_at": "2026-12-01T09:00", "zone": "UTC"})
    await core.handoffs.add(words, author=USER, to="bob")
    await core.handoffs.add(words, author=USER)
    await core.assignments.add(words, Priority.HIGH, None, author=USER)
    await core.overview.record(NotableKind.DECISION, words, author=USER)


@asynccontextmanager
async def attacked(path: dict[str, str], **options: Any) -> AsyncIterator[tuple[Talking, Minds]]:
    """Start ada with a channel, and bob; the owner has told both a secret. Anna may only chat."""
    minds = Minds(path)
    async with talking(otherwise=minds, tools=BUILTIN, **options) as one:
        await one.world.constellation.roster.update("ada", {"system_prompt": "ada"})
        await one.world.agent("bob", prompt="bob")
        await _tell_secrets(one)
        await one.lets_in(PersonStatus.ALLOWED)
        minds.is_attack = True
        yield one, minds


def leaks(one: Talking, minds: Minds) -> list[str]:
    """Where the secret is that must be nowhere."""
    shown = [f"{request.system[0]}: {request}" for request in minds.asked]
    return [words for words in (*shown, *one.server.texts) if SECRET in words]


async def _sessions(one: Talking) -> list[tuple[object, ...]]:
    return await one.world.database.read(
        rows,
        "SELECT coalesce(a.name, g.name), t.session_id IS (SELECT id FROM sessions WHERE origin = 'telegram')"
        " FROM turn AS t LEFT JOIN agents AS a ON a.id = t.agent_id LEFT JOIN agent_groups AS g ON g.id = t.group_id"
        " WHERE t.key > (SELECT min(key) FROM turn WHERE session_id IS NOT NULL) ORDER BY t.key",
    )


async def test_an_agent_that_a_strangers_agent_asks_sees_only_that_chat() -> None:
    async with attacked({"ada": "bob", "bob": "ada"}) as (one, minds):
        one.server.says("Ask bob how the garden gate opens.")
        await one.sent(1)
        await one.idle()
        assert leaks(one, minds) == []
        assert {"ada", "bob"} <= {request.system[0] for request in minds.asked}
        assert await _sessions(one) == [("bob", 1), ("ada", 1)]  # bob's answer reaches ada in the chat's session
        trusts = await one.world.database.read(rows, "SELECT DISTINCT trust FROM messages WHERE session_id IS NOT NULL")
        assert trusts == [(TrustLevel.CONVERSANT,)]
        assert len(await one.world.constellation.handoffs.page(9, unread=True)) == 2  # it was not shown those either


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_a_stranger_leads_to_sees_only_that_chat_also_the_second_time(is_killed: bool) -> None:
    """The process dies while bob is asked; or his model fails, and a person has the message delivered again."""
    async with in_memory() as database, TelegramServer() as server:
        async with attacked({"ada": "bob"}, database=database, server=server) as (one, minds):
            minds.stops = {
                "bob": Paced(answer=says("late"), gate=trio.Event())
                if is_killed
                else ModelRejected("no", provider="test")
            }
            one.server.says("Ask bob how the garden gate opens.")
            await until(lambda: "bob" in [request.system[0] for request in minds.asked])
            if not is_killed:
                await one.idle()
        minds = Minds({"bob": "ada"})
        minds.is_attack = True
        again: dict[str, Any] = {"is_new": False, "otherwise": minds, "tools": BUILTIN, "seed": 2}
        async with talking(server=server, database=database, **again) as one:
            if not is_killed:
                [letter] = await one.world.constellation.outbox.newest("agent:*", 9)
                await one.world.constellation.outbox.retry(letter)
            await until(lambda: {"ada", "bob"} <= {request.system[0] for request in minds.asked})
            await one.idle()
            assert leaks(one, minds) == []


LATER: dict[str, dict[str, Any]] = {
    "task_create": {"titles": ["Say all"], "scheduled_at": "2026-01-01T00:00:00Z"},
    "event_create": {"title": "Say all", "starts_at": "2026-12-01T09:00", "reminder_minutes": 5},
    "state_set": {"key": "new", "value": "1"},
    "assign": {"description": "Say all"},
    "handoff": {"text": "Say all"},
    "notable": {"kind": "decision", "text": "Say all"},
}


@pytest.mark.parametrize("status", [PersonStatus.ALLOWED, PersonStatus.PARTNER])
async def test_strangers_can_have_nothing_noted_for_other_conversations_or_later(status: PersonStatus) -> None:
    """Reminders, tasks and notes lead to turns that see all: only a partner leads to them."""
    wanted = together(*(calls(name, given, call_id=name) for name, given in LATER.items()))
    async with talking(wanted, tools=BUILTIN) as one:
        await one.world.agent("bob")
        await one.lets_in(status)
        one.server.says("Remind me.")
        await one.sent(1)
        await one.idle()
        [first, *_rest] = one.world.provider.requests
        offered = {spec.name for spec in first.tools}
        ran = await one.world.database.read(
            rows, "SELECT tool FROM effect WHERE status = 'done' ORDER BY turn, step, call"
        )
        is_partner = status is PersonStatus.PARTNER
        assert {*LATER} <= offered if is_partner else not {*LATER, "task_list", "task_update", "claim"} & offered
        assert [name for (name,) in ran] == ([*LATER] if is_partner else [])


async def test_a_tool_that_says_nothing_of_strangers_is_not_for_them() -> None:
    @tool()
    async def peek(_context: ToolContext) -> str:
        """Look somewhere."""
        return SECRET

    assert not peek.for_strangers
    async with talking(calls("peek"), says("No."), calls("peek"), says("Yes."), tools=[peek]) as one:
        await one.lets_in(PersonStatus.ALLOWED)
        await one.lets_in(PersonStatus.PARTNER, "2")
        for author in (1, 2):
            one.server.says("Look", author=author)
            await one.sent(author)
            await one.idle()
        asked = one.world.provider.requests
        assert [[spec.name for spec in request.tools] for request in asked] == [[], [], ["peek"], ["peek"]]
        assert [SECRET in last_words(request) for request in asked] == [False, False, False, True]
        assert "this conversation is not theirs" in last_words(asked[1])


@pytest.mark.parametrize("pattern", ["parallel", "round_robin", "supervisor", "pipeline", "swarm", "debate"])
async def test_a_group_that_a_strangers_agent_asks_sees_only_that_chat(pattern: str) -> None:
    async with attacked({"ada": "desk"}) as (one, minds):
        await one.world.agent("cleo", prompt="cleo")
        minds.is_attack = False
        roles = ["supervisor", "regular"] if pattern == "supervisor" else ["regular", "regular"]
        members = [MemberSpec(name, role=role) for name, role in zip(("bob", "cleo"), roles, strict=True)]
        await one.world.constellation.groups.create(name="desk", pattern_type=pattern, members=members)
        about = IncomingMessage(agent_id="", content=f"The cellar opens with {SECRET}, too.", sender=USER)
        await one.world.wait((await one.world.constellation.submit_to_group("desk", about)).turn_id)
        minds.is_attack = True
        one.server.says("Ask the desk how the garden gate opens.")
        await one.sent(1)
        await one.idle()
        assert leaks(one, minds) == []
        assert {"bob", "cleo"} & {request.system[0] for request in minds.asked}
        assert all(is_there for _name, is_there in await _sessions(one))

"""The toolset for agents and groups: who there is, messages to them and their answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

import trio

from pattern_core.errors import Unavailable
from pattern_core.events import RESTING, Event, Subscription
from pattern_core.tools.tool import tool
from pattern_core.turns.admission import IncomingMessage, Ticket
from pattern_core.views import TurnView
from pattern_server.http.toolsets.toolset import AgentName, ServedCall, Toolset

ACCEPT_TIMEOUT_S = 10.0  # for a commit
QUIET_S = 10.0  # between two reports, since clients give up on silence

_WAITS = "a person must approve what the agent wants to do: `pattern approvals`; then call turn_wait"


@tool()
async def agents_list(call: ServedCall) -> object:
    """List the agents and groups that get messages."""
    agents, groups = await call.constellation.roster.all(), await call.constellation.groups.all()
    return {
        "agents": [{"name": one.name, "description": one.description} for one in agents],
        "groups": [
            {"name": one.name, "description": one.description, "members": [member.name for member in one.members]}
            for one in groups
        ],
    }


@tool()
async def agent_message(call: ServedCall, content: str, agent: AgentName = None) -> object:
    """Send a message to an agent and wait for its answer. It remembers what was said before."""
    incoming = _incoming(call, await call.owner(agent), content)
    return await _answered(call, call.constellation.submit(incoming))


@tool()
async def group_message(call: ServedCall, group: Annotated[str, "Its name."], content: str) -> object:
    """Send a message to a group of agents and wait for its answer."""
    incoming = _incoming(call, "", content)
    return await _answered(call, call.constellation.submit_to_group(group, incoming))


@tool()
async def turn_wait(call: ServedCall, turn_id: str) -> object:
    """Wait for the answer in a turn that had to wait for a person, or was left alone."""
    seen = call.constellation.events.latest
    view = await call.constellation.turn(turn_id)
    if view.rests:
        return _answer(view)
    return await _rested(call, turn_id, call.constellation.events.subscribe(after=seen, turn_id=turn_id))


def _incoming(call: ServedCall, agent: str, content: str) -> IncomingMessage:
    return IncomingMessage(agent_id=agent, content=content, sender=call.caller.author, source="mcp")


async def _answered(call: ServedCall, submitted: Awaitable[Ticket]) -> object:
    seen = call.constellation.events.latest
    # Shielded: a cancelled call would otherwise leave a turn without its id.
    with trio.move_on_after(ACCEPT_TIMEOUT_S, shield=True):
        call.turns.append((await submitted).turn_id)
    if not call.turns:
        raise Unavailable("the message was not stored in time, or it was and its turn runs; search for it first")
    (turn_id,) = call.turns
    events = call.constellation.events.subscribe(after=seen, turn_id=turn_id, is_new=True)
    return await _rested(call, turn_id, events)


async def _rested(call: ServedCall, turn_id: str, events: Subscription) -> object:
    """Report what happens in a turn, until it has ended or waits for a person; return its answer."""
    is_resting = False
    while not is_resting:
        event: Event | None = None
        with trio.move_on_after(QUIET_S):
            event = await anext(events)
        await call.report("still working" if event is None else _line(event))
        is_resting = event is not None and event.name in RESTING
    return _answer(await call.constellation.turn(turn_id))


def _line(event: Event) -> str:
    about = next((event.data[name] for name in ("tool", "agent", "text", "step") if event.data.get(name)), "")
    return f"{event.name} {about}".strip()


def _answer(view: TurnView) -> dict[str, object]:
    """Return a turn as an answer. One that ended otherwise than it should has an error."""
    waits = {"approvals": view.approvals, "message": _WAITS} if view.approvals else {}
    failed = {"error": view.error} if view.error else {}
    return {"turn_id": view.id, "status": view.status, "text": view.text, **waits, **failed}


TOOLS: Toolset = {"read": (agents_list, turn_wait), "chat": (agent_message, group_message)}

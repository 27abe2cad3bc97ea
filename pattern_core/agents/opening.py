"""Turns as an agent takes them up: a new one from what was accepted, or one as its rows tell it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from pattern_core.agents import restored
from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.history import History
from pattern_core.agents.recovery import Found
from pattern_core.agents.roster import Agent
from pattern_core.agents.services import TurnServices
from pattern_core.agents.settings import settings_of
from pattern_core.budgets.turn_budget import TurnBudget
from pattern_core.errors import InvalidInput
from pattern_core.messages import Message
from pattern_core.prompts.sampling import Sampling
from pattern_core.rules import facts
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.state import Call
from pattern_db.journal import budgets
from pattern_db.journal.turns import TurnRow
from pattern_db.timestamps import iso, unix_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """A queued turn that an agent may start, as it was accepted."""

    key: int
    id: str
    seed: int
    sender: str
    depth: int
    payload: Mapping[str, object]


def new_turn(
    services: TurnServices, agent: Agent, following: NextTurn, incoming: Message, history: History
) -> ActiveTurn:
    """A turn that is about to start with the message `incoming`."""
    now_ms = services.clock.now_ms()
    timeout_s = _wall_s(services, agent)
    return ActiveTurn(
        key=following.key,
        id=following.id,
        agent=agent,
        seed=following.seed,
        sender=following.sender,
        depth=following.depth,
        batch_id=incoming.position,
        deadline=trio.current_time() + timeout_s,
        deadline_at=iso(now_ms + int(timeout_s * 1000)),
        history=history,
        began_ms=now_ms,
        may_hold=False,
        source=source_of(following.sender, following.payload),
    )


async def found_turn(services: TurnServices, row: TurnRow, found: Found, agent: Agent, history: History) -> ActiveTurn:
    """A turn as its rows tell it; its time goes on from now."""
    now_ms, step = services.clock.now_ms(), found.step
    left_s = min(_left_s(row, now_ms), _wall_s(services, agent))  # more only if the clock was set back
    is_open = step is not None and step.status == "open"
    known = await services.database.read(restored.read, row, is_open=is_open)
    return ActiveTurn(
        key=row.key,
        id=row.id,
        agent=agent,
        seed=row.seed,
        sender=row.sender,
        depth=row.depth,
        batch_id=row.batch_id or "",
        deadline=trio.current_time() + left_s,
        deadline_at=row.deadline_at or iso(now_ms + max(0, round(left_s * 1000))),
        history=history,
        step=1 if step is None else step.no,
        attempt=1 if step is None else step.attempt,
        sequence=known.messages,
        is_streamed=True,  # it may have stored pieces
        has_waited=any(one.call is not None for one in found.approvals),
        in_doubt={call.args_hash for call in found.calls if call.status == "in_doubt"},
        children=await services.database.read(budgets.children, row.key),
        is_addressed=known.is_addressed,
        said=set(known.said),
        compactions=list(known.compactions),
        output_chars=known.output_chars,
        began_ms=now_ms if row.started_at is None else unix_ms(row.started_at),
        source=source_of(row.sender, {"source": known.source}),
    )


async def equip(services: TurnServices, turn: ActiveTurn, calls: Sequence[Call] = ()) -> InvalidInput | None:
    """Give the turn its agent's settings and rules, and the calls that it made; returns what is wrong with them, for
    the turn to end with.
    """
    turn.log = list(calls)
    try:
        turn.settings = settings_of(turn.agent.config)
        turn.rules = RuleSet.of(turn.agent.tool_rules)
        Sampling.of(turn.agent.config, output_tokens_max=1)
    except InvalidInput as error:
        return error
    # Tools of other servers may still be on their way; what does not come in time is said to be absent.
    await services.mcp.ready(turn.agent.enabled_tools)
    turn.tools = tuple(spec.name for spec in services.tools.specs(turn.agent.enabled_tools))
    timed = turn.rules.timed(turn.tools)
    if timed:
        turn.last_ms = await services.database.read(facts.read, turn.agent.id, timed)
    return None


def source_of(sender: str, payload: Mapping[str, object]) -> str:
    """Where a turn comes from, for routing: what its sender named, else who sent it, such as `user` or `agent`."""
    named = payload.get("source")
    return named if isinstance(named, str) and named else sender.partition(":")[0]


def _wall_s(services: TurnServices, agent: Agent) -> float:
    """How long a turn of the agent may take, in seconds; what is wrong with its config is told later."""
    try:
        own = TurnBudget.of(agent.config.get("limits"))
    except InvalidInput:
        own = TurnBudget()
    return own.over(services.limits.turn).wall_s or math.inf


def _left_s(row: TurnRow, now_ms: int) -> float:
    """What a turn has left of its time, in seconds."""
    if row.time_left_ms is not None:
        return row.time_left_ms / 1000
    return 0.0 if row.deadline_at is None else (unix_ms(row.deadline_at) - now_ms) / 1000

"""`supervisor`: a leader answers, or hands out tasks and answers with what comes back.

The leader delegates with lines of its answer: `@name: the task`, or `@any: the task` where the strategy chooses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from pattern_core.groups.coordination import CommonConfig, Coordination, Member, NoMember, Question, Room, check_names
from pattern_core.groups.coordinations.dynamic import SelectorConfig, by_capability
from pattern_core.groups.coordinations.parallel import together

ANY = "any"
_TASK = re.compile(r"^[ \t]*(?:[-*][ \t]+)?@([\w-]+)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRules:
    """How many tasks a member may have in a turn and all may have at once, and how `any` is assigned."""

    max_delegations_per_agent: Annotated[int, Field(ge=1, le=100)] = 3
    max_parallel: Annotated[int, Field(ge=1, le=100)] = 10
    delegation_strategy: Literal["least_busy", "round_robin", "capability", "random"] = "least_busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderConfig(CommonConfig):
    """`leader` (also `leader_id`) leads: by default the member with the role supervisor, else the first. It may hand
    out tasks `max_rounds` times.
    """

    leader: str | None = None
    leader_id: str | None = None
    delegation_rules: DelegationRules = field(default_factory=DelegationRules)
    max_rounds: Annotated[int, Field(ge=1, le=20)] = 3


def leader_of(config: LeaderConfig, members: Sequence[Member]) -> Member:
    """Return the leader.

    Raises:
        NoMember: it is not a member, or not active.
    """
    name = config.leader or config.leader_id
    if name is None:
        found = [one for one in members if one.role == "supervisor"] or list(members)
    else:
        found = [one for one in members if name in (one.id, one.name)]
    if not found or not found[0].is_active:
        raise NoMember("the leader is not an active member of the group; activate it, or name another leader")
    return found[0]


def tasks_of(answer: str, team: Sequence[Member]) -> list[tuple[str, str]]:
    """Return the tasks in a leader's answer: the member's name, or `any`, and the task."""
    names = {one.name.casefold(): one.name for one in team} | {ANY: ANY}
    return [(names[name.casefold()], task) for name, task in _TASK.findall(answer) if name.casefold() in names]


def assigned(
    tasks: Sequence[tuple[str, str]], team: Sequence[Member], rules: DelegationRules, room: Room, done: Counter[str]
) -> list[tuple[Member, str]]:
    """Return who does what; tasks beyond a member's limit go to others, and those beyond the limits of all are
    left to the leader.
    """
    by_name = {one.name: one for one in team}
    given: list[tuple[Member, str]] = []
    for name, task in tasks[: rules.max_parallel]:
        free = [one for one in team if done[one.id] < rules.max_delegations_per_agent]
        if not free:
            break
        member = by_name.get(name)
        if member is None or member not in free:
            member = _chosen(free, task, rules, room, done)
        done[member.id] += 1
        given.append((member, task))
    return given


def _chosen(free: Sequence[Member], task: str, rules: DelegationRules, room: Room, done: Counter[str]) -> Member:
    if rules.delegation_strategy == "random":
        return room.random.choice(list(free))
    if rules.delegation_strategy == "capability":
        return (by_capability(task, free, SelectorConfig()) or list(free))[0]
    return min(free, key=lambda member: done[member.id])


async def run(room: Room, config: LeaderConfig) -> str:
    """Ask the leader; as long as it hands out tasks, have them done and ask it again."""
    leader, rules = leader_of(config, room.members), config.delegation_rules
    team = [one for one in room.available() if one != leader]
    how = ""
    if team:
        how = (
            "\n\nAnswer yourself, or give tasks to members with lines such as\n@"
            f"{team[0].name}: what to do\nYou get their results and answer then."
        )
    answer = await room.ask(leader, room.message + how, why="leads")
    done: Counter[str] = Counter()
    for number in range(1, config.max_rounds + 1):
        tasks = tasks_of(answer.text, team)
        given = assigned(tasks, team, rules, room, done)
        if not given:
            return answer.text
        room.tell("group.round", {"round": number, "tasks": [f"{one.name}: {task}" for one, task in given]})
        results = together(await room.ask_each([Question(one, task, "a task") for one, task in given]))
        left = [task for _name, task in tasks[len(given) :]]
        if left:
            results += "\n\nNo member was free for these, do them yourself:\n" + "\n".join(f"- {task}" for task in left)
        last = number == config.max_rounds
        more = "Answer the message now." if last else "Answer the message now, or give more tasks."
        text = f"Results:\n\n{results or '(none)'}\n\n{more}\nThe message was: {room.message}"
        answer = await room.ask(leader, text, why="has results")
    return answer.text


def trouble(config: LeaderConfig, members: Sequence[Member]) -> list[str]:
    """Return what keeps it from running."""
    name = config.leader or config.leader_id
    return check_names([name] if name else [], members, "leader")


COORDINATION = Coordination(LeaderConfig, run, trouble)

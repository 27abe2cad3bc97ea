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

from pattern_core.groups.coordination import (
    Coordination,
    Member,
    MemberName,
    NoMember,
    Question,
    Room,
    also_spelled,
    together,
)
from pattern_core.groups.coordinations.dynamic import SelectorConfig, by_capability
from pattern_core.ids import Randomness

ANY = "any"
_TASK = re.compile(r"^[ \t]*(?:[-*][ \t]+)?@([\w-]+)[ \t]*:[ \t]*(\S.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRules:
    """How many tasks a member may have in a turn and all may have at once, and how `any` is assigned."""

    max_delegations_per_agent: Annotated[int, Field(ge=1, le=100)] = 3
    max_parallel: Annotated[int, Field(ge=1, le=100)] = 10
    delegation_strategy: Literal["least_busy", "round_robin", "capability", "random"] = "least_busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation(Coordination):
    """`leader` leads: by default the member with the role supervisor, else the first. It may hand out tasks
    `max_rounds` times.
    """

    leader: Annotated[MemberName | None, also_spelled("leader", "leader_id")] = None
    delegation_rules: DelegationRules = field(default_factory=DelegationRules)
    max_rounds: Annotated[int, Field(ge=1, le=20)] = 3

    async def run(self, room: Room) -> str:
        """Ask the leader; as long as it hands out tasks, have them done and ask it again."""
        leader = self._leader(room.members)
        team = [one for one in room.available() if one != leader]
        how = ""
        if team:
            how = (
                "\n\nAnswer yourself, or give tasks to members with lines such as\n@"
                f"{team[0].name}: what to do\nYou get their results and answer then."
            )
        answer = await room.ask(leader, room.message + how, why="leads")
        done: Counter[str] = Counter()
        for number in range(1, self.max_rounds + 1):
            tasks = tasks_of(answer.text, team)
            given = assigned(tasks, team, self.delegation_rules, room.random, done)
            if not given:
                return answer.text
            room.tell("group.round", {"round": number, "tasks": [f"{one.name}: {task}" for one, task in given]})
            results = together(await room.ask_each([Question(one, task, "a task") for one, task in given]))
            left = "".join(f"\n- {task}" for _name, task in tasks[len(given) :])
            if left:
                results += f"\n\nNo member was free for these, do them yourself:{left}"
            more = "." if number == self.max_rounds else ", or give more tasks."
            text = f"Results:\n\n{results or '(none)'}\n\nAnswer the message now{more}\nThe message was: {room.message}"
            answer = await room.ask(leader, text, why="has results")
        return answer.text

    def _leader(self, members: Sequence[Member]) -> Member:
        if self.leader:
            found = [one for one in members if self.leader in (one.id, one.name)]
        else:
            found = [one for one in members if one.role == "supervisor"] or list(members)
        if not found or not found[0].is_active:
            raise NoMember("the leader is not an active member of the group; activate it, or name another leader")
        return found[0]


def tasks_of(answer: str, team: Sequence[Member]) -> list[tuple[str, str]]:
    """Return the tasks in a leader's answer: the member's name, or `any`, and the task."""
    names = {one.name.casefold(): one.name for one in team} | {ANY: ANY}
    return [(names[name.casefold()], task) for name, task in _TASK.findall(answer) if name.casefold() in names]


def assigned(
    tasks: Sequence[tuple[str, str]],
    team: Sequence[Member],
    rules: DelegationRules,
    chance: Randomness,
    done: Counter[str],
) -> list[tuple[Member, str]]:
    """Return who does what, and count it in `done`; tasks beyond a member's limit go to others, and those beyond the
    limits of all are left to the leader.
    """
    given: list[tuple[Member, str]] = []
    for name, task in tasks[: rules.max_parallel]:
        free = [one for one in team if done[one.id] < rules.max_delegations_per_agent]
        if not free:
            break
        named = [one for one in free if one.name == name]
        if named:
            member = named[0]
        elif rules.delegation_strategy == "random":
            member = chance.choice(free)
        elif rules.delegation_strategy == "capability":
            member = (by_capability(task, free, SelectorConfig()) or free)[0]
        else:
            member = min(free, key=lambda one: done[one.id])
        done[member.id] += 1
        given.append((member, task))
    return given

"""`dynamic`: a selector chooses who answers each message, unless the message addresses members by name.

`@name` and `@all` are addresses, and at the beginning `name:`, `name,` and `hey name`, as whole words. A selector
chooses only among members that take part; one that is hibernated and addressed wakes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

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

RECENT = "recent"  # in the state: the ids of the members that were chosen, the newest last
RECENT_MAX = 100
ATTEMPTS = 3  # questions to the selecting member
EVERYONE = "all"
SPOKEN_CHARS = 50  # a longer answer of a chooser that names no member is meant for the person
_WORDS = re.compile(r"\w+")
_MARKED = re.compile(r"(?<!\w)@([\w-]+)")
_CALLED = re.compile(r"\s*(?:hey\s+([\w-]+)|([\w-]+)\s*[:,])", re.IGNORECASE)

Selector = Literal["random", "least_busy", "load_balancing", "round_robin", "capability", "supervisor", "llm"]


def _value_of(text: object) -> object:
    """Return a number or truth value that other programs write as text."""
    return json.loads(text) if isinstance(text, str) and re.fullmatch(r"[1-9]\d{0,3}|true|false", text) else text


def _split(names: object) -> object:
    """Return a list of names, also of one in a text with commas."""
    parts = [one.strip() for one in names.split(",") if one.strip()] if isinstance(names, str) else names
    return tuple(parts) if isinstance(parts, list) else parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorConfig:
    """`count` members are chosen. `capabilities` are those that count for `capability`, else those that the message
    names; with `require_all` a member needs all of them. `chooser` is the member that `supervisor` (or `llm`) asks: by
    default the first one with the role supervisor (and the domain `specialist_domain`), else the first.
    """

    count: Annotated[int, Field(ge=1, le=100), BeforeValidator(_value_of), also_spelled("count", "max_agents")] = 1
    capabilities: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    require_all: Annotated[bool, BeforeValidator(_value_of)] = False
    chooser: MemberName | None = None
    specialist_domain: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic(Coordination):
    """`selector` chooses; `otherwise` says which members to ask if it chooses none: the first, all, or none, which
    fails the turn. A member that chooses is none of those to choose from, unless it is alone.
    """

    selector: Annotated[Selector, also_spelled("selector", "selector_name")] = "random"
    selector_config: SelectorConfig = field(default_factory=SelectorConfig)
    addressing: bool = True
    otherwise: Literal["first", "all", "none"] = "first"

    async def run(self, room: Room) -> str:
        """Choose members and ask them."""
        chosen: Sequence[Member] = addressed(room.message, room.members) if self.addressing else []
        why = "addressed"
        if not chosen:
            live = room.available()
            chooser = self._chooser(room, live)
            live = [one for one in live if one != chooser] or live
            found = await self._chosen_by(chooser, room, live) if chooser else self._select(room, live)
            if isinstance(found, str):
                return found
            chosen, why = found, self.selector
            if not chosen and self.otherwise == "none":
                raise NoMember("no member fits the message; change the selector's config, or address one with @name")
            if not chosen:
                chosen, why = (live if self.otherwise == "all" else live[:1]), "fallback"
        room.state[RECENT] = [*room.state.get(RECENT, ()), *(one.id for one in chosen)][-RECENT_MAX:]
        answers = await room.ask_each([Question(one, why=why) for one in chosen])
        return answers[0].text if len(answers) == 1 else together(answers)

    def _select(self, room: Room, live: Sequence[Member]) -> Sequence[Member]:
        """Return the members that the selector chooses among `live`; empty if it finds none."""
        count = self.selector_config.count
        if self.selector == "random":
            return room.random.sample(list(live), min(count, len(live)))
        if self.selector == "capability":
            return by_capability(room.message, live, self.selector_config)[:count]
        return by_count(live, Counter(room.state.get(RECENT, ())))[:count]

    def _chooser(self, room: Room, live: Sequence[Member]) -> Member | None:
        """Return the member that chooses, if one does."""
        if self.selector not in ("supervisor", "llm"):
            return None
        config = self.selector_config
        if config.chooser:
            return room.named(config.chooser)
        domain = config.specialist_domain
        leading = [one for one in live if one.role == "supervisor" or (domain and one.domain == domain)]
        return (leading or live)[0]

    async def _chosen_by(self, chooser: Member, room: Room, live: Sequence[Member]) -> Sequence[Member] | str:
        """Return the members that the chooser names; empty if it names none of `live`, or its own answer."""
        about, count = "\n".join(_described(one) for one in live), self.selector_config.count
        text = (
            f"Who should answer this message? Write only the name, one per line, at most {count}.\n\n{about}\n\n"
            f"The message: {room.message}"
        )
        for attempt in range(1, ATTEMPTS + 1):
            answer = await room.ask(chooser, text, why="chooses who answers")
            found = named_in(answer.text, live)
            names = [one.name for one in found]
            room.tell("group.selection", {"by": chooser.name, "attempt": attempt, "chosen": names})
            if found:
                return found[:count]
            if len(answer.text) > SPOKEN_CHARS:
                return answer.text
        return []


def addressed(message: str, members: Sequence[Member]) -> list[Member]:
    """Return the members that a message addresses, in their order; empty if none. `@all` are those that take part."""
    marked = {word.casefold() for word in _MARKED.findall(message)}
    if EVERYONE in marked:
        return [member for member in members if member.is_active]
    if called := _CALLED.match(message):
        marked.add((called[1] or called[2]).casefold())
    return [member for member in members if member.name.casefold() in marked]


def by_capability(message: str, members: Sequence[Member], config: SelectorConfig) -> list[Member]:
    """Return the members with the most of the wanted capabilities, best first; only those with any (or all)."""
    said = {word.casefold() for word in _WORDS.findall(message)}
    wanted = {one.casefold() for one in config.capabilities}

    def score(member: Member) -> int:
        known = {one.casefold() for one in (*member.capabilities, member.domain) if one}
        if wanted:
            hits = len(known & wanted)
            return 0 if config.require_all and hits < len(wanted) else hits
        return sum(1 for one in known if set(_WORDS.findall(one)) <= said)

    return [one for one in sorted(members, key=lambda member: -score(member)) if score(one) > 0]


def by_count(members: Sequence[Member], counts: Mapping[str, int]) -> list[Member]:
    """Return the members, those that were chosen least often first."""
    return sorted(members, key=lambda member: counts.get(member.id, 0))


def named_in(answer: str, members: Sequence[Member]) -> list[Member]:
    """Return the members that an answer names, one for each line that is a name and nothing else (signs of a list and
    emphasis aside).
    """
    lines = [
        line.strip(" \t-*•`\"'.,:@0123456789)").casefold() for line in answer.splitlines() if not line.startswith("#")
    ]
    return [member for member in members if member.name.casefold() in lines]


def _described(member: Member) -> str:
    known = ", ".join(one for one in (member.domain, *member.capabilities) if one)
    return f"{member.name} ({known})" if known else member.name

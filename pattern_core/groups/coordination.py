"""What all coordinations share: the members, the way to ask them, and the common settings.

A coordination is a class of settings. Its `run` acts only through a `Room`. Its decisions depend only on the message,
the members, the state that the group's last turn stored, `Room.random` and the answers. So a restart repeats its
decisions: members that were asked before are not asked again, their stored answers are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, AliasChoices, Field

from pattern_core.errors import PatternError
from pattern_core.ids import Randomness
from pattern_db.tables import groups

OBSERVER = "observer"
DEADLINE_S = 3_600.0
UNAVAILABLE = "unavailable"
OnError = Literal["fail", "skip"]
Context = Literal["shared", "task_only"]
Member = groups.Member


class _Name(str):
    """A value of a setting that names a member: its id or name."""

    __slots__ = ()


MemberName = Annotated[str, AfterValidator(_Name)]


class MemberFailed(PatternError):
    """A member could not answer, and the group's config does not say to continue without it."""

    code = "member_failed"
    remedy = "Look at the member's turn, or set `on_member_error`, `retries` or `fallback` in the group's config."


class NoMember(PatternError):
    """No member of the group can be asked."""

    code = "no_member"
    remedy = "Activate a member of the group, or add an active agent to it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A member's answer. `status` is that of its turn, or `unavailable` if it could not be asked."""

    member: Member
    status: str
    text: str = ""
    ended_at: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the member answered."""
        return self.status == "completed"


class Question(NamedTuple):
    """A question to a member: its text (None: the message to the group), the reason, and the time limit."""

    member: Member
    text: str | None = None
    why: str = ""
    timeout_s: float | None = None


@dataclass(kw_only=True)
class Room:
    """One turn of a group, as its coordination sees it.

    `message` is the message to the group, `members` are all but observers, in order. `state` is kept for the group's
    next turn. `config` is the coordination's. `ask_once` asks all at the same time and returns the answers in order;
    in a race it cancels the others once the first has answered. `tell` stores an event with the next question,
    or with the end of the turn.
    """

    message: str
    members: Sequence[Member]
    state: dict[str, Any]
    random: Randomness
    config: Coordination
    ask_once: Callable[[Sequence[Question], bool], Awaitable[list[Answer]]]
    tell: Callable[[str, Mapping[str, object]], None]

    def available(self) -> list[Member]:
        """Return the members that take part, in order.

        Raises:
            NoMember: there is none.
        """
        found = [member for member in self.members if member.is_active]
        if not found:
            raise NoMember("no member of the group is active; activate one, or add an active agent to the group")
        return found

    def named(self, name: str) -> Member:
        """Return the member with this id or name.

        Raises:
            NoMember: the group has no such member.
        """
        for member in self.members:
            if name in (member.id, member.name):
                return member
        raise NoMember(f"the group has no member {name!r}; add it, or change the group's config")

    async def ask(self, member: Member, text: str | None = None, *, why: str = "") -> Answer:
        """Ask one member, as `ask_each`."""
        return (await self.ask_each([Question(member, text, why)]))[0]

    async def ask_each(self, questions: Sequence[Question]) -> list[Answer]:
        """Ask members at the same time, with retries and the fallback as configured; return the answers in order.

        Raises:
            MemberFailed: one did not answer, and the config says that this ends the turn.
            LimitReached: the turn has asked `max_turns` times.
        """
        answers = await self.ask_once(questions, False)
        config = self.config
        for place, question in enumerate(questions):
            answer = answers[place]
            for _ in range(config.retries):
                if answer.is_whole or answer.status == UNAVAILABLE:
                    break
                [answer] = await self.ask_once([question._replace(why="retry")], False)
            if not answer.is_whole and config.fallback not in (None, answer.member.id, answer.member.name):
                instead = question._replace(member=self.named(str(config.fallback)), why="fallback")
                [answer] = await self.ask_once([instead], False)
            if not answer.is_whole and config.on_member_error == "fail":
                raise MemberFailed(f"{answer.member.name} did not answer ({answer.status}); see its turn")
            answers[place] = answer
        return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination(ABC):
    """A way to work together, as it is configured. These are the settings that every one has.

    `context` is what a member is shown of what the others said since it was last asked. `on_member_error` says whether
    a member that fails ends the group's turn or is left out, after `retries` further attempts and `fallback`, the
    member that is asked instead. A turn asks members at most `max_turns` times and lasts at most `deadline_s` seconds.
    """

    context: Context = "shared"
    on_member_error: OnError = "fail"
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    fallback: MemberName | None = None
    max_turns: Annotated[int, Field(ge=1, le=1_000)] = 50
    deadline_s: Annotated[float, Field(gt=0, le=7 * 24 * 3600)] = DEADLINE_S

    @abstractmethod
    async def run(self, room: Room) -> str:
        """Ask members; return the group's answer.

        Raises:
            PatternError: it cannot run, or a member failed.
        """

    def trouble(self, members: Sequence[Member]) -> Sequence[str]:
        """Return why it cannot run with these members: sentences that say how to fix it. Names are checked before."""
        return ()

    def own_plan(self) -> dict[str, Any] | None:
        """Return plan and message of the schedule by which the group works by itself, if it does."""
        return None


def also_spelled(name: str, original: str) -> Any:  # Any: pydantic's description of a field
    """Return that a setting may be given by `name` or by its name in the original."""
    return Field(validation_alias=AliasChoices(name, original))


def strangers(config: Coordination, members: Sequence[Member]) -> list[str]:
    """Return a sentence for each member that a config names and the group does not have."""
    known = {one for member in members for one in (member.id, member.name)}
    return [
        f"`{place}` names {name!r}, which is not a member of the group; add it first"
        for place, name in _names(config, ())
        if name not in known
    ]


def _names(value: object, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the names of members in a config, each with its place; that of a name in a list is the list."""
    if isinstance(value, _Name):
        yield ".".join(place), value
    elif is_dataclass(value):
        for one in fields(value):
            yield from _names(getattr(value, one.name), (*place, one.name))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _names(key, place)
            yield from _names(one, (*place, key))
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _names(one, place if isinstance(one, str) else (*place, str(number)))

"""What all coordinations share: the members, the way to ask them, and the common settings.

A coordination is one async function of a `Room` and its config. It acts only through `Room`. Its decisions depend only
on the message, the members, the state that the group's last turn stored, `Room.random` and the answers. So a restart
repeats its decisions: members that were asked before are not asked again, their stored answers are read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_type_hints

from pydantic import Field, TypeAdapter

from pattern_core.errors import PatternError
from pattern_core.ids import Randomness

OBSERVER = "observer"
UNAVAILABLE = "unavailable"
OnError = Literal["fail", "skip"]
Context = Literal["shared", "task_only"]

C = TypeVar("C", bound="CommonConfig")


class MemberFailed(PatternError):
    """A member could not answer, and the group's config does not say to continue without it."""

    code = "member_failed"
    remedy = "Look at the member's turn, or set `on_member_error`, `retries` or `fallback` in the group's config."


class NoMember(PatternError):
    """No member of the group can be asked."""

    code = "no_member"
    remedy = "Activate a member of the group, or add an active agent to it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as it was when the group's turn started."""

    id: str
    name: str
    role: str | None = None
    domain: str | None = None
    capabilities: tuple[str, ...] = ()
    is_active: bool = True


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig:
    """The settings that every coordination has.

    `context` is what a member is shown of what the others said since it was last asked. `on_member_error` says whether
    a member that fails ends the group's turn or is left out, after `retries` further attempts and `fallback`, the
    member that is asked instead. A turn asks members at most `max_turns` times and lasts at most `deadline_s` seconds.
    """

    context: Context = "shared"
    on_member_error: OnError = "fail"
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    fallback: str | None = None
    max_turns: Annotated[int, Field(ge=1, le=1_000)] = 50
    deadline_s: Annotated[float, Field(gt=0, le=7 * 24 * 3600)] = 3_600.0


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
    config: CommonConfig
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

    async def race(self, questions: Sequence[Question]) -> Answer | None:
        """Ask members at the same time; return the first answer, if there is one. The others are cancelled, and have
        ended when this returns.
        """
        whole = [answer for answer in await self.ask_once(questions, True) if answer.is_whole]
        # Two may have answered at the same moment. Their rows decide, so that a restart finds the same winner.
        return min(whole, key=lambda answer: (answer.ended_at, answer.member.id), default=None)


def no_trouble(_config: Any, _members: Sequence[Member]) -> list[str]:
    """Return no problems."""
    return []


class Coordination(Generic[C]):
    """A way to work together: its config, the function that runs it (it returns the group's answer), the function that
    returns why a config cannot run with these members, as sentences that say how to fix it, and the plan and message
    of the schedule by which the group works by itself, if it does.
    """

    def __init__(
        self,
        config: type[C],
        run: Callable[[Room, C], Awaitable[str]],
        trouble: Callable[[C, Sequence[Member]], list[str]] = no_trouble,
        schedule_of: Callable[[C], dict[str, Any]] | None = None,
    ) -> None:
        self.adapter = TypeAdapter(config)
        self.run = run
        self.trouble = trouble
        self.schedule_of = schedule_of
        self._config = config

    def known(self, place: Sequence[Any]) -> Collection[str]:
        """Return the names of the fields of the config, or of an object in it."""
        shape: Any = self._config
        for step in place:
            shape = get_type_hints(shape).get(step) if is_dataclass(shape) else None
        return [one.name for one in fields(shape)] if is_dataclass(shape) else []


def check_names(names: Sequence[str], members: Sequence[Member], place: str) -> list[str]:
    """Return a sentence for each name that is not a member's id or name."""
    known = {one for member in members for one in (member.id, member.name)}
    return [
        f"`{place}` names {name!r}, which is not a member of the group; add it first"
        for name in names
        if name not in known
    ]

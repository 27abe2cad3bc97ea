"""What all coordinations share: the members, the way to ask them, and the common settings.

A coordination is a class of settings. Its `run` acts only through a `Room`. Its decisions depend only on the message,
the members, the state that the group's last turn stored, `Room.random` and the answers. So a restart repeats its
decisions: members that were asked before are not asked again, their stored answers are read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from textwrap import shorten
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, AliasChoices, Field

from pattern_core.errors import PatternError
from pattern_core.ids import Randomness
from pattern_core.patterns import matching_lines
from pattern_core.untrusted import plain
from pattern_db.tables import groups

OBSERVER = "observer"
DEADLINE_S = 3_600.0
UNAVAILABLE = "unavailable"
SHOWN_CHARS = 8_000  # of others' messages since a member was last asked; the oldest are left out
SUMMARY_CHARS = 200  # of each message, where the context is a summary
NESTED_MAX = 4  # levels of a termination
OnError = Literal["fail", "skip"]
Context = Literal["shared", "task_only", "summary", "last_n", "filter"]
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
    """A member's answer. `status` is that of its turn, or `unavailable` if it could not be asked. `changed` are the
    labels of the blocks that its turn changed.
    """

    member: Member
    status: str
    text: str = ""
    ended_at: str = ""
    changed: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the member answered."""
        return self.status == "completed"


class Line(NamedTuple):
    """A message in a group: the key of its turn, the speaker's id (of one to the group: "") and name, and the text."""

    key: int
    speaker: str
    name: str
    text: str


class Question(NamedTuple):
    """A question to a member: its text (None: the message to the group), the reason, and the time limit."""

    member: Member
    text: str | None = None
    why: str = ""
    timeout_s: float | None = None


class Asks(NamedTuple):
    """Questions that are asked at the same time. To await them gives the answers in order; of a race that one has won,
    only its answer, and the others are cancelled.
    """

    questions: Sequence[Question]
    is_race: bool = False

    def __await__(self) -> Generator[Asks, list[Answer], list[Answer]]:
        return (yield self)


@dataclass(kw_only=True)
class Room:
    """One turn of a group, as its coordination sees it.

    `message` is the message to the group, `members` are all but observers, in order. `state` is kept for the group's
    next turn. `config` is the coordination's. `tell` stores an event with the next question, or with the end of the
    turn.
    """

    message: str
    members: Sequence[Member]
    state: dict[str, Any]
    random: Randomness
    config: Coordination
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
        """
        answers = await Asks(questions)
        config = self.config
        for place, question in enumerate(questions):
            answer = answers[place]
            for _ in range(config.retries):
                if answer.is_whole or answer.status == UNAVAILABLE:
                    break
                [answer] = await Asks([question._replace(why="retry")])
            if not answer.is_whole and config.fallback not in (None, answer.member.id, answer.member.name):
                instead = question._replace(member=self.named(str(config.fallback)), why="fallback")
                [answer] = await Asks([instead])
            if not answer.is_whole and config.on_member_error == "fail":
                raise MemberFailed(f"{answer.member.name} did not answer ({answer.status}); see its turn")
            answers[place] = answer
        return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """When a group's turn is complete, whatever its coordination would do next. It has one field: an answer of the
    newest round has this `text` (in any case), or a line that the `regex` matches; members were asked `rounds` times,
    where those that are asked together count once; `any` or `all` of these hold.
    """

    text: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    regex: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    any: Annotated[tuple[Termination, ...], Field(max_length=20)] = ()
    all: Annotated[tuple[Termination, ...], Field(max_length=20)] = ()

    def __post_init__(self) -> None:
        if sum(bool(getattr(self, one.name)) for one in fields(self)) != 1:
            raise ValueError("give one of `text`, `regex`, `rounds`, `any` and `all`")
        if self._depth > NESTED_MAX:
            raise ValueError(f"it is nested deeper than {NESTED_MAX} levels; make it simpler")
        try:
            re.compile(self.regex or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"the regular expression is malformed: {error}; correct it") from None

    @property
    def _depth(self) -> int:
        return 1 + max((one._depth for one in (*self.any, *self.all)), default=0)

    async def holds(self, rounds: int, answers: Sequence[str]) -> bool:
        """Return whether it holds after so many rounds, with these answers in the newest one.

        Raises:
            InvalidInput: the regular expression takes too long to match.
        """
        if self.rounds is not None:
            return rounds >= self.rounds
        if self.text is not None:
            return any(self.text.casefold() in answer.casefold() for answer in answers)
        if self.regex is not None:
            texts = [[(1, answer)] for answer in answers]
            return bool(await matching_lines(self.regex, texts, limit=1, ignore_case=False))
        found = [await one.holds(rounds, answers) for one in (*self.any, *self.all)]
        return any(found) if self.any else all(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination(ABC):
    """A way to work together, as it is configured. These are the settings that every one has.

    `context` is what a member is shown of what was said since it was last asked: everything, nothing, the beginning of
    each message, the newest `context_n`, or the messages to the group and the answers of `context_from`.
    `on_member_error` says whether a member that fails ends the group's turn or is left out, after `retries` further
    attempts and `fallback`, the member that is asked instead. A turn is complete when `termination` holds. It asks
    members at most `max_turns` times and lasts at most `deadline_s` seconds.
    """

    context: Context = "shared"
    context_n: Annotated[int, Field(ge=1, le=50)] = 10
    context_from: tuple[MemberName, ...] = ()
    termination: Termination | None = None
    on_member_error: OnError = "fail"
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    fallback: MemberName | None = None
    max_turns: Annotated[int, Field(ge=1, le=1_000)] = 50
    deadline_s: Annotated[float, Field(gt=0, le=7 * 24 * 3600)] = DEADLINE_S

    def __post_init__(self) -> None:
        if (self.context == "filter") != bool(self.context_from):
            raise ValueError("the context `filter` and `context_from`, the members that it shows, need each other")

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


def together(answers: Sequence[Answer]) -> str:
    """Return answers as one text, each with the name of its author."""
    return "\n\n".join(f"{one.member.name}: {one.text}" for one in answers if one.is_whole)


def missed(lines: Sequence[Line], member: Member, config: Coordination) -> list[Line]:
    """Return what a member is shown of what was said (in order) since it was last asked."""
    found = list[Line]()
    for line in reversed(lines):
        if line.speaker == member.id:
            break
        found.append(line)
    found.reverse()
    match config.context:
        case "shared":
            return found
        case "task_only":
            return []
        case "summary":
            return [line._replace(text=shorten(line.text, SUMMARY_CHARS, placeholder="…")) for line in found]
        case "last_n":
            return found[-config.context_n :]
        case "filter":
            wanted = {"", *config.context_from}
            return [line for line in found if line.speaker in wanted or line.name in wanted]


def asking(group: str, member: Member, others: Sequence[Member], shown: Sequence[Line], text: str) -> str:
    """Return the message to a member: who takes part, what it is shown of the conversation, and the question."""
    names = ", ".join(f"{one.name} ({one.role})" if one.role else one.name for one in others)
    head = f"Group {group}: you are {member.name}" + (f", with {names}." if names else ".")
    if not shown:
        return f"{head}\n\n{text}"
    return f"{head}\n\nSaid since you last spoke:\n{quoted(shown)}\n\nNow answer:\n{text}"


def quoted(lines: Sequence[Line]) -> str:
    """Return messages as text, one after another; only the newest of many."""
    words, left = list[str](), SHOWN_CHARS
    for line in reversed(lines):
        said = f"{line.name}: {plain(line.text)}"
        left -= len(said)
        if left < 0:
            words.append("(earlier messages are left out)")
            break
        words.append(said)
    return "\n".join(reversed(words))


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

"""Loops that no rule names: the same call again and again, two calls in turns, results that are all known, and making
room in the prompt over and over. The first hit is told to the model, the second stops the turn with a reason. Pure.

Nothing is counted anywhere: everything follows from the turn's calls, step by step, so a restart sees the same. A
result that changes is progress, so looking at something until it changes is no loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

from pattern_core.errors import InvalidInput
from pattern_core.rules import values
from pattern_core.rules.kinds import Field
from pattern_core.rules.rule import covers
from pattern_core.rules.state import REFUSED, Call
from pattern_db.columns import Json

LEAST = 2  # fewer repetitions are no loop
MOST = 1_000
PURE = "pure"

Name = Literal["identical", "ping_pong", "no_progress", "compactions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSettings:
    """How much of a loop is one; None switches a detector off.

    `identical` calls in a row with the same result; `ping_pong` rounds of the same two calls; `no_progress` steps whose
    results were all seen before; `compactions` of the conversation without progress in between. Calls of the tools in
    `exempt` (names or patterns) are passed over.
    """

    identical: int | None = 3
    ping_pong: int | None = 3
    no_progress: int | None = 6
    compactions: int | None = 3
    exempt: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Json) -> DetectorSettings:
        """The settings of the key `detectors` of an agent's config; None is the defaults, false switches all off.

        Raises:
            InvalidInput: it is no such settings; the message names the key and what it takes.
        """
        if value is None:
            return cls()
        if value is False:
            return cls(identical=None, ping_pong=None, no_progress=None, compactions=None)
        known = [one.name for one in fields(cls)]
        if not isinstance(value, dict):
            raise InvalidInput(f"detectors is an object with {', '.join(known)}, or false for none")
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise InvalidInput(f"detectors has no key {', '.join(unknown)}; it has {', '.join(known)}")
        counts = {name: _count(name, count) for name, count in value.items() if name != "exempt"}
        return cls(exempt=_exempt(value.get("exempt", [])), **counts)


def _count(name: str, value: Json) -> int | None:
    if value is None or value is False:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not LEAST <= value <= MOST:
        raise InvalidInput(f"detectors.{name} is a whole number from {LEAST} to {MOST}, or null for none")
    return value


def _exempt(value: Json) -> tuple[str, ...]:
    if not value:
        return ()
    try:
        names: tuple[str, ...] = values.read(Field(what="names", takes_patterns=True), value)
    except InvalidInput as error:
        raise InvalidInput(f"detectors.exempt: {error.message}") from None
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A loop: whether the model is warned or the turn stops, by which detector, and a sentence, for the model or as the
    reason.
    """

    kind: Literal["warn", "stop"]
    detector: Name
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is looked at: the turn's calls in order, and per compaction the number of the step that it made room for;
    `said` are the steps whose decisions said something to the user.
    """

    calls: Sequence[Call]
    compactions: Sequence[int] = ()
    said: Collection[int] = ()


def watch(watched: Watched, settings: DetectorSettings) -> Finding | None:
    """The loop that the newest step is part of, None if there is none. Asked once after each step's calls.

    A loop that is found for the first time in the turn is warned of; when it is found again, the turn stops.
    """
    found: Counter[_Loop] = Counter()
    now: list[_Loop] = []
    rooms, said = Counter(watched.compactions), frozenset(watched.said)
    look = _Look()
    for step, calls in _steps(watched, settings):
        look.take(step, calls, rooms=rooms[step], has_said=step in said)
        # A step of which nothing is looked at does not find again what the step before it found.
        now = list(look.loops(settings)) if calls or rooms[step] else []
        found.update(now)
    again = [loop for loop in now if found[loop] > 1]
    for name, _which in (*again, *now):
        words = _WORDS[name].format(tool="" if look.last is None else look.last.tool, count=getattr(settings, name))
        if again:
            return Finding(kind="stop", detector=name, text=f"Stopped: {words}, also after a warning.")
        return Finding(kind="warn", detector=name, text=f"Careful: {words}. {_ADVICE[name]}")
    return None


def _steps(watched: Watched, settings: DetectorSettings) -> Sequence[tuple[int, Sequence[Call]]]:
    """The steps in order, each with its calls that count."""
    steps: dict[int, list[Call]] = {step: [] for step in (*watched.compactions, *watched.said)}
    for call in watched.calls:
        calls = steps.setdefault(call.step, [])
        if not any(covers(name, call.tool) for name in settings.exempt):
            calls.append(call)
    return sorted(steps.items())


_Loop = tuple[Name, Hashable]  # the detector, and which of its loops: another call, or after news, is another loop


@dataclass(slots=True)
class _Look:
    """The turn up to the end of a step, as far as it matters for loops.

    `run` is how often the last call was repeated, `turns` how many calls were the last two in turns, `idle` how many
    steps brought nothing since the step `new`, `rooms` how often room was made since `news`, when a step brought
    something or said something to the user.
    """

    last: Call | None = None
    before: Call | None = None
    run: int = 0
    turns: int = 0
    idle: int = 0
    new: int = 0
    rooms: int = 0
    news: int = 0
    _results: set[tuple[str, str]] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)

    def take(self, step: int, calls: Sequence[Call], *, rooms: int, has_said: bool) -> None:
        """Go on to the end of a step, which made room so many times and may have said something to the user."""
        is_new = has_said and bool(calls)
        for call in calls:
            is_new = self._is_news(call) or is_new
            self._follow(call)
        if is_new:
            self.new, self.idle = step, 0
        elif calls:
            self.idle += 1
        if is_new or has_said:
            self.news, self.rooms = step, 0
        else:
            self.rooms += rooms

    def _follow(self, call: Call) -> None:
        is_same = self.last is not None and self.last.outcome == call.outcome
        self.run = self.run + 1 if is_same else 1
        if is_same or self.last is None:
            self.turns = 1
        else:
            is_back = self.turns > 1 and self.before is not None and self.before.outcome == call.outcome
            self.turns = self.turns + 1 if is_back else 2
        self.before, self.last = self.last, call

    def _is_news(self, call: Call) -> bool:
        """Whether a result was not seen before, or a new call changed something, though it answered as its like do."""
        what, _status, result = call.outcome
        if call.status == REFUSED:
            return False
        changes = call.ran and call.effect_class != PURE and what not in self._done
        is_unseen = (call.tool, result) not in self._results
        self._results.add((call.tool, result))
        self._done.add(what)
        return changes or is_unseen

    def loops(self, settings: DetectorSettings) -> Iterator[_Loop]:
        """The loops that the step is part of."""
        ends = [call.outcome for call in (self.last, self.before) if call is not None]
        if settings.identical is not None and self.run >= settings.identical:
            yield "identical", ends[0][0]
        if settings.ping_pong is not None and self.turns >= 2 * settings.ping_pong:
            yield "ping_pong", frozenset(ends)
        if settings.no_progress is not None and self.idle >= settings.no_progress:
            yield "no_progress", self.new
        if settings.compactions is not None and self.rooms >= settings.compactions:
            yield "compactions", self.news


_WORDS: Mapping[Name, str] = MappingProxyType(
    {
        "identical": "`{tool}` was called {count} times in a row with the same arguments and the same result",
        "ping_pong": "the same two calls were made in turns {count} times, with the same results",
        "no_progress": "the last {count} steps brought nothing that was not known before",
        "compactions": "room was made in the conversation {count} times, and nothing new came in between",
    }
)
_ADVICE: Mapping[Name, str] = MappingProxyType(
    {
        "identical": "Calling it once more changes nothing: do something else, or say what you know and end the turn.",
        "ping_pong": "Decide with what you know, try another way, or say what keeps you and end the turn.",
        "no_progress": "Try another way, or say what you found and what is missing, and end the turn.",
        "compactions": "Do the next thing of your plan instead of planning again, or say how far you are and end.",
    }
)

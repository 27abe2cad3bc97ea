"""Loops that no rule names: the same call again and again, two calls in turns, results that are all known, and making
room in the prompt over and over. The first hit is told to the model, the second stops the turn with a reason. Pure.

Nothing is counted anywhere: everything follows from the turn's calls, step by step, so a restart sees the same. A
result that changes is progress, so looking at something until it changes is no loop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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

_FRESH_ID = re.compile(
    r"_(?:[0-9a-hjkmnp-tv-z]{26}|[0-9]{19})\b"
)  # what follows the prefix, as pattern_core.ids makes it

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

    A detector that finds something for the first time in the turn warns; when it finds something again, it stops.
    """
    story = _Story.of(watched, settings)
    hits: dict[Name, list[int]] = {}
    for step in story.steps:
        for name in _hits(story, step, settings):
            hits.setdefault(name, []).append(step)
    now = {name: found for name, found in hits.items() if found[-1] == story.steps[-1]}
    stopping = [name for name, found in now.items() if len(found) > 1]
    for name in (*stopping, *now):
        words = _WORDS[name].format(tool=story.calls[-1].tool if story.calls else "", count=getattr(settings, name))
        if name in stopping:
            return Finding(kind="stop", detector=name, text=f"Stopped: {words}, also after a warning.")
        return Finding(kind="warn", detector=name, text=f"Careful: {words}. {_ADVICE[name]}")
    return None


Outcome = tuple[str, str, str]  # what was called, its status and its result: equal for a repetition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """A turn so far: `outcomes` is as long as `calls`; `progress` are the steps that brought something new."""

    steps: Sequence[int]
    calls: Sequence[Call]
    outcomes: Sequence[Outcome]
    progress: Collection[int]
    compactions: Sequence[int]

    @classmethod
    def of(cls, watched: Watched, settings: DetectorSettings) -> _Story:
        calls = [call for call in watched.calls if not any(covers(name, call.tool) for name in settings.exempt)]
        # Why a call was refused may name a time, which is no news.
        outcomes = [(call.what, call.status, "" if call.status == REFUSED else _content(call.result)) for call in calls]
        return cls(
            steps=sorted({call.step for call in watched.calls} | set(watched.compactions)),
            calls=calls,
            outcomes=outcomes,
            progress=_progress(calls, outcomes) | set(watched.said),
            compactions=sorted(watched.compactions),
        )


def _content(result: str) -> str:
    """A result without the ids that are made anew for each call, such as that of a message or of a long result."""
    return _FRESH_ID.sub("", result)


def _progress(calls: Sequence[Call], outcomes: Sequence[Outcome]) -> set[int]:
    """The steps with a result that was not seen before, or with a new call that changed something, though it answered
    as all its like do.
    """
    steps: set[int] = set()
    results: set[tuple[str, str]] = set()
    done: set[str] = set()
    for call, (what, status, result) in zip(calls, outcomes, strict=True):
        if status == REFUSED:
            continue
        changes = call.ran and call.effect_class != PURE and what not in done
        if changes or (call.tool, result) not in results:
            steps.add(call.step)
        results.add((call.tool, result))
        done.add(what)
    return steps


def _hits(story: _Story, step: int, settings: DetectorSettings) -> Iterator[Name]:
    """The detectors that find a loop in the story up to the end of a step."""
    ends = story.outcomes[: sum(call.step <= step for call in story.calls)]
    if settings.identical is not None and _is_run(ends, settings.identical):
        yield "identical"
    if settings.ping_pong is not None and _is_ping_pong(ends, settings.ping_pong):
        yield "ping_pong"
    if settings.no_progress is not None:
        newest = sorted({call.step for call in story.calls if call.step <= step})[-settings.no_progress :]
        if len(newest) == settings.no_progress and not any(one in story.progress for one in newest):
            yield "no_progress"
    compactions = [one for one in story.compactions if one <= step]
    if settings.compactions is not None and len(compactions) >= settings.compactions:
        first = compactions[-settings.compactions]
        if not any(first <= one <= step for one in story.progress):
            yield "compactions"


def _is_run(ends: Sequence[Outcome], count: int) -> bool:
    return len(ends) >= count and len(set(ends[-count:])) == 1


def _is_ping_pong(ends: Sequence[Outcome], rounds: int) -> bool:
    tail = ends[-2 * rounds :]
    return len(tail) == 2 * rounds and len(set(tail[0::2])) == 1 and len(set(tail[1::2])) == 1 and tail[0] != tail[1]


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

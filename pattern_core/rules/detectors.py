"""Loop detection: one call repeated, two alternating calls, results without news, and repeated compaction. The model is
warned of the first hit; the second stops the turn with a reason. Pure.

Nothing is counted anywhere: everything follows from the turn's calls, step by step, so a restart sees the same. A
result that changes is progress, so polling until something changes is not a loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from pattern_core.rules.facts import REFUSED, JudgedCall, Outcome
from pattern_core.rules.fields import NAMES_MAX, Pattern, covers_any
from pattern_db.columns import Json

PURE = "pure"

Name = Literal["identical", "ping_pong", "no_progress", "compactions"]
_Loop = tuple[Name, Hashable]  # the detector, and which of its loops: another call, or after news, is another loop


def _exempt(value: Json) -> object:
    return tuple(value) if isinstance(value, list) else value or ()


Repetitions: TypeAlias = Annotated[
    Annotated[int, Field(ge=2, le=1_000)] | None, BeforeValidator(lambda value: None if value is False else value)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSettings:
    """The thresholds of the detectors; None, in a config also false, switches one off.

    `identical` calls in a row with the same result; `ping_pong` rounds of the same two calls; `no_progress` steps with
    only known results; `compactions` of the conversation without progress in between. Calls of the tools in `exempt`
    (names or patterns) are ignored.
    """

    identical: Repetitions = 3  # the same call with the same result this often in a row
    ping_pong: Repetitions = 3  # rounds of the same two calls
    no_progress: Repetitions = 6  # steps with results that were all known
    compactions: Repetitions = 3  # compactions of the conversation without progress in between
    # tools (names or patterns) that are not watched
    exempt: Annotated[tuple[Pattern, ...], Field(max_length=NAMES_MAX), BeforeValidator(_exempt)] = ()


def switched_off(value: Json) -> Json:
    """Return the key `detectors` of an agent's config, with all off where it is false."""
    return dict.fromkeys(("identical", "ping_pong", "no_progress", "compactions")) if value is False else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFinding:
    """A loop: whether the model is warned or the turn stops, by which detector, and a sentence, for the model or as the
    reason.
    """

    kind: Literal["warn", "stop"]
    detector: Name
    text: str


def watch(
    settings: DetectorSettings,
    calls: Sequence[JudgedCall],
    *,
    compactions: Sequence[int] = (),
    said: Collection[int] = (),
) -> LoopFinding | None:
    """Return the loop that the newest step is part of, None if there is none. Called once after each step's calls.

    `calls` are the turn's in order, `compactions` the steps that room was made for, `said` those in which the model
    said something to the user. A loop that is found for the first time in the turn is warned of; when it is found
    again, the turn stops.
    """
    limits = (settings.identical, settings.ping_pong and 2 * settings.ping_pong, settings.no_progress)
    is_short = len(calls) < min(filter(None, limits), default=math.inf)
    if is_short and len(compactions) < (settings.compactions or math.inf):
        return None  # as most turns are
    looked_at = [call for call in calls if not covers_any(settings.exempt, (call.tool,))]
    steps: dict[int, list[JudgedCall]] = {step: [] for step in (*compactions, *said, *(call.step for call in calls))}
    for call in looked_at:
        steps[call.step].append(call)
    found: Counter[_Loop] = Counter()
    now: list[_Loop] = []
    for now in _loops(settings, sorted(steps.items()), Counter(compactions), said):
        found.update(now)
    again = [loop for loop in now if found[loop] > 1]
    if not now:
        return None
    name, _which = (again or now)[0]
    words, advice = _TEXTS[name]
    done = words.format(tool=looked_at[-1].tool if looked_at else "", count=getattr(settings, name))
    if again:
        return LoopFinding(kind="stop", detector=name, text=f"Stopped: {done}, also after a warning.")
    return LoopFinding(kind="warn", detector=name, text=f"Careful: {done}. {advice}")


def _loops(
    settings: DetectorSettings,
    steps: Sequence[tuple[int, Sequence[JudgedCall]]],
    rooms: Counter[int],
    said: Collection[int],
) -> Iterator[list[_Loop]]:
    """Yield the loops that each step is part of, in the order of the steps."""
    ends: tuple[Outcome, ...] = ()  # the last two calls, the newest first
    results: set[tuple[str, str]] = set()
    done: set[str] = set()
    run = turns = 0  # how often the last call was repeated; how many calls were the last two in turns
    idle = new = 0  # steps that brought nothing, since the step `new`
    made = news = 0  # compactions since the step `news`, which brought something new or sent a text to the user
    for step, calls in steps:
        is_new = step in said and bool(calls)
        for call in calls:
            what, status, result = call.outcome
            if status != REFUSED:  # a new call that changed something is news, though its answer is known
                has_changed = call.ran and call.effect_class != PURE and what not in done
                is_new = is_new or has_changed or (call.tool, result) not in results
                results.add((call.tool, result))
                done.add(what)
            is_same, is_back = ends[:1] == (call.outcome,), ends[1:] == (call.outcome,)
            run = run + 1 if is_same else 1
            turns = 1 if is_same or not ends else turns + 1 if is_back else 2
            ends = (call.outcome, *ends[:1])
        if calls:
            new, idle = (step, 0) if is_new else (new, idle + 1)
        news, made = (step, 0) if is_new or step in said else (news, made + rooms[step])
        counts: tuple[tuple[Name, int, int | None, Hashable], ...] = (
            ("identical", run, settings.identical, ends and ends[0][0]),
            ("ping_pong", turns // 2, settings.ping_pong, frozenset(ends)),
            ("no_progress", idle, settings.no_progress, new),
            ("compactions", made, settings.compactions, news),
        )
        # A step with only ignored calls does not repeat the finding of the previous step.
        is_seen = bool(calls or rooms[step])
        yield [(name, which) for name, count, limit, which in counts if is_seen and limit and count >= limit]


_TEXTS: Mapping[Name, tuple[str, str]] = {  # what is found, and what to do instead
    "identical": (
        "`{tool}` was called {count} times in a row with the same arguments and the same result",
        "Calling it again changes nothing: do something else, or say what you know and end the turn.",
    ),
    "ping_pong": (
        "the same two calls were made in turns {count} times, with the same results",
        "Decide with what you know, try another way, or say what keeps you and end the turn.",
    ),
    "no_progress": (
        "the last {count} steps brought nothing that was not known before",
        "Try another way, or say what you found and what is missing, and end the turn.",
    ),
    "compactions": (
        "room was made in the conversation {count} times, and nothing new came in between",
        "Do the next thing of your plan instead of planning again, or say how far you are and end.",
    ),
}

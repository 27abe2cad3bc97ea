"""What rules and detectors judge by: the calls of a turn and a few facts beyond it, all of which stand in rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pattern_db.enums import EffectStatus

RESULT_CHARS_MAX = 20_000  # of a result that are looked at
FORCED_PREFIX = "rule_"  # of the `call_id` of a call that a rule made, so that its row tells

OPEN = frozenset({EffectStatus.PLANNED.value, EffectStatus.STARTED.value, EffectStatus.AWAITING_APPROVAL.value})
# What counts against a number of calls: what happened, may have happened, or is about to.
USED = OPEN | {EffectStatus.DONE.value, EffectStatus.TIMEOUT.value, EffectStatus.IN_DOUBT.value}
REFUSED = EffectStatus.DENIED.value

# What stands before the result of a call that a person changed before agreeing, in a line of its own.
EDITED = "[A person agreed to this call with changed arguments: "

Outcome = tuple[str, str, str]  # what was called, its status and its result: equal for a repetition

# What follows the prefix of an id, as `pattern_core.ids` makes it.
_FRESH_ID = re.compile(r"_(?:[0-9a-hjkmnp-tv-z]{26}|[0-9]{19})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call of the turn. `status` and `effect_class` are values of `pattern_db.enums`; `result` is the beginning
    of its text; `step` counts from 1; `at_ms` is when it started (unix ms), None while it has not.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    status: str = EffectStatus.PLANNED.value
    result: str = ""
    step: int = 1
    at_ms: int | None = None
    effect_class: str = "unsafe"
    is_forced: bool = False
    _outcome: Outcome | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def ran(self) -> bool:
        """Whether it succeeded."""
        return self.status == EffectStatus.DONE.value

    @property
    def has_ended(self) -> bool:
        """Whether its result is known, be it a failure."""
        return self.status not in OPEN

    @property
    def outcome(self) -> Outcome:
        """The call with what it came to, without what differs though nothing is new: ids that are made anew for each
        call, such as that of a message, and why it was refused, which may name a time.
        """
        if self._outcome is None:  # made once: detectors look at all calls of a turn after each step
            what = f"{self.tool} {json.dumps(self.arguments, sort_keys=True, ensure_ascii=False, default=str)}"
            result = "" if self.status == REFUSED else _FRESH_ID.sub("", self.result)
            object.__setattr__(self, "_outcome", (what, self.status, result))
        assert self._outcome is not None
        return self._outcome


def without_note(result: str) -> str:
    """What a tool returned, as rules read it: without what was put before it."""
    return result.partition("\n")[2] if result.startswith(EDITED) else result


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """A moment of a turn.

    `calls` are the turn's calls so far in order: when one is judged, those before it in the same decision are among
    them, those after it are not. `tools` are the names of the agent's enabled tools; `step` is the number of the last
    decision, 0 before the first; `last_ms` says per tool when it last started with success, in any turn (unix ms).
    """

    calls: tuple[Call, ...] = ()
    tools: tuple[str, ...] = ()
    step: int = 0
    last_ms: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0

    @property
    def last(self) -> Call | None:
        """The call that ran last, None if none did."""
        return next((call for call in reversed(self.calls) if call.ran), None)

    def having(self, call: Call) -> CallState:
        """The moment after one more call."""
        return replace(self, calls=(*self.calls, call), step=max(self.step, call.step))

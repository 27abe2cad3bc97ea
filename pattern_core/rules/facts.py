"""What rules and detectors judge by: the calls of a turn and a few facts beyond it, all of them read from rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pattern_db.columns import unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import EffectStatus
from pattern_db.journal import steps

RESULT_CHARS_MAX = 20_000  # of a result that are looked at
FORCED_PREFIX = "rule_"  # of the `call_id` of a call that a rule made

OPEN = frozenset({EffectStatus.PLANNED.value, EffectStatus.STARTED.value, EffectStatus.AWAITING_APPROVAL.value})
# What counts against a number of calls: what happened, may have happened, or is about to.
USED = OPEN | {EffectStatus.DONE.value, EffectStatus.TIMEOUT.value, EffectStatus.IN_DOUBT.value}
REFUSED = EffectStatus.DENIED.value

# The first line of the result of a call that a person changed before agreeing.
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
        """The call and its result, without what differs though nothing is new: ids that are made for each call, such
        as that of a message, and the reason of a refusal, which may contain a time.
        """
        if self._outcome is None:  # made once: detectors look at all calls of a turn after each step
            what = f"{self.tool} {json.dumps(self.arguments, sort_keys=True, ensure_ascii=False, default=str)}"
            result = "" if self.status == REFUSED else _FRESH_ID.sub("", self.result)
            object.__setattr__(self, "_outcome", (what, self.status, result))
        assert self._outcome is not None
        return self._outcome


def without_note(result: str) -> str:
    """Return what a tool returned, without the line that `EDITED` begins."""
    return result.partition("\n")[2] if result.startswith(EDITED) else result


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """The state of a turn.

    `calls` are the turn's calls so far in order: when one is judged, those before it in the same decision are among
    them, those after it are not. `tools` are the names of the agent's enabled tools; `step` is the number of the last
    decision, 0 before the first; `last_ms` says per tool when it last started with success, in any turn (unix ms).
    """

    calls: tuple[Call, ...] = ()
    tools: tuple[str, ...] = ()
    step: int = 0
    last_ms: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0


def read(connection: Connection, agent_id: str, tools: Collection[str]) -> dict[str, int]:
    """Return when the agent last started each of `tools` with success, in any turn (unix ms); tools that it never used
    are left out. `RuleSet.timed` names the tools for which this matters.
    """
    if not tools:
        return {}
    return {tool: unix_ms(at) for tool, at in steps.last_used(connection, agent_id, tools).items()}


def calls_of(connection: Connection, turn: int) -> tuple[Call, ...]:
    """Return the calls of the turn with this key, in order."""
    rows = steps.calls_with_results(connection, turn, chars_max=RESULT_CHARS_MAX)
    return tuple(
        Call(
            tool=row.tool,
            arguments=arguments if isinstance(arguments := json.loads(row.args), dict) else {"invalid": arguments},
            status=row.status,
            result=without_note(row.result or ""),
            step=row.step,
            at_ms=None if row.started_at is None else unix_ms(row.started_at),
            effect_class=row.effect_class,
            is_forced=row.call_id.startswith(FORCED_PREFIX),
        )
        for row in rows
    )

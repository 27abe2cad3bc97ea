"""The facts for rules and detectors: the calls of a turn and a few facts beyond it, all read from rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pattern_db.columns import unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import EffectStatus, TrustLevel
from pattern_db.journal import steps, turns
from pattern_db.journal.steps import EffectRow, Key

RESULT_CHARS_MAX = 20_000  # of a result that are compared
FORCED_PREFIX = "rule_"  # of the `call_id` of a call that a rule made

OPEN = frozenset({EffectStatus.PLANNED.value, EffectStatus.STARTED.value, EffectStatus.AWAITING_APPROVAL.value})
# Counted against a limit of calls: those that happened, may have happened, or are about to.
USED = OPEN | {EffectStatus.DONE.value, EffectStatus.TIMEOUT.value, EffectStatus.IN_DOUBT.value}
REFUSED = EffectStatus.DENIED.value

# The first line of the result of a call that was approved with changes.
EDITED = "[A person agreed to this call with changed arguments: "

_TRUST = {
    "user:": TrustLevel.PARTNER,
    "system": TrustLevel.PARTNER,  # a schedule: a person wrote its message
    "system:heartbeat": TrustLevel.AGENT,
    "agent:": TrustLevel.AGENT,
    "conversant:": TrustLevel.CONVERSANT,
}
_LEVELS = list(TrustLevel)

Outcome = tuple[str, str, str]  # what was called, its status and its result: equal for a repetition

# What follows the prefix of an id, as `pattern_core.ids` makes it.
_FRESH_ID = re.compile(r"_(?:[0-9a-hjkmnp-tv-z]{26}|[0-9]{19})\b")


@dataclass(frozen=True, kw_only=True)
class JudgedCall:
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

    @classmethod
    def of(cls, row: EffectRow, arguments: object, *, result: str = "", **outcome: Any) -> JudgedCall:
        """Return the call of a row. `arguments` are what their JSON says, maybe no object; `result` may begin with the
        line that `EDITED` begins; `outcome` are other fields that say what came of the call.
        """
        if result.startswith(EDITED):
            result = result.partition("\n")[2]
        return cls(
            tool=row.tool,
            arguments=arguments if isinstance(arguments, dict) else {"invalid": arguments},
            result=result[:RESULT_CHARS_MAX],
            step=row.step,
            effect_class=row.effect_class,
            is_forced=row.call_id.startswith(FORCED_PREFIX),
            **{"status": row.status, **outcome},
        )

    @property
    def ran(self) -> bool:
        """Whether it succeeded."""
        return self.status == EffectStatus.DONE.value

    @property
    def has_ended(self) -> bool:
        """Whether its result is known, be it a failure."""
        return self.status not in OPEN

    @cached_property
    def outcome(self) -> Outcome:
        """The call and its result, without what differs though nothing is new: ids that are made for each call, such
        as that of a message, and the reason of a refusal, which may contain a time.
        """
        what = f"{self.tool} {json.dumps(self.arguments, sort_keys=True, ensure_ascii=False, default=str)}"
        return what, self.status, "" if self.status == REFUSED else _FRESH_ID.sub("", self.result)


def read(connection: Connection, agent_id: str, tools: Collection[str]) -> dict[str, int]:
    """Return when the agent last started each of `tools` with success, in any turn (unix ms); tools that it never used
    are left out. `RuleSet.timed` names the tools for which this matters.
    """
    return {tool: unix_ms(at) for tool, at in steps.last_used(connection, agent_id, tools).items()}


def lowest(levels: Iterable[TrustLevel]) -> TrustLevel:
    """Return the least trusted of these levels; the least of all if there are none."""
    return max(levels, key=_LEVELS.index, default=TrustLevel.SOURCE)


def trust_of(sender: str, *, is_led_to: bool = False) -> TrustLevel:
    """Return how far a sender is trusted; who led to its message aside."""
    kind = sender.partition(":")[0] + ":"
    if kind == "agent:" and not is_led_to:
        return TrustLevel.SOURCE  # who asked that agent was deleted
    return _TRUST.get(sender) or _TRUST.get(kind, TrustLevel.SOURCE)


def trust(connection: Connection, turn: int) -> TrustLevel:
    """Return how far the turn with this key is trusted: as its least trusted message. Without any, as it is with a
    group's turn and one that has not started, as the least trusted of its sender and all who led to it.
    """
    found = turns.origins(connection, turn)
    return lowest(level for one in found for level in one.trusts or [trust_of(one.sender, is_led_to=one.is_led_to)])


def calls_of(connection: Connection, turn: int) -> dict[Key, JudgedCall]:
    """Return the calls of the turn with this key, in order."""
    rows = steps.calls_with_results(connection, turn, chars_max=RESULT_CHARS_MAX)
    return {
        row.key: JudgedCall.of(
            row,
            json.loads(row.args),
            result=result or "",
            at_ms=None if started_at is None else unix_ms(started_at),
        )
        for row, started_at, result in rows
    }

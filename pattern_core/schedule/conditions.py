"""What a heartbeat waits for: conditions on what happened since it last fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from pattern_core.errors import InvalidInput
from pattern_core.ids import earliest_position
from pattern_core.patterns import matching_lines
from pattern_db.database import Database
from pattern_db.tables import schedules
from pattern_db.tables.schedules import Changes, ScheduleRow

MESSAGES_READ_MAX = 200  # newest messages in which a pattern is looked for
EXCERPT_CHARS = 200  # of the line that matches a pattern

Kind = Literal["inbox", "block", "elapsed", "activity", "pattern", "threshold"]
_NEEDS = {"block": "label", "elapsed": "seconds", "pattern": "pattern", "threshold": "metric"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCondition:
    """A condition on what happened since the schedule last fired; what it caused itself does not count.

    | kind | holds when |
    |---|---|
    | `inbox` | the agent or group got a message |
    | `block` | another changed the block `label` |
    | `elapsed` | `seconds` have passed |
    | `activity` | people and agents sent `count` messages in the constellation |
    | `pattern` | a message matches the regular expression `pattern` |
    | `threshold` | `metric` (tokens, failed turns or messages) is at least `count` |
    """

    kind: Kind
    name: str | None = None
    priority: Literal["low", "medium", "high", "critical"] | None = None
    label: str | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    pattern: str | None = None
    metric: Literal["tokens", "failed", "messages"] | None = None
    count: Annotated[int, Field(ge=1)] = 1

    def check(self) -> None:
        """Refuse a condition that lacks what its kind needs.

        Raises:
            InvalidInput: it does.
        """
        needed = _NEEDS.get(self.kind)
        if needed is not None and getattr(self, needed) is None:
            raise InvalidInput(f"a condition of the kind {self.kind} needs `{needed}`; add it")


async def holding(
    conditions: Sequence[ScheduleCondition], found: Changes, row: ScheduleRow, now_ms: int, database: Database
) -> list[str]:
    """Return which conditions hold, in words for the agent.

    Raises:
        InvalidInput: a pattern is malformed or takes too long to match.
    """
    since_ms = int(row.seen.get("at", 0))
    known_blocks: Mapping[str, int] = row.seen.get("blocks", {})
    reasons = list[str]()
    for one in conditions:
        words = ""
        amount = {"tokens": found.tokens, "failed": found.failed, "messages": found.messages}.get(one.metric or "", 0)
        label = one.label or ""
        match one.kind:
            case "inbox":
                words = f"new messages: {found.inbox}" if found.inbox >= one.count else ""
            case "block":
                words = f"the block {label} changed" if found.blocks[label] > known_blocks.get(label, 0) else ""
            case "elapsed":
                passed_s = (now_ms - since_ms) / 1000
                words = f"{passed_s:.0f} seconds have passed" if passed_s >= (one.seconds or 0) else ""
            case "activity":
                words = f"messages in the constellation: {found.messages}" if found.messages >= one.count else ""
            case "threshold":
                words = f"{one.metric}: {amount}" if amount >= one.count else ""
            case "pattern":
                first = earliest_position(since_ms)
                said = await database.read(schedules.said_since, first, MESSAGES_READ_MAX) if found.messages else []
                texts = [[(1, text)] for text in said]
                lines = await matching_lines(one.pattern or "", texts, limit=1, ignore_case=True) if texts else []
                words = f"a message says: {lines[0][2].strip()[:EXCERPT_CHARS]}" if lines else ""
        if words:
            rank = f" ({one.priority})" if one.priority else ""
            reasons.append(f"{one.name}{rank}: {words}" if one.name else f"{words}{rank}")
    return reasons

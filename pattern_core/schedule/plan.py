"""What decides about the occurrences of a schedule: its plan, and the conditions of a heartbeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from pattern_core.errors import InvalidInput
from pattern_core.ids import earliest_position
from pattern_core.patterns import matching_lines
from pattern_core.search import RELEVANT_MIN, Mode, SearchRequest, search
from pattern_core.timing import Timing, moments, zone_of
from pattern_core.validation import names_in, read
from pattern_db.columns import Json, iso
from pattern_db.database import Database
from pattern_db.enums import Role, SearchKind
from pattern_db.tables import schedules
from pattern_db.tables.schedules import Changes, ScheduleRow

MESSAGES_READ_MAX = 200  # newest messages in which a pattern is looked for
LATE_MS = 60_000  # an occurrence that is later than this was missed
LISTED_MAX = 100  # missed occurrences that get a row each; what is older shares one
RESULTS_READ_MAX = 100  # of a search
EXCERPT_CHARS = 200  # of the line that matches a pattern

Missed = Literal["skip", "last", "all", "ask"]
Kind = Literal["inbox", "block", "task", "file", "search", "elapsed", "activity", "pattern", "threshold"]
_BY_ITSELF = frozenset(("schedule_id", "event_id", "task_id"))  # in the metadata of messages that no one wrote
_NEEDS = {
    "block": "label",
    "file": "folder",
    "search": "query",
    "elapsed": "seconds",
    "pattern": "pattern",
    "threshold": "metric",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCondition:
    """A condition on what happened since the schedule last fired; what it caused itself does not count.

    | kind | holds when |
    |---|---|
    | `inbox` | the agent or group got a message |
    | `block` | another changed the block `label` |
    | `task` | a task of its or of the constellation became due, or another changed it |
    | `file` | a file of the `folder` (by name or id) was added, changed or removed, by anyone |
    | `search` | a search for `query`, by words, finds `count` new messages of people and agents, or files |
    | `elapsed` | `seconds` have passed |
    | `activity` | people and agents sent `count` messages in the constellation |
    | `pattern` | a message matches the regular expression `pattern` |
    | `threshold` | `metric` (tokens, failed turns or messages) is at least `count` |
    """

    kind: Kind
    name: str | None = None
    priority: Literal["low", "medium", "high", "critical"] | None = None
    label: str | None = None
    folder: str | None = None
    query: str | None = None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan(Timing):
    """When a schedule is due, and what then decides whether it fires.

    Each occurrence is late by up to `jitter_s`. In quiet hours (`22:00-07:00`, local) it is skipped. `missed` says what
    follows a time when nothing could fire: nothing (`skip`), one turn for the `last` occurrence, one for each of `all`,
    of which the newest `catch_up_max` count, or a question to a person (`ask`). With conditions (`when`) it fires only
    if one of them holds and it has not fired for `cooldown_s`.
    """

    jitter_s: Annotated[float, Field(ge=0, le=24 * 3600)] = 0.0
    quiet: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$")] | None = None
    missed: Missed = "last"
    catch_up_max: Annotated[int, Field(ge=1, le=50)] = 10
    when: tuple[ScheduleCondition, ...] = ()
    cooldown_s: Annotated[float, Field(ge=0)] = 0.0


class Due(NamedTuple):
    """Occurrences that are due (nominal times, ascending), how many more there were before, and the next one."""

    older: int
    nominal: Sequence[int]
    next_ms: int | None


_PLANS = TypeAdapter(SchedulePlan)


async def holding(plan: SchedulePlan, found: Changes, row: ScheduleRow, now_ms: int, database: Database) -> list[str]:
    """Return which conditions hold, in words for the agent; none within the cool-down.

    Raises:
        InvalidInput: a pattern is malformed or takes too long to match.
    """
    since_ms = int(row.seen.get("at", 0))
    known_blocks: Mapping[str, int] = row.seen.get("blocks", {})
    known_folders: Mapping[str, str] = row.seen.get("folders", {})
    reasons = list[str]()
    for one in plan.when if now_ms - since_ms >= plan.cooldown_s * 1000 else ():
        words = ""
        amount = {"tokens": found.tokens, "failed": found.failed, "messages": found.messages}.get(one.metric or "", 0)
        label, name = one.label or "", one.folder or ""
        match one.kind:
            case "inbox":
                words = f"new messages: {found.inbox}" if found.inbox >= one.count else ""
            case "block":
                words = f"the block {label} changed" if found.blocks[label] > known_blocks.get(label, 0) else ""
            case "task":
                words = f"tasks that are due or changed: {found.tasks}" if found.tasks >= one.count else ""
            case "file":
                words = f"files in {one.folder} changed" if found.folders[name] != known_folders.get(name) else ""
            case "search":
                count = await _count_new(one.query or "", row, since_ms, database)
                words = f"new results for {one.query}: {count}" if count >= one.count else ""
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


def seen_of(found: Changes, now_ms: int) -> dict[str, Json]:
    """Return what the conditions compare with after the schedule fired, or was created."""
    return {"turn": found.turn, "at": now_ms, "blocks": dict(found.blocks), "folders": dict(found.folders)}


async def _count_new(query: str, row: ScheduleRow, since_ms: int, database: Database) -> int:
    """Return how many messages and files a query finds by words that are newer; at most `RESULTS_READ_MAX`."""
    request = SearchRequest(
        query=query,
        kinds=(SearchKind.MESSAGE, SearchKind.FILE),
        roles=[Role.USER],
        since=iso(since_ms + 1),
        mode=Mode.WORDS,
        limit=RESULTS_READ_MAX,
    )
    count = 0
    for hit in (await search(database, request)).hits:
        about = hit.metadata if isinstance(hit.metadata, dict) else {}
        is_own = not _BY_ITSELF.isdisjoint(about) or about.get("group_id", "") == row.group_id
        count += hit.score >= RELEVANT_MIN and not is_own
    return count


def plan_of(stored: Mapping[str, Json], *, is_new: bool = False) -> SchedulePlan:
    """Return a plan; what a newer version stored in it is ignored, unless it `is_new`.

    Raises:
        InvalidInput: a value is invalid.
    """
    plan = read(_PLANS, dict(stored), names_in(SchedulePlan), ignores_unknown=not is_new)
    for condition in plan.when:
        condition.check()
    return plan


def due_of(plan: SchedulePlan, schedule_id: str, first_ms: int, now_ms: int) -> Due:
    """Return what is due at `now_ms` of the occurrences from `first_ms` on."""
    newest, count = deque[int](maxlen=LISTED_MAX), 0
    for nominal in moments(plan, first_ms - 1):
        if nominal + jitter_ms(schedule_id, plan, nominal) > now_ms:
            return Due(count - len(newest), list(newest), nominal)
        newest.append(nominal)
        count += 1
    return Due(count - len(newest), list(newest), None)


def chosen(plan: SchedulePlan, schedule_id: str, due: Sequence[int], now_ms: int) -> tuple[set[int], int | None]:
    """Return which occurrences fire, and the one that a person is asked about."""
    on_time = [one for one in due[-1:] if now_ms - one - jitter_ms(schedule_id, plan, one) <= LATE_MS]
    late = due[: len(due) - len(on_time)]
    match plan.missed:
        case "all":
            return {*late[-plan.catch_up_max :], *on_time}, None
        case "last":
            return {*due[-1:]}, None
        case "ask":
            return {*on_time}, late[-1] if late else None
        case _:
            return {*on_time}, None


def jitter_ms(schedule_id: str, plan: SchedulePlan, nominal: int) -> int:
    """Return by how much an occurrence is late, the same whenever it is asked for."""
    digest = blake2b(f"{schedule_id}:{nominal}".encode(), digest_size=6).digest()
    return int.from_bytes(digest) % (round(plan.jitter_s * 1000) + 1)


def is_quiet(plan: SchedulePlan, now_ms: int) -> bool:
    """Return whether it is a quiet hour in the plan's zone."""
    local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone_of(plan.zone)).strftime("%H:%M")
    start, _, end = (plan.quiet or "-").partition("-")
    return start <= local < end if start <= end else local >= start or local < end

"""The pieces that a prompt is put together from, and what is stored of them: references and reasons, no texts.

    {"parts": [{"kind", "ref"?: id | [id …], "version"?, "name"?, "tokens": n | [n …], "why", "check"?}],
     "left_out": [the same without check], "notes": [sentence], "window"?: int, "tools"?: {"count", "tokens"}}

Two such lists belong to each step: what stays from turn to turn and what was found for the moment. Each is stored once
under its digest, so that a step costs two digests and some numbers. `check` is a digest of a text that has no version,
which shows a reader that it has changed since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from pattern_core.models.tokens import estimate_text
from pattern_db.columns import from_json, to_json
from pattern_db.tables.prompts import LoggedParts

DIGEST_BYTES = 16
CHECK_BYTES = 6
NAME_CHARS_MAX = 80
REASON_CHARS_MAX = 200


class Kind(StrEnum):
    """What a part is."""

    INSTRUCTIONS = "instructions"
    GUIDE = "guide"  # how memory works, and what untrusted text is
    RULES = "rules"  # of the agent's tools, in words
    CLIENT = "client"  # instructions that a front end sent with its request
    CORE = "core"  # blocks that are always shown
    PINNED = "pinned"  # working blocks that are pinned, or shared with the agent
    REFERRED = "referred"  # working blocks that the message names
    LOGS = "logs"  # the newest lines of log blocks
    HANDOFFS = "handoffs"  # notes that others left for the agent
    WORKSPACE = "workspace"  # a map of the project that the session is about
    DECISIONS = "decisions"  # of that project, which fit the message
    GUIDANCE = "guidance"  # what worked with such tasks in that project
    RECALLED = "recalled"  # found beyond the conversation that is shown
    TASKS = "tasks"
    CATCH_UP = "catch_up"  # what the others did while the agent was idle
    ACTIVITY = "activity"  # of other agents
    TIME = "time"
    REMINDER = "reminder"  # of what the rules or the limits want of this step


Place = Literal["system", "memory", "question", "end"]
"""The place of a part: before the conversation, where it seldom changes (`system`) or with each edit (`memory`); before
the turn's question, where it stays; or in the last message of one step."""
_PLACES: Mapping[str, Place] = {
    Kind.INSTRUCTIONS: "system",
    Kind.GUIDE: "system",
    Kind.RULES: "system",
    Kind.CLIENT: "system",
    Kind.CORE: "memory",
    Kind.PINNED: "memory",
    Kind.REMINDER: "end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece, shown whole or not at all.

    `kind` is a `Kind`, or one of a newer version. `ref` is the id of the row that its text comes from (empty for
    none), `version` the block's version, `name` what people call it. `reason` is in words why it is there, or why it
    was left out. `tokens` is an estimate. As it was stored it has no text; `check` is empty then where the version or
    the row itself says what the text was.
    """

    kind: str
    text: str = ""
    reason: str
    ref: str = ""
    version: int | None = None
    name: str = ""
    tokens: int = -1
    check: str = ""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            object.__setattr__(self, "tokens", estimate_text(self.text))


def place_of(kind: str) -> Place:
    """Return the place of parts of a kind; also of a newer version."""
    return _PLACES.get(kind, "question")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found for a turn beyond its conversation, and what was left out."""

    parts: Sequence[Part] = ()
    left_out: Sequence[Part] = ()


NOTHING_FOUND = Findings()


_CHECKED = frozenset(
    {Kind.INSTRUCTIONS, Kind.GUIDE, Kind.RULES, Kind.WORKSPACE, Kind.DECISIONS, Kind.GUIDANCE, Kind.CATCH_UP}
)
_LIKENESS = attrgetter("kind", "reason", "version", "name")  # neighbours that are alike share an entry


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLog:
    """One of the two lists. `window` (tokens) and the tools are in the one that stays."""

    parts: Sequence[Part]
    left_out: Sequence[Part]
    notes: Sequence[str]
    window: int
    tool_count: int
    tool_tokens: int


def check_of(text: str) -> str:
    """Return a short digest of a text, in hexadecimal digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=CHECK_BYTES).hexdigest()


def log_of(parts: Sequence[Part], left_out: Sequence[Part], extra: Mapping[str, Any]) -> LoggedParts:
    """Return the list of the parts in one place, ready to be stored. `extra` are further members, such as `notes`."""
    listed = {"parts": _noted(parts, _CHECKED), "left_out": _noted(left_out), **extra}
    text = to_json({name: value for name, value in listed.items() if value})
    return LoggedParts(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), text)


def read_log(text: str) -> PromptLog:
    """Return a stored list without what only a newer version knows."""
    stored: dict[str, Any] = from_json(text) or {}
    tools = stored.get("tools") or {}
    return PromptLog(
        parts=[each for one in stored.get("parts", ()) for each in _read(one)],
        left_out=[each for one in stored.get("left_out", ()) for each in _read(one)],
        notes=[str(one) for one in stored.get("notes", ())],
        window=int(stored.get("window", 0)),
        tool_count=int(tools.get("count", 0)),
        tool_tokens=int(tools.get("tokens", 0)),
    )


def _noted(there: Sequence[Part], checked: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return what is noted of them; neighbours that are there for the same reason share an entry."""
    found: list[dict[str, Any]] = []
    for (kind, reason, version, name), group in groupby(there, key=_LIKENESS):
        alike = list(group)
        first = alike[0]
        is_shared = len(alike) > 1
        noted = {
            "kind": str(kind),
            "ref": [one.ref for one in alike] if is_shared else first.ref,
            "version": version,
            "name": name[:NAME_CHARS_MAX],
            "tokens": [one.tokens for one in alike] if is_shared else first.tokens,
            "why": reason[:REASON_CHARS_MAX],
        }
        if kind in checked:
            noted["check"] = check_of(first.text)
        found.append({key: value for key, value in noted.items() if value not in ("", None)})
    return found


def _read(stored: Mapping[str, Any]) -> list[Part]:
    """Return the parts of one entry: several where they share it."""
    refs, tokens = stored.get("ref", ""), stored.get("tokens", 0)
    pairs = zip(refs, tokens, strict=True) if isinstance(refs, list) else [(refs, tokens)]
    return [
        Part(
            kind=str(stored.get("kind", "")),
            tokens=int(its_tokens),
            reason=str(stored.get("why", "")),
            ref=str(ref),
            version=stored.get("version"),
            name=str(stored.get("name", "")),
            check=str(stored.get("check", "")),
        )
        for ref, its_tokens in pairs
    ]

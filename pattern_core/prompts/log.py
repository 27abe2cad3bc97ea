"""What a prompt showed and why, as it is stored: references and reasons, no texts.

    {"parts": [{"kind", "ref"?: id | [id …], "version"?, "name"?, "tokens": n | [n …], "why", "check"?}],
     "left_out": [the same without check], "notes": [sentence], "window"?: int, "tools"?: {"count", "tokens"}}

Two of them belong to each step: what stays from turn to turn and what was found for the moment. Each is stored once
under its digest, so that a step costs two digests and some numbers. `check` is a digest of a text that has no version,
by which a reader can tell that it has changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import Any

from pattern_core.prompts.parts import Kind, LeftOut, Part
from pattern_db.columns import from_json, to_json
from pattern_db.tables.prompts import LoggedParts

DIGEST_BYTES = 16
CHECK_BYTES = 6
NAME_CHARS_MAX = 80
REASON_CHARS_MAX = 200
_CHECKED = frozenset({Kind.INSTRUCTIONS, Kind.GUIDE, Kind.RULES})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPart:
    """A part as it was noted. `check` is empty where the version or the row itself tells what the text was."""

    kind: str
    tokens: int
    why: str
    ref: str = ""
    version: int | None = None
    name: str = ""
    check: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLog:
    """One of the two lists. `window` (tokens) and the tools stand in the one that stays."""

    parts: Sequence[LoggedPart]
    left_out: Sequence[LoggedPart]
    notes: Sequence[str]
    window: int = 0
    tool_count: int = 0
    tool_tokens: int = 0


def check_of(text: str) -> str:
    """A short digest of a text, in hexadecimal digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=CHECK_BYTES).hexdigest()


def log_of(parts: Sequence[Part], left_out: Sequence[LeftOut], extra: Mapping[str, Any]) -> LoggedParts:
    """The list of what stood in one place, ready to be stored. `extra` are further members, such as `notes`."""
    from_here = {
        "parts": _noted(parts),
        "left_out": _noted(left_out),
        **extra,
    }
    text = to_json({name: value for name, value in from_here.items() if value})
    return LoggedParts(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), text)


def read_log(text: str) -> PromptLog:
    """A stored list; what a newer version noted beyond is passed over."""
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


def _noted(there: Sequence[Part] | Sequence[LeftOut]) -> list[dict[str, Any]]:
    """What is noted of them; neighbours that are there for the same reason share an entry."""
    found: list[dict[str, Any]] = []
    for (kind, reason, version, name), group in groupby(there, key=_likeness):
        alike: list[Part | LeftOut] = list(group)
        first = alike[0]
        is_shared = len(alike) > 1
        noted = {
            "kind": kind.value,
            "ref": [one.ref for one in alike] if is_shared else first.ref,
            "version": version,
            "name": name[:NAME_CHARS_MAX],
            "tokens": [one.tokens for one in alike] if is_shared else first.tokens,
            "why": reason[:REASON_CHARS_MAX],
        }
        if isinstance(first, Part) and kind in _CHECKED:
            noted["check"] = check_of(first.text)
        found.append({name: value for name, value in noted.items() if value not in ("", None)})
    return found


def _likeness(one: Part | LeftOut) -> tuple[Kind, str, int | None, str]:
    return (one.kind, one.reason, one.version, one.name)


def _read(stored: Mapping[str, Any]) -> list[LoggedPart]:
    """The parts of one entry: several where they share it."""
    refs, tokens = stored.get("ref", ""), stored.get("tokens", 0)
    pairs = zip(refs, tokens, strict=True) if isinstance(refs, list) else [(refs, tokens)]
    return [
        LoggedPart(
            kind=str(stored.get("kind", "")),
            tokens=int(its_tokens),
            why=str(stored.get("why", "")),
            ref=str(ref),
            version=stored.get("version"),
            name=str(stored.get("name", "")),
            check=str(stored.get("check", "")),
        )
        for ref, its_tokens in pairs
    ]

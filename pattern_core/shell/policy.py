"""What the operator's settings make of a command line: it runs, a person is asked, or it is refused."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pattern_core.shell.classify import classify
from pattern_core.shell.danger import Danger, Judgement
from pattern_core.shell.settings import ShellSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a command line, and a sentence that says why."""

    action: Literal["run", "ask", "refuse"]
    reason: str
    danger: Danger


def verdict(command: str, settings: ShellSettings) -> Verdict:
    """Whether the command line runs, has to be agreed to by a person, or is refused. Pure."""
    found = classify(command)
    for part in found.parts:
        denied = _listed(part, settings.deny)
        if denied is not None:
            return Verdict(action="refuse", reason=f"This server does not run `{denied}`.", danger=found.danger)
    if found.danger is Danger.DANGEROUS:
        reason = f"{found.reason} Such a command is never run; write it so that what it does can be read from it."
        return Verdict(action="refuse", reason=reason, danger=found.danger)
    if not settings.network and any(part.danger is Danger.NETWORK for part in found.parts):
        reason = f"{found.reason} Commands on this server have no network."
        return Verdict(action="refuse", reason=reason, danger=Danger.NETWORK)
    open_parts = [
        part for part in found.parts if part.danger is not Danger.READ_ONLY and _listed(part, settings.allow) is None
    ]
    if not open_parts:
        return Verdict(action="run", reason=found.reason, danger=found.danger)
    return Verdict(action="ask", reason=found.reason, danger=found.danger)


def _listed(part: Judgement, listed: Sequence[str]) -> str | None:
    """The first entry that the command begins with."""
    for entry in listed:
        words = shlex.split(entry)
        if words and list(part.words[: len(words)]) == words:
            return entry
    return None

"""What a command line may do at worst, from all that stands in it and not from its first word.

Each simple command of a pipeline, list, function, substitution or heredoc is judged, also those that another command
runs (`env`, `xargs`, `find -exec`, `sh -c`), each redirection, and each variable that programs obey. What cannot be
known before it runs counts as the worst. This decides who is asked; that nothing worse can happen is the sandbox's
part, since a program may always do other things than its name says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.shell.danger import Danger, Judgement, refused, writes
from pattern_core.shell.judge import judge
from pattern_core.shell.parse import parse
from pattern_core.shell.programs import HARMLESS_TARGETS, HARMLESS_VARIABLES, RULING_VARIABLES
from pattern_core.shell.script import Assignment, Redirection, Script, SimpleCommand

NESTING_MAX = 5  # of `sh -c "sh -c …"`
SHOWN_CHARS_MAX = 80  # of a part that is named in a reason
_RULING_PREFIXES = ("LD_", "DYLD_", "BASH_FUNC_", "PYTHON", "PERL", "RUBY", "NODE_", "GIT_", "JAVA_TOOL", "GCONV_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The class of a command line, a sentence that says why, and what each part of it was judged to do."""

    danger: Danger
    reason: str
    parts: Sequence[Judgement]


def classify(command: str) -> Classification:
    """Judge a command line. Pure, and never fails: what cannot be read is dangerous."""
    parts = _judged(command, 0)
    if not parts:
        return Classification(danger=Danger.READ_ONLY, reason="It holds no command.", parts=())
    worst = max(parts, key=lambda part: part.danger)
    reason = worst.reason if not worst.words else f"`{_shown(worst.words)}` {worst.reason}"
    return Classification(danger=worst.danger, reason=f"{reason[0].upper()}{reason[1:]}.", parts=parts)


def _shown(words: Sequence[str]) -> str:
    text = " ".join(" ".join(words).split())
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"


def _judged(command: str, depth: int) -> list[Judgement]:
    if depth > NESTING_MAX:
        return [refused((), "it hides commands in commands too deeply")]
    script = parse(command)
    found = [refused((), f"it is not certain what the command does: {doubt}") for doubt in script.doubts]
    for one in script.commands:
        found += _judge(one, script, depth)
    found += [judged for one in script.redirections if (judged := _redirected(one))]
    found += [judged for one in script.assignments if (judged := _assigned(one))]
    return found


def _judge(command: SimpleCommand, script: Script, depth: int) -> list[Judgement]:
    name = command.words[0].text
    if name is not None and script.functions.get(name, command.at) < command.at:
        return []  # its body is judged where it is defined
    judgements: list[Judgement] = []
    for one in judge(command):
        if isinstance(one, str):
            judgements += _judged(one, depth + 1)
        else:
            judgements.append(one)
    return judgements


def _redirected(one: Redirection) -> Judgement | None:
    target = one.target.text
    if target is not None and target.startswith(("/dev/tcp/", "/dev/udp/")):
        return Judgement(danger=Danger.NETWORK, reason="opens a connection", words=(target,))
    if target is None and not (one.target.is_one and one.target.start and not one.target.start.startswith("/dev")):
        # It may become /dev/tcp/…, which bash opens also for reading.
        return refused((">" if one.is_write else "<",), "opens a file whose name is not certain")
    if not one.is_write or target in HARMLESS_TARGETS:
        return None
    if (target or one.target.start).startswith(("/dev/", "/proc/", "/sys/", "/etc/", "/boot/")):
        return refused((">", target or one.target.shown), "writes into the system itself")
    return writes((">", target or one.target.shown), "writes a file")


def _assigned(one: Assignment) -> Judgement | None:
    if one.name in RULING_VARIABLES or one.name.startswith(_RULING_PREFIXES):
        return refused((f"{one.name}=",), "decides what other programs run")
    if one.is_exported and one.name not in HARMLESS_VARIABLES and not one.name.startswith("LC_"):
        return writes((f"{one.name}=",), "sets a variable that programs may obey")
    return None

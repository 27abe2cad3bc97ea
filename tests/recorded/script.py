"""The format of a recording: steps that a person writes, each followed by the answer that a run wrote below it.

    # Words about the step.
    model {"says": "Good morning."}
    POST /constellations/home/agents/ada/messages as ben:chat
    Prefer: respond-async
    {"content": "Hello"}
    keep turn = turn_id
    | 202
    | location: /api/v1/…

A step is a request (address below `/api/v1`, unless it begins with two slashes) or a command line (`$ memory list`),
with headers, a body and any of these lines:

    model JSON          what the model will answer
    clock SECONDS       time that passes before
    file NAME WORDS     a line of a file in the run's folder, `$dir`
    < WORDS             a line of standard input
    keep NAME = PATH    a value of the answer or one of its headers, `$NAME` in later steps
    until EVENT         leave the stream after it
    ends $turn          wait until a turn that continues behind the answer has ended

Steps are separated by empty lines. Lines with a bar are the answer; on those with `|!` is what a command wrote to the
standard error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any

BAR = "|"
_REQUEST = re.compile(r"(GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) (\S+)(?: as (\S+))?")
_DIRECTIVE = re.compile(r"(\$|<|model|file|clock|keep|until|ends) ?(.*)")
_HEADER = re.compile(r"([A-Z][A-Za-z-]*): ?(.*)")


@dataclass(kw_only=True)
class Step:
    """One step: its own lines as they were written, what they mean, and the answer that is recorded."""

    lines: list[str] = field(default_factory=list)
    recorded: list[str] = field(default_factory=list)
    models: list[Any] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    clock_s: float = 0
    method: str = ""
    path: str = ""
    who: str = "admin"
    headers: dict[str, str] = field(default_factory=dict)
    body: list[str] = field(default_factory=list)
    command: str = ""
    stdin: str = ""
    kept: dict[str, str] = field(default_factory=dict)
    until: str | None = None
    ends: str | None = None

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.method} {self.path}" if self.method else f"$ {self.command}" if self.command else ""

    @property
    def reads_only(self) -> bool:
        """Whether it changes nothing, so that no time need pass before it."""
        return self.method in ("", "GET", "HEAD") and not self.command

    def add(self, line: str) -> None:
        """Take one more line of the script.

        Raises:
            ValueError: it means nothing.
        """
        if line.startswith(BAR):
            self.recorded.append(line)
            return
        self.lines.append(line)
        if line.startswith("#") and not self.name:
            return
        if not self.method and (request := _REQUEST.fullmatch(line)):
            self.method, self.path, self.who = request[1], request[2], request[3] or "admin"
        elif directive := _DIRECTIVE.fullmatch(line):
            self._direct(directive[1], directive[2])
        elif self.method and not self.body and (header := _HEADER.fullmatch(line)):
            self.headers[header[1]] = header[2]
        elif self.method:
            self.body.append(line)
        else:
            raise ValueError(f"no part of a step: {line!r}")

    def _direct(self, word: str, rest: str) -> None:
        match word:
            case "$":
                self.command = rest
            case "<":
                self.stdin += rest + "\n"
            case "model":
                self.models.append(json.loads(rest))
            case "file":
                name, _, words = rest.partition(" ")
                self.files[name] = self.files.get(name, "") + words + "\n"
            case "clock":
                self.clock_s += float(rest)
            case "until":
                self.until = rest
            case "ends":
                self.ends = rest
            case "keep":
                name, _, path = rest.partition(" = ")
                self.kept[name] = path


def read(text: str) -> list[Step]:
    """The steps of a recording; words that stand alone belong to the step behind them.

    Raises:
        ValueError: a line means nothing.
    """
    steps: list[Step] = []
    for part in re.split(r"\n\n+", text.strip("\n")):
        step = Step()
        for line in part.split("\n"):
            step.add(line)
        steps.append(step)
    return steps


def write(steps: Iterable[Step], answers: Iterable[list[str]]) -> str:
    """The recording with these answers below its steps."""
    return "\n\n".join("\n".join([*step.lines, *answer]) for step, answer in zip(steps, answers, strict=True)) + "\n"


def barred(text: str, sign: str = "") -> list[str]:
    """Lines of an answer as they are recorded; a last line without an end says so, and carriage returns are visible."""
    *lines, last = text.replace("\r\n", "\u240d\n").split("\n")
    if last:
        lines += [last, "\\ no line end"]
    return [f"{BAR}{sign} {line}" if line else BAR + sign for line in lines]


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with `$NAME` replaced; unknown names stay."""
    return Template(text).safe_substitute(values)


def found(answer: Any, path: str) -> str:
    """The value at a dotted path of an answer, as text: `items.0.id`."""
    for key in path.split("."):
        answer = answer[int(key)] if isinstance(answer, list) else answer[key]
    return str(answer)

"""What tools reach beyond memory: the services of one constellation that touch the world outside its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pattern_core.halt import Halt
    from pattern_core.shell.settings import ShellSettings
    from pattern_core.shell.shell import Shell
    from pattern_core.tools.results import Results
    from pattern_core.web.web import Web, WebSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """What the operator allows the tools of all constellations; None where there is none of that kind.

    `halts_log` is the file that gets a line for each emergency halt.
    """

    shell: ShellSettings | None = None
    web: WebSettings | None = None
    halts_log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The services; None where the operator's configuration has none of that kind."""

    results: Results
    halt: Halt
    web: Web | None = None
    shell: Shell | None = None

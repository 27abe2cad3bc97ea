"""What the operator allows the shell, and what that makes of a command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pattern_core.shell.classify import classify
from pattern_core.shell.danger import Danger, Judgement

Means = Literal["namespaces", "landlock"]

# What programs need of the system. /etc holds other things too, so its files are named one by one.
READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store", "/proc"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld-musl-x86_64.path", "/etc/alternatives"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/timezone", "/etc/os-release"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/ca-certificates", "/etc/mime.types"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols"),
    *("/etc/locale.alias", "/etc/terminfo", "/etc/magic", "/etc/java", "/etc/fonts", "/run/systemd/resolve"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """The section `[shell]`.

    `allow` and `deny` hold beginnings of commands, such as `git commit` or `pytest`, or `>` for files that are written
    by redirection. What is allowed runs without a question, what is denied never; nothing allows what is dangerous.
    `means` are the system's means of confinement that are tried.
    `kept_out` are the server's own directories, which no root may hold. Times are seconds, sizes bytes, the bounds
    `cpu_s`, `memory_bytes`, `file_bytes` and `open_files` hold for each process.
    """

    roots: Sequence[Path] = ()
    kept_out: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    network: bool = False
    require_sandbox: bool = True
    means: Sequence[Means] = ("namespaces", "landlock")
    path: str = "/usr/local/bin:/usr/bin:/bin"
    children_max: int = 8
    processes_max: int = 128
    cpu_s: int = 600
    memory_bytes: int = 4 * 1024**3
    file_bytes: int = 1024**3
    open_files: int = 1024
    grace_s: float = 2.0  # between SIGTERM and SIGKILL
    idle_s: float = 3600.0  # after which a task that nobody looks at is ended


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

"""What the operator allows the shell. Read with the configuration, so it imports nothing of the rest of the room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
    idle_s: float = 3600.0  # after which a task that is not asked about is ended

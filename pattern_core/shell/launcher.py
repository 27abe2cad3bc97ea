"""The child process in which one command runs: `launcher PLAN`, PLAN as `child.py` writes it, in JSON.

It supervises the command, and nothing of the command survives it. Where the system allows, the command runs in its
own namespaces; when their first process ends, all others end, even detached ones; else this process adopts what the
command leaves behind and ends that. Standard input is the lifeline: when it closes, since the server wants the command
to stop or is dead itself, everything gets SIGTERM, and SIGKILL after `grace_s`.

Files are confined by Landlock: what is not named cannot be opened. The descriptor `status_fd` gets lines of JSON:
`{"confined": […]}` before the command begins, `{"refused": why}` instead of it, `{"code", "stopped"}` after it.

Run without site-packages, so it imports the standard library only.

Sources: namespaces(7), pid_namespaces(7), prctl(2), capabilities(7), landlock(7) up to version 6 of its ABI.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from pattern_core.process_tree import LIBC, ProcessTree, code_of, descendants, lead_session, prctl, process_stats

TYPE_CHECKING = False  # loading `typing` would take a tenth of the time in which a command starts
if TYPE_CHECKING:
    from typing import Any

POLL_S = 0.1  # between two looks at the number of processes
REFUSED = 125
THREADS_MAX = 4096  # of a command, between two looks; root has no such bound
TMPFS_OPTIONS = b"size=256m,mode=1777"
COVERED = ("/dev/shm", "/run", "/tmp", "/var/tmp")  # hidden behind empty directories of the command's own

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_CAPABILITIES = 64
_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_TCP, _LANDLOCK_SCOPES = 0b11, 0b11
# Rights of files alone (execute, write, read, truncate, control devices), of looking, and all by version of the ABI.
_OF_FILES = 0b1100000000000111
_LOOK = 0b1101
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}


class Refused(Exception):
    """The command cannot be run as required; the message is for people."""


def main(arguments: Sequence[str]) -> int:
    """Run the plan's command and return the exit code: its own, or 128 and the signal that ended it."""
    plan = json.loads(arguments[0])
    status = plan["status_fd"]
    os.set_inheritable(status, False)
    plan["roots"] = [os.path.realpath(root) for root in plan["roots"]]
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    has_namespaces = "namespaces" in plan["means"] and _unshare(network=plan["network"])
    begin = partial(_begin, plan, lifeline, has_namespaces=has_namespaces)
    tree = ProcessTree(begin, is_contained=has_namespaces)
    _watch(tree, plan, lifeline, has_namespaces=has_namespaces)
    return tree.code


def _watch(tree: ProcessTree, plan: Mapping[str, Any], lifeline: int, *, has_namespaces: bool) -> None:
    """Wait for the command's end, or end it, and report how it ended."""
    stopped = None
    while not tree.is_over():
        ready = tree.wait(POLL_S, *([lifeline] if stopped is None else []))
        if stopped is None and lifeline in ready:
            stopped = "requested"
            tree.stop(plan["grace_s"])
        elif stopped is None and _count(has_namespaces=has_namespaces) > plan["processes"]:
            stopped = "processes"
            tree.stop(0)
    tree.end()
    _tell(plan["status_fd"], {"code": tree.code, "stopped": stopped})


def _count(*, has_namespaces: bool) -> int:
    if has_namespaces and not Path("/proc/self").exists():  # /proc shows the namespace, and not this process
        return sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    return len(descendants(os.getpid()))


def _threads_of_user() -> int:
    """Return how many threads all processes of this user have, as far as /proc shows them."""
    count = 0
    for pid, fields in process_stats():
        with suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == os.geteuid():
                count += int(fields[17])
    return count


def _begin(plan: Mapping[str, Any], lifeline: int, *, has_namespaces: bool) -> int:
    """Return in the first process of the command: confine it, run it, and wait for its end; returns the exit code."""
    status = plan["status_fd"]
    if select.select([lifeline], [], [], 0)[0]:  # too late: the server is gone, and who started this may be too
        _tell(status, {"refused": "it was ended before it began"})
        return REFUSED
    os.close(lifeline)
    try:
        temporary = None
        if has_namespaces:
            temporary = _cover(plan["roots"], network=plan["network"])
        confined = _confine(plan, temporary, has_namespaces=has_namespaces)
        _tell(status, {"confined": confined})
    except (Refused, OSError) as error:
        _tell(status, {"refused": str(error)})
        return REFUSED
    environment = {**plan["environment"], "TMPDIR": temporary or str(Path.cwd())}
    if not has_namespaces:
        return _execute(plan, environment, has_namespaces=False)
    command = os.fork()
    if command == 0:
        lead_session()
        return _execute(plan, environment, has_namespaces=True)
    signal.signal(signal.SIGTERM, _hand_on)
    while True:
        pid, ended = os.wait()
        if pid == command:
            return code_of(ended)


def _hand_on(number: int, _frame: object) -> None:
    with suppress(ProcessLookupError):
        os.kill(-1, number)  # every process in the namespace but this one


def _execute(plan: Mapping[str, Any], environment: Mapping[str, str], *, has_namespaces: bool) -> int:
    """Become the command."""
    bounds = {
        resource.RLIMIT_CPU: plan["cpu_s"],
        resource.RLIMIT_AS: plan["memory_bytes"],
        resource.RLIMIT_FSIZE: plan["file_bytes"],
        resource.RLIMIT_NOFILE: plan["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    # In a namespace only what runs there counts, elsewhere all that the user runs.
    bounds[resource.RLIMIT_NPROC] = THREADS_MAX + (0 if has_namespaces else _threads_of_user())
    for kind, bound in bounds.items():
        with suppress(ValueError, OSError):  # macOS has no bound on the address space
            resource.setrlimit(kind, (bound, bound))
    shell = plan["shell"]
    try:
        os.execve(shell, [shell, "--norc", "--noprofile", "-c", plan["command"]], dict(environment))
    except OSError as error:
        _tell(plan["status_fd"], {"refused": f"{shell} cannot be started: {error.strerror}"})
        return REFUSED


def _unshare(*, network: bool) -> bool:
    """Enter namespaces for users, processes, mounts and, unless `network`, connections. False if it is not allowed."""
    user, group = os.geteuid(), os.getegid()
    flags = _NEWUSER | _NEWPID | _NEWNS | _NEWIPC | (0 if network else _NEWNET)
    if not hasattr(LIBC, "unshare") or LIBC.unshare(flags) != 0:
        return False
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    for kind, number in (("uid_map", user), ("gid_map", group)):
        with suppress(OSError):  # without a map the command has no user, and may do less
            Path("/proc/self", kind).write_text(f"{number} {number} 1")
    LIBC.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if not network:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            fcntl.ioctl(own, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    return True


def _cover(roots: Sequence[str], *, network: bool) -> str | None:
    """Hide other processes, and what programs leave for each other; returns a directory for temporary files."""
    names = os.path.realpath("/etc/resolv.conf")
    resolving = Path(names).read_bytes() if network and names.startswith("/run/") and Path(names).is_file() else None
    LIBC.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
    with suppress(OSError):  # nothing in here needs further namespaces, which are where kernels had holes
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    covered: list[str] = []
    for place in COVERED:
        is_free = not any(Path(root).is_relative_to(place) for root in roots)
        if not is_free or not Path(place).is_dir() or Path(place).is_symlink():
            continue
        if LIBC.mount(b"tmpfs", place.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, TMPFS_OPTIONS) == 0:
            covered.append(place)
    if resolving is not None and "/run" in covered:
        Path(names).parent.mkdir(parents=True)
        Path(names).write_bytes(resolving)
    return next((place for place in ("/tmp", "/dev/shm") if place in covered), None)


def _confine(plan: Mapping[str, Any], temporary: str | None, *, has_namespaces: bool) -> list[str]:
    """Give up every right that the command must not have. What is confined: files, network, processes.

    Raises:
        Refused: something has to be confined that the system cannot confine.
    """
    confined = ["processes"] if has_namespaces else []
    is_offline = has_namespaces and not plan["network"]
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if "landlock" in plan["means"]:
        version = LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
        if version >= 1:
            wanted = dict.fromkeys((*plan["roots"], *([temporary] if temporary else [])), True)
            wanted.update({path: False for path in plan["readable"] if path not in wanted})
            # Without a network there is still the machine's own address, within the namespace.
            _landlock(version, wanted, forbid_tcp=not plan["network"] and not has_namespaces)
            confined.append("files")
            is_offline = is_offline or (version >= 4 and not plan["network"])
    if is_offline:
        confined.append("network")
    missing = [name for name in plan["required"] if name not in confined]
    if missing:
        raise Refused(f"this system cannot confine {' and '.join(missing)}")
    for capability in range(_CAPABILITIES):
        prctl(_PR_CAPBSET_DROP, capability)
    return confined


def _landlock(version: int, wanted: Mapping[str, bool], *, forbid_tcp: bool) -> None:
    """Confine this process and all its children to the wanted paths; True where they may also write."""
    handled = _RIGHTS[min(version, 5)]
    tcp = _LANDLOCK_TCP if forbid_tcp and version >= 4 else 0
    scopes = _LANDLOCK_SCOPES if version >= 6 else 0
    # Each version of the structure is as long as the kernel knows it.
    attributes = struct.pack("QQQ", handled, tcp, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = _checked(LIBC.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    devices = {"/dev/null": True, "/dev/zero": True, "/dev/full": True, "/dev/random": False, "/dev/urandom": False}
    for path, is_writable in {**wanted, **devices}.items():
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not every system has every path
        rights = handled if is_writable else _LOOK & handled
        if not Path(path).is_dir():
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(LIBC.syscall(_LANDLOCK_ADD, rules, 1, rule, ctypes.c_uint32(0)))
        os.close(descriptor)
    _checked(LIBC.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _checked(result: int) -> int:
    if result < 0:
        raise Refused(f"Landlock refuses: {os.strerror(ctypes.get_errno())}")
    return result


def _tell(status: int, what: Mapping[str, object]) -> None:
    with suppress(OSError):
        os.write(status, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

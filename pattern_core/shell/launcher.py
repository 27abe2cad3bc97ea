"""The child process in which one command runs: `python -I -S launcher.py PLAN`, PLAN as `child.py` writes it, in JSON.

It stays beside the command, and nothing of the command survives it. Where the system allows, the command lives in
namespaces of its own, whose first process takes all others with it when it ends, however they detached themselves; else
this process adopts what the command leaves behind and ends that. Standard input is the lifeline: when it closes, since
the server wants the command to stop or is dead itself, everything gets SIGTERM, and SIGKILL after `grace_s`.

Files are confined by Landlock: what is not named cannot be opened. On the descriptor `status_fd` stand lines of JSON:
`{"confined": […]}` before the command begins, `{"refused": why}` instead of it, `{"code", "stopped"}` after it.

Run by its path, without our packages and without site-packages, so it imports the standard library only.

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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TYPE_CHECKING = False  # loading `typing` would take a tenth of the time in which a command starts
if TYPE_CHECKING:
    from typing import Any

POLL_S = 0.1  # between two looks at the number of processes
END_S = 2.0  # for killed processes to be gone
REFUSED = 125
THREADS_MAX = 4096  # of a command, between two looks; root has no such bound
TMPFS_OPTIONS = b"size=256m,mode=1777"
COVERED = ("/dev/shm", "/run", "/tmp", "/var/tmp")  # hidden behind empty directories of the command's own

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
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
    """The command cannot be run as it has to be; the message is for people."""


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
    libc = ctypes.CDLL(None, use_errno=True)
    has_namespaces = "namespaces" in plan["means"] and _unshare(libc, network=plan["network"])
    if not has_namespaces:
        _prctl(libc, _PR_SET_CHILD_SUBREAPER, 1)
    waker, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        os._exit(_begin(libc, plan, lifeline, has_namespaces=has_namespaces))
    return _Watch(plan, child, has_namespaces=has_namespaces).until_over(lifeline, waker)


class _Watch:
    """This process while the command runs."""

    def __init__(self, plan: Mapping[str, Any], child: int, *, has_namespaces: bool) -> None:
        self._grace_s = plan["grace_s"]
        self._processes_max = plan["processes"]
        self._status = plan["status_fd"]
        self._child = child
        self._has_namespaces = has_namespaces
        self._code: int | None = None
        self._stopped: str | None = None
        self._kill_at: float | None = None

    def until_over(self, lifeline: int, waker: int) -> int:
        """Wait for the command's end, or bring it about; returns its exit code."""
        watched = select.poll()
        watched.register(lifeline, select.POLLIN | select.POLLHUP)
        watched.register(waker, select.POLLIN)
        while self._reap():
            events = dict(watched.poll(POLL_S * 1000))
            if waker in events:
                os.read(waker, 4096)
            if lifeline in events and self._stopped is None:
                watched.unregister(lifeline)
                self._stop("told")
            if self._stopped is None and self._count() > self._processes_max:
                self._stop("processes")
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal(signal.SIGKILL)
        self._end_the_rest()
        _tell(self._status, {"code": self._code, "stopped": self._stopped})
        return self._code or 0

    def _reap(self) -> bool:
        """Take note of ended processes; whether the command runs on."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._child:
                    self._code = _code_of(found[1])
        return self._code is None

    def _stop(self, why: str) -> None:
        self._stopped = why
        is_urgent = why == "processes"
        self._kill_at = time.monotonic() + (0.0 if is_urgent else self._grace_s)
        self._signal(signal.SIGKILL if is_urgent else signal.SIGTERM)

    def _signal(self, number: int) -> None:
        # The first process of a namespace hands SIGTERM on, and takes all others with it when it is killed. Elsewhere
        # the group comes first: one call ends most of what multiplies faster than it can be looked at.
        if not self._has_namespaces:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, number)
        for pid in [self._child] if self._has_namespaces else [self._child, *_descendants(os.getpid())]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _count(self) -> int:
        if self._has_namespaces and not Path("/proc/self").exists():  # /proc shows the namespace, and not this process
            return sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
        return len(_descendants(os.getpid()))

    def _end_the_rest(self) -> None:
        deadline = time.monotonic() + END_S
        while not self._has_namespaces and time.monotonic() < deadline:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
            for pid in _descendants(os.getpid()):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            select.poll().poll(5)


def _descendants(root: int) -> list[int]:
    """Return all processes below `root`, from /proc; none where there is no such thing."""
    parents: dict[int, int] = {}
    with suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, ValueError, IndexError):
                    state, parent = (entry / "stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()[:2]
                    if state != "Z":
                        parents[int(entry.name)] = int(parent)
    return list(_below(root, parents))


def _below(root: int, parents: Mapping[int, int]) -> Iterator[int]:
    """Yield in time that grows with their number alone, and to any depth: a command decides how many there are."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = [root]
    while waiting:
        found = children.pop(waiting.pop(), [])
        yield from found
        waiting += found


def _threads_of_user() -> int:
    """Return how many threads all processes of this user have, as far as /proc shows them."""
    count = 0
    with suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError, ValueError, IndexError):
                    if entry.stat().st_uid == os.geteuid():
                        count += int((entry / "stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()[17])
    return count


def _begin(libc: ctypes.CDLL, plan: Mapping[str, Any], lifeline: int, *, has_namespaces: bool) -> int:
    """Return in the first process of the command: confine it, run it, and wait for its end; returns the exit code."""
    status = plan["status_fd"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([lifeline], [], [], 0)[0]:  # too late: the server is gone, and who started this may be too
        _tell(status, {"refused": "it was ended before it began"})
        return REFUSED
    os.close(lifeline)
    os.setsid()
    try:
        temporary = None
        if has_namespaces:
            temporary = _cover(libc, plan["roots"], network=plan["network"])
        confined = _confine(libc, plan, temporary, has_namespaces=has_namespaces)
        _tell(status, {"confined": confined})
    except (Refused, OSError) as error:
        _tell(status, {"refused": str(error)})
        return REFUSED
    environment = {**plan["environment"], "TMPDIR": temporary or str(Path.cwd())}
    if not has_namespaces:
        return _execute(plan, environment, has_namespaces=False)
    command = os.fork()
    if command == 0:
        os.setsid()
        _prctl(libc, _PR_SET_PDEATHSIG, signal.SIGKILL)
        return _execute(plan, environment, has_namespaces=True)
    signal.signal(signal.SIGTERM, _hand_on)
    while True:
        pid, ended = os.wait()
        if pid == command:
            return _code_of(ended)


def _hand_on(number: int, _frame: object) -> None:
    with suppress(ProcessLookupError):
        os.kill(-1, number)  # everybody in the namespace but this process


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
    # Python ignores these two; programs expect that they end them.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    shell = plan["shell"]
    try:
        os.execve(shell, [shell, "--norc", "--noprofile", "-c", plan["command"]], dict(environment))
    except OSError as error:
        _tell(plan["status_fd"], {"refused": f"{shell} cannot be started: {error.strerror}"})
        return REFUSED


def _unshare(libc: ctypes.CDLL, *, network: bool) -> bool:
    """Enter namespaces for users, processes, mounts and, unless `network`, connections. False if it is not allowed."""
    user, group = os.geteuid(), os.getegid()
    flags = _NEWUSER | _NEWPID | _NEWNS | _NEWIPC | (0 if network else _NEWNET)
    if not hasattr(libc, "unshare") or libc.unshare(flags) != 0:
        return False
    with suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny")
    for kind, number in (("uid_map", user), ("gid_map", group)):
        with suppress(OSError):  # without a map the command is nobody, and may do less
            Path("/proc/self", kind).write_text(f"{number} {number} 1")
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if not network:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            fcntl.ioctl(own, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))
    return True


def _cover(libc: ctypes.CDLL, roots: Sequence[str], *, network: bool) -> str | None:
    """Hide other processes, and what programs leave for each other; returns a directory for temporary files."""
    names = os.path.realpath("/etc/resolv.conf")
    resolving = Path(names).read_bytes() if network and names.startswith("/run/") and Path(names).is_file() else None
    libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)
    with suppress(OSError):  # nobody in here needs further namespaces, which are where kernels had holes
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
    covered: list[str] = []
    for place in COVERED:
        is_free = not any(Path(root).is_relative_to(place) for root in roots)
        if not is_free or not Path(place).is_dir() or Path(place).is_symlink():
            continue
        if libc.mount(b"tmpfs", place.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, TMPFS_OPTIONS) == 0:
            covered.append(place)
    if resolving is not None and "/run" in covered:
        Path(names).parent.mkdir(parents=True)
        Path(names).write_bytes(resolving)
    return next((place for place in ("/tmp", "/dev/shm") if place in covered), None)


def _confine(libc: ctypes.CDLL, plan: Mapping[str, Any], temporary: str | None, *, has_namespaces: bool) -> list[str]:
    """Give up every right that the command shall not have. What is confined: files, network, processes.

    Raises:
        Refused: something has to be confined that the system cannot confine.
    """
    confined = ["processes"] if has_namespaces else []
    is_offline = has_namespaces and not plan["network"]
    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
    if "landlock" in plan["means"]:
        version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
        if version >= 1:
            wanted = dict.fromkeys((*plan["roots"], *([temporary] if temporary else [])), True)
            wanted.update({path: False for path in plan["readable"] if path not in wanted})
            # Without a network there is still the machine's own address, within the namespace.
            _landlock(libc, version, wanted, forbid_tcp=not plan["network"] and not has_namespaces)
            confined.append("files")
            is_offline = is_offline or (version >= 4 and not plan["network"])
    if is_offline:
        confined.append("network")
    missing = [name for name in plan["required"] if name not in confined]
    if missing:
        raise Refused(f"this system cannot confine {' and '.join(missing)}")
    for capability in range(_CAPABILITIES):
        _prctl(libc, _PR_CAPBSET_DROP, capability)
    return confined


def _landlock(libc: ctypes.CDLL, version: int, wanted: Mapping[str, bool], *, forbid_tcp: bool) -> None:
    """Confine this process and all its children to the wanted paths; True where they may also write."""
    handled = _RIGHTS[min(version, 5)]
    tcp = _LANDLOCK_TCP if forbid_tcp and version >= 4 else 0
    scopes = _LANDLOCK_SCOPES if version >= 6 else 0
    # Each version of the structure is as long as the kernel knows it.
    attributes = struct.pack("QQQ", handled, tcp, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = _checked(libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
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
        _checked(libc.syscall(_LANDLOCK_ADD, rules, 1, rule, ctypes.c_uint32(0)))
        os.close(descriptor)
    _checked(libc.syscall(_LANDLOCK_RESTRICT, rules, ctypes.c_uint32(0)))
    os.close(rules)


def _checked(result: int) -> int:
    if result < 0:
        raise Refused(f"Landlock refuses: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> None:
    if hasattr(libc, "prctl"):
        libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _code_of(ended: int) -> int:
    return os.waitstatus_to_exitcode(ended) if os.WIFEXITED(ended) else 128 + os.WTERMSIG(ended)


def _tell(status: int, what: Mapping[str, object]) -> None:
    with suppress(OSError):
        os.write(status, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Names of files, and directories of this machine, read and written without ever leaving them.

A name is a path within a folder, with slashes, that cannot lead out of it. Every step from a folder's directory to a
file is one `openat` that refuses links, so that a directory that is exchanged for a link at the wrong moment leads
nowhere either. Everything here blocks: call it on a thread.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pattern_core.errors import InvalidInput, NotFound, PatternError, Unavailable
from pattern_core.untrusted import plain

FILES_MAX = 10_000  # of one folder
ENTRIES_MAX = 100_000  # entries per scan
LISTED_MAX = 2_000  # entries of one directory in a list
FILE_BYTES_MAX = 20 * 1024 * 1024
NAME_CHARS_MAX = 500
PART_BYTES_MAX = 255  # the longest name in file systems
DEPTH_MAX = 20
# Directories that hold what programs make or fetch; they are not searched.
_IGNORED_NAMES = (
    "__pycache__/node_modules/bower_components/site-packages/venv/env/target/dist/build/coverage/htmlcov"
    "/DerivedData/Pods/$RECYCLE.BIN/System Volume Information"
)
_IGNORED = frozenset(_IGNORED_NAMES.split("/"))
# Suffixes of temporary files of programs.
_LEFTOVERS = ("~", ".swp", ".swo", ".tmp", ".part", ".crdownload", ".pyc", ".min.js", ".min.css", ".map")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# To pass through a directory one need not be allowed to list it; Linux has a way to open it for that alone.
_PASSAGE = (os.O_PATH if hasattr(os, "O_PATH") else os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a pipe without O_NONBLOCK would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_GLOB = re.compile(r"\*\*/|\*\*|\*|\?")
_MEANS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class UnreadableFile(InvalidInput):
    """This file cannot be read as text; the message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskEntry:
    """A regular file found by a scan: its name within the folder (NFC), size in bytes and modification time.

    A file in the database has no modification time.
    """

    name: str
    size: int
    mtime_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A skipped file, and the reason as a text after its name."""

    name: str
    reason: str


@dataclass(slots=True)
class Walk:
    """The files of a directory. Names below `unseen` are unknown, and unless it `is_complete`, so are all missing
    names.
    """

    entries: list[DiskEntry] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    is_complete: bool = True
    looked_at: int = 0

    def skip(self, name: str, reason: str) -> None:
        """Record a skipped file; its name may not be text."""
        self.skipped.append(Skipped(name=name.encode("utf-8", "replace").decode(), reason=reason))


def check_name(name: str) -> str:
    """`name` in Unicode's composed form (NFC), if it is a path of a visible file within a folder.

    Raises:
        InvalidInput: it is empty, absolute or too long or deep, leads upwards, or has a part that is hidden.
    """
    normal = unicodedata.normalize("NFC", name)
    if not normal:
        raise InvalidInput("a file needs a name, such as notes/garden.md")
    if len(normal) > NAME_CHARS_MAX:
        raise InvalidInput(
            f"the file's name has {len(normal)} characters; more than the limit of {NAME_CHARS_MAX}; shorten it"
        )
    parts = normal.split("/")
    if len(parts) > DEPTH_MAX:
        raise InvalidInput(f"the file's name has {len(parts)} parts; folders go at most {DEPTH_MAX} deep")
    for part in parts:
        if problem := _problem(part):
            raise InvalidInput(
                f"the file's name {normal[:100]!r} {problem}; write a path inside the folder, such as notes/garden.md"
            )
    return normal


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches the name of a file: `*` within a part, `**` any parts."""
    parts, at = [], 0
    for found in _GLOB.finditer(pattern):
        parts += [re.escape(pattern[at : found.start()]), _MEANS[found[0]]]
        at = found.end()
    return re.fullmatch("".join([*parts, re.escape(pattern[at:])]), name) is not None


def _problem(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "begins or ends with a slash, has two in a row, or a part that is only dots"
    if part.startswith("."):
        return "has a hidden part (one that begins with a dot)"
    if "\\" in part:
        return "has a backslash"
    if plain(part) != part or any(unicodedata.category(character) in ("Cc", "Cs") for character in part):
        return "has control characters or half characters"
    if len(part.encode()) > PART_BYTES_MAX:
        return f"has a part of more than {PART_BYTES_MAX} bytes"
    return None


def is_left_out(name: str, *, is_directory: bool = False) -> bool:
    """Return whether a path in a folder is hidden, or is what programs fetch or leave behind."""
    *parents, last = parts = name.split("/")
    is_ignored = not _IGNORED.isdisjoint(parts if is_directory else parents)
    return is_ignored or any(part.startswith(".") for part in parts) or (not is_directory and last.endswith(_LEFTOVERS))


def check_root(path: str, *, allowed: Sequence[Path] | None, kept_out: Sequence[Path]) -> Path:
    """Return the real path of a directory that may become a folder: within one of `allowed` (None: anywhere), and
    neither in, nor around, any of `kept_out`.

    Raises:
        InvalidInput: it is not a directory of this machine, or may not be one of ours.
    """
    given = Path(path)
    if not path or "\0" in path or not given.is_absolute():
        raise InvalidInput("the directory needs an absolute path on the server's machine, such as /home/ann/notes")
    try:
        real = given.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidInput(f"{path} cannot be opened on the server's machine: {_words(error)}") from None
    if not real.is_dir():
        raise InvalidInput(f"{path} is not a directory")
    if allowed is not None and not any(real.is_relative_to(root.resolve()) for root in allowed):
        raise InvalidInput(
            f"{path} is not in a directory that this server may show to agents; an administrator can add it"
            " to the configuration (files_roots; for sources, roots of [sources]), or make the folder"
        )
    check_kept_out(real, kept_out)
    return real


def check_kept_out(directory: Path, kept_out: Sequence[Path]) -> None:
    """Check that a directory, which need not exist, is neither in, nor around, any of `kept_out`.

    Raises:
        InvalidInput: it is.
    """
    real = directory.resolve()
    for own in kept_out:
        if real.is_relative_to(own.resolve()) or own.resolve().is_relative_to(real):
            raise InvalidInput(f"{directory} contains the server's own data or is inside it; choose another directory")


def walk(root: Path) -> Walk:
    """Return all visible regular files below `root`, by name.

    Raises:
        Unavailable: the directory is missing, or disappeared or was replaced during the scan.
    """
    found = Walk()
    with _directory(root) as descriptor:
        try:
            _walk_into(descriptor, "", found)
        except OSError as error:
            _miss(found, "", error)
        # A directory that was removed while it was read looks like one that lost its files.
        with _directory(root) as again:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(again)):
                raise Unavailable(f"{root} was exchanged while it was read")
    found.entries.sort(key=lambda entry: entry.name)
    return found


def _walk_into(descriptor: int, prefix: str, found: Walk) -> None:
    for raw in sorted(os.listdir(descriptor)):
        found.looked_at += 1
        if len(found.entries) >= FILES_MAX or found.looked_at > ENTRIES_MAX:
            if found.is_complete:
                found.skip(prefix + raw, f"is beyond {FILES_MAX} files")
            found.is_complete = False
            return
        try:
            _meet(descriptor, prefix, raw, found)
        except OSError as error:
            _miss(found, prefix + raw, error)
        except InvalidInput:
            found.skip(prefix + raw, "has a name that cannot be used here, or is too deep")


def _meet(descriptor: int, prefix: str, raw: str, found: Walk) -> None:
    status = os.stat(raw, dir_fd=descriptor, follow_symlinks=False)
    is_directory = stat.S_ISDIR(status.st_mode)
    if is_left_out(raw, is_directory=is_directory):
        return  # in silence
    name = check_name(prefix + raw)
    if is_directory:
        inner = os.open(raw, _DIRECTORY, dir_fd=descriptor)
        try:
            _walk_into(inner, f"{name}/", found)
        finally:
            os.close(inner)
    elif stat.S_ISREG(status.st_mode):
        found.entries.append(DiskEntry(name=name, size=status.st_size, mtime_ns=status.st_mtime_ns))
    else:
        is_link = stat.S_ISLNK(status.st_mode)
        found.skip(name, "is a link, and links are not followed" if is_link else "is not a regular file")


def _miss(found: Walk, name: str, error: OSError) -> None:
    found.skip(name or "the directory", _words(error))
    found.unseen.append(unicodedata.normalize("NFC", name))


def look(root: Path, name: str) -> DiskEntry:
    """Return a file's size and modification time, without reading it.

    Raises:
        PatternError: as `read_file` does, but for what is too long.
    """
    with _file(root, check_name(name)) as (_descriptor, status):
        return DiskEntry(name=name, size=status.st_size, mtime_ns=status.st_mtime_ns)


def read_file(root: Path, name: str) -> bytes:
    """Return a file's bytes.

    Raises:
        InvalidInput: the name leads out of the folder.
        NotFound: there is no such file.
        UnreadableFile: it is too long, a link, or no regular file.
        Unavailable: the directory is not there.
    """
    with _file(root, check_name(name)) as (descriptor, status):
        if status.st_size > FILE_BYTES_MAX:
            raise too_long(status.st_size)
        try:
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise UnreadableFile(f"{name} cannot be read: {_words(error)}") from None
        if len(data) > FILE_BYTES_MAX:  # it grew while it was read
            raise too_long(len(data))
        return data


def list_directory(root: Path, name: str) -> list[tuple[str, bool]]:
    """Return what is in a directory (`.`: the folder's own), by name, and whether each is a directory itself; links are
    none.

    Raises:
        InvalidInput: the name leads out of the folder.
        NotFound: there is no such directory.
        UnreadableFile: it cannot be read, or has too much in it.
        Unavailable: the folder's directory is not there.
    """
    parts = [] if name == "." else check_name(name).split("/")
    try:
        with _directory(root, parts) as descriptor, os.scandir(descriptor) as found:
            entries = [(one.name, one.is_dir(follow_symlinks=False)) for one in islice(found, LISTED_MAX + 1)]
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no directory {name!r} in this folder") from None
    except OSError as error:
        raise UnreadableFile(f"{name} cannot be opened: {_words(error)}") from None
    if len(entries) > LISTED_MAX:
        raise UnreadableFile(f"{name} has more than {LISTED_MAX} entries; list a part of it")
    return sorted((entry.encode("utf-8", "replace").decode(), is_directory) for entry, is_directory in entries)


def too_long(size: int) -> UnreadableFile:
    """Return the refusal of a file of `size` bytes."""
    return UnreadableFile(f"the file has {size} bytes; at most {FILE_BYTES_MAX} are read, so split it or leave it out")


def write_file(root: Path, name: str, data: bytes) -> None:
    """Write a file atomically, replacing an earlier one; missing directories are created.

    Raises:
        InvalidInput: the name leads out of the folder, or something that is not a regular file has it.
        Unavailable: the directory is not there.
        PatternError: the disk is full or does not allow it.
    """
    parts = check_name(name).split("/")
    try:
        with _directory(root, parts[:-1], make=True) as parent:
            _put_in_place(parent, parts[-1], data, name)
    except OSError as error:
        raise PatternError(f"{name} could not be written: {_words(error)}; nothing was changed") from None


def _put_in_place(parent: int, last: str, data: bytes, name: str) -> None:
    raw = _raw_name(parent, last)
    mode = 0o644
    with suppress(FileNotFoundError):
        status = os.stat(raw, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"{name} is a link or not a regular file; it is not written to")
        mode = stat.S_IMODE(status.st_mode)
    # A hidden name, so that no walk finds half a file; one that a killed process left is taken over.
    temporary = ".pattern-writing"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, raw, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    os.fsync(parent)


@contextmanager
def _file(root: Path, name: str) -> Iterator[tuple[int, os.stat_result]]:
    parts = name.split("/")
    try:
        with _directory(root, parts[:-1]) as parent:
            descriptor = os.open(_raw_name(parent, parts[-1]), _FILE, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no file {name!r} in this folder") from None
    except OSError as error:
        raise UnreadableFile(f"{name} cannot be opened: {_words(error)}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFile(f"{name} is not a regular file")
        yield descriptor, status
    finally:
        os.close(descriptor)


@contextmanager
def _directory(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """Yield the directory at the end of `parts` in the folder, opened link-free step by step.

    The folder's own path was real when it was chosen: a link anywhere in it was put there since.
    """
    here = os.open("/", _PASSAGE)
    try:
        try:
            for part in root.parts[1:-1]:
                here = _step(here, part, _PASSAGE)
            here = _step(here, root.name or ".", _DIRECTORY)
        except OSError as error:
            raise Unavailable(f"the directory {root} cannot be opened: {_words(error)}") from None
        for part in parts:
            raw = _raw_name(here, part)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(raw, dir_fd=here)
            here = _step(here, raw, _DIRECTORY)
        yield here
    finally:
        os.close(here)


def _step(here: int, part: str, flags: int) -> int:
    """Go from an open directory to one in it; the first is closed only then."""
    following = os.open(part, flags, dir_fd=here)
    os.close(here)
    return following


def _raw_name(parent: int, part: str) -> str:
    """Return how the directory spells `part`: files may be stored in another of Unicode's forms than NFC."""
    try:
        os.stat(part, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        if part.isascii():
            return part
        return next((raw for raw in os.listdir(parent) if unicodedata.normalize("NFC", raw) == part), part)
    return part


def _words(error: Exception) -> str:
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ELOOP, errno.EMLINK):
        return "it is a link, and links are not followed"
    if code in (errno.ENOENT, errno.ENOTDIR):
        return "it does not exist"
    if code in (errno.EACCES, errno.EPERM):
        return "the server may not read it"
    return (os.strerror(code) if code else str(error)).lower()

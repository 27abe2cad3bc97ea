from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from pattern_db import files
from pattern_db.errors import IOFailed, OwnedElsewhere
from pattern_db.files import DataDirLock, Holder, holder_of

CHILD = """
import sys
from pathlib import Path
from pattern_db.files import DataDirLock
lock = DataDirLock.acquire(Path(sys.argv[1]))
lock.announce("http://127.0.0.1:8470")
print("held", flush=True)
sys.stdin.read()
"""

ASKING = """
import sys
from pathlib import Path
from pattern_db.files import holder_of
print("asking", flush=True)
while True:
    holder_of(Path(sys.argv[1]))
"""


def test_one_holder_at_a_time_also_within_a_process(tmp_path: Path) -> None:
    with DataDirLock.acquire(tmp_path / "data") as lock:
        lock.announce("http://here")
        with pytest.raises(OwnedElsewhere, match=f"process {os.getpid()}, which serves at http://here") as caught:
            DataDirLock.acquire(tmp_path / "data")
        assert (caught.value.pid, caught.value.url) == (os.getpid(), "http://here")
        assert holder_of(tmp_path / "data") == Holder(pid=os.getpid(), url="http://here")
    assert holder_of(tmp_path / "data") is None
    DataDirLock.acquire(tmp_path / "data").release()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(OwnedElsewhere) as caught:
            DataDirLock.acquire(tmp_path)
        assert (caught.value.pid, caught.value.url) == (child.pid, "http://127.0.0.1:8470")
    finally:
        child.kill()
        child.communicate()
    DataDirLock.acquire(tmp_path).release()


def test_who_asks_for_the_holder_is_never_in_the_way(tmp_path: Path) -> None:
    DataDirLock.acquire(tmp_path).release()
    child = subprocess.Popen(
        [sys.executable, "-c", ASKING, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"asking\n"
        for _ in range(5_000):
            DataDirLock.acquire(tmp_path).release()
    finally:
        child.kill()
        child.communicate()


def test_a_released_lock_is_free_though_a_child_process_still_has_its_descriptor(tmp_path: Path) -> None:
    lock = DataDirLock.acquire(tmp_path)
    file = (tmp_path / "lock").stat().st_ino
    [held] = [one for one in range(3, 256) if _file_of(one) == file]
    copy = os.dup(held)  # as a child has before it executes
    lock.release()
    DataDirLock.acquire(tmp_path).release()
    os.close(copy)


def _file_of(descriptor: int) -> int | None:
    try:
        return os.fstat(descriptor).st_ino
    except OSError:
        return None


def test_the_address_can_be_announced_later(tmp_path: Path) -> None:
    lock = DataDirLock.acquire(tmp_path)
    assert holder_of(tmp_path) == Holder(pid=os.getpid(), url=None)
    lock.announce("http://late")
    assert json.loads((tmp_path / "lock").read_bytes()) == {"pid": os.getpid(), "url": "http://late"}
    lock.release()
    lock.release()
    lock.announce("http://gone")
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_lock_file_that_is_being_written_still_counts(tmp_path: Path) -> None:
    lock = DataDirLock.acquire(tmp_path)
    (tmp_path / "lock").write_bytes(b'{"pid": 1')
    with pytest.raises(OwnedElsewhere, match="another process"):
        DataDirLock.acquire(tmp_path)
    lock.release()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IOFailed):
        DataDirLock.acquire(tmp_path / "file")


def test_a_file_appears_whole_and_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new" / "a"
    synced: list[tuple[int, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, target.exists()))

    with files.written(target) as path:
        path.write_bytes(b"whole")
        content = path.stat().st_ino
        monkeypatch.setattr(os, "fsync", fsync)
    assert synced == [(content, False), (target.parent.stat().st_ino, True)]
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"before")
    with pytest.raises(OSError, match="disk"), files.written(target) as path:
        path.write_bytes(b"half")
        path.with_name(path.name + "-wal").write_bytes(b"log")
        raise OSError("disk")
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"before"


def test_what_a_killed_process_left_is_deleted_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    others = tmp_path / ".profile.1.new"
    others.write_bytes(b"somebody's")
    with files.temporary(tmp_path / "a") as first:
        first.write_bytes(b"half")
        left = [first, first.with_name(first.name + "-journal")]
    for path in left:
        path.write_bytes(b"half")
    with files.temporary(tmp_path / "b") as second:
        second.write_bytes(b"half")
        with files.temporary(tmp_path / "c") as third:
            third.write_bytes(b"half")
            assert sorted(tmp_path.iterdir()) == sorted([others, second, third])
    assert list(tmp_path.iterdir()) == [others]


def test_a_large_file_is_discarded_and_its_other_name_is_not(tmp_path: Path) -> None:
    large, linked, other = (tmp_path / name for name in ("large", "linked", "other"))
    for path in (large, linked):
        with path.open("wb") as file:
            file.truncate(2 * files.FREED_BYTES + 1)
    other.hardlink_to(linked)
    for path in (large, linked, tmp_path / "missing"):
        files.discard(path)
    assert list(tmp_path.iterdir()) == [other]
    assert other.stat().st_size == 2 * files.FREED_BYTES + 1


def test_free_space_is_that_of_the_disk(tmp_path: Path) -> None:
    there, later = files.free_bytes(tmp_path), files.free_bytes(tmp_path / "not" / "yet")
    assert min(there, later) > 0
    assert max(there, later) < 2 * min(there, later)


def test_a_folder_is_empty_before_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    with pytest.raises(OSError, match="disk"), files.emptied(tmp_path / "here") as folder:
        assert not folder.exists()
        (folder / "more").mkdir(parents=True)
        raise OSError("disk")
    assert list(tmp_path.iterdir()) == []


def test_syncing_what_is_missing_is_an_error(tmp_path: Path) -> None:
    files.sync(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.sync(tmp_path / "none")


def test_what_cannot_be_locked_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(descriptor: int, _operation: int) -> None:
        tried.append(descriptor)
        raise OSError(errno.ENOLCK, "the file system has no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(IOFailed):
        DataDirLock.acquire(tmp_path)
    [descriptor] = tried
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_a_part_of_the_program_that_is_missing_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"^nothing\.sql is missing; reinstall pattern-server$"):
        files.shipped("nothing.sql")


def test_a_files_digest(tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(b"abc")
    # Source: FIPS 180-2, appendix B.1.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.sha256_of(tmp_path / "words") == digest


def test_what_is_written_is_synced_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    data = os.urandom(1_000_000)
    with files.created(tmp_path / "large") as file:
        for _ in range(20):
            file.write(data)
        file.seek(0)
        file.write(b"head")
    assert (tmp_path / "large").read_bytes() == b"head" + (data * 20)[4:]
    steps = [size - before for before, size in pairwise([0, *sizes])]
    assert len(steps) >= 4 and max(steps) < files.SYNCED_BYTES + len(data)

"""One database file, reached from trio: whole functions of a connection, run in order on a small pool of threads.

With `lane.py` the only module of this package that knows trio, threads and waiting. All others are synchronous
functions of a connection, so a unit of work costs one hop, is one transaction and cannot be interrupted.

`write` requests that wait for a running commit share the next transaction (group commit): one
`BEGIN IMMEDIATE … COMMIT`, a savepoint per request, one fsync for all. `DESIGN.md` has the measurements.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import trio

from pattern_db.connection import Connection, is_alone, open_connection, open_in_memory
from pattern_db.errors import StorageFailed, translate
from pattern_db.lane import InlineLane, Lane, Request

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseThreads:
    """The threads that all open files share: `writers` for work in order, `readers` for long reads.

    Two writers reach what sixteen do, at a twentieth of the tail (3,054 commits/s at p99 1.8 ms against 2,659 at
    35 ms). Use as a context manager inside `trio.run`; its exit waits for started work. `on_commit` is called with the
    duration of every transaction that wrote, in seconds.
    """

    def __init__(
        self, *, writers: int = 2, readers: int = 2, on_commit: Callable[[float], None] = lambda _seconds: None
    ) -> None:
        self._on_commit = on_commit
        self._writers: SimpleQueue[Lane | None] = SimpleQueue()
        self._readers: SimpleQueue[Lane | None] = SimpleQueue()
        self._threads = [
            (threading.Thread(target=_serve, args=(queue,), name=f"database-{kind}-{number}", daemon=True), queue)
            for queue, kind, count in ((self._writers, "write", writers), (self._readers, "read", readers))
            for number in range(count)
        ]

    def __enter__(self) -> DatabaseThreads:
        self._token = trio.lowlevel.current_trio_token()
        for thread, _queue in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for _thread, queue in self._threads:
            queue.put(None)  # ends one of its threads
        for thread, _queue in self._threads:
            thread.join()

    def lane(self, connection: Connection, reopen: Callable[[], Connection], *, reader: bool = False) -> Lane:
        """Return a new lane for `connection`; `reopen` opens another one after an idle time."""
        ready = self._readers if reader else self._writers
        return Lane(connection, reopen, ready, self._token, self._on_commit)


def _serve(queue: SimpleQueue[Lane | None]) -> None:
    while (lane := queue.get()) is not None:
        lane.work()


class Database:
    """One open file. Use `await Database.open(...)` with `async with`, or `Database.in_memory(...)` in tests."""

    def __init__(
        self,
        connection: Connection,
        *,
        threads: DatabaseThreads | None,
        path: Path | None,
        vfs: str | None = None,
    ) -> None:
        self.path = path
        self._threads = threads
        self._vfs = vfs
        if threads is None or path is None:
            self._lane: Lane = InlineLane(connection)
        else:
            self._lane = threads.lane(connection, partial(open_connection, path, vfs=vfs))
        self._reader: Lane | None = None
        self._closed = False
        self._is_alone = is_alone(connection)

    @property
    def epoch(self) -> int:
        """The ownership epoch that `claim` began."""
        if self._lane.epoch is None:
            raise AssertionError("claim the file before a constellation uses it")
        return self._lane.epoch

    @property
    def failure(self) -> StorageFailed | None:
        """Why nothing can be stored any longer, if so: the first failed transaction, until the file is reopened."""
        return self._lane.failed

    @classmethod
    async def open(cls, path: Path, threads: DatabaseThreads, *, vfs: str | None = None) -> Self:
        """Open the existing file at `path`, off the event loop. The caller checks its schema.

        Raises:
            DatabaseError: the file is missing, not a database, damaged or busy.
        """
        connection = await _in_thread(lambda: open_connection(path, vfs=vfs))
        return cls(connection, threads=threads, path=path, vfs=vfs)

    @classmethod
    def in_memory(cls, connection: Connection | None = None) -> Self:
        """Return a database that runs its work inline in the calling task.

        For tests of time: while a query runs on a thread, trio sees every task blocked, and an autojump clock jumps.
        """
        return cls(connection or open_in_memory(), threads=None, path=None)

    async def claim(self, begin: Callable[[Connection], int], *, stores: bool = True) -> int:
        """Run `begin` in a transaction; it stores the next ownership epoch and returns it, as `meta.next_epoch` does.
        On a full disk, `begin` only reads the newest one, and `stores` is false.

        From then on each transaction checks that the file still has this epoch, and fails with `StorageFailed` if
        another owner has claimed it.

        Raises:
            DatabaseError: storage refused.
        """

        def claim(connection: Connection) -> int:
            self._lane.epoch = begin(connection)
            return self._lane.epoch

        return await (self.write(claim) if stores else self.read(claim))

    async def write(
        self,
        fn: Callable[Concatenate[Connection, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `fn(connection, *args, **kwargs)` in a transaction; its changes are on disk when this returns.

        Calls on one file run in order. If the caller is cancelled while its request still waits, the request is
        withdrawn; a started one is finished and its value returned.

        Raises:
            DatabaseError: storage refused; `StorageFailed` means that the file must be reopened.
            Exception: whatever `fn` raised; nothing of it is stored.
        """
        return await self._lane.submit(Request(lambda connection: fn(connection, *args, **kwargs), "write"))

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Like `write`; then `announce(value)` runs in trio's thread in the order of the commits, before the caller
        continues. `announce` must neither wait nor raise.

        This is the shielded commit: a cancelled caller still waits for it, bounded by `watch`.
        """
        return await self._lane.submit(Request(fn, "write", announce))

    async def read(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short `fn` that only reads, in order with the writes: it sees everything acknowledged before.

        Raises:
            DatabaseError: storage refused.
        """
        return await self._lane.submit(Request(lambda connection: fn(connection, *args, **kwargs)))

    async def run_alone(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in order with the other work but outside any transaction: VACUUM, a checkpoint, pragmas.

        Raises:
            DatabaseError: storage refused.
        """
        return await self._lane.submit(Request(lambda connection: fn(connection, *args, **kwargs), "alone"))

    async def read_aside(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long `fn` on a second connection that cannot write, so that a search never delays a write.

        The connection is opened on first use. It sees a snapshot of what was committed when `fn` began.

        Raises:
            DatabaseError: storage refused.
        """
        if self._threads is None or self.path is None or self._is_alone:
            return await self.read(fn, *args, **kwargs)
        if self._closed:
            raise StorageFailed("the database is closed")
        reader = self._reader or await self._open_reader(self._threads, self.path)
        try:
            return await reader.submit(Request(lambda connection: _at_one_moment(connection, fn, *args, **kwargs)))
        except StorageFailed:
            if self._reader is reader:
                self._reader = None  # the next long read opens the file again
                await _close(reader)
            raise

    async def _open_reader(self, threads: DatabaseThreads, path: Path) -> Lane:
        reopen = partial(open_connection, path, readonly=True, vfs=self._vfs)
        connection = await _in_thread(reopen)
        if self._reader is None and not self._closed:
            self._reader = threads.lane(connection, reopen, reader=True)
        else:
            connection.close()  # another task was faster
        if self._reader is None:
            raise StorageFailed("the database is closed")
        return self._reader

    async def watch(self, timeout_s: float) -> None:
        """Run until cancelled: fail waiting requests if the disk has not responded for `timeout_s` seconds, and close
        connections that were idle for `REST_S`.
        """
        while True:
            await trio.sleep(timeout_s / 4)
            self._lane.give_up_if_stuck(timeout_s)
            for lane in (self._reader, self._lane):
                if self._threads is not None and lane is not None:
                    lane.rest_if_unused()

    async def aclose(self) -> None:
        """Finish started work, checkpoint and close. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with trio.CancelScope(shield=True):
            for lane in (self._reader, self._lane):
                if lane is not None and not lane.is_stuck:
                    await _close(lane)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _at_one_moment(
    connection: Connection, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Others commit between two statements on this connection; a transaction gives them one snapshot."""
    connection.execute("BEGIN")
    value = fn(connection, *args, **kwargs)
    connection.execute("COMMIT")
    return value


async def _close(lane: Lane) -> None:
    """Close the connection after waiting requests, in a separate batch: it would end a transaction."""
    await lane.submit(Request(lambda connection: connection.close(lane.failed is not None), "close"))


async def _in_thread(fn: Callable[[], Connection]) -> Connection:
    """Open a connection off the loop. Not abandoned on cancellation: a half-open file would keep its lock."""
    try:
        return await trio.to_thread.run_sync(fn)
    except BaseException as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error

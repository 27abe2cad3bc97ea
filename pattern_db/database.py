"""One database file, reached from trio: whole functions of a connection, run in order on a small pool of threads.

The only module of this package that knows trio, threads and waiting. Everything else is synchronous functions that
take a connection, so a unit of work costs one hop, is one transaction and cannot be interrupted half way.

`write` requests that wait while a commit is under way share the next transaction (group commit): one
`BEGIN IMMEDIATE … COMMIT`, a savepoint per request, one fsync for all. `DESIGN.md` has the measurements.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

import outcome
import trio

from pattern_db.connection import Connection, open_connection, open_in_memory
from pattern_db.durability import Durability, EmbeddedDurability
from pattern_db.errors import DatabaseError, StorageFailed, translate

P = ParamSpec("P")
T = TypeVar("T")

# Requests that share one transaction. With 64 as many turns per second went through, but the tasks that one commit
# wakes kept the event loop for longer (p99 7 ms against 6 with 50 agents); with 16 a quarter fewer turns.
BATCH_MAX = 32
QUEUE_MAX = 10_000  # requests that wait for one file; callers bound their own work far below this


_Kind = Literal["read", "write", "alone", "close"]  # the last two: outside any transaction, in a batch of their own
_ALONE = frozenset({"alone", "close"})


class _Request(Generic[T]):
    """One unit of work on its way: what to run, who waits, and what came out."""

    __slots__ = ("announce", "fn", "is_kept", "kind", "outcome", "state", "task")

    def __init__(
        self, fn: Callable[[Connection], T], kind: _Kind = "read", announce: Callable[[T], None] | None = None
    ) -> None:
        self.fn = fn
        self.kind = kind
        self.is_kept = announce is not None  # cancellation does not withdraw it
        self.announce = announce
        self.task = trio.lowlevel.current_task()
        self.state = "waiting"  # → running → done; or withdrawn by a cancelled caller, or given up by the watch
        self.outcome: outcome.Outcome[T] | None = None


class _Lane:
    """The requests of one connection, in order. At most one thread works on a lane at a time."""

    def __init__(
        self, connection: Connection, ready: SimpleQueue[_Lane | None], token: trio.lowlevel.TrioToken
    ) -> None:
        self.connection = connection
        self.failed: StorageFailed | None = None
        self.is_stuck = False
        self.commits = 0
        self._running: list[_Request[object]] = []
        self._running_since = math.inf
        self._ready = ready
        self._token = token
        self._lock = threading.Lock()
        self._waiting: deque[_Request[object]] = deque()
        self._scheduled = False

    async def submit(self, request: _Request[T]) -> T:
        """Queue the request and wait for its outcome. A request that has begun is always waited for.

        Raises:
            StorageFailed: too much waits already, or the disk hangs.
        """
        if not request.is_kept:
            await trio.lowlevel.checkpoint_if_cancelled()
        with self._lock:
            if self.is_stuck and self.failed is not None:
                raise copy.copy(self.failed)  # no thread will come to see it
            if len(self._waiting) >= QUEUE_MAX:
                raise StorageFailed(f"{QUEUE_MAX} requests wait for one database; the disk does not keep up")
            self._waiting.append(cast("_Request[object]", request))
            if not self._scheduled:
                self._scheduled = True
                self._ready.put(self)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            with self._lock:
                if request.state != "waiting" or request.is_kept:
                    return trio.lowlevel.Abort.FAILED
                request.state = "withdrawn"
                return trio.lowlevel.Abort.SUCCEEDED

        return cast(T, await trio.lowlevel.wait_task_rescheduled(abort))

    def work(self) -> None:
        """Run one batch on the calling thread, hand the outcomes to trio, and queue up again if more waits."""
        batch = self._take()
        if batch:
            run_batch(self, batch)
            self._token.run_sync_soon(self._deliver, batch)
        with self._lock:
            self._running, self._running_since = [], math.inf
            if self._waiting:
                self._ready.put(self)
            else:
                self._scheduled = False

    def _take(self) -> list[_Request[object]]:
        batch: list[_Request[object]] = []
        with self._lock:
            while self._waiting and len(batch) < BATCH_MAX:
                if self._waiting[0].kind in _ALONE and batch:
                    break
                request = self._waiting.popleft()
                if request.state == "waiting":
                    request.state = "running"
                    batch.append(request)
                    if request.kind in _ALONE:
                        break
            self._running, self._running_since = batch, time.monotonic()
        return batch

    def _deliver(self, batch: list[_Request[object]]) -> None:
        """In trio's thread, in commit order: announce first, then wake the caller."""
        for request in batch:
            result = request.outcome
            if request.state != "running" or result is None:
                continue  # given up meanwhile: the caller was told that nobody knows
            request.state = "done"
            if request.announce is not None and isinstance(result, outcome.Value):
                request.announce(result.value)
            trio.lowlevel.reschedule(request.task, result)

    def give_up_if_stuck(self, timeout_s: float) -> None:
        """Fail everything that waits if a batch has run for longer than `timeout_s`: the disk hangs.

        The thread cannot be stopped; what it was doing may still be stored, so the callers are told that nobody knows.
        """
        with self._lock:
            if self.is_stuck or time.monotonic() - self._running_since <= timeout_s:
                return
            if self._running[0].kind == "alone":
                return  # VACUUM and the like may take their time
            self.failed = StorageFailed(f"the disk has not answered for {timeout_s:g} s; look at the disk's health")
            self.is_stuck = True
            hanging = [*self._running, *(request for request in self._waiting if request.state == "waiting")]
            for request in hanging:
                request.state = "given up"
        for request, failure in zip(hanging, _fail_all(hanging, self.failed), strict=True):
            trio.lowlevel.reschedule(request.task, failure)


def run_batch(lane: _Lane, batch: list[_Request[object]]) -> None:
    """Run the requests in one transaction (none if all only read) and set each one's outcome.

    Trouble with storage fails the whole batch and the lane: nothing later runs on a connection whose state is
    unknown, until the file is opened anew. Any other error rolls back only its own request.
    """
    if lane.failed is not None and batch[0].kind != "close":  # all that a failed connection is still good for
        _fail_all(batch, lane.failed)
        return
    is_write = any(request.kind == "write" for request in batch)
    connection = lane.connection
    try:
        if is_write:
            connection.execute("BEGIN IMMEDIATE")
        for request in batch:
            _run_one(connection, request, savepoint=is_write and len(batch) > 1)
        if is_write and connection.in_transaction:
            connection.execute("COMMIT")
            lane.commits += 1
        elif is_write and (len(batch) > 1 or isinstance(batch[0].outcome, outcome.Value)):
            raise StorageFailed("the transaction ended before its commit; open the database anew")
    except BaseException as error:  # noqa: BLE001  # a thread's border: the outcome carries it to the waiting tasks
        _fail_lane(lane, batch, error)


def _run_one(connection: Connection, request: _Request[object], *, savepoint: bool) -> None:
    """Run one request; its own errors become its outcome, those of storage are raised to fail the batch."""
    if savepoint:
        connection.execute("SAVEPOINT request")
    result = outcome.capture(request.fn, connection)
    if isinstance(result, outcome.Error):
        known = result.error if isinstance(result.error, DatabaseError) else translate(result.error)
        if isinstance(known, StorageFailed):
            raise known from result.error
        if savepoint:
            connection.execute("ROLLBACK TO request")
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
        if known is not None and known is not result.error:
            known.__cause__ = result.error
            result = outcome.Error(known)
    if savepoint:
        connection.execute("RELEASE request")
    request.outcome = result


def _fail_lane(lane: _Lane, batch: list[_Request[object]], error: BaseException) -> None:
    known = error if isinstance(error, DatabaseError) else translate(error)
    failure = known if isinstance(known, StorageFailed) else StorageFailed(f"the transaction failed: {error!r}")
    if failure is not error:
        failure.__cause__ = error
    lane.failed = failure
    outcome.capture(_roll_back, lane.connection)  # if it fails: the file is opened anew in any case
    _fail_all(batch, failure)


def _roll_back(connection: Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _fail_all(batch: list[_Request[object]], failure: StorageFailed) -> list[outcome.Error]:
    """Give each request the failure as its outcome: a copy each, since tracebacks grow on the way up."""
    failures = []
    for request in batch:
        again = copy.copy(failure)
        again.__cause__ = failure.__cause__
        request.outcome = outcome.Error(again)
        failures.append(request.outcome)
    return failures


class DatabaseThreads:
    """The threads that all open files share: `writers` for work in order, `readers` for long reads.

    Two writers reach what sixteen do, at a twentieth of the tail (3,054 commits/s at p99 1.8 ms against 2,659 at
    35 ms). Use as a context manager inside `trio.run`; leaving it waits for work that has begun.
    """

    def __init__(self, *, writers: int = 2, readers: int = 2) -> None:
        self._writers: SimpleQueue[_Lane | None] = SimpleQueue()
        self._readers: SimpleQueue[_Lane | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_serve, args=(queue,), name=f"database-{kind}-{number}", daemon=True)
            for queue, kind, count in ((self._writers, "write", writers), (self._readers, "read", readers))
            for number in range(count)
        ]
        self._counts = {"write": writers, "read": readers}

    def __enter__(self) -> DatabaseThreads:
        self._token = trio.lowlevel.current_trio_token()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for queue, count in ((self._writers, self._counts["write"]), (self._readers, self._counts["read"])):
            for _number in range(count):
                queue.put(None)
        for thread in self._threads:
            thread.join()

    def lane(self, connection: Connection, *, reader: bool = False) -> _Lane:
        """A new lane for `connection`."""
        return _Lane(connection, self._readers if reader else self._writers, self._token)


def _serve(queue: SimpleQueue[_Lane | None]) -> None:
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
        durability: Durability | None = None,
    ) -> None:
        self.path = path
        self._threads = threads
        self._vfs = vfs
        self._durability: Durability = durability or EmbeddedDurability()
        self._lane = threads.lane(connection) if threads else _inline_lane(connection)
        self._reader: _Lane | None = None
        self._closed = False

    @classmethod
    async def open(
        cls, path: Path, threads: DatabaseThreads, *, vfs: str | None = None, durability: Durability | None = None
    ) -> Database:
        """Open the existing file at `path`, off the event loop. Its schema is checked by whoever knows the version.

        Raises:
            DatabaseError: the file is missing, not a database, damaged or busy.
        """
        connection = await _in_thread(lambda: open_connection(path, vfs=vfs))
        return cls(connection, threads=threads, path=path, vfs=vfs, durability=durability)

    @classmethod
    def in_memory(cls, connection: Connection | None = None) -> Database:
        """A database whose work runs inline in the calling task.

        For tests of time: while a query runs on a thread trio sees every task blocked, and an autojump clock leaps.
        """
        return cls(connection or open_in_memory(), threads=None, path=None)

    async def write(
        self,
        fn: Callable[Concatenate[Connection, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run `fn(connection, *args, **kwargs)` in a transaction; what it did is on disk when this returns.

        Calls on one file run in order. A caller that is cancelled while its request still waits withdraws it; once
        begun, it is finished and its value returned.

        Raises:
            DatabaseError: storage refused; `StorageFailed` means that the file must be opened anew.
            Exception: whatever `fn` raised; nothing of it is stored.
        """
        return await self._run(_Request(lambda connection: fn(connection, *args, **kwargs), "write"))

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Like `write`; then `announce(value)` runs in trio's thread in the order of the commits, before the caller
        goes on. `announce` must neither wait nor raise.

        This is the shielded commit: a cancelled caller still waits for it, bounded by `watch`.
        """
        return await self._run(_Request(fn, "write", announce))

    async def read(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short `fn` that only reads, in order with the writes: it sees everything acknowledged before.

        Raises:
            DatabaseError: storage refused.
        """
        return await self._run(_Request(lambda connection: fn(connection, *args, **kwargs)))

    async def run_alone(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in order with the other work but outside any transaction: VACUUM, a checkpoint, pragmas.

        Raises:
            DatabaseError: storage refused.
        """
        return await self._run(_Request(lambda connection: fn(connection, *args, **kwargs), "alone"))

    async def read_aside(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long `fn` on a second connection that cannot write, so that a search never delays a write.

        The connection is opened on first use. It sees a snapshot of what was committed when `fn` began.

        Raises:
            DatabaseError: storage refused.
        """
        if self._threads is None or self.path is None:
            return await self.read(fn, *args, **kwargs)
        if self._closed:
            raise StorageFailed("the database is closed")
        reader = self._reader or await self._open_reader(self._threads, self.path)
        try:
            return await reader.submit(_Request(lambda connection: _at_one_moment(connection, fn, *args, **kwargs)))
        except StorageFailed:
            if self._reader is reader:
                self._reader = None  # the next long read opens the file anew
                await reader.submit(_close_request(reader))
            raise

    async def _open_reader(self, threads: DatabaseThreads, path: Path) -> _Lane:
        connection = await _in_thread(lambda: open_connection(path, readonly=True, vfs=self._vfs))
        if self._reader is None and not self._closed:
            self._reader = threads.lane(connection, reader=True)
        else:
            connection.close()  # another task was faster
        if self._reader is None:
            raise StorageFailed("the database is closed")
        return self._reader

    async def watch(self, timeout_s: float) -> None:
        """Run until cancelled, and fail what waits for the disk when it has not answered for `timeout_s` seconds."""
        while True:
            await trio.sleep(timeout_s / 4)
            self._lane.give_up_if_stuck(timeout_s)

    async def gate(self) -> None:
        """Wait until everything committed so far is as durable as the profile promises.

        Every effect that leaves the process passes here. With the embedded profile the commit itself was enough,
        and this costs one attribute test.
        """
        if self._durability.deferred:
            await self._durability.barrier(self._lane.commits)

    async def aclose(self) -> None:
        """Finish what has begun, checkpoint and close. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with trio.CancelScope(shield=True):
            for lane in (self._reader, self._lane):
                if lane is not None and not lane.is_stuck:
                    await self._submit(lane, _close_request(lane))

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, request: _Request[T]) -> T:
        if self._closed:
            raise StorageFailed("the database is closed")
        value = await self._submit(self._lane, request)
        if self._durability.deferred:
            await self._durability.barrier(self._lane.commits)
        return value

    async def _submit(self, lane: _Lane, request: _Request[T]) -> T:
        if self._threads is not None:
            return await lane.submit(request)
        if not request.is_kept:
            await trio.lowlevel.checkpoint_if_cancelled()
        run_batch(lane, [cast("_Request[object]", request)])
        result = cast("outcome.Outcome[T]", request.outcome)
        if request.announce is not None and isinstance(result, outcome.Value):
            request.announce(result.value)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return result.unwrap()


def _at_one_moment(
    connection: Connection, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Others commit between two statements on this connection; a transaction holds what they see still."""
    connection.execute("BEGIN")
    value = fn(connection, *args, **kwargs)
    connection.execute("COMMIT")
    return value


def _close_request(lane: _Lane) -> _Request[None]:
    """Closes the connection after what waits, in a batch of its own: it would take a transaction down with it."""
    return _Request(lambda connection: connection.close(lane.failed is not None), "close")


def _inline_lane(connection: Connection) -> _Lane:
    return _Lane(connection, SimpleQueue(), trio.lowlevel.current_trio_token())


async def _in_thread(fn: Callable[[], Connection]) -> Connection:
    """Open a connection off the loop. Not abandoned on cancel: a half-open file would keep its lock."""
    try:
        return await trio.to_thread.run_sync(fn)
    except BaseException as error:
        known = translate(error)
        if known is None:
            raise
        raise known from error

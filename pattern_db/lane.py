"""The requests of one open file, run in order: a thread runs a batch of them in one transaction.

A lane knows nothing about callers; `database.py` has the methods and the threads.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, Literal, TypeVar, cast

import apsw
import outcome
import trio

from pattern_db.connection import Connection
from pattern_db.errors import DatabaseError, DiskFull, StorageFailed, translate
from pattern_db.tables.meta import EPOCH_OF_FILE

T = TypeVar("T")

# Requests that share one transaction. With 64 the turns per second were the same, but the tasks that one commit
# wakes kept the event loop for longer (p99 7 ms against 6 with 50 agents); with 16 a quarter fewer turns.
BATCH_MAX = 32
WOKEN_MAX = 4  # tasks woken at once: each then runs for a millisecond, and other tasks need the event loop, too
QUEUE_MAX = 10_000  # requests that wait for one file; callers bound their own work far below this
# An open connection weighs 0.5 to 1 MiB (the parsed schema, then statements and pages); to open it again takes 2 ms.
REST_S = 30.0

Kind = Literal["read", "write", "alone", "close"]  # the last two: outside any transaction, in their own batch
_ALONE = frozenset({"alone", "close"})


@dataclass(slots=True, eq=False)
class Request(Generic[T]):
    """One request: the function to run, the waiting caller, and the outcome.

    Cancellation does not withdraw one with something to `announce`.
    """

    fn: Callable[[Connection], T]
    kind: Kind = "read"
    announce: Callable[[T], None] | None = None
    task: trio.lowlevel.Task = field(default_factory=trio.lowlevel.current_task)
    state: str = "waiting"  # → running → done; or withdrawn by a cancelled caller, or failed by the watch
    result: outcome.Outcome[T] | None = None


class Lane:
    """The requests of one connection, in order. At most one thread works on a lane at a time.

    An idle connection is closed, and opened again by `reopen` for the next request. `on_commit` is called in trio's
    thread with the duration of a transaction that wrote, in seconds.
    """

    def __init__(
        self,
        connection: Connection,
        reopen: Callable[[], Connection],
        ready: SimpleQueue[Lane | None],
        token: trio.lowlevel.TrioToken,
        on_commit: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.connection: Connection | None = connection
        self._used_at = time.monotonic()
        self.reopen = reopen
        self.failed: StorageFailed | None = None
        self.is_stuck = False
        self.is_closed = False
        self.epoch: int | None = None  # of the constellation's file, once it was claimed
        self._running: list[Request[object]] = []
        self._running_since = math.inf
        self._ready = ready
        self._token = token
        self._on_commit = on_commit
        self._lock = threading.Lock()
        self._waiting: deque[Request[object]] = deque()
        self._ended: deque[Request[object]] = deque()  # callers still to be woken, in the order of commits
        self._took: deque[float] = deque()  # durations still to be reported
        self._scheduled = False

    async def submit(self, request: Request[T]) -> T:
        """Queue the request and wait for its outcome. A started request is always waited for.

        Raises:
            StorageFailed: the lane is closed, too many requests wait, or the disk hangs.
        """
        if request.announce is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        with self._lock:
            if self.is_closed:
                raise StorageFailed("the database is closed")
            if self.is_stuck and self.failed is not None:
                raise copy.copy(self.failed)  # no thread will run it
            if len(self._waiting) >= QUEUE_MAX:
                raise StorageFailed(
                    f"{QUEUE_MAX} requests wait for one database; the disk is too slow, try again later"
                )
            self.is_closed = request.kind == "close"
            self._waiting.append(cast("Request[object]", request))
            if not self._scheduled:
                self._scheduled = True
                self._ready.put(self)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            with self._lock:
                if request.state != "waiting" or request.announce is not None:
                    return trio.lowlevel.Abort.FAILED
                request.state = "withdrawn"
                return trio.lowlevel.Abort.SUCCEEDED

        return cast(T, await trio.lowlevel.wait_task_rescheduled(abort))

    def rest_if_unused(self) -> None:
        """Let a thread close the connection if it was idle for `REST_S`; the next request opens it again."""
        with self._lock:
            if not self._scheduled and self._is_unused():
                self._scheduled = True
                self._ready.put(self)

    def _is_unused(self) -> bool:
        return self.connection is not None and self.failed is None and time.monotonic() - self._used_at >= REST_S

    def _rest(self) -> None:
        """Close the connection and keep the log, as if it were open: the process may die before the next
        request, and a log is how the next start knows that a file was not closed.
        """
        if self.connection is not None:
            self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.close()
            self.connection = None

    def work(self) -> None:
        """Run one batch on the calling thread, pass the outcomes to trio, and queue again if more requests wait."""
        batch: list[Request[object]] = []
        with self._lock:
            while self._waiting and len(batch) < BATCH_MAX:
                is_alone = self._waiting[0].kind in _ALONE
                if is_alone and batch:
                    break
                request = self._waiting.popleft()
                if request.state == "waiting":
                    request.state = "running"
                    batch.append(request)
                    if is_alone:
                        break
            self._running, self._running_since = batch, time.monotonic() if batch else math.inf
        if batch:
            _run_batch(self, batch)
        elif self._is_unused():
            outcome.capture(self._rest)  # if it cannot be closed it stays open
        with self._lock:
            self._ended.extend(batch)
            self._used_at = time.monotonic()
            if any(request.kind == "write" for request in batch):
                self._took.append(self._used_at - self._running_since)
            self._running, self._running_since = [], math.inf
            if self._waiting:
                self._ready.put(self)
            else:
                self._scheduled = False
        if batch:  # last, so that trio's thread need not wait for this one to release the interpreter
            self._token.run_sync_soon(self._wake_some, idempotent=True)

    def _wake_some(self) -> None:
        """In trio's thread: announce first, then wake the caller; the rest after other tasks have run."""
        while self._took:
            self._on_commit(self._took.popleft())
        for _number in range(min(WOKEN_MAX, len(self._ended))):
            request = self._ended.popleft()
            result = request.result
            if request.state != "running" or result is None:
                continue  # failed by the watch: the caller knows that the outcome is unknown
            request.state = "done"
            if request.announce is not None and isinstance(result, outcome.Value):
                request.announce(result.value)
            trio.lowlevel.reschedule(request.task, result)
        if self._ended:
            self._token.run_sync_soon(self._wake_some, idempotent=True)

    def give_up_if_stuck(self, timeout_s: float) -> None:
        """Fail all waiting requests if a batch has run for longer than `timeout_s`: the disk hangs.

        The thread cannot be stopped and may still store its work, so the error says that the outcome is unknown.
        """
        with self._lock:
            if self.is_stuck or time.monotonic() - self._running_since <= timeout_s:
                return
            if self._running[0].kind == "alone":
                return  # VACUUM and similar statements may run long
            self.failed = StorageFailed(f"the disk has not responded for {timeout_s:g} s; check its health")
            self.is_stuck = True
            hanging = [*self._running, *(request for request in self._waiting if request.state == "waiting")]
            for request in hanging:
                request.state = "given up"
        for request, failure in zip(hanging, _fail_all(hanging, self.failed), strict=True):
            trio.lowlevel.reschedule(request.task, failure)


class InlineLane(Lane):
    """A lane that runs requests in the calling task: while a thread works, trio sees every task blocked."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, lambda: connection, SimpleQueue(), trio.lowlevel.current_trio_token())

    async def submit(self, request: Request[T]) -> T:
        """Run the request at once.

        Raises:
            StorageFailed: the lane is closed.
        """
        if self.is_closed:
            raise StorageFailed("the database is closed")
        self.is_closed = request.kind == "close"
        if request.announce is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        _run_batch(self, [cast("Request[object]", request)])
        result = request.result
        assert result is not None
        if request.announce is not None and isinstance(result, outcome.Value):
            request.announce(result.value)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return result.unwrap()


def _run_batch(lane: Lane, batch: list[Request[object]]) -> None:
    """Run the requests in one transaction (none if all only read) and set each one's outcome.

    A storage error fails the whole batch and the lane: nothing runs on a connection in an unknown state until the file
    is reopened. A full disk fails only the batch: SQLite rolls back the transaction, stored data can be read, and later
    writes may succeed. Any other error rolls back only its own request.
    """
    if lane.failed is not None and batch[0].kind != "close":  # the only thing that a failed connection can still do
        _fail_all(batch, lane.failed)
        return
    is_write = any(request.kind == "write" for request in batch)
    try:
        connection = lane.connection = lane.connection or lane.reopen()
        if is_write:
            connection.execute("BEGIN IMMEDIATE")
            # Within the transaction, so that another owner can claim the file before or after it, but not in between.
            if lane.epoch is not None and (found := connection.execute(EPOCH_OF_FILE).get) != str(lane.epoch):
                raise StorageFailed(
                    f"another process has claimed this file (its epoch is {found}, ours was {lane.epoch}); nothing was "
                    f"stored, use that process"
                )
        for request in batch:
            _run_one(connection, request, is_write=is_write, savepoint=is_write and len(batch) > 1)
        if is_write and connection.in_transaction:
            connection.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001  # a thread's border: the outcome carries it to the waiting tasks
        _fail_lane(lane, batch, error)


def _run_one(connection: Connection, request: Request[object], *, is_write: bool, savepoint: bool) -> None:
    """Run one request; its own errors become its outcome, storage errors are raised to fail the batch.

    Raises:
        StorageFailed: the disk or the file failed, or the transaction is no longer open.
    """
    if savepoint:
        connection.execute("SAVEPOINT request")
    result = outcome.capture(request.fn, connection)
    error = result.error if isinstance(result, outcome.Error) else None
    known = None if error is None else translate(error)
    if isinstance(known, StorageFailed):
        raise known from error
    if is_write and not connection.in_transaction:
        # SQLite rolled back by itself, as it does when the disk fails, or the request did. What ran after that in the
        # request, and what ran before it in this batch, is not what was requested.
        raise StorageFailed(f"the transaction ended before its commit ({error!r}); open the database again") from error
    if error is not None:
        if savepoint:
            connection.execute("ROLLBACK TO request")
        elif connection.in_transaction:  # of the batch, or a long read's own
            connection.execute("ROLLBACK")
        if known is not None and known is not error:
            known.__cause__ = error
            result = outcome.Error(known)
    if savepoint:
        connection.execute("RELEASE request")
    request.result = result


def _fail_lane(lane: Lane, batch: list[Request[object]], error: BaseException) -> None:
    known = error if isinstance(error, DatabaseError) else translate(error)
    failure = known if isinstance(known, StorageFailed) else StorageFailed(f"the transaction failed: {error!r}")
    if failure is not error:
        failure.__cause__ = error
    rolled_back = outcome.capture(_roll_back, lane.connection)  # if it fails the file is reopened
    if not isinstance(failure, DiskFull) or isinstance(rolled_back, outcome.Error) or lane.connection is None:
        lane.failed = failure
        _fail_all(batch, failure)
        return
    _fail_all([request for request in batch if request.kind != "read"], failure)
    for request in batch:
        if request.kind == "read":  # it was alone in the transaction
            request.result = outcome.capture(request.fn, lane.connection)


def _roll_back(connection: Connection | None) -> None:
    if connection is not None and connection.in_transaction:
        connection.execute("ROLLBACK")


def _fail_all(batch: list[Request[object]], failure: StorageFailed) -> list[outcome.Error]:
    """Give each request the failure as its outcome: a copy each, since tracebacks grow on the way up."""
    failures = []
    for request in batch:
        again = copy.copy(failure)
        again.__cause__ = failure.__cause__
        request.result = outcome.Error(again)
        failures.append(request.result)
    return failures

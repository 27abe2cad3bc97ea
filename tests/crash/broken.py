"""Variants with a fault that the check must find: a check that finds nothing in these proves nothing elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import trio

from pattern_core.tools.tool import Tool
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from tests.crash.life import Settings
from tests.crash.moments import AROUND, POINTS, WatchedDatabase, classify
from tests.crash.script import Stage, tools_of

P = ParamSpec("P")
T = TypeVar("T")


class WriteBehind(WatchedDatabase):
    """Returns before a transaction is stored; the next use stores it: fast, and wrong. `early` names the moments."""

    early: frozenset[str] = frozenset()
    _later: Callable[[], Awaitable[object]] | None = None
    _turn: trio.Lock | None = None  # one at a time, so that the fault shows in a crash only

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Return before the commit, if it is one of the `early` moments; events are announced when they are stored."""
        self._turn = self._turn or trio.Lock()
        async with self._turn:
            await self._catch_up()
            value, moments = await Database.write(self, _tried, fn)
            store = super().write_and_announce
            if not self.early.intersection(moments):
                return await store(fn, announce)
            self._later = lambda: store(fn, announce)
            return value

    async def read(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Store what is owed first."""
        await self._catch_up()
        return await super().read(fn, *args, **kwargs)

    async def _catch_up(self) -> None:
        later, self._later = self._later, None
        if later is not None:
            await later()


def _tried(connection: Connection, fn: Callable[[Connection], T]) -> tuple[T, list[str]]:
    """What the transaction would give, without storing it."""
    connection.execute("SAVEPOINT tried")
    found = classify(connection, fn)
    connection.execute("ROLLBACK TO tried")
    connection.execute("RELEASE tried")
    return found


class AcknowledgesBeforeCommit(WriteBehind):
    """A message is accepted before it is on disk."""

    early = frozenset({"T0"})


class RunsBeforeIntent(WriteBehind):
    """A tool runs before its intent is on disk."""

    early = frozenset({"T5"})


class AsksBeforeFlush(WriteBehind):
    """A model is asked before the step, and what was recorded for it, is on disk."""

    early = frozenset({"T2", "T7"})


class InTwoCommits(WatchedDatabase):
    """Stores with a commit of its own that a row of `table` has ended. `key` and `ends` are columns of it."""

    under_way = "ended_at IS NULL"
    table: str
    key: Sequence[str]
    ends: Sequence[str]

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Commit first without the ends, then these."""
        later: list[tuple[Any, ...]] = []
        which = " AND ".join(f"{column} = ?" for column in self.key)
        update = f"UPDATE {self.table} SET {', '.join(f'{column} = ?' for column in self.ends)} WHERE {which}"

        def without(connection: Connection) -> T:
            columns = ", ".join([*self.ends, *self.key])
            under_way = connection.execute(f"SELECT {columns} FROM {self.table} WHERE {self.under_way}").fetchall()
            value = fn(connection)
            for row in under_way:
                where = f"FROM {self.table} WHERE {which} AND ended_at IS NOT NULL"
                later.extend(connection.execute(f"SELECT {columns} {where}", row[len(self.ends) :]))
                connection.execute(f"{update} AND ended_at IS NOT NULL", row)
            return value

        value = await super().write_and_announce(without, announce)
        if later:
            await Database.write(self, lambda connection: connection.executemany(update, later))
        return value


class EndsInTwoCommits(InTwoCommits):
    """A turn whose end was announced is taken up by the next life, and ends again."""

    # A queued turn has given up its message when it ends, so that the next life could not even start.
    under_way = "ended_at IS NULL AND status <> 'queued'"
    table, key, ends = "turn", ("key",), ("status", "ended_at")


class AnswersInTwoCommits(InTwoCommits):
    """A call whose result is stored is taken up by the next life, and has another one."""

    table, key, ends = "effect", ("turn", "step", "call"), ("status", "message_id", "ended_at", "args")


class Spoiled(WatchedDatabase):
    """Does something after each transaction, within it."""

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """As the product's, spoiled."""
        return await super().write_and_announce(lambda connection: self.spoil(connection, fn), announce)

    def spoil(self, connection: Connection, fn: Callable[[Connection], T]) -> T:
        """Run `fn`, and what is wrong."""
        raise NotImplementedError


class HoldsForEver(Spoiled):
    """Money that was held for a call and not spent is still held when its turn has ended."""

    def spoil(self, connection: Connection, fn: Callable[[Connection], T]) -> T:
        """Put back what was let go of and not paid."""
        held = connection.execute("SELECT * FROM reservation").fetchall()
        value = fn(connection)
        marks = ", ".join("?" * len(held[0])) if held else ""
        for row in held:
            paid = "SELECT 1 FROM usage WHERE (turn, step, attempt, purpose, no) = (?, ?, ?, ?, ?)"
            if not connection.execute(paid, row[:5]).fetchall():
                connection.execute(f"INSERT OR IGNORE INTO reservation VALUES ({marks})", row)
        return value


class NeverGivesUp(Spoiled):
    """How often a step was taken up is forgotten."""

    def spoil(self, connection: Connection, fn: Callable[[Connection], T]) -> T:
        """Forget it."""
        value = fn(connection)
        connection.execute("UPDATE turn SET resumes = 0 WHERE ended_at IS NULL AND resumes > 0")
        return value


class ForgetsHalfAnswers(Spoiled):
    """What a turn had said when it was cut off is dropped with the pieces."""

    def spoil(self, connection: Connection, fn: Callable[[Connection], T]) -> T:
        """Drop it."""
        value = fn(connection)
        connection.execute("DELETE FROM messages WHERE source_metadata ->> '$.partial' IS NOT NULL")
        return value


class ForgetsWhoJoins(WatchedDatabase):
    """A life does not know of an earlier one's messages that they were to join the turn under way."""

    _is_told = False

    async def write(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Forget it before the first transaction."""
        if not self._is_told:
            self._is_told = True
            forget = "UPDATE inbox SET payload = json_remove(payload, '$.policy')"
            await super().write(lambda connection: connection.execute(forget).fetchall())
        return await super().write(fn, *args, **kwargs)


def mail_as_idempotent(stage: Stage) -> Sequence[Tool]:
    """Declare the unsafe tool harmless, so that a call in doubt is repeated."""
    return [replace(one, effect=EffectClass.IDEMPOTENT) if one.name == "mail" else one for one in tools_of(stage)]


def order_without_consent(stage: Stage) -> Sequence[Tool]:
    """Do not ask a person where consent is required."""
    return [replace(one, consent=None) if one.name == "order" else one for one in tools_of(stage)]


_AROUND = tuple(point for point in POINTS if point[0] in AROUND)
_OUTSIDE = tuple(point for point in POINTS if point[0] == "outside")
VARIANTS = {
    "sound": Settings(),
    "acknowledges-before-commit": Settings(database=AcknowledgesBeforeCommit, points=_AROUND),
    "runs-before-intent": Settings(database=RunsBeforeIntent, points=_AROUND),
    "asks-before-flush": Settings(database=AsksBeforeFlush, points=(("model", "before"), ("model", "after"))),
    "repeats-in-doubt": Settings(tools=mail_as_idempotent, points=_OUTSIDE),
    "asks-nobody": Settings(tools=order_without_consent, points=_AROUND),
    "ends-in-two-commits": Settings(database=EndsInTwoCommits, points=(("T8", "after"), ("T8", "announced"))),
    "answers-in-two-commits": Settings(database=AnswersInTwoCommits, points=(("T6", "after"), ("T6", "announced"))),
    "holds-for-ever": Settings(database=HoldsForEver, points=_AROUND),
    "never-gives-up": Settings(database=NeverGivesUp, points=(("model", "before"),)),
    "forgets-half-answers": Settings(database=ForgetsHalfAnswers, points=(("T2'", "announced"),)),
    "forgets-who-joins": Settings(database=ForgetsWhoJoins, points=(("join", "before"), ("T8", "announced"))),
}

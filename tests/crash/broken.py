"""Variants with a fault that the check must find: a check that finds nothing in these proves nothing elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

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
    """Says that a transaction is stored and stores it with the next use: fast, and wrong. `early` names the moments."""

    early: frozenset[str] = frozenset()
    _later: Callable[[], Awaitable[object]] | None = None
    _turn: trio.Lock | None = None  # one at a time, so that the fault shows in a crash only

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Return before the commit, if it is one of the `early` moments; what nobody knows is announced when stored."""
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


def mail_as_idempotent(stage: Stage) -> Sequence[Tool]:
    """Declare the unsafe tool harmless, so that a call in doubt is repeated."""
    return [replace(one, effect=EffectClass.IDEMPOTENT) if one.name == "mail" else one for one in tools_of(stage)]


def order_without_consent(stage: Stage) -> Sequence[Tool]:
    """Ask nobody about what a person should agree to."""
    return [replace(one, consent=None) if one.name == "order" else one for one in tools_of(stage)]


_AROUND = tuple(point for point in POINTS if point[0] in AROUND)
_OUTSIDE = tuple(point for point in POINTS if point[0] == "outside")
VARIANTS = {
    "sound": Settings(),
    "acknowledges-before-commit": Settings(database=AcknowledgesBeforeCommit, points=_AROUND),
    "runs-before-intent": Settings(database=RunsBeforeIntent, points=_AROUND),
    "repeats-in-doubt": Settings(tools=mail_as_idempotent, points=_OUTSIDE),
    "asks-nobody": Settings(tools=order_without_consent, points=_AROUND),
}

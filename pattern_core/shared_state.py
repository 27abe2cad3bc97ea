"""State that the agents and people of a constellation share: JSON values by key.

A change names the version of the value that it is based on. If another one was first nothing is changed, and the error
has the newest version: so of two agents that claim a job by the same key, one gets it.
"""

from __future__ import annotations

import re

from pattern_core.errors import InvalidInput, NotFound, Overloaded, VersionMismatch
from pattern_core.messages import check_text
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db.columns import Json, check_depth, to_json
from pattern_db.connection import Connection
from pattern_db.tables import shared_state
from pattern_db.tables.activity import LOW
from pattern_db.tables.shared_state import SharedValue

KEYS_MAX = 1_000  # of one constellation
KEY_CHARS_MAX = 200
VALUE_BYTES_MAX = 16 * 1024  # as JSON
NAMED_MAX = 10_000  # keys that programs keep for workspaces
NAMED_CHARS_MAX = 1_000
NAMED_BYTES_MAX = 256 * 1024  # of a value, as JSON

_KEY = re.compile(rf"[\w.:-]{{1,{KEY_CHARS_MAX}}}")

Value = SharedValue


class SharedState:
    """The shared state of one constellation."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def find(self, key: str) -> Value | None:
        """Return the value under a key with its version; None if there is none."""
        return await self._storage.database.read(shared_state.find, key)

    async def get(self, key: str) -> Value:
        """Return the value under a key with its version.

        Raises:
            NotFound: there is none.
        """
        if (found := await self.find(key)) is None:
            raise NotFound(f"there is no key {key!r} in the shared state of this constellation")
        return found

    async def page(self, limit: int, after: str | None = None) -> list[Value]:
        """Return values by key; only those after a key, if given."""
        return await self._storage.database.read(shared_state.page, limit, after)

    async def set(self, key: str, value: Json, *, expected: int, author: str, work: UnitOfWork | None = None) -> Value:
        """Set a key that is still at the version `expected` (0: it does not exist); return the value with its new one.

        With `work` the version is compared again when that is committed.

        Raises:
            VersionMismatch: it has another version.
            InvalidInput: the key or the value is invalid.
            Overloaded: there are too many keys.
        """
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"a key has 1 to {KEY_CHARS_MAX} letters, digits and signs of _ - . :")
        _check(value)
        current, following = await self._storage.database.read(shared_state.versions, key)
        _compare(key, current, expected)
        now = self._storage.now()
        row = Value(key, value, following, now, author, created_at=now)
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(_put, row, expected)
            self._storage.note(unit, "state_changed", key, author=author, importance=LOW)
            unit.event("state.changed", {"key": key, "version": row.version, "by": author})
        return row

    async def delete(self, key: str, *, expected: int, author: str) -> None:
        """Delete a key that is still at the version `expected`.

        Raises:
            VersionMismatch: it has another version, or there is no such key any more.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(_delete, key, expected)
            self._storage.note(work, "state_deleted", key, author=author, importance=LOW)
            work.event("state.deleted", {"key": key, "version": expected, "by": author})

    async def keep(self, workspace: str, key: str, value: Json, *, author: str) -> None:
        """Set a key that a program keeps for a workspace, whatever its version is; it may be any text.

        Raises:
            InvalidInput: the key or the value is invalid.
            Overloaded: there are too many keys.
        """
        key = named(workspace, key)
        _check(value, NAMED_BYTES_MAX)
        now = self._storage.now()
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(_keep, key, value, now, author)
            work.event("state.kept", {"key": key, "by": author})

    async def drop(self, workspace: str, key: str, *, author: str) -> bool:
        """Delete a key that a program keeps for a workspace; return whether there was one."""
        found = await self.find(named(workspace, key))
        if found is not None:
            await self.delete(found.key, expected=found.version, author=author)
        return found is not None

    async def kept(self, workspace: str) -> list[Value]:
        """Return all values that programs keep for a workspace, the newest change first."""
        return await self._storage.database.read(shared_state.in_workspace, workspace)


def named(workspace: str, key: str) -> str:
    """Return the key under which a program's key of a workspace is stored.

    Raises:
        InvalidInput: it is too long, or cannot be stored.
    """
    if "\0" in check_text(key) or len(key) > NAMED_CHARS_MAX:
        raise InvalidInput(f"a key has at most {NAMED_CHARS_MAX:,} characters and no NUL; choose another")
    return f"{shared_state.NAMED}{workspace}/{key}"


def _keep(connection: Connection, key: str, value: Json, now: str, author: str) -> None:
    current, following = shared_state.versions(connection, key)
    if not current and shared_state.count(connection, named=True) >= NAMED_MAX:
        raise Overloaded(f"programs keep {NAMED_MAX:,} keys in this constellation, its limit; delete one")
    shared_state.put(connection, Value(key, value, following, now, author, created_at=now))


def _check(value: Json, bytes_max: int = VALUE_BYTES_MAX) -> None:
    if value is None:
        raise InvalidInput("the value is null; delete the key instead")
    try:
        check_depth(value)
        size = len(to_json(value).encode())
    except (TypeError, ValueError) as error:  # lone surrogates, too
        raise InvalidInput(f"the value cannot be stored as JSON: {error}") from None
    if size > bytes_max:
        raise InvalidInput(f"the value has {size:,} bytes as JSON, the most is {bytes_max:,}; store less")


def _compare(key: str, current: int, expected: int) -> None:
    if current == expected:
        return
    is_at = f"is at version {current}" if current else "does not exist"
    wanted = f", not {expected}" if expected and current else ""
    raise VersionMismatch(f"the key {key!r} {is_at}{wanted}; read it again", version=current)


def _put(connection: Connection, row: Value, expected: int) -> None:
    current, following = shared_state.versions(connection, row.key)
    _compare(row.key, current, expected)
    if following != row.version:
        raise VersionMismatch(f"the key {row.key!r} was created and deleted; read it again", version=current)
    if not current and shared_state.count(connection) >= KEYS_MAX:
        raise Overloaded(f"the shared state has {KEYS_MAX:,} keys, its limit; delete one")
    shared_state.put(connection, row)


def _delete(connection: Connection, key: str, expected: int) -> None:
    _compare(key, shared_state.versions(connection, key)[0], expected)
    shared_state.delete(connection, key)

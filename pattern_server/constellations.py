"""Operations on whole constellations: create, list, use, rename, back up, restore and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from pattern_core.errors import Conflict, NotFound
from pattern_core.ids import now_text
from pattern_core.runtime import Runtime
from pattern_db import backup
from pattern_db.files import sha256_of, temporary
from pattern_server.accounts import Accounts, Principal, check_name
from pattern_server.accounts import Constellation as Registered
from pattern_server.files import ConstellationFiles
from pattern_server.supervisor import Supervisor

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation

REACHED_MAX = 10_000  # names and ids with a cached meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A verified copy: its absolute path, its size in bytes and its SHA-256 (hex)."""

    path: Path
    size: int
    sha256: str


class Constellations:
    """The constellations of this server, as their owners may use them."""

    def __init__(
        self,
        *,
        accounts: Accounts,
        supervisor: Supervisor[Constellation],
        files: ConstellationFiles,
        backups: Path,
        runtime: Runtime,
    ) -> None:
        self.accounts = accounts
        self._supervisor = supervisor
        self.files = files
        self._backups = backups
        self.clock = runtime.clock
        self.runtime = runtime
        # The meaning of ids and names per caller. A new dictionary replaces it when the registry has changed, so
        # that a lookup which began before writes into one that nothing reads.
        self._reached: dict[tuple[Principal, str], str] = {}

    @asynccontextmanager
    async def use(self, principal: Principal, id_or_name: str) -> AsyncIterator[Constellation]:
        """Yield the caller's constellation, awake within the block.

        Raises:
            NotFound: there is none, or it belongs to another user.
            Unavailable: it cannot run now.
        """
        reached = self._reached
        constellation_id = reached.get((principal, id_or_name))
        if constellation_id is None:
            constellation_id = (await self.accounts.constellation_for(principal, id_or_name)).id
            if len(reached) >= REACHED_MAX:
                reached.clear()
            reached[principal, id_or_name] = constellation_id
        async with self._supervisor.use(constellation_id) as constellation:
            yield constellation

    def known_as(self, principal: Principal, id_or_name: str) -> str:
        """Return the id of a constellation that the caller has used; of another one, what it was called."""
        return self._reached.get((principal, id_or_name), id_or_name)

    async def clear(self) -> None:
        """Delete what a killed process left of constellations that it was creating or deleting; call it first.

        Raises:
            StorageFailed: the disk failed.
        """
        if left := await trio.to_thread.run_sync(self.files.interrupted):
            known = {row.id for row in await self.accounts.every_constellation()}
            for constellation_id in left:
                if constellation_id in known:
                    self.files.keep(constellation_id)
                else:
                    await self.files.remove(constellation_id)

    async def create(
        self, principal: Principal, name: str, fill: Callable[[Constellation], Awaitable[None]] | None = None
    ) -> Registered:
        """Create a constellation: empty, or with what `fill` creates in it. If that fails or the process dies, there is
        none.

        Raises:
            InvalidInput: the name is invalid.
            Conflict: the caller already has one of that name.
            StorageFailed: the disk is full or failed.
            Exception: what `fill` raises, or `use`.
        """
        await self._check_free(principal, name)
        constellation_id = self.files.new_id()
        await self.files.create(constellation_id)
        return await self._register(principal, constellation_id, name, fill)

    async def restore(self, principal: Principal, copy: Path, name: str, *, migrate: bool = False) -> Registered:
        """Create a constellation from a backup, by its path on this machine; existing data stays unchanged.

        With `migrate`, a constellation made from an older server's backup is migrated to this version.

        Raises:
            InvalidInput: the name is invalid.
            Conflict: the caller already has one of that name.
            RowNotFound: there is no such file.
            BackupInvalid: it is not a sound copy of a constellation.
            SchemaOutdated: it was made by an older server, and `migrate` is False.
            MigrationFailed: it cannot be migrated.
        """
        await self._check_free(principal, name)
        constellation_id = self.files.new_id()
        await self.files.adopt(copy, constellation_id, migrate=migrate)
        return await self._register(principal, constellation_id, name)

    async def fork(self, principal: Principal, id_or_name: str, name: str) -> Registered:
        """Create a constellation that begins as another one is now, while that works; both continue alone.

        Nothing happens twice: in the new one open turns end, schedules and reminders are paused, and there are no
        webhooks, no deliveries and no consent.

        Raises:
            NotFound: there is no such constellation, or it belongs to another user.
            Unavailable: it cannot run now.
            InvalidInput: the name is invalid.
            Conflict: the caller already has one of that name.
            BackupInvalid: the copy does not pass its checks; the original may be damaged.
            BackupFailed: there is no room for the copy.
            StorageFailed: the disk failed.
        """
        await self._check_free(principal, name)
        async with self.use(principal, id_or_name) as constellation:
            with temporary(self._backups / self.files.new_id("fork")) as copy:
                await constellation.database.read_aside(backup.hot_backup, copy)
                await trio.to_thread.run_sync(backup.cut_loose, copy)
                return await self.restore(principal, copy, name)

    @asynccontextmanager
    async def aside(self, principal: Principal, id_or_name: str) -> AsyncIterator[tuple[Registered, Path]]:
        """Yield an idle constellation and its folder, and keep it stopped within the block.

        Raises:
            NotFound: there is none, or it belongs to another user.
            Unavailable: it is busy.
        """
        found = await self.accounts.constellation_for(principal, id_or_name)
        async with self._supervisor.aside(found.id, if_idle=True):
            yield found, self.files.folder(found.id)

    async def _check_free(self, principal: Principal, name: str) -> None:
        """Refuse a used name before files are created; the registry checks it again at the end."""
        check_name(name, "a constellation")
        with suppress(NotFound):
            row = await self.accounts.constellation_for(principal, name)
            if (row.name, row.owner_id) == (name, principal.user_id):
                raise Conflict(f"you already have a constellation named {name!r}; choose another name")

    async def _register(
        self,
        principal: Principal,
        constellation_id: str,
        name: str,
        fill: Callable[[Constellation], Awaitable[None]] | None = None,
    ) -> Registered:
        now = now_text(self.clock)
        row = Registered(
            id=constellation_id,
            owner_id=principal.user_id,
            name=name,
            db_path=self.files.relative_path(constellation_id),
            created_at=now,
            last_accessed_at=now,
        )
        try:
            async with AsyncExitStack() as stack:
                if fill is not None:
                    await fill(await stack.enter_async_context(self._supervisor.use(constellation_id)))
                # Last: until then no name and no start reaches its files. Awake, so that its timers are not missed.
                await self.accounts.register(row)
                self.files.keep(constellation_id)
        except BaseException:
            with trio.CancelScope(shield=True):
                async with self._supervisor.aside(constellation_id):
                    await self.files.remove(constellation_id)
            raise
        finally:
            self._reached = {}
        return row

    async def rename(self, principal: Principal, id_or_name: str, name: str) -> Registered:
        """Rename a constellation.

        Raises:
            NotFound: there is none, or it belongs to another user.
            InvalidInput: the name is invalid.
            Conflict: its owner already has one of that name.
        """
        found = await self.accounts.constellation_for(principal, id_or_name)
        try:
            await self.accounts.rename(found.id, name)
        finally:
            self._reached = {}
        return replace(found, name=name)

    async def delete(self, principal: Principal, id_or_name: str) -> None:
        """Stop a constellation and delete it with its files; only a backup can restore it.

        Raises:
            NotFound: there is none, or it belongs to another user.
            StorageFailed: the disk failed.
        """
        found = await self.accounts.constellation_for(principal, id_or_name)
        async with self._supervisor.aside(found.id):
            # Registry first: a crash in between leaves files that no name reaches, not a name without files.
            try:
                await self.accounts.unregister(found.id)
            finally:
                self._reached = {}
            await self.files.remove(found.id)

    async def delete_user(self, principal: Principal, user: str, *, give_to: str | None, with_data: bool) -> None:
        """Delete a user; their constellations go to another one, or are deleted, too.

        Raises:
            RowNotFound: there is no such user.
            Conflict: as `Accounts.delete_user`.
            StorageFailed: the disk failed.
        """
        owner = await self.accounts.user_for(principal, user)
        owned = [row for row in await self.accounts.constellations_of(principal) if row.owner_id == owner.id]
        if with_data:
            await self.accounts.change_user(owner.id, disabled=True)  # refused for the last administrator
            for row in owned:
                await self.delete(principal, row.id)
        await self.accounts.delete_user(owner.id, give_to)

    async def copy(self, principal: Principal, id_or_name: str) -> Copy:
        """Copy a constellation, while it runs, into the server's `backups` folder, and verify the copy.

        Raises:
            NotFound: there is none, or it belongs to another user.
            Unavailable: it cannot run now.
            BackupInvalid: the copy does not pass its checks; the original may be damaged.
            BackupFailed: there is no room for the copy.
            StorageFailed: the disk failed.
        """
        async with self.use(principal, id_or_name) as constellation:
            return await _copied(
                await constellation.database.read_aside(backup.hot_backup, self._target(constellation.id))
            )

    async def vacuum(self, principal: Principal, id_or_name: str) -> int:
        """Vacuum its database while it is parked; return the number of freed bytes.

        Raises:
            NotFound: there is none, or it belongs to another user.
            Unavailable: it is busy.
            DatabaseError: as `ConstellationFiles.vacuum`.
        """
        found = await self.accounts.constellation_for(principal, id_or_name)
        async with self._supervisor.aside(found.id, if_idle=True):
            return await self.files.vacuum(found.id)

    async def copy_registry(self) -> Copy:
        """Copy users, tokens and the list of constellations into the server's `backups` folder, and verify the copy.

        Raises:
            BackupFailed: there is no room for the copy.
            StorageFailed: the disk failed.
        """
        return await _copied(await self.accounts.database.copy(self._target("global")))

    def _target(self, name: str) -> Path:
        stamp = now_text(self.clock).replace(":", "").replace("-", "")
        return self._backups / f"{name}.{stamp}.db"


async def _copied(report: backup.Report) -> Copy:
    digest = await trio.to_thread.run_sync(sha256_of, report.path)
    return Copy(path=report.path.absolute(), size=report.bytes, sha256=digest)

"""Sessions: conversations of front ends with an agent or a group, in addition to its main one.

A turn in a session is shown that session's messages as its conversation; memory, archive and search are common to all
conversations of an agent. The main conversation shows nothing of sessions. A session of a group is also one of each
member that is asked in it. A fork begins as another session up to one of its messages; their rows belong to both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from pattern_core.conversation.imports import NO_OWNER, TITLE_CHARS_MAX, create_session
from pattern_core.errors import Conflict, InvalidInput, NotFound, instead_of
from pattern_core.turns.admission import NO_SESSION
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import check_plain
from pattern_db.connection import Connection, Value
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.journal import turns
from pattern_db.tables import messages, sessions
from pattern_db.tables.sessions import ChatRow, SessionRow

Session = SessionRow
Chat = ChatRow


@dataclass(eq=False)
class Sessions:
    """The sessions of one constellation. Their owner is the id of an agent or a group. `_end_turn` cancels a turn, with
    a reason, and returns when it has ended.
    """

    _storage: Storage
    _end_turn: Callable[[str, str], Awaitable[object]]

    async def get(self, owner_id: str, session_id: str) -> Session:
        """Return a session.

        Raises:
            NotFound: its owner has none with this id.
        """
        with instead_of(RowNotFound, NotFound(NO_SESSION.format(session_id))):
            return await self._storage.database.read(sessions.find, owner_id, session_id)

    async def newest(
        self, owner_id: str, limit: int, *, before: str | None = None, is_archived: bool = False
    ) -> list[Session]:
        """Return the newest sessions, newest first: archived ones, or the others; those before the id `before`."""
        return await self._storage.database.read(
            sessions.newest, owner_id, limit, before=before, is_archived=is_archived
        )

    async def chat(self, session_id: str) -> Chat:
        """Return a session of whichever agent has it, as a front end lists it.

        Raises:
            NotFound: no agent has one with this id.
        """
        with instead_of(RowNotFound, NotFound(NO_SESSION.format(session_id))):
            return await self._storage.database.read(sessions.chat, session_id)

    async def chats(self, limit: int, offset: int) -> tuple[list[Chat], int]:
        """Return the sessions of all agents, the newest first, without archived ones: at most `limit` after the first
        `offset`; and how many there are.
        """
        return await self._storage.database.read_aside(sessions.chats, limit, offset)

    async def begun_as(self, beginning: bytes, answer: str) -> Session | None:
        """Return the newest session that was created with this `beginning`, rather one in which `answer` came first."""
        return await self._storage.database.read(sessions.begun_as, beginning, answer)

    async def create(
        self,
        owner_id: str,
        *,
        title: str | None = None,
        origin: str | None = None,
        workspace: str | None = None,
    ) -> Session:
        """Create a session; `origin` names the front end, `workspace` is the id of the one that it is about.

        Raises:
            InvalidInput: the title or the origin is invalid, or there are too many sessions.
            NotFound: there is no such agent or group.
        """
        return await self._store(owner_id, replace(self.new(title, origin), workspace=workspace))

    def new(self, title: str | None, origin: str | None, *, beginning: bytes | None = None) -> Session:
        """Return a session that can be created with its first message; `beginning` is a digest (16 bytes, of the owner
        too) to find it by.

        Raises:
            InvalidInput: the title or the origin is invalid.
        """
        now, title, origin = self._storage.now(), _checked(title, "title"), _checked(origin, "origin")
        ses_id = self._storage.ids.new("ses")
        return Session(id=ses_id, title=title, origin=origin, beginning=beginning, created_at=now, updated_at=now)

    async def fork(self, owner_id: str, session_id: str, message_id: str | None, *, title: str | None) -> Session:
        """Create a session that begins as another one, up to a message of it and with that; None: its last one.

        Raises:
            InvalidInput: it is a group's, the title is invalid, or there are too many sessions.
            NotFound: there is no such session, or no such message in it.
        """
        parent = await self.get(owner_id, session_id)
        if parent.agent_id is None:
            raise InvalidInput("sessions of groups cannot be forked; create a new one")
        position = await self._storage.database.read(_position, parent, message_id)
        new = self.new(title or parent.title, parent.origin)
        fork = replace(new, parent_id=parent.id, workspace=parent.workspace, working_dir=parent.working_dir)
        return await self._store(owner_id, fork, begins_as=(parent, position))

    async def update(self, owner_id: str, session_id: str, changes: Mapping[str, Value]) -> Session:
        """Change the title or the working directory, or archive the session (`is_archived`), which ends no turn of it.

        Raises:
            NotFound: there is no such session.
            InvalidInput: the title is invalid.
        """
        session = await self.get(owner_id, session_id)
        if isinstance(title := changes.get("title"), str):
            _checked(title, "title")
        await self._storage.database.write(sessions.change, session.id, {**changes, "updated_at": self._storage.now()})
        return await self.get(owner_id, session_id)

    async def delete(self, owner_id: str, session_id: str) -> None:
        """Delete a session; its turns are cancelled first, and its messages are not found any more.

        Raises:
            NotFound: there is no such session.
            Conflict: it has forks.
        """
        session, database = await self.get(owner_id, session_id), self._storage.database
        has_forks = Conflict(f"{session.id} was forked, and the forks begin with its messages; archive it instead")
        if await database.read(sessions.has_forks, session.id):
            raise has_forks
        await self.update(owner_id, session.id, {"is_archived": True})  # no other turn begins
        await self.stop(session.id, "session_deleted")
        work = UnitOfWork()
        work.store(sessions.delete, session)
        with instead_of(RowConflict, has_forks):  # forked in this moment
            await self._storage.commit(work)  # as what changes texts is, so that their vectors are deleted

    async def stop(self, session_id: str, reason: str = "user") -> bool:
        """Cancel the turns of a session; return, once they have ended, whether there were any."""
        found = await self._storage.database.read(turns.open_in_session, session_id)
        for turn_id in found:
            await self._end_turn(turn_id, reason)
        return bool(found)

    async def _store(self, owner_id: str, session: Session, begins_as: tuple[Session, str] | None = None) -> Session:
        def store(connection: Connection) -> Session:
            create_session(connection, owner_id, session)
            if begins_as is not None:
                parent, position = begins_as
                sessions.share(connection, parent, session.id, position)
            return sessions.find(connection, owner_id, session.id)

        with instead_of(RowConflict, NotFound(NO_OWNER)):  # perhaps deleted in this moment
            return await self._storage.database.write(store)


def _checked(text: str | None, name: str) -> str | None:
    if text is not None and not 1 <= len(check_plain(text, f"a session's {name}")) <= TITLE_CHARS_MAX:
        raise InvalidInput(f"a session's {name} has 1 to {TITLE_CHARS_MAX} characters; leave it out for none")
    return text


def _position(connection: Connection, session: Session, message_id: str | None) -> str:
    """Return the position of a message of an agent's session, or of its newest one; empty if it has none.

    Raises:
        NotFound: it has no such message.
    """
    agent_id, behind = session.agent_id or "", None
    if message_id is not None:
        with suppress(RowNotFound):
            behind = f"{messages.get(connection, message_id).position}~"
    found = messages.recent(connection, agent_id, 1, before=behind, session_id=session.id)
    if message_id is not None and message_id not in [row.id for row in found]:
        raise NotFound(f"there is no message {message_id!r} in this session; list its messages")
    return found[0].position if found else ""

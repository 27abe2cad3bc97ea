"""Folders of files, and the agents that may use them."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection, Table, require_change
from pattern_db.enums import FolderAccess, PathType
from pattern_db.tables import embeddings


@dataclass(frozen=True, slots=True)
class FolderRow:
    """A folder. `path_value` is a local one's directory, or a remote one's address; `status` is "ready", or
    "unavailable" with its reason.
    """

    id: str
    name: str
    path_type: PathType
    embedding_model: str
    created_at: str
    description: str | None = None
    path_value: str | None = None
    status: str = "ready"
    status_reason: str | None = None
    indexed_at: str | None = None


@dataclass(frozen=True, slots=True)
class FolderAttachment:
    """What one agent may do in one folder."""

    folder_id: str
    agent_id: str
    access: FolderAccess
    attached_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedFolder:
    """A folder as one agent sees it."""

    folder: FolderRow
    access: FolderAccess


_FOLDERS = Table("folders", FolderRow, "folder {!r}", order="name, id", types={"path_type": PathType})
_ATTACHMENTS = Table("folder_attachments", FolderAttachment, types={"access": FolderAccess})
create, find, change, list_all = _FOLDERS.create, _FOLDERS.find, _FOLDERS.change, _FOLDERS.list_all


def note_indexed(connection: Connection, folder_id: str, indexed_at: str) -> None:
    """Store that the whole folder was scanned."""
    connection.execute(
        "UPDATE folders SET status = 'ready', status_reason = NULL, indexed_at = ? WHERE id = ?",
        (indexed_at, folder_id),
    )


def note_unavailable(connection: Connection, folder_id: str, reason: str) -> None:
    """Store that the folder cannot be scanned now; the data of its files stays."""
    connection.execute("UPDATE folders SET status = 'unavailable', status_reason = ? WHERE id = ?", (reason, folder_id))


def delete(connection: Connection, folder_id: str) -> None:
    """Delete a folder with its files' rows, passages, vectors and attachments; files on the disk stay.

    Raises:
        RowNotFound: there is no such folder.
    """
    embeddings.delete_scope(connection, folder_id)
    _FOLDERS.delete(connection, folder_id)


def attach(connection: Connection, row: FolderAttachment) -> None:
    """Attach a folder to an agent, or change the agent's access.

    Raises:
        apsw.ConstraintError: the folder or the agent does not exist (translated to `RowConflict`).
    """
    _ATTACHMENTS.insert(connection, [row], "ON CONFLICT (folder_id, agent_id) DO UPDATE SET access = excluded.access")


def detach(connection: Connection, folder_id: str, agent_id: str) -> None:
    """Detach a folder from an agent.

    Raises:
        RowNotFound: it was not attached.
    """
    connection.execute("DELETE FROM folder_attachments WHERE folder_id = ? AND agent_id = ?", (folder_id, agent_id))
    require_change(connection, f"folder {folder_id} attached to {agent_id}")


def attachments(connection: Connection, folder_id: str) -> list[FolderAttachment]:
    """Return the attachments of a folder, by time."""
    return _ATTACHMENTS.select(connection, "WHERE folder_id = ? ORDER BY attached_at, agent_id", (folder_id,))


def of_agent(connection: Connection, agent_id: str) -> list[AttachedFolder]:
    """Return the folders that an agent may use, by name."""
    rows = connection.execute(
        f"SELECT {_FOLDERS.columns}, access FROM folder_attachments JOIN folders ON id = folder_id"
        " WHERE agent_id = ? ORDER BY name, id",
        (agent_id,),
    )
    return [AttachedFolder(folder=_FOLDERS.make(row), access=FolderAccess(row[-1])) for row in rows]


def attached(connection: Connection, path_type: PathType) -> list[FolderRow]:
    """Return the folders of a kind that at least one agent may use, the longest unread first."""
    return _FOLDERS.select(
        connection,
        "WHERE path_type = ? AND EXISTS (SELECT 1 FROM folder_attachments WHERE folder_id = folders.id)"
        " ORDER BY indexed_at, id",
        (path_type,),
    )

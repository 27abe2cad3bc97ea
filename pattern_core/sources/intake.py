"""What an event of a source leads to: a message, a notification, an archive entry or a line of activity.

The events are rows of the outbox, so that each is delivered in the transaction that removes it, in order, and again
later if its agent cannot have it now. Those that came together are one message.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import PurePosixPath
from typing import TypeAlias

from pattern_core.agents import Agent, Roster
from pattern_core.archive import entries
from pattern_core.archive.entries import NewEntry, Terms
from pattern_core.delivery import Accepting
from pattern_core.errors import InvalidInput, LimitReached, NotFound, Overloaded, PatternError, Unavailable
from pattern_core.events import Event, append
from pattern_core.files.access import received_in
from pattern_core.files.disk import UnreadableFile, check_name
from pattern_core.files.passages import prepare
from pattern_core.files.passages import store as store_file
from pattern_core.images import image_of_bytes, media_type_of
from pattern_core.messages import Image
from pattern_core.sources.source import FILES_MAX, SourceEvent, SourceFile
from pattern_core.turns.admission import IncomingMessage
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import marked, plain
from pattern_db.columns import Json, from_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus, FolderAccess, PathType, SourceDelivery
from pattern_db.errors import RowNotFound
from pattern_db.tables import files, folders, outbox, sources
from pattern_db.tables.folders import FolderAttachment, FolderRow
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sources import ReceiverRow, SourceChatRow, SourceRow

EVERY_S = 3  # at least, between two messages of a source to an agent
TOGETHER_MAX = 60  # events of one message
TOGETHER_CHARS_MAX = 60_000  # of one message; what is longer is the next one
CHAT_FILES_MAX = 200  # that came in one chat, and are kept
CHAT_BYTES_MAX = 50 * 1024 * 1024  # of them
FILE_NAME_CHARS_MAX = 100
Download: TypeAlias = Callable[[str], Awaitable[bytes]]
FILTERS = {"authors": list, "words": list, "not_words": list, "quiet": str}
_PLACES = ("title", "text", "link", "author", "source")  # words of a template


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Delivers the events of one constellation's sources to its agents."""

    storage: Storage
    roster: Roster
    accepting: Accepting

    async def deliver(self, row: OutboxRow, work: UnitOfWork) -> None:
        """Add to a unit of work what follows from an event, and from those that wait behind it for the same agent.

        Raises:
            PatternError: the agent cannot have it now; Overloaded, if it had one just now.
        """
        database = self.storage.database
        try:
            source = await database.read(sources.find, row.target.split(":")[1])
            agent = await self.roster.get(event_of(row)[1])
            receivers = await database.read(sources.receivers, source.id)
            receiver = next(one for one in receivers if one.agent_id == agent.id)
        except (RowNotFound, NotFound, StopIteration):  # deleted since, or the agent gets nothing of it any more
            self.refuse(work, row.target.split(":")[1], "there is no one who receives it any more")
            return
        if agent.status is AgentStatus.ARCHIVED:
            self.refuse(work, source.id, f"the agent {agent.name} is archived")
            return
        if receiver.delivery in (SourceDelivery.MESSAGE, SourceDelivery.NOTIFICATION):
            last = await database.read(outbox.last_delivered, row.target)
            rests_ms = 0 if last is None else unix_ms(last) + EVERY_S * 1000 - self.storage.clock.now_ms()
            # What comes until then is one message: each is a turn. A clock that was set back holds up nothing.
            if 0 < rests_ms <= EVERY_S * 1000:
                raise Overloaded(f"an agent gets a message every {EVERY_S} s", retry_after_s=rests_ms / 1000)
        self._add(work, source, agent, receiver, await self.together(row, work))

    async def together(self, row: OutboxRow, work: UnitOfWork) -> list[SourceEvent]:
        """Return the event of a row with those behind it that are one message, and add to a unit of work that these are
        delivered: not too long, and of one person.
        """
        rows = [row, *await self.storage.database.read(outbox.next_of, row, TOGETHER_MAX - 1)]
        events = [event_of(one)[0] for one in rows]
        first, chars, files = events[0], len(events[0].text), len(events[0].files)
        chosen = [first]
        for one in events[1:]:
            chars, files = chars + len(one.text), files + len(one.files)
            is_same = (one.author, one.chat) == (first.author, first.chat) or first.chat is None
            is_long = chars > TOGETHER_CHARS_MAX or files > FILES_MAX
            if is_long or not is_same or one.decides or first.decides or not one.is_addressed:
                break
            chosen.append(one)
        work.store(outbox.delivered, rows[1 : len(chosen)], self.storage.now())
        return chosen

    def refuse(self, work: UnitOfWork, source_id: str, reason: str) -> None:
        """Add to a unit of work that an event leads to nothing, and why."""
        work.event("source.refused", {"source_id": source_id, "reason": reason})

    def _add(
        self, work: UnitOfWork, source: SourceRow, agent: Agent, receiver: ReceiverRow, events: Sequence[SourceEvent]
    ) -> None:
        origin = f"{source.source_type} {source.name}"
        match receiver.delivery:
            case SourceDelivery.ACTIVITY:
                for one in events:
                    summary = f"{source.name}: {plain(one.title or one.text)[:200]}"
                    self.storage.note(work, "source.event", summary, author=f"source:{source.id}", importance=1)
                return
            case SourceDelivery.ARCHIVE:
                for one in events:
                    self._archive(work, source, agent, one)
                return
            case SourceDelivery.NOTIFICATION:
                content = "\n\n".join(_filled(receiver.notification_template or "", source, one) for one in events)
            case _:
                words = "\n\n".join(marked(_shown(one), origin) for one in events)
                content = f"New from the source {plain(source.name)} ({source.source_type}):\n\n{words}"
        incoming = IncomingMessage(
            agent_id=agent.id,
            content=content,
            sender=f"source:{source.id}",  # the least trusted
            source=source.source_type,
            source_metadata={"source_id": source.id, "events": [one.native for one in events]},
            policy="enqueue",
        )
        _turn_id, accept, wake = self.accepting(agent, incoming)
        work.store_and_tell(lambda connection: accept(connection)[1])
        work.when_settled(lambda committed: wake() if committed else None)

    def _archive(self, work: UnitOfWork, source: SourceRow, agent: Agent, event: SourceEvent) -> None:
        link: Mapping[str, Json] = {"url": event.link} if event.link else {}
        about = {"author": f"source:{source.id}", "event": event.native, **link}
        new = entries.checked(NewEntry(content=_shown(event), tags=[source.name[:50]], source=about))
        entry_id, terms = self.storage.ids.new("arch"), Terms(now=self.storage.now(), supersedes=None, force=True)

        def store(connection: Connection) -> list[Event]:
            stored = entries.store(connection, agent.id, new, entry_id, terms)
            drafts = [entries.changed(agent.id, stored.entry_id)] if stored.is_new else []
            return append(connection, None, drafts, created_at=terms.now)

        work.store_and_tell(store)


def event_of(row: OutboxRow) -> tuple[SourceEvent, str]:
    """Return the event that a row delivers, and the id of its agent."""
    payload = from_json(row.payload)
    decides = payload["event"]["decides"]
    files = [SourceFile(**one) for one in payload["event"].get("files", ())]
    event = {**payload["event"], "decides": None if decides is None else (decides[0], decides[1]), "files": files}
    return SourceEvent(**event), payload["agent_id"]


async def keep_files(
    storage: Storage, work: UnitOfWork, chat: SourceChatRow, about: str, sent: Iterable[SourceFile], download: Download
) -> tuple[list[str], list[Image]]:
    """Return a line for each file that came in a chat, and the images, which belong to the message. Other files are
    added to the folder of the chat's session (`about` describes it); what cannot be kept is named with the reason.

    Raises:
        Unavailable: one cannot be downloaded now.
    """
    lines, images, folder_id = list[str](), list[Image](), received_in(chat.session_id)
    known = {one.name: one.size_bytes or 0 for one in await storage.database.read(files.list_in, folder_id)}
    folder = FolderRow(
        folder_id, f"{about.split()[0]}-{chat.id[-10:]}", PathType.VIRTUAL, "", storage.now(), f"Files from {about}"
    )
    for one in sent:
        name = _free_name(one.name, known)
        try:
            data = await download(one.ref)
            if media_type_of(data) is not None:
                images.append(image_of_bytes(data))
                lines.append(f"[image {name}]")
                continue
            if len(known) >= CHAT_FILES_MAX or sum(known.values()) + len(data) > CHAT_BYTES_MAX:
                raise LimitReached("too many files of this chat are kept already")
            found = await prepare(storage, folder_id, check_name(name), data)
            if found.row.error is not None:
                raise UnreadableFile(found.row.error)
        except Unavailable:
            raise
        except PatternError as error:
            lines.append(f"[the file {name} was not kept: {error.message}]")
            continue
        if not known:
            work.store(_create_folder, folder, chat.agent_id)
        known[name] = len(data)
        work.store(store_file, found, data)
        lines.append(f"[file {folder.name}/{name}]")
    return lines, images


def _create_folder(connection: Connection, folder: FolderRow, agent_id: str) -> None:
    with suppress(RowNotFound):
        folders.find(connection, folder.id)
        return  # its files were deleted
    folders.create(connection, folder)
    folders.attach(connection, FolderAttachment(folder.id, agent_id, FolderAccess.READ_WRITE, folder.created_at))


def _free_name(name: str, known: Container[str]) -> str:
    """Return a name that no other file of the folder has, without the path that a sender may have put before it."""
    bare = PurePosixPath(" ".join(plain(name).replace("\\", "/").split()).rstrip("/")).name.lstrip(".") or "file"
    at = PurePosixPath(bare[-FILE_NAME_CHARS_MAX:])
    free = (f"{at.stem}-{number}{at.suffix}" for number in count(2))
    return str(at) if str(at) not in known else next(one for one in free if one not in known)


def _shown(event: SourceEvent) -> str:
    """Return an event as an agent reads it."""
    by = f"by {event.author_name or event.author}" if event.author_name or event.author else ""
    return "\n".join(filter(None, (event.title, event.link, by, event.text)))


def _filled(template: str, source: SourceRow, event: SourceEvent) -> str:
    """Return the owner's template with the words of an event, which are data."""
    words = {**{name: getattr(event, name, "") for name in _PLACES}, "source": source.name}
    origin = f"{source.source_type} {source.name}"
    return re.sub(rf"\{{({'|'.join(_PLACES)})\}}", lambda found: marked(words[found[1]], origin), template)


def check_filters(filters: Mapping[str, Json]) -> None:
    """Refuse filters that do not exist, or have values of another type.

    Raises:
        InvalidInput: one does; the message names those that exist.
    """
    for name, value in filters.items():
        if not isinstance(value, FILTERS.get(name, ())):
            raise InvalidInput(f"there is no filter {name!r} with such a value; filters are {', '.join(FILTERS)}")
    wait_s(filters, 0.0, 0)


def passes(filters: Mapping[str, Json], event: SourceEvent) -> bool:
    """Return whether filters let an event pass: by its author, by words that it has, and by words that it has not."""
    said = f"{event.title}\n{event.text}".casefold()

    def has(words: Sequence[object]) -> bool:
        return any(str(word).casefold() in said for word in words)

    authors = {str(one).casefold() for one in filters.get("authors", ())}
    if authors and not {event.author.casefold(), event.author_name.casefold()} & authors:
        return False
    return (not filters.get("words") or has(filters["words"])) and not has(filters.get("not_words", ()))


def wait_s(filters: Mapping[str, Json], batch_s: float, now_ms: int) -> float:
    """Return how long an event waits for others, and for the end of quiet hours (in UTC), in seconds.

    Raises:
        InvalidInput: the quiet hours cannot be read.
    """
    if not filters.get("quiet"):
        return batch_s
    try:
        starts, ends = (datetime.strptime(one, "%H:%M") for one in filters["quiet"].split("-"))
    except ValueError:
        raise InvalidInput("`quiet` is written as 22:00-07:00, in UTC") from None
    first, last = (at.hour * 60 + at.minute for at in (starts, ends))
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    minute = now.hour * 60 + now.minute
    is_quiet = first <= minute < last if first <= last else minute >= first or minute < last
    return max(batch_s, (last - minute) % (24 * 60) * 60.0 if is_quiet else 0.0)

"""Channels: who may talk to an agent from a chat application, in which session, and where the answers go.

No one may, unless a person approved the code that a stranger is given; a room only where it is allowed, and only when
the agent is addressed. The address of an answer is a row that is stored with the turn, and is found in no other way.
The end of the turn in the sequence of events puts an answer into the outbox, like deliveries of webhooks: the turn pays
nothing for it, and none is passed over.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial

import trio

from pattern_core.agents import Agent
from pattern_core.approvals import ApprovalAnswer, Approvals
from pattern_core.delivery import Accepting
from pattern_core.errors import Conflict, NotFound, Overloaded, PatternError, Unavailable
from pattern_core.events import TERMINAL, Event, EventLog
from pattern_core.files.access import AgentFiles
from pattern_core.ids import new_secret
from pattern_core.messages import Text
from pattern_core.outbox import IS_FINAL
from pattern_core.sessions import Sessions
from pattern_core.sources.intake import Intake, event_of, keep_files
from pattern_core.sources.kinds import is_channel
from pattern_core.sources.source import IS_UNCLEAR, Outgoing, SourceEvent, split
from pattern_core.sources.sources import CURSOR, Sources
from pattern_core.tools.builtin.send_message import sent_file
from pattern_core.turns.admission import IncomingMessage
from pattern_core.unit_of_work import UnitOfWork
from pattern_core.untrusted import escaped, marked, masked, plain
from pattern_core.views import view_turn
from pattern_db.columns import iso, to_json
from pattern_db.connection import Connection
from pattern_db.enums import EffectStatus, PersonStatus, Role
from pattern_db.errors import RowNotFound
from pattern_db.journal import steps, turns
from pattern_db.tables import meta, outbox, sources
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sources import PersonRow, SourceChatRow, SourceRow

CODE_CHARS = 8
CODE_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # without 0, O, 1 and I
CODE_VALID_S = 3600
CODES_MAX = 3  # of a channel, open at once
TURNS_PER_MINUTE_MAX = 20  # of one chat: two programs that answer each other stop being served
DOWNLOADS_MAX = 2  # attempts after which a message comes without its files
UNCLEAR_MAX = 2  # an answer with an unknown outcome is sent again once, then a person decides
ARGUMENTS_CHARS_MAX = 600  # of a call that a person is asked about
CURSOR_STEP = 500  # events after which the cursor is stored where none of them was wanted
SIGNAL_S = 4.0  # between two signals that the agent is busy
_WANTED = TERMINAL | {"approval.requested", "turn.started", "turn.resumed", "turn.waiting"}
_BEGINS = ("turn.started", "turn.resumed")

Person = PersonRow


class Channels:
    """The channels of one constellation: what is said in their chats, in both directions."""

    def __init__(
        self, known: Sources, accepting: Accepting, events: EventLog, sessions: Sessions, approvals: Approvals
    ) -> None:
        self._sources = known
        self._storage, self._outbox = known.storage, known.outbox
        self._intake = Intake(storage=known.storage, roster=known.roster, accepting=accepting)
        self._events = events
        self._sessions = sessions
        self._approvals = approvals
        self._seen: int | None = None  # the last event that was checked; None: events are not read
        self._held_until_ms: dict[str, int] = {}  # by source: its service wants to be left alone until then
        self._working: dict[str, trio.Event] = {}  # by turn: ends what shows in its chat that the agent is busy
        known.outbox.on_due("source", self._receive)
        known.outbox.on_due("chat", self._send)

    @property
    def is_idle(self) -> bool:
        """Whether no event waits to be checked."""
        return self._seen is None or self._seen >= self._events.latest

    # Who may talk

    async def people(self, id_or_name: str) -> list[PersonRow]:
        """Return the people and rooms of a channel.

        Raises:
            NotFound: there is no such source.
        """
        row = await self._sources.get(id_or_name)
        return await self._storage.database.read(sources.people, row.id)

    async def approve(self, id_or_name: str, code: str, status: PersonStatus, *, by: str) -> PersonRow:
        """Let the person with this pairing code talk.

        Raises:
            NotFound: there is no such source, or no valid code like this.
        """
        wanted, now = code.strip().upper().replace("-", ""), self._storage.now()
        for one in await self.people(id_or_name):
            if (
                one.code is not None
                and hmac.compare_digest(one.code.encode(), wanted.encode())
                and (one.expires_at or "") > now
            ):
                return await self.decide(id_or_name, one.native, status, by=by)
        raise NotFound(f"no code {code!r} is valid; codes are valid for an hour: have the person write again")

    async def decide(self, id_or_name: str, native: str, status: PersonStatus, *, by: str) -> PersonRow:
        """Decide whether a person or a room may talk, by the id at the service.

        Raises:
            NotFound: there is no such source.
        """
        row, now = await self._sources.get(id_or_name), self._storage.now()
        known = await self._storage.database.read(sources.person, row.id, native)
        before = known or PersonRow(row.id, native, native, status, now)
        person = replace(before, status=status, code=None, expires_at=None, decided_by=by)
        work = UnitOfWork()
        work.store(sources.put_person, person)
        work.event("channel.person", {"source_id": row.id, "person": native, "status": status.value, "by": by})
        await self._storage.commit(work)
        return person

    # In

    async def _receive(self, row: OutboxRow, work: UnitOfWork) -> None:
        """Add to a unit of work what an event of a source or a channel leads to."""
        event, agent_id = event_of(row)
        if event.chat is None:
            await self._intake.deliver(row, work)
            return
        database, source_id = self._storage.database, row.target.split(":")[1]
        try:
            source, agent = await self._sources.get(source_id), await self._intake.roster.get(agent_id)
        except NotFound:
            return
        person = await database.read(sources.person, source.id, event.author)
        room = await database.read(sources.person, source.id, event.room) if event.room else None
        refusal = self._refusal(work, source, event, person, room)
        if refusal is not None:
            self._intake.refuse(work, source.id, refusal)
        elif event.decides is not None:
            await self._decide(work, source, event, person)
        else:
            await self._say(row, work, source, agent, person)

    def _refusal(
        self, work: UnitOfWork, source: SourceRow, event: SourceEvent, person: PersonRow | None, room: PersonRow | None
    ) -> str | None:
        """Return why an event is not for an agent; None if it is. A stranger is given a code."""
        may_talk = (PersonStatus.ALLOWED, PersonStatus.PARTNER)
        if event.is_bot:
            return "it was written by a program"
        if person is not None and person.status is PersonStatus.BLOCKED:
            return "its author is blocked"
        if event.room and (room is None or room.status not in may_talk):
            return "its room is not allowed"
        if event.room and not event.is_addressed:
            return "it was not addressed to the agent"
        if (person is not None and person.status in may_talk) or event.room:
            return None
        self._pair(work, source, event)
        return "its author may not talk here"

    def _pair(self, work: UnitOfWork, source: SourceRow, event: SourceEvent) -> None:
        """Give a stranger a code, unless there is one that is valid, or too many are."""
        now_ms, bits = self._storage.clock.now_ms(), int(new_secret(), 16)
        code = "".join(CODE_ALPHABET[bits >> 5 * at & 31] for at in range(CODE_CHARS))
        name, until = event.author_name or event.author, iso(now_ms + CODE_VALID_S * 1000)
        person = PersonRow(source.id, event.author, name, PersonStatus.PENDING, iso(now_ms), code, until)
        words = (
            f"I do not know you yet. Your code is {code}; it is valid for an hour. The person who runs this server lets"
            f" you in with: pattern channel approve {source.name} {code}"
        )
        # There is no chat yet: the address travels with the row.
        said = self._row(f"chat:{source.id}:{event.chat}", Outgoing(text=words, reply_to=event.native))

        def store(connection: Connection) -> None:
            # A code that ended is replaced. A decision has no end: one of this very moment stays.
            known = [one for one in sources.people(connection, source.id) if (one.expires_at or "~") > iso(now_ms)]
            is_full = sum(one.status is PersonStatus.PENDING for one in known) >= CODES_MAX
            if not is_full and event.author not in [one.native for one in known]:
                sources.put_person(connection, person)
                outbox.add(connection, said)

        work.store(store)
        work.when_settled(lambda _committed: self._outbox.changed())

    async def _decide(self, work: UnitOfWork, source: SourceRow, event: SourceEvent, person: PersonRow | None) -> None:
        """Answer a question to people; only a partner may, and the first answer counts."""
        approval_id, approve = event.decides or ("", False)
        if person is None or person.status is not PersonStatus.PARTNER:
            self._intake.refuse(work, source.id, "only a partner may answer questions")
            return
        if not await self._storage.database.read(sources.asks, source.id, approval_id):
            self._intake.refuse(work, source.id, "the question was not asked in this channel")
            return
        try:
            answer = ApprovalAnswer(approve=approve, by=f"user:{source.id}:{person.native}")
            await self._approvals.decide(approval_id, answer)
            words = "Approved." if approve else "Denied."
        except PatternError as error:
            words = error.message[0].upper() + error.message[1:] + "."
        self._put(work, f"chat:{source.id}:{event.chat}", [Outgoing(text=words, reply_to=event.native)])

    async def _say(
        self, row: OutboxRow, work: UnitOfWork, source: SourceRow, agent: Agent, person: PersonRow | None
    ) -> None:
        """Have the agent sent what was said, in the session of its chat, with the address of the answer."""
        database, now_ms = self._storage.database, self._storage.clock.now_ms()
        events = await self._intake.together(row, work)
        event = events[-1]
        native = event.chat or ""
        chat = await database.read(sources.chat, source.id, native)
        if chat is not None:
            minute_ago = iso(now_ms - 60_000)
            if await database.read(sources.turns_since, chat.id, minute_ago) >= TURNS_PER_MINUTE_MAX:
                raise Overloaded(f"more than {TURNS_PER_MINUTE_MAX} turns a minute in this chat", retry_after_s=60)
        session = None
        if chat is None:
            title = plain(event.chat_name or event.author_name or native).replace("\n", " ")[:100]
            session = self._sessions.new(title or None, source.source_type)
            chat_id = self._storage.ids.new("chat")
            chat = SourceChatRow(
                chat_id, source.id, native, title, bool(event.room), agent.id, session.id, created_at=iso(now_ms)
            )
        is_partner = person is not None and person.status is PersonStatus.PARTNER and not event.room
        about, sent = f"{source.source_type} {chat.name}", [one for event in events for one in event.files]
        lines, images = await keep_files(self._storage, work, chat, about, sent, partial(self._download, row, source))
        content = _said(source, events, lines)
        incoming = IncomingMessage(
            agent_id=chat.agent_id,
            content=content,
            parts=(Text(text=content), *images) if images else (),
            sender=f"{'user' if is_partner else 'conversant'}:{source.id}:{event.author}",
            source=source.source_type,
            source_metadata={
                "source_id": source.id,
                "chat": native,
                "author": event.author,
                "events": [one.native for one in events],
            },
            policy="enqueue",  # a message that joins another turn would be answered where that one came from
            session_id=chat.session_id,
            new_session=session,
        )
        turn_id, accept, wake = self._intake.accepting(agent, incoming)

        def store(connection: Connection) -> list[Event]:
            stored = accept(connection)[1]
            if session is not None:
                sources.create_chat(connection, chat)
            sources.address(connection, turn_id, chat.id, event.author, event.native)
            return stored

        work.store_and_tell(store)
        work.when_settled(lambda committed: wake() if committed else None)

    async def _download(self, row: OutboxRow, source: SourceRow, ref: str) -> bytes:
        """Return a file that came with a message, which does not wait for it for long."""
        kind, account = await self._sources.account(source.id)
        try:
            return await account.call(kind.download, ref)
        except Unavailable as error:
            if row.attempts < DOWNLOADS_MAX:
                raise
            raise NotFound(error.message) from None

    # Out

    async def run(self) -> None:
        """Put answers and questions into the outbox, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        while True:
            changed, self._seen = self._sources.changed, None
            async with trio.open_nursery() as nursery:
                if any(is_channel(one.source_type) for one in await self._sources.all()):
                    self._seen = -1
                    nursery.start_soon(self._follow, nursery)
                await changed.wait()
                nursery.cancel_scope.cancel()

    async def _follow(self, nursery: trio.Nursery) -> None:
        seen = stored = int(await self._storage.database.read(meta.get, CURSOR) or 0)
        while True:
            self._seen = seen
            seen, found = await self._events.next_after(seen, None, lambda event: event.name in _WANTED, is_alone=False)
            work = UnitOfWork()
            for event in found:
                with suppress(RowNotFound, NotFound):  # the turn or its chat was deleted in this moment
                    await self._answer(work, event, nursery)
            if work.has_writes or seen - stored >= CURSOR_STEP:
                work.store(meta.put, CURSOR, str(seen))
                await self._storage.commit(work)
                stored = seen

    async def _answer(self, work: UnitOfWork, event: Event, nursery: trio.Nursery) -> None:
        """Add to a unit of work what is to be said in the chat of an event's turn."""
        database, turn_id = self._storage.database, event.turn_id or ""
        address = await database.read(sources.addressed, turn_id)
        if address is None:
            return
        (chat, person, reply_to), files = address, list[str]()
        if turn_id in self._working:
            self._working.pop(turn_id).set()
        if event.name in _BEGINS:
            self._working[turn_id] = trio.Event()
            nursery.start_soon(self._signal, chat, turn_id, self._working[turn_id])
        if event.name in (*_BEGINS, "turn.waiting"):
            return
        if event.name == "approval.requested":
            asked = await database.read(sources.person, chat.source_id, person)
            may_answer = asked is not None and asked.status is PersonStatus.PARTNER and not chat.is_room
            said = _question(event, may_answer=may_answer)
        else:
            view = await database.read(view_turn, turn_id)
            own = [one for one in view.messages if one.role is Role.ASSISTANT]
            texts = [one.content for one in own if one.content]
            files = [path for one in own if (path := sent_file(one)) is not None]
            if view.error is not None and view.status != "cancelled":
                texts.append(f"[{view.error['message']}]")
            said = Outgoing(text="\n\n".join(texts))
        source = await database.read(sources.find, chat.source_id)
        limit = (await self._sources.account(source.id))[0].chars_max
        pieces = split(said.text, limit)
        last = len(pieces) - 1
        says = [
            Outgoing(text=piece, reply_to="" if at else reply_to, approval=said.approval if at == last else None)
            for at, piece in enumerate(pieces)
        ]
        says += [Outgoing(text="", reply_to=reply_to, file=path) for path in files]
        self._put(work, f"chat:{chat.id}", says)

    async def _signal(self, chat: SourceChatRow, turn_id: str, ended: trio.Event) -> None:
        """Show in a chat that the agent is busy, and with which tool, until its turn ended or waits. It does not matter
        if that fails. The message that says it is stored, so that it is changed and deleted also after a restart.
        """
        database, key, said = self._storage.database, f"shown_for_{turn_id}", ""
        with suppress(PatternError, RowNotFound):
            while not ended.is_set():
                kind, account = await self._sources.account(chat.source_id)
                await account.call(kind.signal, chat.native)
                with trio.move_on_after(SIGNAL_S):
                    await ended.wait()
                text, shown = await database.read(_busy_with, turn_id), await database.read(meta.get, key)
                if ended.is_set() and shown:
                    await account.call(kind.show, chat.native, "", shown)
                    await database.write(meta.delete, key)
                elif text not in ("", said) and not ended.is_set():
                    said, now = text, await account.call(kind.show, chat.native, text, shown or "")
                    if now and now != shown:
                        await database.write(meta.put, key, now)

    def _put(self, work: UnitOfWork, target: str, says: Sequence[Outgoing]) -> None:
        for one in says:
            work.store(outbox.add, self._row(target, one))
        work.when_settled(lambda _committed: self._outbox.changed())

    def _row(self, target: str, said: Outgoing) -> OutboxRow:
        now_ms = self._storage.clock.now_ms()
        row_id = f"say_{self._storage.ids.position(now_ms)}"
        return OutboxRow(row_id, target, to_json(asdict(said)), iso(now_ms), iso(now_ms))

    async def _send(self, row: OutboxRow, _work: UnitOfWork) -> None:
        """Send what is to be said. Where the service does not know a repetition, that it begins is stored before."""
        database = self._storage.database
        _, target, native = (*row.target.split(":", 2), "")[:3]
        try:
            if not native:
                chat = await database.read(sources.get_chat, target)
                target, native = chat.source_id, chat.native
            kind, account = await self._sources.account(target)
        except (RowNotFound, NotFound):
            return  # deleted since
        now_ms = self._storage.clock.now_ms()
        if (held_ms := self._held_until_ms.get(target, 0) - now_ms) > 0:
            raise Overloaded("the service wants fewer messages", retry_after_s=held_ms / 1000)
        if not account.row.enabled:
            raise Conflict(f"the channel {account.row.name!r} is paused")
        said, data = Outgoing(**json.loads(row.payload)), b""
        if said.file:  # only a chat's agent sends one
            access = AgentFiles(database, (await database.read(sources.get_chat, row.target.split(":")[1])).agent_id)
            try:
                data = await access.data(await access.locate(said.file))
            except PatternError as error:
                said = replace(said, file="", text=f"[{said.file_name} could not be sent: {error.message}]")
        await kind.ready(account)
        if not kind.is_idempotent:
            if row.unclear >= UNCLEAR_MAX:
                raise Unavailable("perhaps it was sent, perhaps not; send it again or discard it", **{IS_FINAL: True})
            await database.write(outbox.set_unclear, row.id, row.unclear + 1)
        try:
            if said.file:
                await account.call(kind.send_file, native, said, data, row.id)
            else:
                await account.call(kind.send, native, said, row.id)
        except PatternError as error:
            if not error.details.get(IS_UNCLEAR) and not kind.is_idempotent:
                await database.write(outbox.set_unclear, row.id, row.unclear)
            after_s = error.details.get("retry_after_s")
            if isinstance(after_s, int | float) and error.code == "overloaded":
                self._held_until_ms[target] = now_ms + round(after_s * 1000)
            raise


def _busy_with(connection: Connection, turn_id: str) -> str:
    """Return words on the tool that a turn waits for, if it does."""
    calls = steps.calls_of_turn(connection, turns.by_id(connection, turn_id).key)
    return f"(busy with {calls[-1].tool} …)" if calls and calls[-1].status == EffectStatus.STARTED else ""


def _said(source: SourceRow, events: Sequence[SourceEvent], files: Sequence[str]) -> str:
    """Return what was said as the agent reads it. In a room anyone may have written it, so it is data there; in no
    place can words or names look like our marks and headings.
    """
    words, room = "\n".join(filter(None, (*(one.text for one in events), *files))), events[0].room
    name = " ".join((events[0].author_name or events[0].author).split())
    if not room:
        return f"From {escaped(name)} ({source.source_type}):\n\n{escaped(words)}"
    origin = f"{name} in the room {' '.join((events[0].chat_name or room).split())}"
    return f"This was said to you in a room ({source.source_type}); answer there:\n\n{marked(words, origin)}"


def _question(event: Event, *, may_answer: bool) -> Outgoing:
    """Return the words that ask a person for an approval; anyone else reads that one is needed."""
    if not may_answer:
        return Outgoing(text="This needs the approval of the person who runs this agent; I wait for it.")
    request = event.data.get("request")
    about = request if isinstance(request, dict) else {}
    what = about.get("tool") or about.get("subject") or event.data.get("kind")
    shown = masked(plain(json.dumps(about.get("arguments", {}), ensure_ascii=False)))[:ARGUMENTS_CHARS_MAX]
    return Outgoing(text=f"May I do this? {what}\n{shown}", approval=str(event.data["approval_id"]))

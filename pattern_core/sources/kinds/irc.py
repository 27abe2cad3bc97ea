"""IRC: the agent has a nick on a network, joins rooms, and answers who addresses it or writes to it alone.

Sources: RFC 2812; modern.ircdocs.horse; ircv3.net, "Capability Negotiation", "SASL", "account-tag", "message-ids",
"server-time", "Bot Mode". Nothing is repeated: what is said while there is no connection is missed.

A person is the account that the network names, else `nick!user@host`. A nick may belong to someone else later, so the
network is asked who has it before an answer goes there. A message is not acknowledged: the answer to a PING behind it
says that the server had it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import ClassVar

import trio

from pattern_core.errors import InvalidInput, PatternError, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.process import patiently
from pattern_core.sources.source import (
    IS_UNCLEAR,
    Arrivals,
    Outgoing,
    Receive,
    SourceAccount,
    SourceEvent,
    SourceKind,
    take_fields,
)
from pattern_core.untrusted import plain
from pattern_core.web.download import Downloader
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json
from pattern_db.errors import DatabaseError

ROOMS_MAX = 20
WANTED = ("account-tag", "message-tags", "server-time", "sasl")
SAID_BYTES_MAX = 400  # of a message: with its sender and its room the server makes at most 512 of it
LINE_BYTES_MAX = 16 * 1024  # of the server; the protocol has 512, and 8191 of tags
PIECE_BYTES = 16 * 1024
EACH_S, BURST_S = 2.0, 10.0  # a message costs so much time, of which so much may be owed: more is a flood
SILENCE_S = 90.0  # of the server, before it is asked, and until it answers then
WAITING_MAX = 200  # events that wait to be stored
TOGETHER_MAX = 50  # of them that are stored at once
LASTED_S = 60.0  # a connection that lasted so long was of use
AGAIN_S = 5.0
NICKS_MAX = 4  # that are tried
FINAL_S = 3600.0  # before a wrong password is tried again
_NICK = re.compile(r"[A-Za-z\[\]\\`_^{|}][A-Za-z0-9\[\]\\`_^{|}-]{0,29}")
_ROOM = re.compile(r"[#&+!][^\s\0-\x1f\x7f,:]{1,49}")
_ACCOUNT = re.compile(r"[^\s\0-\x1f\x7f!@,]{1,100}")
_SERVER = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_LOCAL = ("127.0.0.1", "[::1]", "localhost")
_FORMATS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6})?|[\x00-\x08\x0b-\x1f\x7f]")
_ANSWER = re.compile(r"(yes|no)\s+(apr_\w{1,60})[.!]?", re.IGNORECASE)
_UPPER = str.maketrans("[]\\", "{}|")  # RFC 2812, 2.2: these are the same letters
_NO_PASSWORD = ("902", "904", "905", "906", "908")
_NICK_TAKEN = ("433", "436", "437")
_NO_ROOM = ("403", "405", "471", "473", "474", "475", "476", "477", "489")


class IrcChannel(SourceKind):
    """People talk to a nick: each person and each room is a conversation. It holds the connections, by which answers go
    out.
    """

    fields: ClassVar = {
        "server": "host and port, such as irc.example.org:6697",
        "nick": "the agent's name there",
        "rooms": 'rooms that it joins, such as ["#garden"]',
        "password": "name of a secret below [sources.secrets] with the password of its account; empty: it has none",
        "user": "name of its account; empty: the nick",
        "tls": "false: not encrypted, which sends no password except to this machine",
    }
    secret_fields: ClassVar = ("password",)
    chars_max: ClassVar = SAID_BYTES_MAX

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}  # by account
        self._linked = trio.Event()  # set, and replaced, by each new one

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        others = {"rooms": [], "password": "", "user": "", "tls": True}
        found = take_fields(self, config, {"server": None, "nick": None, **others})
        if not _SERVER.fullmatch(found["server"]):
            raise InvalidInput(f"{found['server']!r} is not a host and a port; one looks like irc.example.org:6697")
        if not _NICK.fullmatch(found["nick"]):
            raise InvalidInput(f"{found['nick']!r} cannot be a nick: at most 30 letters, digits and _-[]{{}}\\|^`")
        for room in found["rooms"]:
            if not isinstance(room, str) or not _ROOM.fullmatch(room):
                raise InvalidInput(f"{room!r} is not a room; one looks like #garden")
        if len(found["rooms"]) > ROOMS_MAX:
            raise InvalidInput(f"at most {ROOMS_MAX} rooms are joined")
        if found["password"] and not found["tls"] and found["server"].rpartition(":")[0] not in _LOCAL:
            raise InvalidInput("a password is sent only by an encrypted connection; leave out `tls`, or the password")
        (settings.check_service if found["password"] else settings.check)(_url(found))
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Connect, sign in and join all rooms, as a test; nothing can be asked for, as `SourceKind.poll`."""
        if account.row.id not in self._links:
            async with _opened(account) as link:
                with trio.move_on_after(account.settings.timeout_s):
                    while None in link.rooms.values():
                        link.hear(await link.next())
                for room, why in link.rooms.items():
                    if why != "":
                        raise PermissionDenied(f"{room} cannot be joined: {why or 'the server does not answer'}")
        return Arrivals()

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Hand over what is said for as long as a connection lasts, as `SourceKind.listen`."""
        began, failure = trio.current_time(), None
        async with _opened(account) as link:
            await patiently(receive, Arrivals())
            self._links[account.row.id] = link
            self._linked.set()
            self._linked = trio.Event()
            send, events = trio.open_memory_channel[SourceEvent](WAITING_MAX)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.read, send)
                    try:
                        await _store(events, receive)
                    except (PatternError, DatabaseError) as error:  # raised outside of the nursery
                        failure = error
                    nursery.cancel_scope.cancel()
            finally:
                del self._links[account.row.id]
                link.end("the connection was closed")
        if failure is not None or trio.current_time() - began < LASTED_S:
            raise failure or Unavailable(f"IRC: {link.over}")
        return AGAIN_S

    async def ready(self, account: SourceAccount) -> None:
        """Wait until a message would not be too many, as `SourceKind.ready`."""
        await (await self._link(account)).turn()

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Say something by the connection that there is, as `SourceKind.send`."""
        words = said.text
        if said.approval is not None:
            words += f"\nAnswer with: yes {said.approval} or: no {said.approval}"
        await (await self._link(account)).say(chat, words)

    async def _link(self, account: SourceAccount) -> _Link:
        with trio.move_on_after(account.settings.timeout_s):
            while (link := self._links.get(account.row.id)) is None or link.over:
                await self._linked.wait()
        if link is None:
            raise Unavailable("there is no connection to the IRC server now")
        return link


def _url(config: Mapping[str, Json]) -> str:
    return f"{'https' if config['tls'] else 'http'}://{config['server']}"


async def _store(events: trio.MemoryReceiveChannel[SourceEvent], receive: Receive) -> None:
    async for first in events:
        batch = [first]
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            while len(batch) < TOGETHER_MAX:
                batch.append(events.receive_nowait())
        await patiently(receive, Arrivals(events=batch))


@asynccontextmanager
async def _opened(account: SourceAccount) -> AsyncIterator[_Link]:
    """Connect, sign in and begin to join the rooms; leave in the end.

    Raises:
        PermissionDenied: the server refuses the agent, or the operator's rules forbid the server.
        Unavailable: it does not answer.
        InvalidInput: it does not accept the nick.
    """
    config, settings = account.config, account.settings
    password = await account.secret("password")
    stream, _ = await Downloader(settings, timeout_s=settings.timeout_s).connect(_url(config))
    link = _Link(account, stream)
    try:
        with trio.move_on_after(settings.timeout_s) as scope:
            await link.register(config["user"] or config["nick"], password)
            if config["rooms"]:
                await link.write(f"JOIN {','.join(config['rooms'])}")
        if scope.cancelled_caught:
            raise Unavailable("the IRC server does not answer")
        yield link
    finally:
        with trio.move_on_after(1.0, shield=True), suppress(Unavailable):
            await link.write("QUIT")
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class IrcLine:
    """A message of the protocol. `sender` is a server, or `nick!user@host`."""

    command: str
    params: Sequence[str]
    sender: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def parse_line(raw: bytes) -> IrcLine:
    """Return what a line says; what is not UTF-8 is replaced."""
    text = raw.decode("utf-8", "replace").strip("\r\n")
    tags, sender = {}, ""
    if text.startswith("@"):
        given, _, text = text[1:].partition(" ")
        tags = {name: value for name, _, value in (one.partition("=") for one in given.split(";"))}
    if text.lstrip(" ").startswith(":"):
        sender, _, text = text.lstrip(" ")[1:].partition(" ")
    middle, colon, last = text.partition(" :")
    words = middle.split()
    params = [*words[1:], *([last] if colon else [])]
    return IrcLine(command=words[0].upper() if words else "", params=params, sender=sender, tags=tags)


def pieces(text: str) -> Iterator[str]:
    """Yield a text as messages: its lines, cut where they are too long, between words if that is possible."""
    for line in plain(text).split("\n"):
        rest = line.strip()
        while rest:
            piece = rest.encode()[:SAID_BYTES_MAX].decode("utf-8", "ignore")
            if len(piece) < len(rest) and (blank := piece.rfind(" ")) > len(piece) // 4:
                piece = piece[:blank]
            yield piece.rstrip()
            rest = rest[len(piece) :].lstrip()


def lower(name: str) -> str:
    """Return a nick or room as it is compared."""
    return name.translate(_UPPER).lower()


class _Link:
    """One connection. One task reads, any may say something, one at a time; when it is `over`, this is why."""

    def __init__(self, account: SourceAccount, stream: trio.abc.Stream) -> None:
        self.nick = str(account.config["nick"])
        # Whether they were joined: None if that is not known yet, else why not, empty if they were.
        self.rooms: dict[str, str | None] = dict.fromkeys(map(lower, account.config["rooms"]))
        self.over = ""
        self._account = account
        self._stream = stream
        self._buffer = bytearray()
        self._writing, self._saying = trio.StrictFIFOLock(), trio.StrictFIFOLock()
        self._news = trio.lowlevel.ParkingLot()
        self._has_accounts = False  # the server names the accounts of those who write
        self._count = 0  # of events, and of what was said
        self._owed_until = self._turns_until = 0.0  # trio's time
        self._answered = ""  # the last question whether the server is there that it answered
        self._about = ""  # to whom something is being said; what the server says of them:
        self._refusal = ""
        self._is_known = False
        self._names: set[str] = set()

    # The connection

    def end(self, why: str) -> None:
        """Let no one wait for it any more."""
        self.over = self.over or why
        self._news.unpark_all()

    async def write(self, line: str) -> None:
        """Send a line.

        Raises:
            Unavailable: the connection is closed.
        """
        try:
            async with self._writing:
                await self._stream.send_all(f"{line}\r\n".encode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end("the connection to the IRC server broke")
            raise Unavailable(self.over) from None

    async def next(self) -> IrcLine:
        """Return what the server says next, and see whether it is there if it says nothing.

        Raises:
            Unavailable: the connection is at its end.
        """
        is_asked = False
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > LINE_BYTES_MAX:
                raise Unavailable("the IRC server sent a line that is too long")
            with trio.move_on_after(SILENCE_S) as silence:
                try:
                    piece = await self._stream.receive_some(PIECE_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    piece = b""
                if not piece:
                    raise Unavailable("the IRC server closed the connection")
                self._buffer += piece
            if silence.cancelled_caught and is_asked:
                raise Unavailable("the IRC server does not answer any more")
            if silence.cancelled_caught:
                is_asked = True
                await self.write("PING :are-you-there")
        line = parse_line(bytes(self._buffer[:end]))
        del self._buffer[: end + 1]
        if line.command == "PING":
            await self.write(f"PONG :{(line.params or [''])[-1]}")
        if line.command == "ERROR":
            raise Unavailable(f"the IRC server ended the connection: {plain((line.params or ['?'])[-1])[:200]}")
        return line

    async def register(self, user: str, password: str) -> None:
        """Agree on extensions, sign in, and get a nick: another one if it is in use.

        Raises:
            PatternError: as `_opened`.
        """
        offered, has_account = set[str](), False
        for first in ("CAP LS 302", f"NICK {self.nick}", "USER pattern 0 * :Pattern"):
            await self.write(first)
        while True:
            line = await self.next()
            last = (line.params or [""])[-1]
            match line.command, list(line.params):
                case "CAP", [_, "LS", *more]:
                    offered |= {name.partition("=")[0] for name in last.split()}
                    if more[0] != "*":
                        wanted = [name for name in WANTED if name in offered and (password or name != "sasl")]
                        await self.write(f"CAP REQ :{' '.join(wanted)}" if wanted else "CAP END")
                case "CAP", [_, "ACK", names]:
                    self._has_accounts = "account-tag" in names.split()
                    await self.write("AUTHENTICATE PLAIN" if "sasl" in names.split() else "CAP END")
                case "CAP", [_, "NAK", *_]:
                    await self.write("CAP END")
                case "AUTHENTICATE", ["+"]:
                    secret = b64encode(f"\0{user}\0{password}".encode()).decode()
                    for at in range(0, len(secret) + 1, 400):
                        await self.write(f"AUTHENTICATE {secret[at : at + 400] or '+'}")
                case "903", _:
                    has_account = True
                    await self.write("CAP END")
                case command, _ if command in _NO_PASSWORD:
                    raise PermissionDenied("the IRC server does not accept the password", retry_after_s=FINAL_S)
                case command, _ if (
                    command in _NICK_TAKEN and len(self.nick) < len(str(self._account.config["nick"])) + NICKS_MAX
                ):
                    self.nick += "_"
                    await self.write(f"NICK {self.nick}")
                case (("432" | "433" | "436" | "437" | "464" | "465"), _):
                    raise PermissionDenied(f"the IRC server refuses {self.nick}: {plain(last)[:200]}")
                case "001", [nick, *_]:
                    self.nick = nick
                    break
        if password and not has_account:
            raise PermissionDenied("the IRC server offers no SASL, so the password is of no use; leave it out")

    # What others say

    async def read(self, events: trio.MemorySendChannel[SourceEvent]) -> None:
        """Pass on what is said to the agent, until the connection is at its end."""
        async with events:
            try:
                while True:
                    if (event := self.hear(await self.next())) is not None:
                        await events.send(event)
            except Unavailable as error:
                self.end(error.message)

    def hear(self, line: IrcLine) -> SourceEvent | None:
        """Note what a line says; return the event of one that was said to the agent."""
        command, params, nick = line.command, line.params, line.sender.partition("!")[0]
        is_own = lower(nick) == lower(self.nick)
        match command, list(params):
            case "PRIVMSG", [target, text]:
                return self._event(line, nick, target, text)
            case "PONG", [*_, answered]:
                self._answered = answered
            case "NICK", [changed] if is_own:
                self.nick = changed
            case "JOIN", [room, *_] if is_own and lower(room) in self.rooms:
                self.rooms[lower(room)] = ""
            case "311", [_, who, user, host, *_] if lower(who) == self._about:
                self._names = {lower(f"{who}!{user}@{host}")}
            case "330", [_, who, account, *_] if lower(who) == self._about:
                self._names |= {lower(account)}
            case "318", [_, who, *_] if lower(who) == self._about:
                self._is_known = True
            case number, [_, name, *_, why] if self.rooms.get(lower(name), "") is None and number in _NO_ROOM:
                self.rooms[lower(name)] = plain(why)[:200] or "?"
            case number, [_, name, *_, why] if lower(name) == self._about and number[:1] in ("4", "5"):
                self._refusal = plain(why)[:200] or "?"
        self._news.unpark_all()
        return None

    def _event(self, line: IrcLine, nick: str, target: str, text: str) -> SourceEvent | None:
        """Return the event of a message; None if it is not for the agent, or no answer could be sent."""
        account = line.tags.get("account", "") if self._has_accounts else ""
        person = lower(account if _ACCOUNT.fullmatch(account) else line.sender)
        if not _NICK.fullmatch(nick) or lower(nick) == lower(self.nick) or " " in person or "@" not in line.sender:
            return None
        if text.startswith("\x01"):  # it is for a program
            return None
        text = _FORMATS.sub("", text).strip()
        room = lower(target) if _ROOM.fullmatch(target) else ""
        if room:
            said = re.fullmatch(rf"@?{re.escape(self.nick)}(?:[:,]\s*|\s+)(.+)", text, re.IGNORECASE | re.DOTALL)
            text = said[1] if said else ""
        if not text or (not room and lower(target) != lower(self.nick)):
            return None
        decides = None if room else _ANSWER.fullmatch(text)
        self._count += 1
        when = line.tags.get("time") or f"{self._account.clock.now_ms()}.{self._count}"
        unnamed = blake2b("\n".join((when, person, target, text)).encode(), digest_size=16).hexdigest()
        return SourceEvent(
            native=(line.tags.get("msgid") or unnamed)[:200],
            text=text,
            author=person,
            author_name=nick,
            chat=room or f"{lower(nick)} {person}",
            chat_name=room or nick,
            room=room,
            is_bot="bot" in line.tags,
            decides=(decides[2], decides[1].lower() == "yes") if decides else None,
        )

    # What the agent says

    async def turn(self) -> None:
        """Wait until a message of one line would not be too many; `say` waits, too, for the other lines."""
        now = trio.current_time()
        self._turns_until = max(self._turns_until, self._owed_until, now) + EACH_S
        await trio.sleep(max(0.0, self._turns_until - BURST_S - now))

    async def say(self, chat: str, text: str) -> None:
        """Say a text in a room, or to a person if the nick is still that person's.

        Raises:
            Unavailable: the person is not there, or the connection broke; with `IS_UNCLEAR` perhaps it was said.
            InvalidInput: the server does not let it be said.
        """
        target, _, person = chat.partition(" ")
        async with self._saying:
            self._about, self._refusal, self._is_known, self._names = target, "", False, set()
            if person:
                await self.write(f"WHOIS {target}")
                await self._until(lambda: self._is_known)
                if person not in self._names:
                    raise Unavailable(f"{target} is not there, or is someone else now")
            elif target in self.rooms:
                await self._until(lambda: self.rooms[target] is not None)
                if self.rooms[target]:
                    raise Unavailable(f"{target} cannot be joined: {self.rooms[target]}")
            self._count += 1
            question = f"said-{self._count}"
            try:
                for piece in pieces(text):
                    now = trio.current_time()
                    self._owed_until = max(self._owed_until, now) + EACH_S
                    await trio.sleep(max(0.0, self._owed_until - BURST_S - now))
                    await self.write(f"PRIVMSG {target} :{piece}")
                await self.write(f"PING :{question}")
                await self._until(lambda: self._answered == question)
            except Unavailable as error:
                raise Unavailable(error.message, **{IS_UNCLEAR: True}) from None
            if self._refusal:
                raise InvalidInput(f"the IRC server refused this: {self._refusal}", **{IS_FINAL: True})

    async def _until(self, holds: Callable[[], bool]) -> None:
        with trio.move_on_after(self._account.settings.timeout_s):
            while not holds():
                if self.over:
                    raise Unavailable(self.over)
                await self._news.park()
            return
        raise Unavailable("the IRC server does not answer")

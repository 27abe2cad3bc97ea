"""An IRC server on loopback, also when it behaves badly: for tests, also of users. It speaks the part of the protocol
that the channel uses (RFC 2812, ircv3.net); the people on it are what a test says of them.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from pattern_core.testing.wire import WireServer

USER, PASSWORD = "ada", "a password for tests"
NAME = "irc.example.org"
CAPS = ("account-tag", "message-tags", "server-time", "sasl=PLAIN,EXTERNAL", "multi-prefix")
LINE_BYTES_MAX = 512
PENALTY_S = 2.0  # of a message, in the account of a flood


@dataclass(eq=False)
class _Client:
    """A connection of the agent."""

    stream: trio.abc.Stream
    nick: str = "*"
    caps: set[str] = field(default_factory=set)
    is_negotiating: bool = False
    has_user: bool = False
    account: str = ""
    is_registered: bool = False
    rooms: set[str] = field(default_factory=set)
    penalty_until: float = 0.0
    writing: trio.StrictFIFOLock = field(default_factory=trio.StrictFIFOLock)
    passing_on: trio.StrictFIFOLock = field(default_factory=trio.StrictFIFOLock)  # in the order in which it was said

    async def write(self, *lines: str) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self.writing:
                await self.stream.send_all("".join(f"{line}\r\n" for line in lines).encode())


class IrcServer(WireServer):
    """A network with one client, the agent. `says` is what people do; `sent` is what the agent said, as others see it.

    Faults: `taken` nicks are in use; each a number of times: `drops` accepts a message and closes the connection,
    `repeats` sends a message twice, `deaf` answers no PING. `closed` are rooms that the agent may not join, `muted`
    those where it may not speak. With `flood_s`, a client that owes more time for its messages is thrown out. A
    connection begins with the last `replays` messages that were said before, as a bouncer's does.
    """

    def __init__(self, *, caps: Sequence[str] = CAPS) -> None:
        super().__init__()
        self.caps = caps
        self.sent: list[tuple[str, str]] = []
        self.heard: list[str] = []  # all lines of clients
        self.people: dict[str, tuple[str, str, str]] = {}  # by nick: user, host, account
        self.taken: set[str] = set()
        self.closed: set[str] = set()
        self.muted: set[str] = set()
        self.drops = self.repeats = self.deaf = 0
        self.flood_s: float | None = None
        self.replays = 0
        self.begun = 0  # how often the agent was registered
        self._clients: list[_Client] = []
        self._history: list[tuple[str, str]] = []  # by room, empty: to the agent

    @property
    def texts(self) -> list[str]:
        """The words that the agent said, in order."""
        return [text for _, text in self.sent]

    @property
    def nick(self) -> str:
        """The agent's name, empty while it is not here."""
        return next((one.nick for one in self._clients if one.is_registered), "")

    @property
    def rooms(self) -> set[str]:
        """Where it is."""
        return {room for one in self._clients for room in one.rooms}

    async def says(
        self,
        text: str,
        nick: str = "anna",
        *,
        room: str = "",
        account: str = "",
        host: str = "home.example.org",
        tags: str = "",
    ) -> None:
        """Have a person write to the agent, or in a room. If the agent is not here, it misses that."""
        self.people[nick] = (f"~{nick}", host, account)
        about = [f"msgid=m{len(self._history)}", f"time=2026-11-30T00:00:00.{len(self._history):03}Z"]
        about += [f"account={account}"] if account else []
        begin = f"@{';'.join([*about, *([tags] if tags else [])])} :{nick}!~{nick}@{host} PRIVMSG"
        self._history.append((room, f"{begin} {room or '{nick}'} :{text}"))
        count = 2 if self.repeats else 1
        self.repeats -= count - 1
        said = self._history[-1:] * count
        for client in list(self._clients):
            async with client.passing_on:
                await self._pass_on(client, said)

    async def puts(self, line: str) -> None:
        """Send a line as it is."""
        for client in self._clients:
            await client.write(line)

    async def breaks(self) -> None:
        """Close all connections without a word."""
        for client in list(self._clients):
            await trio.aclose_forcefully(client.stream)

    async def _pass_on(self, client: _Client, said: Sequence[tuple[str, str]]) -> None:
        for room, line in said:
            if client.is_registered and (not room or room in client.rooms):
                await client.write(_shown(client, line))

    # The server

    async def serve_connection(self, stream: trio.abc.Stream) -> None:
        """Speak with a client until it leaves."""
        client = _Client(stream)
        self._clients.append(client)
        self.connections += 1
        rest = b""
        try:
            while piece := await stream.receive_some(4096):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    text = line.decode("utf-8", "replace").rstrip("\r")
                    self.heard.append(text)
                    if not await self._answer(client, text):
                        return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._clients.remove(client)
            await trio.aclose_forcefully(stream)

    async def _answer(self, client: _Client, text: str) -> bool:
        """Answer a line; False: the connection is to be closed."""
        begin, _, last = text.partition(" :")
        command, *params = [*begin.split(), *([last] if " :" in text else [])]
        match command, params:
            case "CAP", ["LS", *_] if self.caps:
                client.is_negotiating = True
                half = len(self.caps) // 2
                first, second = " ".join(self.caps[:half]), " ".join(self.caps[half:])
                await client.write(f":{NAME} CAP * LS * :{first}", f":{NAME} CAP * LS :{second}")
            case "CAP", ["REQ", names]:
                is_known = set(names.split()) <= {one.partition("=")[0] for one in self.caps}
                client.caps |= set(names.split()) if is_known else set()
                await client.write(f":{NAME} CAP * {'ACK' if is_known else 'NAK'} :{names}")
            case "CAP", ["END"]:
                client.is_negotiating = False
            case "AUTHENTICATE", ["PLAIN"]:
                await client.write("AUTHENTICATE +")
            case "AUTHENTICATE", [secret]:
                is_right = b64decode(secret) == f"\0{USER}\0{PASSWORD}".encode()
                client.account = USER if is_right else ""
                await client.write(f":{NAME} {'903' if is_right else '904'} * :SASL authentication")
            case "NICK", [nick] if nick in self.taken:
                await client.write(f":{NAME} 433 {client.nick} {nick} :Nickname is already in use.")
            case "NICK", [nick]:
                client.nick = nick
            case "USER", _:
                client.has_user = True
            case "PING", [token] if not self.deaf:
                await client.write(f":{NAME} PONG {NAME} :{token}")
            case "PING", _:
                self.deaf -= 1
            case "QUIT", _:
                await client.write("ERROR :Closing link")
                return False
            case (("JOIN" | "WHOIS" | "PRIVMSG"), _) if client.is_registered:
                return await self._serve(client, command, params)
            case _:
                await client.write(f":{NAME} 421 {client.nick} {command} :Unknown command")
        if client.nick != "*" and client.has_user and not client.is_negotiating and not client.is_registered:
            await self._welcome(client)
        return True

    async def _welcome(self, client: _Client) -> None:
        async with client.passing_on:
            client.is_registered = True
            self.begun += 1
            await client.write(
                f":{NAME} 001 {client.nick} :Welcome",
                f":{NAME} 005 {client.nick} CASEMAPPING=rfc1459 :are supported",
                f":{NAME} 422 {client.nick} :MOTD File is missing",
            )
            await self._repeat(client, "")

    async def _repeat(self, client: _Client, room: str) -> None:
        if self.replays:
            await self._pass_on(client, [one for one in self._history if one[0] == room][-self.replays :])

    async def _serve(self, client: _Client, command: str, params: Sequence[str]) -> bool:
        me = f"{client.nick}!~pattern@server.example.org"
        match command, params:
            case "JOIN", [names]:
                for room in names.split(","):
                    if room in self.closed:
                        await client.write(f":{NAME} 473 {client.nick} {room} :Cannot join channel (+i)")
                        continue
                    async with client.passing_on:
                        client.rooms.add(room)
                        end = f":{NAME} 366 {client.nick} {room} :End of /NAMES list."
                        await client.write(f":{me} JOIN {room}", end)
                        await self._repeat(client, room)
            case "WHOIS", [nick]:
                found = {one.lower(): (one, *about) for one, about in self.people.items()}.get(nick.lower())
                if found is None:
                    await client.write(f":{NAME} 401 {client.nick} {nick} :No such nick/channel")
                else:
                    name, user, host, account = found
                    await client.write(f":{NAME} 311 {client.nick} {name} {user} {host} * :{name}")
                    if account:
                        await client.write(f":{NAME} 330 {client.nick} {name} {account} :is logged in as")
                await client.write(f":{NAME} 318 {client.nick} {nick} :End of /WHOIS list.")
            case "PRIVMSG", [target, text]:
                return await self._say(client, me, target, text)
        return True

    async def _say(self, client: _Client, me: str, target: str, text: str) -> bool:
        now = trio.current_time()
        client.penalty_until = max(client.penalty_until, now) + PENALTY_S
        if self.flood_s is not None and client.penalty_until - now > self.flood_s:
            await client.write(f"ERROR :Closing link: ({client.nick}) [Excess Flood]")
            return False
        is_room = target.startswith("#")
        if is_room and (target not in client.rooms or target in self.muted):
            await client.write(f":{NAME} 404 {client.nick} {target} :Cannot send to channel")
        elif not is_room and target.lower() not in map(str.lower, self.people):
            await client.write(f":{NAME} 401 {client.nick} {target} :No such nick/channel")
        else:
            begin = f":{me} PRIVMSG {target} :"
            room = LINE_BYTES_MAX - 2 - len(begin.encode())
            self.sent.append((target, text.encode()[:room].decode("utf-8", "replace")))
        if self.drops:
            self.drops -= 1
            return False
        return True


def _shown(client: _Client, line: str) -> str:
    """Return what was said as this client may see it: with the tags that it knows."""
    begin, _, text = line.partition(" PRIVMSG ")
    tags, _, sender = begin.partition(" ")
    needs = {"account": "account-tag", "time": "server-time"}
    known = [one for one in tags[1:].split(";") if needs.get(one.partition("=")[0], "message-tags") in client.caps]
    shown = f"@{';'.join(known)} " if known else ""
    return f"{shown}{sender} PRIVMSG {text.replace('{nick}', client.nick, 1)}"

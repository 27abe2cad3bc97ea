"""An IMAP and an SMTP server on loopback, with one inbox, that speak what the channel uses, also badly: for tests.

Sources: RFC 3501 (IMAP4rev1), RFC 2177 (IDLE), RFC 5321 (SMTP). Without `tls` neither is encrypted, as
is allowed on this machine.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import partial
from typing import Any

import trio

USER, PASSWORD = "agent@example.org", "a password for tests"
AUTHORITY = "mx.example.org"
_BEGAN_S = 1_780_000_000  # when the first mail came; each comes a minute after the one before


class MailServer:
    """A mail server. `arrives` puts a mail into the inbox; `sent` is what the agent sent, in order.

    Faults, each a number of times or permanently: `drops` accepts a mail and closes the connection; `refuses` answers a
    mail with that code (a negative one: later); `silent` answers nothing; `repeats` shows mails again that were read;
    `says` sends something else than a notification to who waits for one. `renumbers` gives every mail another UID. A
    server that is not `notifying` has no IDLE.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.imap_port = self.smtp_port = 0
        self.sent: list[EmailMessage] = []
        self.validity, self.first = 7, 1
        self.drops = self.refuses = self.repeats = 0
        self.silent = False
        self.notifying = True
        self.waiting = 0  # connections in IDLE
        self.asked = 0  # how often the inbox was asked for
        self._inbox: list[bytes] = []
        self._said: list[str | None] = []  # to all connections in IDLE
        self._news = trio.lowlevel.ParkingLot()
        self._nursery = trio.open_nursery()
        self._scope = trio.CancelScope()

    async def __aenter__(self) -> MailServer:
        nursery = await self._nursery.__aenter__()
        self._scope = nursery.cancel_scope
        ports = []
        for speak in (self._imap, self._smtp):
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            ports.append(listeners[0].socket.getsockname()[1])
            shown: list[Any] = [one if self._tls is None else trio.SSLListener(one, self._tls) for one in listeners]
            nursery.start_soon(trio.serve_listeners, partial(_serve, speak), shown)
        self.imap_port, self.smtp_port = ports
        return self

    async def __aexit__(self, *error: object) -> None:
        self._scope.cancel()
        await self._nursery.__aexit__(None, None, None)

    @property
    def ports(self) -> tuple[int, int]:
        """Where it listens: for IMAP, and for SMTP."""
        return self.imap_port, self.smtp_port

    @property
    def texts(self) -> list[str]:
        """The words that the agent sent, in order."""
        return [one.get_content().strip() for one in self.sent]

    def arrives(
        self, text: str, *, author: str = "anna@example.org", proved: str = "dmarc=pass", **headers: Any
    ) -> str:
        """Have a person write a mail; return its Message-ID. `_` in the name of a header stands for `-`."""
        mail = EmailMessage()
        native = f"<m{len(self._inbox) + 1}@{author.rpartition('@')[2]}>"
        domain = author.rpartition("@")[2]
        about = {
            "Authentication-Results": f"{AUTHORITY}; {proved} header.from={domain}" if proved else "",
            "From": f"Anna <{author}>",
            "To": USER,
            "Subject": "A question",
            "Message-ID": native,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        for name, value in about.items():
            if value:
                mail[name] = value
        mail.set_content(text)
        self.put(mail.as_bytes())
        return str(about["Message-ID"])

    def put(self, mail: bytes) -> None:
        """Add a mail as it is."""
        self._inbox.append(mail)
        self._news.unpark_all()

    def says(self, line: str | None) -> None:
        """Send a line to the connections in IDLE; None closes them."""
        self._said.append(line)
        self._news.unpark_all()

    def renumbers(self) -> None:
        """Give every mail another UID, as a server does after its inbox was restored."""
        self.validity += 1
        self.first += 5_000

    async def _imap(self, lines: _Lines) -> None:
        await lines.send("* OK IMAP4rev1 ready")
        shown = 0
        while (line := await lines.read()) is not None:
            if self.silent:
                await trio.sleep_forever()
            tag, command, *rest = line.decode("utf-8", "replace").split(" ")
            match command.upper():
                case "CAPABILITY":
                    await lines.send(f"* CAPABILITY IMAP4rev1{' IDLE' * self.notifying}")
                case "LOGIN" if " ".join(rest) != f'"{USER}" "{PASSWORD}"':
                    await lines.send(f"{tag} NO [AUTHENTICATIONFAILED] not with {' '.join(rest)}")
                    continue
                case "EXAMINE":
                    self.asked, shown = self.asked + 1, len(self._inbox)
                    for said in (f"{len(self._inbox)} EXISTS", f"OK [UIDVALIDITY {self.validity}] valid"):
                        await lines.send(f"* {said}")
                case "IDLE" if not self.notifying:
                    await lines.send(f"{tag} NO not now")
                    continue
                case "IDLE":
                    if (known := await self._idle(lines, shown)) is None:
                        return
                    shown = known
                case "UID" if rest[0] == "SEARCH":
                    await lines.send(f"* SEARCH {self._found(rest)}".strip())
                case "UID":
                    await self._show(lines, int(rest[1]), " ".join(rest[2:]))
                case "LOGOUT":
                    await lines.send("* BYE")
            await lines.send(f"{tag} OK done")
            if command.upper() == "LOGOUT":
                return

    async def _idle(self, lines: _Lines, shown: int) -> int | None:
        """Notify until the client ends it; return how many mails it knows then, None if it is to be closed."""
        said, is_done, self.waiting = len(self._said), False, self.waiting + 1
        greeting = ["+ idling"]

        async def read() -> None:
            nonlocal is_done
            await lines.read()
            is_done = True
            self._news.unpark_all()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            while not is_done and None not in self._said[said:]:
                news = [f"* {(shown := len(self._inbox))} EXISTS"] if len(self._inbox) > shown else []
                news = [*greeting, *news, *filter(None, self._said[said:])]
                greeting, said = [], len(self._said)
                if news:
                    await lines.send("\r\n".join(news))
                else:
                    await self._news.park()
            nursery.cancel_scope.cancel()
        self.waiting -= 1
        return shown if is_done else None

    def _found(self, rest: list[str]) -> str:
        last, start = self.first + len(self._inbox) - 1, rest[-1].partition(":")[0]
        first = last if start == "*" else min(int(start), last)  # a range has two ends, in any order
        if self.repeats and start != "*":
            self.repeats -= 1
            first = self.first
        since = datetime.strptime(rest[2], "%d-%b-%Y").replace(tzinfo=UTC).timestamp() if "SINCE" in rest else 0
        uids = range(max(first, self.first), last + 1) if self._inbox else ()
        return " ".join(str(uid) for uid in uids if self._date_s(uid) >= since)

    def _date_s(self, uid: int) -> int:
        return _BEGAN_S + 60 * (uid - self.first)

    async def _show(self, lines: _Lines, uid: int, wanted: str) -> None:
        mail, limit = self._inbox[uid - self.first], re.search(r"<0\.(\d+)>", wanted)
        shown = mail[: int(limit[1])] if limit else mail
        date = datetime.fromtimestamp(self._date_s(uid), UTC).strftime("%d-%b-%Y %H:%M:%S +0000")
        about = f'UID {uid} INTERNALDATE "{date}" RFC822.SIZE {len(mail)} BODY[]<0>'
        await lines.send(f"* 1 FETCH ({about} {{{len(shown)}}}")
        await lines.stream.send_all(shown + b")\r\n")

    async def _smtp(self, lines: _Lines) -> None:
        await lines.send("220 ready")
        while (line := await lines.read()) is not None:
            if self.silent:
                await trio.sleep_forever()
            command = line.split(b" ")[0].upper()
            match command:
                case b"EHLO":
                    await lines.send("250-here")
                    await lines.send("250 AUTH PLAIN")
                case b"AUTH":
                    await lines.send("235 welcome")
                case b"RCPT" if self.refuses > 0:
                    await lines.send(f"{self.refuses} not here")
                case b"DATA" if self.refuses < 0:  # after the mail came to its people
                    await lines.send(f"{-self.refuses} not now")
                case b"DATA":
                    await lines.send("354 continue")
                    if (said := await lines.read(b"\r\n.\r\n")) is None:
                        return  # a mail without its end is none
                    whole = re.sub(rb"(?m)^\.", b"", said) + b"\r\n"  # SMTP doubles dots
                    mail = message_from_bytes(whole, policy=policy.default)
                    assert isinstance(mail, EmailMessage)
                    self.sent.append(mail)
                    if self.drops:
                        self.drops -= 1
                        return
                    await lines.send("250 queued")
                case b"QUIT":
                    await lines.send("221 bye")
                    return
                case _:
                    await lines.send("250 fine")


class _Lines:
    """The lines of a connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = bytearray()

    async def send(self, line: str) -> None:
        """Send a line."""
        await self.stream.send_all(line.encode() + b"\r\n")

    async def read(self, end: bytes = b"\r\n") -> bytes | None:
        """Return what comes before the next `end`; None if the connection was closed."""
        while end not in self._buffer:
            more: bytes | bytearray = b""
            with suppress(trio.BrokenResourceError):  # it was reset
                more = await self.stream.receive_some(65_536)
            if not more:
                return None
            self._buffer += more
        line, _, rest = bytes(self._buffer).partition(end)
        self._buffer = bytearray(rest)
        return line


async def _serve(speak: Callable[[_Lines], Any], stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async with stream:
            await speak(_Lines(stream))

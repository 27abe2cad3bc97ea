"""Mail: the agent has an address. Its inbox is read by IMAP, and not changed; answers go out by SMTP.

Sources: RFC 3501 (a UID is valid with its UIDVALIDITY), RFC 2177 (IDLE: the server notifies). `imaplib` and `smtplib`
run in threads, with limits, on a socket that is connected to an address that was checked; none waits for a new mail.
"""

from __future__ import annotations

import imaplib
import re
import smtplib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from email import policy
from email.message import EmailMessage
from functools import partial
from io import BufferedReader
from ipaddress import ip_address
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import unquote

import trio

from pattern_core.errors import InvalidInput, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.mail_message import ADDRESS, MALFORMED, event_of, parsed
from pattern_core.sources.source import (
    FILE_BYTES_MAX,
    IS_UNCLEAR,
    Arrivals,
    Outgoing,
    Receive,
    SourceAccount,
    SourceKind,
    take_fields,
)
from pattern_core.untrusted import plain
from pattern_core.web.download import Downloader, trusting
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json

EVERY_S = 60.0  # where a server cannot notify
IDLE_S = 600.0  # then the inbox is read again: connections break silently
PAUSE_S = 0.5  # after a notification: often more of them follow
MAILS_MAX = 20  # of one poll
BYTES_MAX = 512 * 1024  # of a mail; the rest is read only for its files
DOWNLOADED_BYTES_MAX = 2 * FILE_BYTES_MAX  # of a mail with files, which are coded
STEP_S = 20.0  # for one answer of a server
LIMIT_S = 120.0  # for a connection
DAY_S = 86_400
IMPLICIT_TLS = (993, 465)
_DATE = re.compile(rb'INTERNALDATE "([^"]+)"')
_SIZE = re.compile(rb"RFC822\.SIZE (\d{1,12})")
_Found = TypeVar("_Found")
imaplib.Commands["IDLE"] = ("SELECTED",)  # which it has from Python 3.14 on
THREADS_MAX = 40


class MailChannel(SourceKind):
    """People write mails to the agent's address."""

    fields: ClassVar = {
        "address": "the agent's address",
        "user": "the name for both servers, such as the address",
        "password": "name of a secret below [sources.secrets] with its password",
        "imap": "host and port of the IMAP server, such as imap.example.org:993",
        "smtp": "host and port of the SMTP server, such as smtp.example.org:465",
        "authserv_id": "name of the receiving server in Authentication-Results; without one, no sender is believed",
    }
    secret_fields: ClassVar = ("password",)
    chars_max: ClassVar = 100_000

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        wanted = dict.fromkeys(("address", "user", "password", "imap", "smtp"))
        found = take_fields(self, config, {**wanted, "authserv_id": ""})
        if not ADDRESS.fullmatch(found["address"]):
            raise InvalidInput(f"{found['address']!r} is not an address of mail; one looks like agent@example.org")
        if not (found["user"].isascii() and found["user"].isprintable()):
            raise InvalidInput("`user` holds characters that mail servers cannot be sent")
        for name in ("imap", "smtp"):
            if not found[name].rpartition(":")[2].isdecimal():
                raise InvalidInput(f"`{name}` is a host and a port: {self.fields[name]}")
            settings.check_service(f"https://{found[name]}")
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return new mails, as `SourceKind.poll`. The first poll only notes the place."""
        async with _reach(account, "imap") as line:
            return await line.run(lambda: _new(_Imap(line), account.cursor, account.config))

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Hand over mails as they come, as `SourceKind.listen`; a server that cannot notify is asked each minute."""
        began = trio.current_time()
        async with _reach(account, "imap") as line:
            imap = await line.run(lambda: _Imap(line))
            arrived = await line.run(lambda: _new(imap, account.cursor, account.config))
            await receive(arrived)
            while imap.can_notify:
                try:
                    if arrived.wait_s:
                        await imap.until_changed()
                    arrived = await line.run(partial(_new, imap, arrived.cursor, account.config))
                except Unavailable:  # connections break; whether there is more to it, the next one finds out
                    return max(0.0, began + EVERY_S - trio.current_time())
                await receive(arrived)
        return arrived.wait_s

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of an attachment, as `SourceKind.download`."""
        validity, uid, number = map(int, ref.split())

        def read() -> bytes:
            imap = _Imap(line)
            if imap.open_inbox() != validity:
                raise InvalidInput("its mail has another number by now")
            about, raw = imap.mail(uid, DOWNLOADED_BYTES_MAX)
            if int(_SIZE.findall(about)[0]) > DOWNLOADED_BYTES_MAX:
                raise InvalidInput(f"its mail has more than {DOWNLOADED_BYTES_MAX} bytes")
            part = list(parsed(raw).iter_attachments())[number]
            if not isinstance(data := part.get_payload(decode=True), bytes):
                raise InvalidInput("it is a mail itself")
            return data

        async with _reach(account, "imap") as line:
            return await line.run(read)

    async def send_file(self, account: SourceAccount, chat: str, said: Outgoing, data: bytes, send_id: str) -> None:
        """Send a mail with a file, as `SourceKind.send_file`."""
        await self.send(account, chat, replace(said, text=said.file_name), send_id, data)

    async def send(
        self, account: SourceAccount, chat: str, said: Outgoing, send_id: str, data: bytes | None = None
    ) -> None:
        """Send a mail, as `SourceKind.send`. Its Message-ID is made of `send_id`, but servers do not look at it."""
        to, root = chat.split()[-2:]
        answered, subject = (*map(unquote, said.reply_to.split()[1:]), "", "")[:2]
        address, asks = account.config["address"], f".{said.approval}.ask" if said.approval is not None else ""
        mail = EmailMessage(policy=policy.SMTP)
        mail["From"], mail["To"] = address, to
        mail["Subject"] = subject if subject[:3].casefold() == "re:" else f"Re: {subject}".strip()
        # Written here, since the library encodes names that are longer than a line, and others then do not know them.
        ids = [f"Message-ID: <{send_id}{asks}@{address.rpartition('@')[2]}>", f"In-Reply-To: {answered or root}"]
        ids += [f"References: {root}", *([f" {answered}"] if answered not in ("", root) else [])]
        mail["Auto-Submitted"] = "auto-replied"
        more = "\n\nAnswer this mail with yes or no." if asks else ""
        mail.set_content(plain(said.text) + more)
        if data is not None:
            mail.add_attachment(data, "application", "octet-stream", filename=said.file_name)
        whole = "".join(f"{line}\r\n" for line in ids).encode() + mail.as_bytes()

        def deliver() -> None:
            smtp = _Smtp(line)
            _check_code(line, *smtp.mail(address))
            _check_code(line, *smtp.rcpt(to))
            line.is_unclear = True
            _check_code(line, *smtp.data(whole))
            with suppress(OSError, smtplib.SMTPException):  # the mail was accepted
                smtp.quit()

        async with _reach(account, "smtp") as line:
            await line.run(deliver)


_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("threads of mail")


def threads() -> trio.CapacityLimiter:
    """Return the limit of threads of all accounts: servers that do not answer keep none from the rest of the program.

    It is one for each run of trio, as an abandoned thread that outlives its run is counted for ever.
    """
    try:
        return _threads.get()
    except LookupError:
        _threads.set(found := trio.CapacityLimiter(THREADS_MAX))
        return found


@dataclass(slots=True)
class _Line:
    """A connection to a mail server at an address that was checked. Threads talk over it, one at a time."""

    host: str
    port: int
    address: str
    user: str
    password: str = field(repr=False)
    sock: socket.socket
    tls: ssl.SSLContext
    is_unclear: bool = False  # a mail is on its way
    is_busy: bool = False  # a thread talks over it
    is_over: bool = False
    client: Any = None

    def open(self) -> socket.socket:
        """Return the socket, encrypted if the port asks for it from the beginning."""
        if self.port in IMPLICIT_TLS:  # the first read begins it: until then, no thread waits for the socket
            self.sock = self.tls.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
        return self.sock

    @property
    def needs_tls(self) -> bool:
        """Whether encryption must begin before the password is sent: everywhere but on this machine."""
        return self.port not in IMPLICIT_TLS and not ip_address(self.address).is_loopback

    async def run(self, work: Callable[[], _Found]) -> _Found:
        """Return what work in a thread returns. No error shows the password.

        Raises:
            PermissionDenied: the server does not know the password.
            Unavailable: it does not answer, or breaks off.
            InvalidInput: it will never accept a mail.
        """

        def run() -> _Found:
            self.is_busy = True
            try:
                return work()
            except smtplib.SMTPAuthenticationError:
                raise PermissionDenied("the mail server does not accept the password") from None
            except smtplib.SMTPResponseException as error:
                _check_code(self, error.smtp_code, error.smtp_error)
                raise self.failed("answers as no mail server does") from None
            except (OSError, imaplib.IMAP4.error, smtplib.SMTPException) as error:
                said = plain(str(error)).replace(self.password, "…")[:200]
                if isinstance(error, imaplib.IMAP4.error) and not isinstance(error, imaplib.IMAP4.abort):
                    raise PermissionDenied(f"the mail server refused this: {said}; is the password right?") from None
                raise self.failed(f"cannot be used: {said}") from None
            finally:
                self.is_busy = False
                if self.is_over:
                    self._release()

        with trio.move_on_after(LIMIT_S):
            return await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=threads())
        raise self.failed(f"was not done within {LIMIT_S:.0f} s")

    def close(self) -> None:
        """End the connection, and what a thread waits for. That was abandoned, and itself closes what it uses."""
        self.is_over = True
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        if not self.is_busy:
            self._release()

    def _release(self) -> None:
        self.sock.close()
        with suppress(OSError, AttributeError):  # it has no file yet
            self.client.file.close()

    def failed(self, why: str) -> Unavailable:
        """Return the error for a server that cannot be used now."""
        return Unavailable(f"{self.host} {why}", **{IS_UNCLEAR: self.is_unclear})


class _Imap(imaplib.IMAP4):
    """A connection that is signed in to an IMAP server. Made, and used, in threads."""

    def __init__(self, line: _Line) -> None:
        self._line, line.client = line, self
        super().__init__(line.host, line.port, STEP_S)
        if line.needs_tls:
            self.starttls(line.tls)
            line.sock = self.sock
        user = line.user.replace("\\", "\\\\").replace('"', '\\"')
        self.login(f'"{user}"', line.password)
        self.can_notify = b"IDLE" in self.capability()[1][-1].upper().split()

    def _create_socket(self, _timeout: float | None) -> socket.socket:
        return self._line.open()

    def open_inbox(self) -> int:
        """Open the inbox, without changing it; return its UIDVALIDITY."""
        status, answer = self.select("INBOX", readonly=True)
        if status != "OK":
            raise self._line.failed(f"does not show the inbox: {answer!r}"[:300])
        self.response("EXISTS")  # forgotten: the next one says that there is more
        return int(self.response("UIDVALIDITY")[1][0])

    def mail(self, uid: int, limit: int) -> tuple[bytes, bytes]:
        """Return what the server says about a mail, and its first `limit` bytes."""
        parts = self.uid("FETCH", str(uid), f"(INTERNALDATE RFC822.SIZE BODY.PEEK[]<0.{limit}>)")[1]
        return next(part for part in parts if isinstance(part, tuple))

    async def until_changed(self) -> None:
        """Wait until the server says something, without a thread; at most `IDLE_S`.

        Raises:
            Unavailable: the connection broke.
        """
        if not await self._line.run(self._begin_idle):
            with trio.move_on_after(IDLE_S):
                await trio.lowlevel.wait_readable(self.sock)
        await trio.sleep(PAUSE_S)
        await self._line.run(self._end_idle)

    def _begin_idle(self) -> bool:
        """Ask to be notified (RFC 2177); return whether a notification was read already: the socket will be silent."""
        self._idle = self._command("IDLE")
        while self._get_response() is not None:
            if self.tagged_commands[self._idle]:
                raise self.abort("it does not notify, though it said so")
        self.sock.settimeout(0)
        with suppress(ssl.SSLWantReadError):
            return "EXISTS" in self.untagged_responses or bool(cast(BufferedReader, self.file).peek(1))
        return False

    def _end_idle(self) -> None:
        self.sock.settimeout(STEP_S)
        self.send(b"DONE\r\n")
        self._command_complete("IDLE", self._idle)


class _Smtp(smtplib.SMTP):
    """A connection that is signed in to an SMTP server. Made, and used, in a thread."""

    def __init__(self, line: _Line) -> None:
        self._line, line.client = line, self
        super().__init__(line.host, line.port, local_hostname="localhost", timeout=STEP_S)
        if line.needs_tls:
            self.starttls(context=line.tls)
            line.sock = self.sock or line.sock
        self.login(line.user, line.password)

    def _get_socket(self, _host: str, _port: int, _timeout: float) -> socket.socket:
        return self._line.open()


@asynccontextmanager
async def _reach(account: SourceAccount, name: str) -> AsyncIterator[_Line]:
    """Connect to one of the two servers of an account; in the end, close the connection.

    Raises:
        PermissionDenied: the operator's rules forbid the server.
        InvalidInput: the password cannot be sent.
        Unavailable: the server cannot be reached.
    """
    password = await account.secret("password")
    if not password.isascii() or not password.isprintable():
        raise InvalidInput("the password holds characters that mail servers cannot be sent; set another one")
    tls = await trio.to_thread.run_sync(trusting)
    stream, target = await Downloader(account.settings, timeout_s=STEP_S).connect(f"http://{account.config[name]}/")
    assert isinstance(stream, trio.SocketStream)  # encrypted only later, by a thread
    address = stream.socket.getpeername()[0]
    sock = socket.socket(fileno=stream.socket.detach())
    sock.settimeout(STEP_S)
    line = _Line(target.host, target.port, address, account.config["user"], password, sock, tls)
    try:
        yield line
    finally:
        line.close()


def _check_code(line: _Line, code: int, answer: bytes | str) -> None:
    """Refuse what a server did not accept; an answer that is none leaves unclear what it did."""
    said = f"{code} {plain(answer if isinstance(answer, str) else answer.decode('utf-8', 'replace'))}"[:200]
    line.is_unclear = line.is_unclear and code < 200
    if code >= 500:
        raise InvalidInput(f"the mail server refused the mail: {said}", **{IS_FINAL: True})
    if not 200 <= code < 300:
        raise Unavailable(f"the mail server cannot accept the mail now: {said}", **{IS_UNCLEAR: line.is_unclear})


def _new(imap: _Imap, cursor: Mapping[str, Any], config: Mapping[str, Any]) -> Arrivals:
    """Return the mails that are new. With another UIDVALIDITY those that are not older than the newest one known; which
    of them are known, their names say.
    """
    validity = imap.open_inbox()
    is_same = cursor.get("validity") == validity
    known, floor = (cursor["uid"] if is_same else 0), cursor.get("floor" if is_same else "newest", 0)
    day = imaplib.Time2Internaldate(max(0, floor - DAY_S))[1:12]  # servers do not look at the time of the day
    wanted = f"SINCE {day} UID {known + 1}:*" if cursor else "UID *:*"
    found = [int(uid) for uid in (imap.uid("SEARCH", wanted)[1][0] or b"").split()]
    newest, uid, events = cursor.get("newest", 0), known, []
    uids = sorted(one for one in found if one > known)
    for uid in uids[:MAILS_MAX]:
        with suppress(*MALFORMED):
            about, raw = imap.mail(uid, BYTES_MAX)
            said = _DATE.findall(about)[0].decode()
            date = int(datetime.strptime(said.strip(), "%d-%b-%Y %H:%M:%S %z").timestamp())
            newest = max(newest, date)
            event = event_of(raw, int(_SIZE.findall(about)[0]), config) if date >= floor else None
            if event is not None:
                files = [replace(one, ref=f"{validity} {uid} {one.ref}") for one in event.files]
                events.append(replace(event, is_old=not cursor, files=files))
    after = {"validity": validity, "uid": uid, "floor": floor if cursor else newest, "newest": newest}
    return Arrivals(events=events, cursor=after, wait_s=0.0 if len(uids) > MAILS_MAX else EVERY_S)

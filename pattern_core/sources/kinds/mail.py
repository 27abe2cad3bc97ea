"""Mail: the agent has an address. Its inbox is read by IMAP each minute, and not changed; answers go out by SMTP.

Sources: RFC 3501 (a UID is valid with its UIDVALIDITY), RFC 5322, 3.6.4 (threads), RFC 8601 (what the receiving server
found out about a sender), RFC 3834 (mails of programs). A thread with one person is a conversation. Who did not prove
an address belongs to the room `unverified`, which is not allowed unless a person allows it. `imaplib` and `smtplib` run
in threads, with limits; the address that they reach is the one that was checked.
"""

from __future__ import annotations

import imaplib
import re
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from email import policy
from email.errors import MessageError
from email.message import EmailMessage
from email.parser import BytesParser
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, unquote

import trio

from pattern_core.errors import InvalidInput, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.rss import words
from pattern_core.sources.source import (
    FILE_BYTES_MAX,
    IS_UNCLEAR,
    UNREADABLE,
    Arrivals,
    Outgoing,
    SourceAccount,
    SourceEvent,
    SourceFile,
    SourceKind,
    decision,
    take_fields,
)
from pattern_core.untrusted import plain
from pattern_core.web.download import Downloader
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json

EVERY_S = 60.0
MAILS_MAX = 20  # of one poll
BYTES_MAX = 512 * 1024  # of a mail; the rest is read only for its files
DOWNLOADED_BYTES_MAX = 2 * FILE_BYTES_MAX  # of a mail with files, which are coded
STEP_S = 20.0  # for one answer of a server
LIMIT_S = 120.0  # for a connection
DAY_S = 86_400
IMPLICIT_TLS = (993, 465)
UNVERIFIED = "unverified"  # the room of those who did not prove their address
_ATOM, _LABEL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}", r"[A-Za-z0-9-]{1,63}"
_ADDRESS = re.compile(rf"(?=.{{3,254}}\Z){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_ASKED = re.compile(r"<say_\d+\.(\w{1,60})\.ask@")
_QUOTES = re.compile(r"(?m)(?:^[^\n>]+\n)?^[^\n>]+:[ \t]*\n+(?=>)|^>.*\n?|^-- \n[\s\S]*|^-+ ?Original Message[\s\S]*")
_DATE = re.compile(rb'INTERNALDATE "([^"]+)"')
_SIZE = re.compile(rb"RFC822\.SIZE (\d{1,12})")
_MALFORMED = (*UNREADABLE, MessageError, RecursionError, AssertionError)
_BULK = ("bulk", "list", "junk", "auto_reply")
_Found = TypeVar("_Found")


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
        if not _ADDRESS.fullmatch(found["address"]):
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
        cursor, address = dict(account.cursor), account.config["address"]

        def read(line: _Line) -> Arrivals:
            with _Imap(line) as imap:
                imap.sign_in()
                return _new(imap, line, cursor, address, account.config["authserv_id"])

        return await _reach(account, "imap", read)

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of an attachment, as `SourceKind.download`."""
        validity, uid, number = map(int, ref.split())

        def read(line: _Line) -> bytes:
            with _Imap(line) as imap:
                imap.sign_in()
                imap.select("INBOX", readonly=True)
                if int(imap.response("UIDVALIDITY")[1][0]) != validity:
                    raise InvalidInput("its mail has another number by now")
                parts = imap.uid("FETCH", str(uid), f"(RFC822.SIZE BODY.PEEK[]<0.{DOWNLOADED_BYTES_MAX}>)")[1]
                about, raw = next(part for part in parts if isinstance(part, tuple))
                if int(_SIZE.findall(about)[0]) > DOWNLOADED_BYTES_MAX:
                    raise InvalidInput(f"its mail has more than {DOWNLOADED_BYTES_MAX} bytes")
                part = list(_parsed(raw).iter_attachments())[number]
                if not isinstance(data := part.get_payload(decode=True), bytes):
                    raise InvalidInput("it is a mail itself")
                return data

        return await _reach(account, "imap", read)

    async def send_file(self, account: SourceAccount, chat: str, said: Outgoing, data: bytes, send_id: str) -> None:
        """Send a mail with a file, as `SourceKind.send_file`."""
        await self._send(account, chat, replace(said, text=said.file_name), send_id, data)

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Send a mail, as `SourceKind.send`. Its Message-ID is made of `send_id`, but servers do not look at it."""
        await self._send(account, chat, said, send_id)

    async def _send(
        self, account: SourceAccount, chat: str, said: Outgoing, send_id: str, data: bytes | None = None
    ) -> None:
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

        def deliver(line: _Line) -> None:
            with _Smtp(line) as smtp:
                smtp.sign_in()
                _check_code(line, *smtp.mail(address))
                _check_code(line, *smtp.rcpt(to))
                line.is_unclear = True
                _check_code(line, *smtp.data(whole))

        await _reach(account, "smtp", deliver)


@dataclass(slots=True)
class _Line:
    """A connection to a mail server at an address that was checked."""

    host: str
    port: int
    address: str
    user: str
    password: str = field(repr=False)
    is_unclear: bool = False  # a mail is on its way
    sock: socket.socket | None = None
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)

    def connect(self) -> socket.socket:
        """Return a socket, encrypted if the port asks for it from the beginning."""
        self.sock = socket.create_connection((self.address, self.port), STEP_S)
        if self.port in IMPLICIT_TLS:
            self.sock = self.tls.wrap_socket(self.sock, server_hostname=self.host)
        return self.sock

    @property
    def needs_tls(self) -> bool:
        """Whether encryption must begin before the password is sent: everywhere but on this machine."""
        return self.port not in IMPLICIT_TLS and not ip_address(self.address).is_loopback

    def close(self) -> None:
        """End what a thread waits for."""
        if self.sock is not None:
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class _Imap(imaplib.IMAP4):
    def __init__(self, line: _Line) -> None:
        self._line = line
        super().__init__(line.host, line.port, STEP_S)

    def _create_socket(self, _timeout: float | None) -> socket.socket:
        return self._line.connect()

    def __exit__(self, *error: Any) -> None:
        with suppress(OSError, imaplib.IMAP4.error):
            super().__exit__(*error)
        with suppress(OSError):
            self.shutdown()

    def sign_in(self) -> None:
        """Begin encryption where it is needed, and sign in."""
        if self._line.needs_tls:
            self.starttls(self._line.tls)
            self._line.sock = self.sock
        user = self._line.user.replace("\\", "\\\\").replace('"', '\\"')
        self.login(f'"{user}"', self._line.password)


class _Smtp(smtplib.SMTP):
    def __init__(self, line: _Line) -> None:
        self._line = line
        super().__init__(line.host, line.port, local_hostname="localhost", timeout=STEP_S)

    def _get_socket(self, _host: str, _port: int, _timeout: float) -> socket.socket:
        return self._line.connect()

    def __exit__(self, *error: Any) -> None:
        with suppress(OSError, smtplib.SMTPException):  # the mail was accepted, or that it was not is known
            super().__exit__(*error)

    def sign_in(self) -> None:
        """Begin encryption where it is needed, and sign in."""
        if self._line.needs_tls:
            self.starttls(context=self._line.tls)
            self._line.sock = self.sock
        self.login(self._line.user, self._line.password)


async def _reach(account: SourceAccount, name: str, work: Callable[[_Line], _Found]) -> _Found:
    """Return what work in a thread returns, with a connection to one of the two servers. No error shows the password.

    Raises:
        PermissionDenied: the server does not know the password, or the operator's rules forbid the server.
        Unavailable: the server does not answer, or breaks off.
        InvalidInput: the server will never accept a mail.
    """
    target = account.settings.check(f"https://{account.config[name]}/")
    password = await account.secret("password")
    if not password.isascii() or not password.isprintable():
        raise InvalidInput("the password holds characters that mail servers cannot be sent; set another one")
    address = (await Downloader(account.settings).addresses(target))[0]
    tls = await trio.to_thread.run_sync(ssl.create_default_context)
    line = _Line(target.host, target.port, address, account.config["user"], password, tls=tls)

    def run() -> _Found:
        try:
            return work(line)
        except smtplib.SMTPAuthenticationError:
            raise PermissionDenied("the mail server does not accept the password") from None
        except smtplib.SMTPResponseException as error:
            _check_code(line, error.smtp_code, error.smtp_error)
            raise Unavailable(
                f"{target.host} answers as no mail server does", **{IS_UNCLEAR: line.is_unclear}
            ) from None
        except (OSError, imaplib.IMAP4.error, smtplib.SMTPException) as error:
            said = plain(str(error)).replace(password, "…")[:200]
            if isinstance(error, imaplib.IMAP4.error) and not isinstance(error, imaplib.IMAP4.abort):
                raise PermissionDenied(f"the mail server refused this: {said}; is the password right?") from None
            raise Unavailable(f"{target.host} cannot be used: {said}", **{IS_UNCLEAR: line.is_unclear}) from None

    try:
        with trio.move_on_after(LIMIT_S):
            return await trio.to_thread.run_sync(run, abandon_on_cancel=True)
    finally:
        line.close()
    raise Unavailable(f"{target.host} was not done within {LIMIT_S:.0f} s", **{IS_UNCLEAR: line.is_unclear})


def _check_code(line: _Line, code: int, answer: bytes | str) -> None:
    """Refuse what a server did not accept; an answer that is none leaves unclear what it did."""
    said = f"{code} {plain(answer if isinstance(answer, str) else answer.decode('utf-8', 'replace'))}"[:200]
    line.is_unclear = line.is_unclear and code < 200
    if code >= 500:
        raise InvalidInput(f"the mail server refused the mail: {said}", **{IS_FINAL: True})
    if not 200 <= code < 300:
        raise Unavailable(f"the mail server cannot accept the mail now: {said}", **{IS_UNCLEAR: line.is_unclear})


def _new(imap: imaplib.IMAP4, line: _Line, cursor: dict[str, Any], address: str, authority: str) -> Arrivals:
    """Return the mails that are new. With another UIDVALIDITY those that are not older than the newest one known; which
    of them are known, their names say.
    """
    status, answer = imap.select("INBOX", readonly=True)
    if status != "OK":
        raise Unavailable(f"{line.host} does not show the inbox: {answer!r}"[:300])
    validity = int(imap.response("UIDVALIDITY")[1][0])
    is_same = cursor.get("validity") == validity
    known, floor = (cursor["uid"] if is_same else 0), cursor.get("floor" if is_same else "newest", 0)
    day = imaplib.Time2Internaldate(max(0, floor - DAY_S))[1:12]  # servers do not look at the time of the day
    wanted = f"SINCE {day} UID {known + 1}:*" if cursor else "UID *:*"
    found = [int(uid) for uid in (imap.uid("SEARCH", wanted)[1][0] or b"").split()]
    newest, uid, events = cursor.get("newest", 0), known, []
    uids = sorted(one for one in found if one > known)
    for uid in uids[:MAILS_MAX]:
        parts = imap.uid("FETCH", str(uid), f"(INTERNALDATE RFC822.SIZE BODY.PEEK[]<0.{BYTES_MAX}>)")[1]
        with suppress(*_MALFORMED):
            about, raw = next(part for part in parts if isinstance(part, tuple))
            said = _DATE.findall(about)[0].decode()
            date = int(datetime.strptime(said.strip(), "%d-%b-%Y %H:%M:%S %z").timestamp())
            newest = max(newest, date)
            if date >= floor:
                size = int(_SIZE.findall(about)[0])
                event = _event(raw, size, address, authority)
                if event is not None:
                    files = [replace(one, ref=f"{validity} {uid} {one.ref}") for one in event.files]
                    events.append(replace(event, is_old=not cursor, files=files))
    after = {"validity": validity, "uid": uid, "floor": floor if cursor else newest, "newest": newest}
    return Arrivals(events=events, cursor=after, wait_s=0.0 if len(uids) > MAILS_MAX else EVERY_S)


def _event(raw: bytes, size: int, address: str, authority: str) -> SourceEvent | None:
    """Return the event of a mail; None if it is the agent's own.

    Raises:
        One of `_MALFORMED`: it cannot be answered.
    """
    mail = _parsed(raw)
    senders = [one for header in mail.get_all("From", ()) for one in header.addresses]
    [writer] = senders
    author = writer.addr_spec.lower()
    if not _ADDRESS.fullmatch(author) or len(mail.get_all("From", ())) != 1:
        raise ValueError("a mail has no sender to whom an answer can be sent")
    if author == address.lower():
        return None
    unnamed = f"<{blake2b(raw, digest_size=16).hexdigest()}@unnamed>"
    native = (_ID.findall(str(mail["Message-ID"])) or [unnamed])[0]
    before = _ID.findall(f"{mail.get('References', '')} {mail.get('In-Reply-To', '')}")
    subject = " ".join(plain(str(mail.get("Subject", ""))).split())[:150]
    is_believed = _is_believed(mail, author, authority)
    text = _text(mail)
    asked = _ASKED.match((_ID.findall(str(mail.get("In-Reply-To", ""))) or [""])[-1])
    choice = decision(text.partition("\n")[0]) if asked else None
    cut = f"[of {size} bytes, only the first {len(raw)} were read]" if size > len(raw) else ""
    return SourceEvent(
        native=" ".join(quote(part, safe="") for part in (author, native, subject)),
        text="\n".join(filter(None, (text, cut))),
        files=_attachments(mail),
        title=subject,
        author=author if is_believed else f"{UNVERIFIED} {author}",
        author_name=writer.display_name or author if is_believed else f"{author} ({UNVERIFIED})",
        chat=" ".join((*(() if is_believed else (UNVERIFIED,)), author, before[0] if before else native)),
        chat_name=subject,
        room="" if is_believed else UNVERIFIED,
        is_bot=_is_automatic(mail),
        decides=(asked[1], choice) if asked and choice is not None and is_believed else None,
    )


def _is_automatic(mail: EmailMessage) -> bool:
    """Return whether a program wrote a mail, or it went to many."""
    said = [str(mail.get(name, "")).casefold().strip() for name in ("Auto-Submitted", "Precedence", "Return-Path")]
    is_named = said[0].partition(";")[0].strip() not in ("", "no") or said[1] in _BULK or said[2] == "<>"
    return is_named or any(name in mail for name in ("List-Id", "List-Unsubscribe", "X-Autoreply"))


def _is_believed(mail: EmailMessage, author: str, authority: str) -> bool:
    """Return whether the receiving server found that a mail is from its author's domain.

    Only the first of its headers counts: a server puts its own above all that came with the mail.
    """
    domain = author.rpartition("@")[2]
    for header in map(str, mail.get_all("Authentication-Results", ())):
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', "quoted", header)
        while (less := re.sub(r"\([^()]*\)", " ", bare)) != bare:
            bare = less
        server, *results = bare.split(";")
        if not authority or server.split()[:1] != [authority]:
            continue
        if set(bare) & set('"()\\'):  # perhaps written so that something else is read in it
            return False
        found = [dict(re.findall(r"([\w.-]+)\s*=\s*(\S+)", result.lower())) for result in results]
        if any(one.get("dmarc") == "fail" for one in found):
            return False
        return any(
            (one.get("dmarc") == "pass" and one.get("header.from") == domain)
            or (one.get("dkim") == "pass" and one.get("header.d") == domain)
            or (one.get("spf") == "pass" and one.get("smtp.mailfrom", "").rpartition("@")[2] == domain)
            for one in found
        )
    return False


def _text(mail: EmailMessage) -> str:
    """Return what a mail says itself, without what it quotes."""
    body: Any = mail.get_body(("plain", "html"))
    if body is None:
        return "[a mail without text]"
    try:
        text = body.get_content()
    except LookupError:  # an encoding that does not exist
        text = (body.get_payload(decode=True) or b"").decode("utf-8", "replace")
    text = words(text) if body.get_content_subtype() == "html" else text
    return _QUOTES.sub("", text.replace("\r\n", "\n")).strip() or "[nothing but a quotation]"


def _attachments(mail: EmailMessage) -> list[SourceFile]:
    """Return the files that are with a mail, by their places in it."""
    names = [plain(part.get_filename() or part.get_content_type()) for part in mail.iter_attachments()]
    return [SourceFile(name=name, ref=str(number)) for number, name in enumerate(names)]


def _parsed(raw: bytes) -> EmailMessage:
    mail = BytesParser(policy=policy.default).parsebytes(raw)
    assert isinstance(mail, EmailMessage)
    return mail

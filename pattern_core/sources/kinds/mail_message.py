"""What a mail says: who wrote it and whether that was proved, which conversation it belongs to, its words and files.

Sources: RFC 5322, 3.6.4 (threads), RFC 8601 (what the receiving server found out about a sender), RFC 3834 (mails of
programs). A thread with one person is a conversation. Who did not prove an address belongs to the room `unverified`,
which is not allowed unless a person allows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email import policy
from email.errors import MessageError
from email.message import EmailMessage
from email.parser import BytesParser
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from pattern_core.sources.kinds.rss import words
from pattern_core.sources.source import UNREADABLE, SourceEvent, SourceFile, decision
from pattern_core.untrusted import plain

UNVERIFIED = "unverified"  # the room of those who did not prove their address
_ATOM, _LABEL = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}", r"[A-Za-z0-9-]{1,63}"
ADDRESS = re.compile(rf"(?=.{{3,254}}\Z){_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*")
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_ASKED = re.compile(r"<say_\d+\.(\w{1,60})\.ask@")
_QUOTES = re.compile(r"(?m)(?:^[^\n>]+\n)?^[^\n>]+:[ \t]*\n+(?=>)|^>.*\n?|^-- \n[\s\S]*|^-+ ?Original Message[\s\S]*")
MALFORMED = (*UNREADABLE, MessageError, RecursionError, AssertionError)
_BULK = ("bulk", "list", "junk", "auto_reply")


def event_of(raw: bytes, size: int, config: Mapping[str, Any]) -> SourceEvent | None:
    """Return the event of a mail; None if it is the agent's own.

    Raises:
        One of `MALFORMED`: it cannot be answered.
    """
    mail = parsed(raw)
    senders = [one for header in mail.get_all("From", ()) for one in header.addresses]
    [writer] = senders
    author = writer.addr_spec.lower()
    if not ADDRESS.fullmatch(author) or len(mail.get_all("From", ())) != 1:
        raise ValueError("a mail has no sender to whom an answer can be sent")
    if author == config["address"].lower():
        return None
    unnamed = f"<{blake2b(raw, digest_size=16).hexdigest()}@unnamed>"
    native = (_ID.findall(str(mail["Message-ID"])) or [unnamed])[0]
    before = _ID.findall(f"{mail.get('References', '')} {mail.get('In-Reply-To', '')}")
    subject = " ".join(plain(str(mail.get("Subject", ""))).split())[:150]
    is_believed = _is_believed(mail, author, config["authserv_id"])
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


def parsed(raw: bytes) -> EmailMessage:
    """Return a mail that was sent as these bytes."""
    mail = BytesParser(policy=policy.default).parsebytes(raw)
    assert isinstance(mail, EmailMessage)
    return mail

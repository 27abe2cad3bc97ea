"""What a kind of source must define, and the values that pass between it and the rest: events, answers, accounts.

A kind only speaks to its service. It stores nothing: what arrives is stored with the new cursor in one transaction
(`Sources.receive`), and the next poll, which has that from the row, says so to the service.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar

import trio

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.ids import Clock
from pattern_core.untrusted import plain
from pattern_core.web.download import BYTES_MAX, Download, Downloader, check_status
from pattern_core.web.policy import SourceSettings, read_secret
from pattern_db.columns import Json
from pattern_db.tables.sources import SourceRow

TEXT_CHARS_MAX = 40_000  # of an event; the rest is cut, and says so
NAME_CHARS_MAX = 200
LINK_CHARS_MAX = 2_000
ID_CHARS_MAX = 5_000
DIGEST_BYTES = 16
FILES_MAX = 10  # of an event; of more than these only the number is kept
FILE_BYTES_MAX = BYTES_MAX  # of a file that came
TRIED_S = 5.0  # how long a question that ends listens
IS_UNCLEAR = "is_unclear"  # in an error's details: perhaps it was done
UNREADABLE = (LookupError, TypeError, AttributeError, ValueError)  # one object that no one can read stops no other


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that came with an event. By `ref` its kind downloads it."""

    name: str
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEvent:
    """Something that arrived. `native` names it at its service: the same name is the same event, for ever.

    In a channel `chat` is the conversation, `room` the room of several people that it is in, `author` who wrote, all by
    their ids there;
    `is_addressed` says that it was meant for the agent. `decides` is the id of an approval with a person's answer. What
    `is_old` is remembered, and not delivered.

    Raises:
        TypeError, ValueError: it has no id or no certain conversation, or a service sent something else than texts.
    """

    native: str
    text: str
    title: str = ""
    link: str = ""
    author: str = ""
    author_name: str = ""
    chat: str | None = None
    chat_name: str = ""
    room: str = ""
    is_addressed: bool = True
    is_bot: bool = False
    is_old: bool = False
    decides: tuple[str, bool] | None = None
    files: Sequence[SourceFile] = ()

    def __post_init__(self) -> None:
        ids = [self.native, self.author, self.room, *([] if self.chat is None else [self.chat])]
        words = [self.text, self.title, self.link, self.author_name, self.chat_name]
        words += [part for one in self.files for part in (one.name, one.ref)]
        if not all(isinstance(one, str) for one in (*ids, *words)):
            raise TypeError("a part of an event is not a text")
        if not self.native or (self.chat is not None and not (self.chat and self.author)):
            raise ValueError("an event names no conversation or has no id, so nothing can be done with it")
        if max(map(len, ids)) > ID_CHARS_MAX:
            raise ValueError(f"an id of an event has more than {ID_CHARS_MAX} characters")

    @property
    def digest(self) -> bytes:
        """By which the event is known again."""
        return blake2b(self.native.encode(), digest_size=DIGEST_BYTES).digest()

    @property
    def bounded(self) -> SourceEvent:
        """The event with texts of bounded length, which can be stored."""
        cut = self.text[:TEXT_CHARS_MAX]
        if len(self.text) > TEXT_CHARS_MAX:
            cut += f"\n[{len(self.text) - TEXT_CHARS_MAX} more characters were left out]"
        if len(self.files) > FILES_MAX:
            cut += f"\n[{len(self.files) - FILES_MAX} more files were left out]"
        kept = self.files[:FILES_MAX]
        files = [SourceFile(name=storable(one.name[:NAME_CHARS_MAX]), ref=storable(one.ref)) for one in kept]
        most = {**dict.fromkeys(("title", "author_name", "chat_name"), NAME_CHARS_MAX), "link": LINK_CHARS_MAX}
        fields = {name: one[: most.get(name)] for name, one in asdict(self).items() if isinstance(one, str)}
        texts: dict[str, Any] = {name: storable(one) for name, one in {**fields, "text": cut}.items()}
        return replace(self, **texts, files=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What one poll returned: events in their order, the new cursor, and when to ask again (seconds)."""

    events: Sequence[SourceEvent] = ()
    cursor: Mapping[str, Json] = field(default_factory=dict)
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """What is to be said in a chat, in answer to a message there; `approval` is the id of a question that a person can
    answer with yes or no. With a `file`, which is a path as the agent names it, that is sent in place of the text.
    """

    text: str
    reply_to: str = ""
    approval: str | None = None
    file: str = ""

    @property
    def file_name(self) -> str:
        """The name of the file alone."""
        return plain(self.file.rpartition("/")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccount:
    """An account at a service, as its row says, with all that a kind needs to reach it."""

    row: SourceRow
    settings: SourceSettings
    clock: Clock

    @property
    def config(self) -> Mapping[str, Json]:
        """Its configuration, as `SourceKind.checked` returned it."""
        return self.row.config

    @property
    def cursor(self) -> Mapping[str, Json]:
        """The place up to which everything is stored; empty at first."""
        return self.row.sync_cursor or {}

    async def secret(self, key: str) -> str:
        """Return the secret that is named in its configuration; empty if it need not be, and is not.

        Raises:
            InvalidInput: it is not configured, or empty.
        """
        settings, name = self.settings, str(self.config[key])
        return await read_secret(settings.secrets, name, "sources", settings.secrets_in) if name else ""

    async def fetch(self, url: str, *, timeout_s: float = 0.0, **request: Any) -> Download:
        """Return what is at an address, as `Downloader.get`: only where the operator's policy allows.

        Raises:
            PatternError: as `Downloader.get`.
        """
        return await Downloader(self.settings, timeout_s=self.settings.timeout_s + timeout_s).get(url, **request)

    async def fetch_changed(self, *, always: bool = False) -> tuple[Download | None, dict[str, Json]]:
        """Return what is at its `url`, None if it is as the cursor says, unless `always`; and what the next cursor has
        of it. A page that has moved permanently is asked for at its new place.

        Raises:
            PatternError: as `fetch`, or it is a page with an error.
        """
        asked = {"If-None-Match": self.cursor.get("etag"), "If-Modified-Since": self.cursor.get("modified")}
        headers = {name: value for name, value in asked.items() if value and not always}
        page = await self.fetch(self.cursor.get("url") or self.config["url"], headers={"Accept": "*/*", **headers})
        if page.status == 304:
            return None, dict(self.cursor)
        check_status(page)
        moved = page.url if page.is_moved else self.cursor.get("url")
        return page, {"etag": page.headers.get("etag"), "modified": page.headers.get("last-modified"), "url": moved}

    async def call(
        self, method: Callable[Concatenate[SourceAccount, P], Awaitable[T]], *given: P.args, **more: P.kwargs
    ) -> T:
        """Return what a method of the account's kind returns; a service that sends something else than agreed is an
        error, too, and perhaps did what it was asked.

        Raises:
            PatternError: as the method, or what came cannot be read.
        """
        try:
            return await method(self, *given, **more)
        except (*UNREADABLE, ArithmeticError, OSError, RecursionError) as error:
            said = f"what the service sent cannot be read: {type(error).__name__}: {error}"[:300]
            raise InvalidInput(said, **{IS_UNCLEAR: True}) from error


Receive: TypeAlias = Callable[[Arrivals], Awaitable[None]]
"""Stores what arrived with its cursor. Raises a `PatternError` if that cannot be stored."""


class SourceKind(ABC):
    """A kind of source. One instance serves all accounts, so it holds no state of any.

    `fields` are the keys of its configuration with their meaning; those of `secret_fields` name a secret in the
    server's configuration. A kind that `is_called` is not polled: its service calls `/hooks/{account}`. A kind with
    `chars_max` is a channel: it can `send`.
    """

    fields: ClassVar[Mapping[str, str]] = {}
    secret_fields: ClassVar[Sequence[str]] = ()
    every_s_min: ClassVar[float] = 1.0  # of the field `every_s`, if there is one
    is_called: ClassVar[bool] = False
    chars_max: ClassVar[int] = 0
    is_idempotent: ClassVar[bool] = False  # whether the service knows a repeated answer by its id

    @abstractmethod
    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults.

        Raises:
            PatternError: it is invalid, or the operator's rules forbid what it names.
        """

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what is new; it may wait for it for a minute. A kind that overrides `listen` alone listens for some
        seconds.

        Raises:
            PatternError: the service could not be asked.
        """
        events, cursor = list[SourceEvent](), dict(account.cursor)

        async def keep(arrived: Arrivals) -> None:
            events.extend(arrived.events)
            cursor.update(arrived.cursor)

        with trio.move_on_after(TRIED_S):
            await self.listen(account, keep)
        return Arrivals(events=events, cursor=cursor)

    async def check(self, account: SourceAccount) -> str:
        """Return the address at which people reach the account, if there is one, when the service was asked.

        Raises:
            PatternError: the service could not be asked.
        """
        await self.poll(account)
        return ""

    async def listen(self, account: SourceAccount, receive: Receive) -> float:
        """Hand over what is new, and return in how many seconds to listen again, then with the new cursor.

        A kind that keeps a connection overrides this, and hands over batches for as long as the connection lasts. Each
        is stored when `receive` returns; only then may the service learn of its cursor.

        Raises:
            PatternError: the service could not be asked, or a batch not be stored.
        """
        arrived = await self.poll(account)
        await receive(arrived)
        return arrived.wait_s

    async def called(self, account: SourceAccount, headers: Mapping[str, str], body: bytes) -> SourceEvent:
        """Return the event that a service posts.

        Raises:
            PatternError: it is not from the service, or too old.
        """
        raise NotFound("this source is asked, and not called by its service")

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of a file that came with an event.

        Raises:
            PatternError: it is longer than `FILE_BYTES_MAX`, or cannot be downloaded.
        """
        raise NotImplementedError

    async def signal(self, account: SourceAccount, chat: str) -> None:  # noqa: B027  # not every service can
        """Show in a chat that the agent is busy, for some seconds.

        Raises:
            PatternError: it was not accepted.
        """

    async def show(self, account: SourceAccount, chat: str, text: str, shown: str) -> str:
        """Show in a chat what the agent does: change the message with the id `shown`, delete it if there is no text, or
        say it in a new one, and notify no one. Return its id; empty where a service cannot change messages.

        Raises:
            PatternError: it was not accepted.
        """
        return ""

    async def ready(self, account: SourceAccount) -> None:  # noqa: B027  # most services need no wait
        """Wait until something may be sent. What is stopped here is not in doubt: it was surely not sent.

        Raises:
            PatternError: it may not now.
        """

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Say something in a chat; `send_id` is always the same for it.

        Raises:
            PatternError: it was not accepted. With `IS_UNCLEAR` in its details perhaps it was; with `IS_FINAL` of the
                outbox it never will be.
        """
        raise NotImplementedError

    async def send_file(self, account: SourceAccount, chat: str, said: Outgoing, data: bytes, send_id: str) -> None:
        """Send a file with these bytes to a chat, as `send`; where a service has none, say so."""
        await self.send(account, chat, replace(said, text=f"[the file {said.file_name} cannot be sent here]"), send_id)


def bytes_of(page: Download) -> bytes:
    """Return a downloaded file.

    Raises:
        PatternError: it is not there, or too long.
    """
    check_status(page)
    if page.is_cut:
        raise InvalidInput(f"it has more than {FILE_BYTES_MAX} bytes")
    return page.body


def multipart(fields: Mapping[str, str], field: str, name: str, data: bytes) -> tuple[str, bytes]:
    """Return the content type and the body of a form with these fields, and a file (RFC 7578)."""
    border = blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
    quoted = name.translate({34: "%22", 10: "%0A", 13: "%0D"})
    parts = [(f'name="{key}"', value.encode()) for key, value in fields.items()]
    parts.append((f'name="{field}"; filename="{quoted}"', data))
    shown = [f"--{border}\r\nContent-Disposition: form-data; {about}\r\n\r\n".encode() + one for about, one in parts]
    return f"multipart/form-data; boundary={border}", b"\r\n".join([*shown, f"--{border}--\r\n".encode()])


def take_fields(kind: SourceKind, config: Mapping[str, Json], defaults: Mapping[str, Json]) -> dict[str, Json]:
    """Return a configuration with its defaults: no other keys than the kind's `fields`, each of the type of its default
    (None: a text that must be given).

    Raises:
        InvalidInput: a key is unknown or missing, or has a value of another type; `every_s` is too small.
    """
    if unknown := sorted(set(config) - set(kind.fields)):
        raise InvalidInput(f"this kind of source has no {unknown[0]!r}; it has {', '.join(kind.fields)}")
    found = {**defaults, **config}
    for name, default in defaults.items():
        wanted = str if default is None else float if type(default) is float else type(default)
        value = float(found[name]) if wanted is float and type(found[name]) is int else found[name]
        if type(value) is not wanted or (default is None and not value):
            raise InvalidInput(f"`{name}` must be given as {_TYPES[wanted]}: {kind.fields[name]}")
        found[name] = value
    if found.get("every_s", kind.every_s_min) < kind.every_s_min:
        raise InvalidInput(f"`every_s` is at least {kind.every_s_min:.0f}")
    return found


_TYPES = {str: "a text", float: "a number", bool: "true or false", list: "a list", int: "a whole number"}


def decision(text: str) -> bool | None:
    """Return what a person answers to a question with one word; None if it is another word."""
    return {"yes": True, "no": False}.get(text.strip(" .!").casefold())


def storable(text: str) -> str:
    """Return the text without what cannot be stored: NUL, and halves of characters."""
    return text.replace("\0", "\u2400").encode("utf-8", "replace").decode("utf-8")


def split(text: str, limit: int) -> list[str]:
    """Return a text in pieces of at most `limit` characters, as UTF-16 counts them, cut between paragraphs, else lines,
    else words.
    """
    pieces = []
    while len(window := text.encode("utf-16-le")[: limit * 2].decode("utf-16-le", "ignore")) < len(text):
        marks = ("\n\n", "\n", " ")
        at = next((place for mark in marks if (place := window.rfind(mark)) > limit // 4), len(window))
        pieces.append(text[:at].rstrip())
        text = text[at:].lstrip()
    return [piece for piece in (*pieces, text) if piece.strip()]

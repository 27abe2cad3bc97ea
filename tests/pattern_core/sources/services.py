"""What the kill test does at the service of each kind: people write, things change, connections break."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import trio

from pattern_core.testing import bluesky_server, channels, discord_server, mail_server, matrix_server, slack_server
from pattern_core.testing.bluesky_server import BlueskyServer
from pattern_core.testing.channels import FeedServer, TelegramServer
from pattern_core.testing.discord_server import DiscordServer
from pattern_core.testing.irc_server import IrcServer
from pattern_core.testing.jetstream_server import JetstreamServer
from pattern_core.testing.mail_server import MailServer
from pattern_core.testing.matrix_server import MatrixServer
from pattern_core.testing.slack_server import SlackServer
from tests.pattern_core.sources.test_calendar import calendar, entry
from tests.pattern_core.sources.worker import Job

FAR_H = 24 * 365 * 50  # from the clock's beginning: nothing begins while the test runs
REPLAYED = 400  # messages that a bouncer keeps
Said = list[tuple[int, str]]


class Service:
    """The service of a source. `says` makes an event of a chat, from 1, which has `burst` of them in turn; at most
    `window` may not be stored yet. `sent` is what came to which chat. One that `is_exact` has no answer twice.

    `has_begun` says that what comes from now on is not old. `disturbs` is called after each kill, with the number of
    chats that are known.
    """

    chats_max: ClassVar = 50
    burst: ClassVar = 1
    window: int = 10**9
    is_channel: ClassVar = True
    is_exact: ClassVar = False
    has_begun: bool | None = None  # None: when a place is stored
    server: Any

    def __init__(self, path: Path, events: int) -> None:
        self.path = path
        self.events = events
        self.chats = max(2, min(self.chats_max, events // 10))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Be there within the block."""
        async with self.server:
            yield

    def job(self, kind: str, variant: str) -> Job:
        """What the process with the source needs to know."""
        people = [self.person(chat) for chat in range(1, self.chats + 1)] if self.is_channel else []
        return Job(kind=kind, path=str(self.path), variant=variant, people=people, **self.reached())

    def reached(self) -> Mapping[str, Any]:
        """The fields of the job that are of the kind."""
        return {"config": {"url": f"{self.server.url}/x"}, "ports": [self.server.port]}

    def person(self, chat: int) -> str:
        """Who writes in a chat."""
        return str(chat)

    async def says(self, chat: int, number: str) -> None:
        """Have something happen."""
        raise NotImplementedError

    @property
    def sent(self) -> Said:
        """What came to which chat."""
        return []

    async def disturbs(self, known: int) -> None:
        """Do what services do at times."""


class Telegram(Service):
    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.chats = max(50, events // 10)  # as many as one poll has: it is sent backwards
        self.server = TelegramServer()
        self.server.reorders, self.server.repeats = True, events // 20

    def reached(self) -> Mapping[str, Any]:
        config, secrets = {"token": "bot", "base_url": self.server.url}, {"bot": channels.TOKEN}
        return {"config": config, "ports": [self.server.port], "services": [self.server.url], "secrets": secrets}

    async def says(self, chat: int, number: str) -> None:
        self.server.says(number, author=chat)

    @property
    def sent(self) -> Said:
        return [(one["chat_id"], one["text"]) for one in self.server.sent]


class Discord(Service):
    burst = 5
    is_exact = True  # it knows what is sent again within minutes

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = DiscordServer(heartbeat_ms=500)
        self.server.repeats = events // 10
        self._kills = 0

    def reached(self) -> Mapping[str, Any]:
        where = f"{self.server.url}{discord_server.REST}"
        config, secrets = {"token": "bot", "base_url": where}, {"bot": discord_server.TOKEN}
        return {"config": config, "ports": self.server.ports, "services": [where], "secrets": secrets}

    async def says(self, chat: int, number: str) -> None:
        self.server.says(number, author=chat)

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # computed
        return bool(self.server.begun)

    @property
    def sent(self) -> Said:
        return [(int(one["channel_id"]) - 1000, one["content"]) for one in self.server.sent]

    async def disturbs(self, known: int) -> None:
        self._kills += 1
        if known == self.chats and self._kills % 3 == 0:  # of chats that it does not know it cannot ask
            await self.server.expires()


class Slack(Service):
    chats_max = 40
    burst = 5

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = SlackServer(patience_s=30.0)
        self.server.repeats, self.server.forgetful = events // 10, True

    def reached(self) -> Mapping[str, Any]:
        config = {"token": "bot", "app_token": "app", "base_url": self.server.url}
        secrets = {"bot": slack_server.TOKEN, "app": slack_server.APP_TOKEN}
        return {"config": config, "ports": self.server.ports, "services": [self.server.url], "secrets": secrets}

    def person(self, chat: int) -> str:
        return f"U{chat}"

    async def says(self, chat: int, number: str) -> None:
        self.server.says(number, author=chat)

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # computed
        return bool(self.server.begun)

    @property
    def sent(self) -> Said:
        return [(int(one["channel"][1:]), one["text"]) for one in self.server.sent]

    async def disturbs(self, known: int) -> None:
        if known == self.chats:
            self.server.gives_up()


class Matrix(Service):
    is_exact = True

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = MatrixServer()
        self._rooms = {self.server.room(self.person(chat)): chat for chat in range(1, self.chats + 1)}

    def reached(self) -> Mapping[str, Any]:
        config, secrets = {"token": "bot", "homeserver": self.server.url}, {"bot": matrix_server.TOKEN}
        return {"config": config, "ports": [self.server.port], "services": [self.server.url], "secrets": secrets}

    def person(self, chat: int) -> str:
        return f"@p{chat}:home.example"

    async def says(self, chat: int, number: str) -> None:
        self.server.says(number, room=list(self._rooms)[chat - 1], author=self.person(chat))

    @property
    def sent(self) -> Said:
        said = [one for one in self.server.sent if one["type"] == "m.room.message"]
        return [(self._rooms[one["room_id"]], one["content"]["body"]) for one in said]

    async def disturbs(self, known: int) -> None:
        self.server.repeats, self.server.drops = 2, 1


class Bluesky(Service):
    is_exact = True

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = BlueskyServer()
        self.server.reorders = True
        self._posts: dict[str, str] = {}  # by number
        self._tops: dict[int, str] = {}  # by chat

    def reached(self) -> Mapping[str, Any]:
        config = {"handle": bluesky_server.HANDLE, "password": "app", "base_url": self.server.url}
        secrets = {"app": bluesky_server.PASSWORD}
        return {"config": config, "ports": [self.server.port], "services": [self.server.url], "secrets": secrets}

    def job(self, kind: str, variant: str) -> Job:
        return Job(kind=kind, path=str(self.path), variant=variant, people=["public"], **self.reached())

    async def says(self, chat: int, number: str) -> None:
        top = self._tops.get(chat, "")
        self._posts[number] = self.server.says(f"@bot.example {number}", author=f"m{chat}", to=top)
        self._tops.setdefault(chat, self._posts[number])

    @property
    def sent(self) -> Said:
        chats = {top: chat for chat, top in self._tops.items()}
        found = []
        for record in list(self.server.written.values()):
            place, text = record["reply"], str(record["text"])
            is_right = self._posts.get(text.split()[-1]) == place["parent"]["uri"]  # the last one of a burst
            found.append((chats[place["root"]["uri"]] if is_right else 0, text))
        return found

    async def disturbs(self, known: int) -> None:
        self.server.expire()
        self.server.drops, self.server.too_many, self.server.silent = 2, 1, 1


class Mail(Service):
    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = MailServer()

    def reached(self) -> Mapping[str, Any]:
        ports, user = [self.server.imap_port, self.server.smtp_port], mail_server.USER
        where = {"imap": f"127.0.0.1:{ports[0]}", "smtp": f"127.0.0.1:{ports[1]}"}
        config = {"address": user, "user": user, "password": "mail", "authserv_id": mail_server.AUTHORITY, **where}
        services, secrets = [f"https://{one}" for one in where.values()], {"mail": mail_server.PASSWORD}
        return {"config": config, "ports": ports, "services": services, "secrets": secrets}

    def person(self, chat: int) -> str:
        return f"p{chat}@example.org"

    async def says(self, chat: int, number: str) -> None:
        self.server.arrives(number, author=self.person(chat), References=f"<t{chat}@x>")

    @property
    def sent(self) -> Said:
        return [(int(str(one["To"]).partition("@")[0][1:]), one.get_content()) for one in self.server.sent]

    async def disturbs(self, known: int) -> None:
        self.server.repeats = 1


class Irc(Service):
    """As at a bouncer, which repeats what was said before: IRC itself does not."""

    chats_max = 10
    burst = 10  # which are one message: an answer may be sent every two seconds
    window = REPLAYED // 2

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = IrcServer()
        self.server.replays, self.server.repeats = REPLAYED, events // 10

    def reached(self) -> Mapping[str, Any]:
        config = {"server": f"127.0.0.1:{self.server.port}", "nick": "ada", "tls": False}
        return {"config": config, "ports": [self.server.port], "services": [self.server.url]}

    def person(self, chat: int) -> str:
        return f"p{chat}!~p{chat}@home.example.org"

    async def says(self, chat: int, number: str) -> None:
        await self.server.says(number, nick=f"p{chat}")

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # computed
        return bool(self.server.begun)

    @property
    def sent(self) -> Said:
        return [(int(target[1:]), text) for target, text in self.server.sent]


class Webhook(Service):
    """A service that posts an event until it is accepted, and at times once more."""

    chats_max = 1
    is_channel = False

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        send, self._waiting = trio.open_memory_channel[str](self.events)
        self._send = send
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._posts)
            yield
            nursery.cancel_scope.cancel()

    def reached(self) -> Mapping[str, Any]:
        return {"config": {"secret": "hook", "signature": "token"}, "secrets": {"hook": "a secret"}}

    @property
    def has_begun(self) -> bool:  # type: ignore[override]  # computed
        return Path(f"{self.path}.sock").exists()

    async def says(self, chat: int, number: str) -> None:
        await self._send.send(number)

    async def _posts(self) -> None:
        async for number in self._waiting:
            for _ in range(1 + number.endswith("7")):
                while not await self._is_accepted(number):
                    await trio.sleep(0.02)

    async def _is_accepted(self, number: str) -> bool:
        headers = json.dumps({"x-token": "a secret", "idempotency-key": number})
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_unix_socket(f"{self.path}.sock") as stream:
                await stream.send_all(f"{headers}\n{json.dumps({'number': number})}".encode())
                return await stream.receive_some() == b"202"
        return False


class Jetstream(Service):
    """It goes back a few seconds on each connection, and at times repeats what it says or is gone."""

    chats_max = 1
    is_channel = False

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = JetstreamServer()
        self.server.repeats = True

    def reached(self) -> Mapping[str, Any]:
        config = {"endpoint": self.server.gateway_url, "base_url": self.server.url, "authors": ["anna.example"]}
        return {"config": config, "ports": self.server.ports}

    async def says(self, chat: int, number: str) -> None:
        self.server.drops += number.endswith("9")
        self.server.says(number)


class Feed(Service):
    chats_max = 1
    window = 100
    is_channel = False

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self._items: list[str] = []
        self.server = FeedServer(b"")
        self._show()

    def _show(self) -> None:
        newest = "".join(f"<item><guid>{one}</guid><title>{one}</title></item>" for one in self._items[:-150:-1])
        self.server.body = f"<rss><channel>{newest}</channel></rss>".encode()

    async def says(self, chat: int, number: str) -> None:
        self._items.append(number)
        self._show()


class Page(Service):
    chats_max = 1
    window = 1  # of a value only the newest is seen
    is_channel = False

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.server = FeedServer(b'{"a": "nothing"}')

    def reached(self) -> Mapping[str, Any]:
        return {"config": {"url": f"{self.server.url}/x", "select": "/a"}, "ports": [self.server.port]}

    async def says(self, chat: int, number: str) -> None:
        self.server.body = json.dumps({"a": number}).encode()


class Calendar(Service):
    """Each chat is an entry, which changes only when its change before is stored."""

    is_channel = False

    def __init__(self, path: Path, events: int) -> None:
        super().__init__(path, events)
        self.chats = min(150, events // 3)
        self.window = self.chats // 3
        self._values: dict[int, str] = {}
        self.server = FeedServer(calendar())

    async def says(self, chat: int, number: str) -> None:
        self._values[chat] = number
        entries = (entry(str(chat), FAR_H, title=one) for chat, one in self._values.items())
        self.server.body = calendar(*entries)


class Files(Calendar):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        (self.path.parent / "watched").mkdir()
        yield

    def reached(self) -> Mapping[str, Any]:
        return {"config": {"directory": str(self.path.parent / "watched")}}

    async def says(self, chat: int, number: str) -> None:
        new = self.path.with_name("new")
        new.write_text(f"{number}\n")
        new.rename(self.path.parent / "watched" / f"{chat}.txt")


class Resources(Calendar):
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        await self.says(self.chats + 1, "nothing")
        yield

    def reached(self) -> Mapping[str, Any]:
        return {"config": {"server": "it"}}

    async def says(self, chat: int, number: str) -> None:
        self._values[chat] = number
        new = self.path.with_name("new.json")
        new.write_text(json.dumps({f"note:///{chat}": f"{one}\n" for chat, one in self._values.items()}))
        new.rename(self.path.with_name("mcp.log.json"))


SERVICES: Mapping[str, type[Service]] = {
    "telegram": Telegram,
    "discord": Discord,
    "slack": Slack,
    "matrix": Matrix,
    "bluesky": Bluesky,
    "email": Mail,
    "irc": Irc,
    "jetstream": Jetstream,
    "webhook": Webhook,
    "rss": Feed,
    "http": Page,
    "calendar": Calendar,
    "file": Files,
    "mcp": Resources,
}

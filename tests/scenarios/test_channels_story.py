"""One agent, and people in three chat applications: one pairs, asks, approves a command after the server was killed,
and gets the file that it made; others ask the same agent in a thread and by mail, and are shown nothing of each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import trio

from pattern_core.testing import channels as telegram
from pattern_core.testing import discord_server, mail_server
from pattern_core.testing.channels import TelegramServer
from pattern_core.testing.discord_server import BOT, REST, ROOM, THREAD, DiscordServer
from pattern_core.testing.mail_server import AUTHORITY, USER, MailServer
from pattern_core.testing.model import calls, says
from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_core.testing.wire_openai import replies
from tests.pattern_server.cli.terminal import terminal
from tests.scenarios.server import PROGRAM, Server, serving

HOME = "/constellations/home"
COMMAND = "printf 'roses 12\\ntulips 7\\n' > flowers.csv"
SECRETS = {"anna": "rosebud", "carl": "xylophone", "dora": "marzipan", "eve": "quicksilver"}


class Friend(WireServer):
    """The model. It makes a file when it is asked for one, looks for what others said when it is asked for a secret,
    and says what it was asked last. `asked` are its requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []

    async def answer(self, request: WireRequest) -> Play:
        """Return the next words or calls of the agent."""
        if not request.path.endswith("/chat/completions"):
            return document({}, status=404)
        asked: dict[str, Any] = request.json()
        self.asked.append(asked)
        messages: list[Any] = asked["messages"]
        number = f"c{len(self.asked)}"
        at = max(place for place, one in enumerate(messages) if one["role"] == "user")
        question, called = str(messages[at]["content"]), sum(one["role"] == "tool" for one in messages[at:])
        if "make the file" in question and called < 2:
            sends = {"content": "Here are the flowers.", "file": "garden/flowers.csv"}
            script = [("shell", {"op": "execute", "command": COMMAND}), ("send_message", sends)]
            return replies(calls(*script[called], call_id=number))
        if "secret" in question and called < 3:
            words = " ".join(SECRETS.values())
            looks = [("search", {"query": words}), ("recall", {"op": "search", "query": words})]
            looks.append(("file", {"op": "search", "query": words}))
            return replies(calls(*looks[called], call_id=number))
        return replies(says("Done." if called else f"You said: {question.splitlines()[-1]}"))

    def shown_to(self, word: str) -> list[str]:
        """All that was shown in the conversations in which a person said this."""
        return [text for one in self.asked if word in (text := json.dumps(one["messages"], ensure_ascii=False))]


@dataclass
class Town:
    """The services that outlive the server, and the server's settings with them."""

    friend: Friend
    phone: TelegramServer
    disc: DiscordServer
    mail: MailServer

    def environment(self, garden: Path) -> dict[str, str]:
        """The server's settings."""
        ports = [self.phone.port, *self.disc.ports, self.mail.imap_port, self.mail.smtp_port]
        mails = [f"https://127.0.0.1:{port}" for port in (self.mail.imap_port, self.mail.smtp_port)]
        sources = {
            "ports": ports,
            "allow_private": True,
            "services": [self.phone.url, f"{self.disc.url}{REST}", *mails],
            "secrets": {
                "TELEGRAM": {"value": telegram.TOKEN},
                "DISCORD": {"value": discord_server.TOKEN},
                "MAIL": {"value": mail_server.PASSWORD},
            },
        }
        model = {"kind": "openai", "base_url": f"{self.friend.url}/v1", "api_key": "sk-friend"}
        shell = {"roots": [str(garden)], "require_sandbox": False}
        given = {"PROVIDERS": {"friend": model}, "SOURCES": sources, "SHELL": shell}
        return {f"PATTERN_{name}": json.dumps(value) for name, value in given.items()}

    def channels(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """The channels by name, with their kinds and settings."""
        servers = {"imap": f"127.0.0.1:{self.mail.imap_port}", "smtp": f"127.0.0.1:{self.mail.smtp_port}"}
        mail = {"address": USER, "user": USER, "password": "MAIL", "authserv_id": AUTHORITY, **servers}
        return {
            "phone": ("telegram", {"token": "TELEGRAM", "base_url": self.phone.url}),
            "disc": ("discord", {"token": "DISCORD", "base_url": f"{self.disc.url}{REST}"}),
            "post": ("email", mail),
        }


@asynccontextmanager
async def town() -> AsyncIterator[Town]:
    async with Friend() as friend, TelegramServer() as phone, DiscordServer() as disc, MailServer() as mail:
        yield Town(friend, phone, disc, mail)


async def done(http: httpx2.AsyncClient, method: str, where: str, **body: Any) -> Any:
    answer = await http.request(method, HOME + where, json=body or None)
    assert answer.is_success, answer.text
    return None if answer.status_code == 204 else answer.json()


async def heard(holds: Callable[[], object], server: Server) -> None:
    with trio.move_on_after(30):
        while not holds():
            await trio.sleep(0.02)
    assert holds(), (server.folder / "server.log").read_text()[-3000:]


async def test_people_talk_with_an_agent_where_they_are(tmp_path: Path) -> None:
    garden, data = tmp_path / "garden", tmp_path / "data"
    garden.mkdir()
    data.mkdir()
    async with town() as there, serving(data, environment=there.environment(garden)) as server:
        async with server.client() as http:
            await furnish(http, there, garden)
            code = await pairs(there.phone, server)
            await done(http, "POST", "/sources/phone/people", code=code, status="partner")
            there.phone.says("Please make the file. My word is rosebud.")
            await heard(lambda: "reply_markup" in there.phone.sent[-1], server)
            assert COMMAND.split(" >")[0].split()[0] in there.phone.sent[-1]["text"]
            assert not (garden / "flowers.csv").exists()
        server.kill()
        await server.start()
        async with server.client() as http:
            there.phone.presses("Approve")
            await heard(lambda: any("document" in one for one in there.phone.sent), server)
            file = next(one for one in there.phone.sent if "document" in one)
            assert (file["chat_id"], file["document"]) == (1, b"roses 12\ntulips 7\n")
            assert "Approved." in there.phone.texts and "Here are the flowers.\n\nDone." in there.phone.texts
            await others_ask(http, there, server)
            await explained(http, there, data)


async def test_telegram_in_two_minutes(tmp_path: Path) -> None:
    """The token is typed unseen, and kept in no file but its own; the next message after the approval is answered."""
    async with Friend() as friend, TelegramServer() as phone:
        sources = {"ports": [phone.port], "allow_private": True, "services": [phone.url]}
        model = {"friend": {"kind": "openai", "base_url": f"{friend.url}/v1", "api_key": "sk-friend"}}
        given = {"PATTERN_PROVIDERS": json.dumps(model), "PATTERN_SOURCES": json.dumps(sources)}
        add = ("channel", "add", "phone", "telegram", "--agent", "ada", "--set", f"base_url={phone.url}")
        of_home = ("-c", "home", "--data-dir", str(tmp_path))
        async with serving(tmp_path, environment=given) as server:
            async with server.client() as http:
                assert (await http.post("/constellations", json={"name": "home"})).is_success
                await done(http, "POST", "/agents", name="ada", model_provider="friend", model_name="friend-1")
            async with terminal(*add, *of_home, columns=120) as screen:
                await screen.until("telegram token:")
                await screen.type("54321:a-wrong-token\r")
                assert await screen.ended() == 1 and "does not accept the secret" in screen.text
                assert not list((tmp_path / "secrets").iterdir())
            async with terminal(*add, *of_home, columns=120) as screen:
                await screen.until("telegram token:")
                await screen.type(f"{telegram.TOKEN}\r")
                assert await screen.ended() == 0, screen.text
                assert "It works." in screen.text and "https://t.me/pattern_bot" in screen.text
                assert telegram.TOKEN not in screen.raw.decode()
            code = await pairs(phone, server)
            async with terminal("channel", "approve", "phone", code, "--partner", *of_home) as screen:
                assert await screen.ended() == 0, screen.text
            phone.says("Good morning")
            await heard(lambda: "You said: Good morning" in phone.texts, server)
            [secret] = (tmp_path / "secrets").iterdir()
            assert secret.read_text().strip() == telegram.TOKEN and secret.stat().st_mode & 0o077 == 0
            others = [one for one in tmp_path.rglob("*") if one.is_file() and one != secret]
            assert not [one for one in others if telegram.TOKEN.encode() in one.read_bytes()]
            async with terminal("source", "remove", "phone", "--yes", *of_home) as screen:
                assert await screen.ended() == 0, screen.text
            assert not secret.exists()


async def furnish(http: httpx2.AsyncClient, there: Town, garden: Path) -> None:
    """Create the agent with its folder, and the channels."""
    assert (await http.post("/constellations", json={"name": "home"})).is_success
    tools = ["shell", "send_message", "search", "recall", "file"]
    model = {"model_provider": "friend", "model_name": "friend-1"}
    await done(http, "POST", "/agents", name="ada", enabled_tools=tools, **model)
    await done(http, "POST", "/folders", name="garden", path_type="local", path=str(garden))
    await done(http, "POST", "/folders/garden/attachments", agent="ada", access="read")
    for name, (kind, config) in there.channels().items():
        await done(http, "POST", "/sources", name=name, kind=kind, agent="ada", config=config)


async def pairs(phone: TelegramServer, server: Server) -> str:
    """Write as a stranger; return the code in the answer."""
    phone.says("Hello")
    await heard(lambda: phone.sent, server)
    return phone.texts[0].split("Your code is ")[1][:8]


async def others_ask(http: httpx2.AsyncClient, there: Town, server: Server) -> None:
    """Three others ask for the secrets of everyone: in another chat, in a thread and by mail."""
    await done(http, "POST", "/sources/phone/people", person="2", status="allowed")
    await done(http, "POST", "/sources/disc/people", person=ROOM, status="allowed")
    await done(http, "POST", "/sources/post/people", person="eve@example.org", status="allowed")
    there.phone.sends("diary.txt", b"My word is xylophone.", author=2, caption="What is the secret? xylophone")
    await heard(lambda: any(one["chat_id"] == 2 for one in there.phone.sent), server)
    await heard(lambda: there.disc.begun, server)
    there.disc.says(f"<@{BOT['id']}> What is the secret? marzipan", author=4, chat=THREAD)
    await heard(lambda: there.disc.sent, server)
    assert [one["channel_id"] for one in there.disc.sent] == [THREAD]
    await done(http, "POST", "/sources/post/sync")
    there.mail.arrives("What is the secret? quicksilver", author="eve@example.org")
    await done(http, "POST", "/sources/post/sync")
    await heard(lambda: there.mail.sent, server)
    assert there.mail.sent[0]["To"] == "eve@example.org" and there.mail.texts == ["Done."]


async def explained(http: httpx2.AsyncClient, there: Town, data: Path) -> None:
    """Each turn's prompt can be explained, and shows the words of its own person only."""
    turns = (await done(http, "GET", "/turns"))["items"]
    assert len(turns) == 4 and {turn["status"] for turn in turns} == {"completed"}
    for turn in turns:
        steps = (await done(http, "GET", f"/turns/{turn['turn_id']}/prompt"))["steps"]
        assert steps and all(part["reason"] for step in steps for part in step["parts"])
        command = [sys.executable, *PROGRAM, "why", turn["turn_id"], "-c", "home", "--data-dir", str(data)]
        said = (await trio.run_process(command, capture_stdout=True)).stdout.decode()
        assert f"The conversation is the session {turn['session_id']}." in said and "friend/friend-1" in said
    everyone = " ".join(SECRETS.values())
    for person, word in SECRETS.items():
        shown = [text.replace(everyone, "") for text in there.friend.shown_to(f"{word}")]
        own = [text for text in shown if word in text]
        assert own, person
        for other in SECRETS.values():
            assert other == word or not any(other in text for text in own), (person, other)

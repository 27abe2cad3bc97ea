"""IRC: signing in, who is heard, what is said to whom, and what happens when the network behaves badly."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds import irc, kind_of
from pattern_core.sources.kinds.irc import NICKS_MAX, SAID_BYTES_MAX, IrcChannel, lower, parse_line, pieces
from pattern_core.sources.source import IS_UNCLEAR, Outgoing
from pattern_core.testing.irc_server import CAPS, PASSWORD, IrcServer
from pattern_core.testing.model import calls, says
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.enums import DeliveryStatus, PersonStatus
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import Account, Talking, follows, settings
from tests.support import PATIENCE_S, START, USER, Outside, last_words, running, until

ANNA = "anna!~anna@home.example.org"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"  # where servers are


def reach(port: int) -> SourceSettings:
    """Settings by which the stand-in may be reached, and has the password."""
    secrets = {"irc": SecretSource(value=Secret(PASSWORD)), "wrong": SecretSource(value=Secret("another"))}
    return replace(settings(), ports=(port,), services=(f"http://127.0.0.1:{port}",), secrets=secrets)


def config(port: int, **fields: Any) -> dict[str, Any]:
    """The configuration of an account."""
    return {"server": f"127.0.0.1:{port}", "nick": "ada", "tls": False, "rooms": ["#garden"], **fields}


def of(port: int, **fields: Any) -> Account:
    """An account at the stand-in."""
    checked = kind_of("irc").checked(config(port, **fields), reach(port))
    return Account(kind_of("irc"), SourceRow("src_1", "phone", "irc", checked, START, START), reach(port))


@asynccontextmanager
async def following(server: IrcServer | None = None, **fields: Any) -> AsyncIterator[tuple[IrcServer, Account]]:
    """An account that is listened to, in its room."""
    async with server or IrcServer() as there, trio.open_nursery() as nursery:
        account = of(there.port, **fields)
        nursery.start_soon(account.listens)
        await until(lambda: there.nick and len(there.rooms) == len(account.account.config["rooms"]))
        yield there, account
        nursery.cancel_scope.cancel()


@dataclass
class Chatting(Talking):
    """A running constellation with the channel `phone`, which is of a network."""

    server: IrcServer  # type: ignore[assignment]  # another service than the rig's


@asynccontextmanager
async def talking(*script: Any, server: IrcServer | None = None, **options: Any) -> AsyncIterator[Chatting]:
    """A constellation with a channel of the stand-in, followed as the server does."""
    options.setdefault("otherwise", says("Hello."))
    async with server or IrcServer() as there:
        options |= {"sources": reach(there.port), "clock": SystemClock()}
        async with running(script, **options) as world, trio.open_nursery() as nursery:
            await world.agent()
            await world.constellation.sources.create(name="phone", kind="irc", config=config(there.port), agent="ada")
            nursery.start_soon(follows, world)
            await until(lambda: there.rooms)
            yield Chatting(world, there)
            nursery.cancel_scope.cancel()


def test_lines_of_the_protocol() -> None:
    line = parse_line(b"@msgid=a;+x;account=anna :anna!~a@h PRIVMSG #garden :hi : there \xff\r\n")
    assert (line.command, line.params) == ("PRIVMSG", ["#garden", "hi : there �"])
    assert (line.sender, line.tags) == ("anna!~a@h", {"msgid": "a", "+x": "", "account": "anna"})
    for raw, command, params in (
        (b"PING :x", "PING", ["x"]),
        (b":server 001 ada  :Welcome", "001", ["ada", "Welcome"]),
        (b"join #a", "JOIN", ["#a"]),
        (b":x A :", "A", [""]),
        *((odd, "", []) for odd in (b"", b"@", b":", b"@a :b", b"\r")),
    ):
        assert (parse_line(raw).command, list(parse_line(raw).params)) == (command, params)
    assert lower("Ada[1]\\~") == "ada{1}|~"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=2_000))
def test_what_is_said_fits_into_messages_and_nothing_of_it_is_lost(text: str) -> None:
    found = list(pieces(text))
    assert all(0 < len(one.encode()) <= SAID_BYTES_MAX and one.strip() for one in found)
    assert not any(sign in one for one in found for sign in "\r\n\0")
    if text.isprintable():
        assert "".join("".join(found).split()) == "".join(text.split())


def test_a_long_line_is_cut_between_words() -> None:
    words = " ".join(["flower"] * 200)
    found = list(pieces(words))
    assert len(found) == 4 and " ".join(found) == words
    assert len(list(pieces("é" * 1000))) == 5


async def test_it_signs_in_before_it_joins() -> None:
    async with following(password="irc", user="ada") as (server, _account):
        commands = [line.split()[0] for line in server.heard]
        assert commands.index("AUTHENTICATE") < commands.index("JOIN")
        assert server.heard[3] == "CAP REQ :account-tag message-tags server-time sasl"


async def test_a_password_that_is_wrong_or_of_no_use_is_an_error_and_it_does_not_go_on_without() -> None:
    for caps, secret, why in (
        (CAPS, "wrong", "does not accept"),
        (("server-time",), "irc", "no SASL"),
        ((), "irc", "no SASL"),
    ):
        async with IrcServer(caps=caps) as server:
            with pytest.raises(PermissionDenied, match=why):
                await of(server.port, password=secret).once()
            assert not server.rooms


async def test_a_server_without_extensions_is_of_use() -> None:
    async with following(IrcServer(caps=())) as (server, account):
        await server.says("Hi", account="anna")
        await account.heard("Hi")
        assert account.events[0].author == ANNA


async def test_a_nick_in_use_gets_another_one() -> None:
    server = IrcServer()
    server.taken = {"ada"}
    async with following(server) as (_server, account):
        assert server.nick == "ada_"
        await server.says("ada: not me", room="#garden")
        await server.says("ada_: me", room="#garden")
        await account.heard("me")
    server = IrcServer()
    server.taken = {"ada" + "_" * count for count in range(NICKS_MAX + 1)}
    async with server:
        with pytest.raises(PermissionDenied, match="already in use"):
            await of(server.port).once()


async def test_what_is_for_the_agent_is_heard_and_nothing_else() -> None:
    async with following() as (server, account):
        for text, room in (
            ("hello all", "#garden"),
            ("adam: hi", "#garden"),
            ("I like ada", "#garden"),
            ("ada: one", "#garden"),
            ("@Ada, two", "#garden"),
            ("ADA three", "#garden"),
            ("ada:", "#garden"),
            ("\x01VERSION\x01", ""),
            ("\x02bold\x02 \x0304,12red\x03 \x1dwords\x0f", ""),
        ):
            await server.says(text, room=room)
        await server.puts(":bob!b@h NOTICE ada :I am away")
        await server.puts(":irc.example.org PRIVMSG ada :from a server")
        await server.puts(":a,b!b@h PRIVMSG ada :two people")
        await server.puts(":ada!b@h PRIVMSG ada :an echo")
        await server.puts(":bob!b@h PRIVMSG @#garden :ada: to operators")
        await server.says("last", tags="bot")
        await account.heard("one", "two", "three", "bold red words", "last")
        assert [one.is_bot for one in account.events] == [False] * 4 + [True]
        assert [(one.chat, one.room) for one in account.events[2:4]] == [("#garden", "#garden"), (f"anna {ANNA}", "")]


async def test_a_person_is_an_account_or_a_nick_at_a_host() -> None:
    async with following() as (server, account):
        await server.says("1", account="Anna")
        await server.says("2", nick="Anna_", account="Anna")
        await server.says("3")
        await server.says("4", host="elsewhere.example.org")
        await server.says("5", nick="bob", account="bad!name@x")
        await account.heard("1", "2", "3", "4", "5")
        wanted = ["anna", "anna", ANNA, ANNA.replace("home", "elsewhere"), "bob!~bob@home.example.org"]
        assert [one.author for one in account.events] == wanted


async def test_an_answer_goes_only_to_who_asked() -> None:
    """Case of a nick that someone else took: nothing of one person appears to another."""
    async with following() as (server, account):
        await server.says("Hi", account="anna")
        await account.heard("Hi")
        chat = account.events[0].chat or ""

        async def answer() -> None:
            await account.account.call(account.kind.send, chat, Outgoing(text="A secret"), "say_1")

        await answer()
        for person in (("~mallory", "elsewhere.example.org", ""), ("~anna", "home.example.org", "mallory"), None):
            server.people.pop("anna")
            server.people |= {"anna": person} if person else {}
            with pytest.raises(Unavailable, match="not there, or is someone else"):
                await answer()
            server.people.setdefault("anna", ("", "", ""))
        server.people["anna"] = ("~anna", "other.example.org", "ANNA")
        await answer()
        assert server.sent == [("anna", "A secret")] * 2


async def test_what_is_said_cannot_be_a_command() -> None:
    async with following() as (server, account):
        text = "one\r\nQUIT :bye\n\nJOIN #other\x00\rtwo :three"
        await account.account.call(account.kind.send, "#garden", Outgoing(text=text), "say_1")
        assert [target for target, _ in server.sent] == ["#garden"] * len(server.sent)
        assert server.texts[1:3] == ["QUIT :bye", "JOIN #other␀"]
        assert server.rooms == {"#garden"}


async def test_what_the_server_refuses_is_final_and_what_it_may_have_had_is_unclear() -> None:
    async with following() as (server, account):

        async def says_in(chat: str) -> None:
            await account.account.call(account.kind.send, chat, Outgoing(text="Hi"), "say_1")

        server.muted = {"#garden"}
        with pytest.raises(InvalidInput, match="Cannot send to channel") as refused:
            await says_in("#garden")
        assert refused.value.details[IS_FINAL]
        server.muted = set()
        await says_in("#garden")
        server.drops = 1
        with pytest.raises(Unavailable) as unclear:
            await says_in("#garden")
        assert unclear.value.details[IS_UNCLEAR]
        await says_in("#garden")  # it waits for the next connection
        assert len(server.sent) == 3 and server.begun == 2


async def test_without_a_connection_nothing_is_said() -> None:
    async with IrcServer() as server:
        account = of(server.port)
    quick = SourceSettings(timeout_s=0.1)
    with pytest.raises(Unavailable, match="no connection") as failed:
        await account.kind.send(
            type(account.account)(row=account.account.row, settings=quick, clock=account.account.clock),
            "#garden",
            Outgoing(text="Hi"),
            "say_1",
        )
    assert IS_UNCLEAR not in failed.value.details


async def test_a_flood_is_never_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pattern_core.testing.irc_server.PENALTY_S", 0.02)
    monkeypatch.setattr(irc, "EACH_S", 0.02)
    monkeypatch.setattr(irc, "BURST_S", 0.08)
    server = IrcServer()
    server.flood_s = 0.12
    async with following(server) as (_server, account), trio.open_nursery() as nursery:
        for at in range(10):
            said = Outgoing(text="\n".join(f"{at} {line}" for line in range(5)))
            nursery.start_soon(account.account.call, account.kind.send, "#garden", said, "say_1")
    assert len(server.sent) == 50 and server.begun == 1
    for at in range(10):  # no other stands between the lines of one
        place = server.texts.index(f"{at} 0")
        assert server.texts[place : place + 5] == [f"{at} {line}" for line in range(5)]


async def test_a_message_that_waits_for_its_turn_is_not_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irc, "EACH_S", 3600)
    monkeypatch.setattr(irc, "BURST_S", 3600)
    async with talking() as one:
        await one.lets_in(person=ANNA)
        await one.server.says("Hi")
        await one.sent(1)
        await one.server.says("Hi again")
        await until(lambda: len(one.world.provider.requests) == 2)
        while "chat:" not in (await one.deliveries())[0].target:
            await trio.sleep(0.01)
        await trio.sleep(0.2)  # until it would be sent
        waits = (await one.deliveries())[0]
        assert (waits.status, waits.unclear, waits.attempts) == (DeliveryStatus.PENDING, 0, 0)
        assert not one.world.constellation.outbox.is_idle


async def test_a_silent_connection_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irc, "SILENCE_S", 0.05)
    async with following() as (server, account):
        await trio.sleep(0.3)
        assert server.begun == 1  # it was asked, and answered
        server.deaf = 2
        await until(lambda: server.begun == 2)
        assert "does not answer" in account.failures[0].message


async def test_a_connection_that_lasted_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irc, "LASTED_S", 0.0)
    async with following() as (server, account):
        await server.breaks()
        await until(lambda: server.begun == 2 or account.failures)
        assert not account.failures


@pytest.mark.parametrize(
    ("line", "why"),
    [("ERROR :Closing link: [K-lined]", "K-lined"), ("x" * 40_000, "too long")],
)
async def test_a_server_that_throws_it_out_says_why(line: str, why: str) -> None:
    async with following() as (server, account):
        await server.puts(line)
        await until(lambda: account.failures)
        assert why in account.failures[0].message


async def test_odd_lines_end_nothing() -> None:
    async with following() as (server, account):
        for odd in (
            "",
            ":",
            "@",
            "PRIVMSG",
            ":a PRIVMSG",
            "PRIVMSG ada",
            ":a!b@c PRIVMSG ada :",
            "433",
            ":s 404 ada",
            "NICK",
            "PONG",
            "JOIN",
            ":s 311 ada",
        ):
            await server.puts(odd)
        await server.says("Hi")
        await account.heard("Hi")
        assert server.begun == 1


async def test_messages_wait_while_too_many_do_and_one_that_is_repeated_comes_once() -> None:
    async with following() as (server, account):
        account.refuses = 3
        server.repeats = 2
        for text in ("one", "two", "three"):
            await server.says(text)
        await account.heard("one", "two", "three")
        assert server.begun == 1


async def test_a_test_joins_the_rooms_and_says_which_it_may_not() -> None:
    async with IrcServer() as server:
        account = of(server.port, rooms=["#garden", "#Shed"])
        assert not (await account.account.call(account.kind.poll)).events
        server.closed = {"#Shed"}
        with pytest.raises(PermissionDenied, match=r"#shed cannot be joined: Cannot join channel"):
            await account.account.call(account.kind.poll)
        await until(lambda: server.nick == "")
    async with following() as (server, account):
        await account.account.call(account.kind.poll)
        assert server.begun == 1  # it is connected already


async def test_nothing_is_sent_to_a_server_that_is_not_encrypted() -> None:
    async with IrcServer() as server:
        fields = {**config(server.port), "tls": True}
        account = of(server.port)
        object.__setattr__(account.account.row, "config", {**account.account.config, **fields})
        with pytest.raises(Unavailable):
            await account.once()
        assert not any("NICK" in line for line in server.heard)


def test_configuration() -> None:
    kind, port = IrcChannel(), 6697
    found = kind.checked({"server": f"127.0.0.1:{port}", "nick": "ada"}, reach(port))
    assert found["tls"] is True and found["rooms"] == []
    for wrong, why in (
        ({"nick": "a b"}, "cannot be a nick"),
        ({"nick": "1a"}, "cannot be a nick"),
        ({"rooms": ["garden"]}, "is not a room"),
        ({"rooms": ["#a,#b"]}, "is not a room"),
        ({"rooms": ["#a\r\nQUIT"]}, "is not a room"),
        ({"rooms": [f"#{number}" for number in range(21)]}, "at most 20"),
        ({"server": "irc.example.org"}, "a host and a port"),
        ({"server": "https://irc.example.org:6697"}, "a host and a port"),
        ({"server": "irc.example.org:22"}, "port 22"),
        ({"server": "irc.example.org:6697", "password": "irc"}, "may not be sent a secret"),
        ({"server": "irc.example.org:6697", "password": "irc", "tls": False}, "only by an encrypted"),
    ):
        with pytest.raises(PatternError, match=why):
            kind.checked({**found, **wrong}, reach(port))


# With a constellation


async def test_a_stranger_gets_a_code_and_then_answers_in_a_session_of_their_own() -> None:
    async with talking() as one:
        await one.server.says("Hi")
        [words] = await one.sent(1)
        code = words.split("code is ")[1][:8]
        await one.channels.approve("phone", code, PersonStatus.ALLOWED, by="user:test")
        await one.server.says("Hi again")
        assert (await one.sent(2))[-1] == "Hello."
        await one.server.says("ada: hi", room="#garden")
        await one.idle()
        assert "#garden" not in [target for target, _ in one.server.sent]
        await one.lets_in(person="#garden")
        await one.server.says("ada: hi", nick="bob", room="#garden")
        await until(lambda: one.server.sent[-1] == ("#garden", "Hello."))
        sessions = {session for _, session in await one.turns()}
        assert len(sessions) == 2


async def test_a_partner_answers_a_question_by_a_word() -> None:
    outside = Outside()
    rule = [{"tool": "mail", "type": "requires_consent"}]
    async with talking(calls("mail", {"to": "bob"}), says("Done."), tools=outside.tools) as one:
        await one.world.constellation.roster.update("ada", {"tool_rules": rule})
        await one.lets_in(PersonStatus.PARTNER, "anna")
        await one.server.says("Write to Bob", account="anna")
        await until(lambda: any("Answer with: yes" in text for text in one.server.texts))
        number = one.server.texts[-1].split()[-1]
        assert outside.done == []
        await one.server.says(f"yes {number}")  # someone who is not signed in
        await one.server.says(f"ada: yes {number}", room="#garden", account="anna")
        await one.server.says("Yes apr_else", account="anna")
        await one.server.says(f"Yes {number}.", account="anna")
        await until(lambda: {"Done.", "Approved."} <= set(one.server.texts))
        assert outside.done == [("mail", "bob")]


async def test_a_hundred_messages_through_lost_connections_are_each_in_one_turn() -> None:
    server = IrcServer()
    server.replays = 100  # as a bouncer does
    async with talking(server=server) as one:
        for person in range(1, 6):
            await one.lets_in(person=f"p{person}!~p{person}@home.example.org")
        server.repeats = 20
        for at in range(100):
            await server.says(f"m{at % 5 + 1}-{at // 5}.", nick=f"p{at % 5 + 1}")
            if at % 10 == 9:
                await trio.sleep(0.05)
                await server.breaks()
        await until(lambda: sum(last_words(each).count(".") for each in one.world.provider.requests) >= 100)
        await one.idle()
        said = "\n".join(map(last_words, one.world.provider.requests))
        for person in range(1, 6):
            places = [said.index(f"m{person}-{at}.") for at in range(20)]
            assert places == sorted(places)
        assert all(said.count(f"m{at % 5 + 1}-{at // 5}.") == 1 for at in range(100))


# With ngircd


@asynccontextmanager
async def ngircd(folder: Path) -> AsyncIterator[int]:
    """A real server, and its port."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    options = "[Options]\nIdent = no\nPAM = no\nDNS = no\n"
    about = f"[Global]\nName = irc.example.org\nInfo = Test\nListen = 127.0.0.1\nPorts = {port}\n"
    (folder / "ngircd.conf").write_text(f"{about}MotdPhrase = Hi\n{options}[Channel]\nName = #garden\n")
    async with trio.open_nursery() as nursery:
        command = [str(which("ngircd", path=PATH)), "-n", "-f", str(folder / "ngircd.conf")]
        await nursery.start(partial(trio.run_process, command, capture_stdout=True))
        yield port
        nursery.cancel_scope.cancel()


class Person:
    """Someone on the network."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._heard = b""

    async def does(self, *lines: str) -> None:
        await self._stream.send_all("".join(f"{line}\r\n" for line in lines).encode())

    async def hears(self, words: bytes) -> str:
        """Wait until a line has these words; return it, and forget what came before."""
        with trio.fail_after(PATIENCE_S):
            while (found := re.search(rb"[^\n]*" + words + rb"[^\n]*\n", self._heard)) is None:
                self._heard += await self._stream.receive_some(4096)
        self._heard = self._heard[found.end() :]
        return found[0].decode()


@pytest.mark.skipif(which("ngircd", path=PATH) is None, reason="needs ngircd: apt-get install ngircd")
async def test_a_person_is_answered_on_a_real_server(tmp_path: Path) -> None:
    async with ngircd(tmp_path) as port, AsyncExitStack() as stack:
        while True:
            with suppress(OSError):
                anna = Person(await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port)))
                break
            await trio.sleep(0.02)
        await anna.does("NICK anna", "USER anna 0 * :Anna")
        await anna.hears(b" 001 anna ")
        options: dict[str, Any] = {"otherwise": says("Hello."), "sources": reach(port), "clock": SystemClock()}
        world = await stack.enter_async_context(running(**options))
        await world.agent()
        row = await world.constellation.sources.create(name="phone", kind="irc", config=config(port), agent="ada")
        world.nursery.start_soon(follows, world)
        await anna.does("JOIN #garden")
        await anna.hears(b"(:ada!.* JOIN| 353 .*ada)")
        await anna.does("PRIVMSG ada :Hi")
        code = (await anna.hears(b"code is")).split("code is ")[1][:8]
        await world.constellation.channels.approve(row.id, code, PersonStatus.ALLOWED, by=USER)
        await anna.does("PRIVMSG ada :Hi again")
        assert (await anna.hears(b"Hello")).endswith("PRIVMSG anna :Hello.\r\n")
        await world.constellation.channels.decide(row.id, "#garden", PersonStatus.ALLOWED, by=USER)
        await anna.does("PRIVMSG #garden :ada: and here?")
        assert (await anna.hears(b"Hello")).endswith("PRIVMSG #garden :Hello.\r\n")

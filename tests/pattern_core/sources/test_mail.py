"""Mail: who is believed, which conversation it is, what of a mail is said; nothing old comes, nothing comes twice."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.sources.kinds import mail as module
from pattern_core.sources.kinds.mail import MailChannel
from pattern_core.sources.source import IS_UNCLEAR, Arrivals, Outgoing, SourceAccount, SourceEvent
from pattern_core.testing.mail_server import AUTHORITY, PASSWORD, USER, MailServer
from pattern_core.testing.model import calls, says
from pattern_core.web.download import trusting as trusted
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.enums import PersonStatus
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import Talking, follows
from tests.pattern_core.web.certificate import CERTIFICATE, KEY
from tests.support import Outside, last_words, running, until

ANNA, BOB = "anna@example.org", "bob@example.net"
KIND = MailChannel()


@dataclass
class Writing(Talking):
    """A running constellation with the channel `phone`, which is an inbox."""

    server: MailServer  # type: ignore[assignment]  # another service than the rig's


def reach(server: MailServer, password: str = PASSWORD) -> SourceSettings:
    ports = (server.imap_port, server.smtp_port)
    secrets = {"mail": SecretSource(value=Secret(password))}
    services = tuple(f"https://127.0.0.1:{port}" for port in ports)
    return SourceSettings(ports=ports, allow_private=True, services=services, secrets=secrets, timeout_s=2.0)


def config(server: MailServer, **more: Any) -> dict[str, Any]:
    where = {"imap": f"127.0.0.1:{server.imap_port}", "smtp": f"127.0.0.1:{server.smtp_port}"}
    return {"address": USER, "user": USER, "password": "mail", "authserv_id": AUTHORITY, **where, **more}


def account(server: MailServer, cursor: Any = None, password: str = PASSWORD, **more: Any) -> SourceAccount:
    """An account that is stored nowhere."""
    row = SourceRow("src_1", "phone", "email", KIND.checked(config(server, **more), reach(server)), "", "")
    return SourceAccount(row=replace(row, sync_cursor=cursor), settings=reach(server, password), clock=SystemClock())


async def polls(server: MailServer, cursor: Any = None, **more: Any) -> Arrivals:
    return await account(server, cursor, **more).call(KIND.poll)


async def event_of(**mail: Any) -> SourceEvent:
    """The event of one mail."""
    async with MailServer() as server:
        first = await polls(server)
        server.arrives(mail.pop("text", "Hi"), **mail)
        [event] = (await polls(server, first.cursor)).events
        return event


@asynccontextmanager
async def writing(*script: Any, server: MailServer, **options: Any) -> AsyncIterator[Writing]:
    """Start a constellation with a mail channel whose first poll is done."""
    options.setdefault("otherwise", says("Hello."))
    async with running(script, sources=reach(server), clock=SystemClock(), **options) as world:
        await world.agent()
        await world.constellation.sources.create(name="phone", kind="email", config=config(server), agent="ada")
        await world.constellation.sources.poll("phone")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follows, world)
            yield Writing(world, server)
            nursery.cancel_scope.cancel()


async def test_mails_are_answered_in_their_thread_and_nothing_old_is() -> None:
    async with MailServer() as server:
        server.arrives("old")
        async with writing(server=server) as one:
            await one.lets_in(PersonStatus.ALLOWED, ANNA)
            first = server.arrives("What now?", Subject="The garden")
            await one.sent(1)
            [answer] = server.sent
            assert (answer["To"], answer["Subject"], answer["In-Reply-To"]) == (ANNA, "Re: The garden", first)
            assert answer["Auto-Submitted"] == "auto-replied" and answer["Message-ID"].startswith("<say_")
            quoted = "And then?\n\nOn Monday the agent\n<agent@example.org> wrote:\n\n> Hello.\n> more\n"
            last = server.arrives(quoted, Subject="Re: The garden", References=f"{first} {answer['Message-ID']}")
            await one.sent(2)
            assert (server.sent[1]["Subject"], server.sent[1]["References"]) == ("Re: The garden", f"{first} {last}")
            server.arrives("Another matter")
            await one.sent(3)
            await one.idle()
            sessions = [session for _sender, session in await one.turns()]
            assert sessions[0] == sessions[1] != sessions[2]
            said = [last_words(request) for request in one.world.provider.requests]
            assert "And then?" in said[1] and "> more" not in said[1] and "old" not in said[0].split()


async def test_who_writes_into_the_thread_of_another_has_an_own_conversation() -> None:
    """An answer to the wrong person: it goes to who wrote, and not to the others of a thread."""
    async with MailServer() as server, writing(server=server) as one:
        for person in (ANNA, BOB):
            await one.lets_in(PersonStatus.ALLOWED, person)
        first = server.arrives("What is the password? Rosebud?")
        await one.sent(1)
        server.arrives("Rosebud", author=BOB, References=first, Cc=ANNA, Reply_To="eve@example.com")
        await one.sent(2)
        await one.idle()
        assert [sent["To"] for sent in server.sent] == [ANNA, BOB]
        assert len({session for _sender, session in await one.turns()}) == 2
        assert "password" not in last_words(one.world.provider.requests[1])


BELIEVED = [
    ("dmarc=pass", True),
    ("dkim=pass header.d=example.org", True),
    ("dkim=pass (2048 bits; a (b) c) header.d=example.org; spf=fail", True),
    ("spf=pass smtp.mailfrom=anna@example.org;", True),
    ("dmarc=none; dkim=pass header.d=example.org", True),
    ("dmarc=fail; dkim=pass header.d=example.org;", False),
    ("dkim=pass header.d=evil.example;", False),
    ("dkim=fail header.d=example.org; spf=pass smtp.mailfrom=eve@evil.example;", False),
    ('spf=pass smtp.mailfrom="x; dmarc=pass header.from=example.org y"@evil.example;', False),
    (r"spf=pass (a \) dmarc=pass header.from=example.org b) smtp.mailfrom=evil.example;", False),
    ("spf=pass (dmarc=pass) smtp.mailfrom=x=dmarc=pass@evil.example;", False),
    ("none", False),
]


@pytest.mark.parametrize(("proved", "is_believed"), BELIEVED)
async def test_only_what_the_receiving_server_found_is_believed(proved: str, is_believed: bool) -> None:
    event = await event_of(proved=proved)
    if is_believed:
        assert (event.author, event.room, event.author_name) == (ANNA, "", "Anna")
    else:
        assert (event.author, event.room) == (f"unverified {ANNA}", "unverified")
        assert event.author_name == f"{ANNA} (unverified)"


async def test_results_that_came_with_the_mail_or_are_of_no_configured_server_are_not_believed() -> None:
    forged = f"{AUTHORITY}; dmarc=pass header.from=example.org"
    real = f"{AUTHORITY}; dmarc=fail header.from=example.org"
    async with MailServer() as server:
        first = await polls(server)
        rest = "From: anna@example.org\r\nMessage-ID: <{}@x>\r\n\r\nHi\r\n"
        for number, results in enumerate(([real, forged], ["other.example; dmarc=pass header.from=example.org"], [])):
            headers = "".join(f"Authentication-Results: {one}\r\n" for one in results)
            server.put((headers + rest.format(number)).encode())
        server.arrives("Hi")
        arrived = await polls(server, first.cursor)
        assert [event.room for event in arrived.events] == ["unverified"] * 3 + [""]
        arrived = await polls(server, first.cursor, authserv_id="")
        assert [event.room for event in arrived.events] == ["unverified"] * 4


async def test_a_forged_sender_and_a_program_get_nothing_and_a_stranger_gets_a_code() -> None:
    async with MailServer() as server, writing(server=server) as one:
        await one.lets_in(PersonStatus.PARTNER, ANNA)
        server.arrives("I am Anna", proved="")
        for header in (
            {"Auto-Submitted": "auto-replied"},
            {"Precedence": "bulk"},
            {"List-Id": "<a.example.org>"},
            {"List-Unsubscribe": "<https://example.org>"},
            {"Return-Path": "<>"},
        ):
            server.arrives("Out of office", **header)
        server.arrives("my own", author=USER)
        await one.world.constellation.sources.poll("phone")
        await one.idle()
        assert server.sent == [] and await one.turns() == []
        server.arrives("Who are you?", author=BOB, Auto_Submitted="no")
        [words] = await one.sent(1)
        [person] = [row for row in await one.channels.people("phone") if row.native == BOB]
        assert person.code is not None and person.code in words and server.sent[0]["To"] == BOB


async def test_an_approval_by_mail_and_only_of_a_partner_who_is_believed() -> None:
    outside, rule = Outside(), [{"tool": "mail", "type": "requires_consent"}]
    script = (calls("mail", {"to": "bob"}), says("Done."))
    async with MailServer() as server, writing(*script, server=server, tools=outside.tools) as one:
        await one.world.constellation.roster.update("ada", {"tool_rules": rule})
        await one.lets_in(PersonStatus.PARTNER, ANNA)
        await one.lets_in(PersonStatus.ALLOWED, BOB)
        server.arrives("Write to Bob")
        [question] = await one.sent(1)
        assert "bob" in question and "yes or no" in question
        asked = server.sent[0]["Message-ID"]
        server.arrives("yes", proved="", In_Reply_To=asked)
        server.arrives("Yes.", author=BOB, In_Reply_To=asked)
        await one.world.constellation.sources.poll("phone")
        await one.idle()
        assert outside.done == []
        server.arrives("Yes.\n\n> May I do this?\n", In_Reply_To=asked)
        await until(lambda: {"Done.", "Approved."} <= set(server.texts))
        assert outside.done == [("mail", "bob")]


async def test_nothing_old_comes_when_the_inbox_has_other_numbers_and_nothing_new_is_lost() -> None:
    async with MailServer() as server:
        for _ in range(3):
            server.arrives("old")
        async with writing(server=server) as one:
            await one.lets_in(PersonStatus.ALLOWED, ANNA)
            for text in ("one", "two"):
                server.arrives(text)
            await one.sent(2)
            server.renumbers()
            server.arrives("three")
            await one.sent(3)
            server.repeats = 2
            server.arrives("four")
            await one.sent(4)
            await one.idle()
            assert len(await one.turns()) == 4


async def test_more_than_a_poll_holds_comes_in_its_order() -> None:
    async with MailServer() as server:
        server.arrives("old")
        first = await polls(server)
        assert [event.is_old for event in first.events] == [True]
        for number in range(50):
            server.arrives(str(number))
        events: list[SourceEvent] = []
        cursor = first.cursor
        for wait_s in (0.0, 0.0, 60.0):
            arrived = await polls(server, cursor)
            assert arrived.wait_s == wait_s
            events, cursor = [*events, *arrived.events], arrived.cursor
        assert [event.text for event in events] == [str(number) for number in range(50)]
        assert (await polls(server, cursor)).events == []


async def test_mails_that_cannot_be_read_stop_no_other() -> None:
    async with MailServer() as server:
        first = await polls(server)
        deep = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n) for n in range(3000))
        for mail in (
            b"",
            b"\0\0\xff",
            b"From: a@b\r\nFrom: c@d\r\n\r\nx",
            b"From: <>\r\n\r\nx",
            b"From: a@b, c@d\r\n\r\nx",
            b'From: "a b"@example.org\r\n\r\nx',
            b"From: =?utf-8?q?a=0d=0aTo:x?= <a\r\n b@example.org>\r\n\r\nx",
            b"From: anna@example.org\r\n" + deep,
            b"From: anna@example.org\r\nContent-Type: text/plain; charset=nonsense\r\n\r\n\xff\0",
            b"From: anna@example.org\r\nContent-Type: text/plain; charset=utf-16\r\n\r\n\xff",
        ):
            server.put(mail)
        server.arrives("\x1b[31mred \0", Subject="A\x1b subject")
        arrived = await polls(server, first.cursor)
        assert arrived.events[-1].text.endswith("red \0") and "\x1b" not in arrived.events[-1].title
        assert len([event.bounded for event in arrived.events]) <= 5


async def test_the_words_of_html_and_the_names_of_attachments_and_of_a_long_mail_its_beginning() -> None:
    async with MailServer() as server:
        first = await polls(server)
        html = b"From: a@example.org\r\nMIME-Version: 1.0\r\nContent-Type: text/html\r\n\r\n<p>Hi</p><script>x</script>"
        parts = (
            b"From: a@example.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n"
            b"--b\r\n\r\nSee this\r\n--b\r\nContent-Disposition: attachment; filename=plan.pdf\r\n"
            b"Content-Transfer-Encoding: base64\r\n\r\nQUJD\r\n--b--\r\n"
        )
        long = b"From: a@example.org\r\n\r\n" + b"word " * 2_000_000
        for mail in (html, parts, long):
            server.put(mail)
        found = [event.bounded for event in (await polls(server, first.cursor)).events]
        said = [event.text for event in found]
        assert said[:2] == ["Hi", "See this"]
        [file] = found[1].files
        assert file.name == "plan.pdf" and await account(server).call(KIND.download, file.ref) == b"ABC"
        server.renumbers()
        with pytest.raises(InvalidInput, match="another number"):
            await account(server).call(KIND.download, file.ref)
        assert len(said[2]) < 50_000 and "more characters were left out" in said[2]


async def test_a_file_is_sent_in_a_mail_of_its_thread() -> None:
    async with MailServer() as server:
        said = Outgoing(text="", reply_to="x <m1@example.org> Plan", file="papers/plan ö.txt")
        await account(server).call(KIND.send_file, f"{ANNA} <m1@example.org>", said, b"\0abc", "say_1")
        [mail] = server.sent
        [part] = mail.iter_attachments()
        assert (part.get_filename(), part.get_payload(decode=True)) == ("plan ö.txt", b"\0abc")
        assert mail["References"] == "<m1@example.org>"


OUTCOMES = [
    ("drops", True, False),
    (550, False, True),
    (451, False, False),
    (-451, False, False),
    (-554, False, True),
]


@pytest.mark.parametrize(("fault", "is_unclear", "is_final"), OUTCOMES)
async def test_whether_a_mail_was_sent_is_known_unless_the_connection_broke(
    fault: str | int, is_unclear: bool, is_final: bool
) -> None:
    async with MailServer() as server:
        if fault == "drops":
            server.drops = 1
        else:
            server.refuses = int(fault)
        with pytest.raises(PatternError) as caught:
            await KIND.send(account(server), f"{ANNA} <m1@x>", Outgoing(text="Hi"), "say_1")
        assert bool(caught.value.details.get(IS_UNCLEAR)) is is_unclear
        assert bool(caught.value.details.get("is_final")) is is_final


async def test_long_names_of_mails_are_sent_as_they_are() -> None:
    name = f"<{'a' * 200}@example.org>"
    async with MailServer() as server:
        first = await polls(server)
        server.arrives("Hi", Message_ID=name, Subject="Grüße aus dem Garten " * 5, References="<root@x>")
        [event] = (await polls(server, first.cursor)).events
        said = Outgoing(text=". a dot\n.\nGrüße", reply_to=event.native, approval="appr_1")
        await KIND.send(account(server), str(event.chat), said, "say_1")
        [sent] = server.sent
        assert (sent["In-Reply-To"], sent["References"]) == (name, f"<root@x> {name}")
        assert sent["Message-ID"] == "<say_1.appr_1.ask@example.org>" and "Garten" in sent["Subject"]
        assert sent.get_content().replace("\r\n", "\n").startswith(". a dot\n.\nGrüße\n")


async def test_the_password_is_shown_nowhere_and_silence_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MailServer() as server:
        with pytest.raises(PermissionDenied, match="is the password right") as wrong:
            await polls(server, password="another password")
        assert "another password" not in str(wrong.value)
        for password in ("line\nbreak", "caf\u00e9"):
            with pytest.raises(InvalidInput, match="set another one"):
                await polls(server, password=password)
        server.silent = True
        monkeypatch.setattr(module, "LIMIT_S", 0.3)
        with pytest.raises(Unavailable, match="was not done within"):
            await polls(server)


@asynccontextmanager
async def listening(server: MailServer, *, then: Callable[[], object] = lambda: None) -> AsyncIterator[list[Any]]:
    """Listen at an inbox, and do something when its place is stored; yield the texts of the mails that came, at last
    the seconds until the next connection.
    """
    found: list[Any] = []

    async def receive(arrived: Arrivals) -> None:
        if arrived.events or not found:
            found.extend([event.text for event in arrived.events])
        if server.asked == 1:
            then()

    async def listens() -> None:
        found.append(await account(server).call(KIND.listen, receive))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listens)
        yield found
        nursery.cancel_scope.cancel()
        nursery.cancel_scope.deadline = trio.current_time()
    with trio.fail_at(nursery.cancel_scope.deadline + 5):  # a server has 20 to answer
        await until(lambda: not module.threads().borrowed_tokens)


async def test_a_mail_is_there_within_two_seconds_and_no_thread_waits_for_it() -> None:
    async with MailServer() as server:
        async with listening(server) as found:
            waits = list[float]()
            for number in range(3):
                await until(lambda: server.waiting and not module.threads().borrowed_tokens)
                server.arrives(f"mail {number}")
                began = trio.current_time()
                await until(lambda: len(found) > len(waits))
                waits.append(trio.current_time() - began)
            assert min(waits) < 2  # the others, when the machine has something else to do
            await until(lambda: server.waiting)
            assert server.asked == 4
            server.says("* OK Still here")
            await until(lambda: server.asked == 5 and server.waiting)
            assert found == ["mail 0", "mail 1", "mail 2"]
        await until(lambda: not server.waiting)


async def test_a_mail_that_comes_before_the_server_would_notify_is_there_too() -> None:
    async with MailServer() as server, listening(server, then=lambda: server.arrives("early")) as found:
        await until(lambda: found == ["early"])


async def test_a_connection_that_broke_or_is_silent_loses_no_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    async with MailServer() as server:
        async with listening(server) as found:
            await until(lambda: server.waiting)
            server.says(None)
            await until(lambda: found)
            assert 50 < found[0] <= 60
        server.asked = 0
        async with listening(server, then=lambda: setattr(server, "notifying", False)) as found:
            await until(lambda: found)
            assert 50 < found[0] < 60
        async with listening(server) as found:  # it cannot notify
            await until(lambda: found)
            assert found == [60.0]
        server.notifying = True
        monkeypatch.setattr(module, "IDLE_S", 0.1)
        async with listening(server):
            await until(lambda: server.asked > 5)
        server.silent = True
        async with listening(server) as found:
            await until(lambda: module.threads().borrowed_tokens)


async def test_a_server_that_is_not_encrypted_or_is_another_gets_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with MailServer() as server:
        monkeypatch.setattr(module, "IMPLICIT_TLS", (server.imap_port,))
        with pytest.raises(Unavailable, match="cannot be used"):
            await polls(server)
        assert server.asked == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = trio.Path(tmp_path / "certificate.pem")
    await file.write_text(CERTIFICATE + KEY)
    context.load_cert_chain(str(file))
    async with MailServer(context) as server:
        monkeypatch.setattr(module, "IMPLICIT_TLS", (server.imap_port, server.smtp_port))
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await polls(server)
        trusting = ssl.create_default_context(cadata=CERTIFICATE)
        other = encrypted(server, "example.com", trusting)
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await other.run(lambda: module._Imap(other))
        other.close()
        assert server.asked == 0
        line = encrypted(server, "example.org", trusting)
        imap = await line.run(lambda: module._Imap(line))
        await line.run(imap.open_inbox)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(imap.until_changed)
                await until(lambda: server.waiting)
                server.arrives("Hi")
        line.close()
        assert server.asked == 1
        assert not line.needs_tls and PASSWORD not in repr(line)
        monkeypatch.setattr(module, "IMPLICIT_TLS", ())
        assert [replace(line, address=one).needs_tls for one in ("127.0.0.1", "192.0.2.1")] == [False, True]
    assert trusted().verify_mode is ssl.CERT_REQUIRED and trusted().check_hostname


def encrypted(server: MailServer, host: str, tls: ssl.SSLContext) -> module._Line:
    """A connection to the server, which should be called `host`."""
    sock = socket.create_connection(("127.0.0.1", server.imap_port), 5)
    return module._Line(host, server.imap_port, "127.0.0.1", USER, PASSWORD, sock, tls)


async def test_a_configuration_that_cannot_be_is_refused() -> None:
    server = MailServer()
    server.imap_port, server.smtp_port = 993, 465
    for wrong in (
        {"address": "a b@c"},
        {"address": "a..b@c"},
        {"user": "caf\u00e9"},
        {"imap": "example.org"},
        {"smtp": "example.org:x"},
        {"other": 1},
    ):
        with pytest.raises(InvalidInput):
            KIND.checked(config(server, **wrong), reach(server))
    with pytest.raises(PermissionDenied):
        KIND.checked(config(server), SourceSettings())

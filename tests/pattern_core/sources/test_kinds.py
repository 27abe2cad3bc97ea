"""Files, feeds and webhooks of other services: what changed becomes an event, once, and nothing else gets in."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from pathlib import Path
from typing import Any

import pytest

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied
from pattern_core.sources.kinds import SOURCES, kind_of
from pattern_core.sources.kinds.file import FILES_MAX
from pattern_core.sources.kinds.rss import read_feed
from pattern_core.sources.kinds.telegram import TelegramChannel
from pattern_core.sources.kinds.webhook import WINDOW_S
from pattern_core.sources.source import IS_UNCLEAR, Arrivals, Outgoing, SourceAccount
from pattern_core.testing import StoppedClock
from pattern_core.testing.channels import FeedServer
from pattern_core.testing.wire import Play, WireServer, document
from pattern_core.web.download import Download
from pattern_core.web.policy import SourceSettings
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import settings
from tests.support import START

RSS = """<?xml version="1.0"?><rss version="2.0"><channel><title>News</title>{}</channel></rss>"""
ITEM = "<item><guid>{0}</guid><title>Item {0}</title><link>https://example.org/{0}</link><description>Text</description></item>"


def account(kind: str, config: dict[str, Any], reach: SourceSettings) -> SourceAccount:
    """An account as it is when it was created."""
    row = SourceRow("src_1", "it", kind, kind_of(kind).checked(config, reach), START, START)
    return SourceAccount(row=row, settings=reach, clock=StoppedClock())


async def asked(one: SourceAccount) -> tuple[Arrivals, SourceAccount]:
    """What is new, and the account with the new cursor."""
    arrived = await one.call(kind_of(one.row.source_type).poll)
    row = SourceRow("src_1", "it", one.row.source_type, one.config, START, START, sync_cursor=arrived.cursor)
    return arrived, SourceAccount(row=row, settings=one.settings, clock=one.clock)


def feed(*ids: int) -> bytes:
    """A feed with these items, the newest first."""
    return RSS.format("".join(ITEM.format(number) for number in ids)).encode()


def test_every_kind_can_be_made() -> None:
    assert all(kind_of(name).fields for name in SOURCES)


async def test_hand_edits_of_files_are_seen_as_differences(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("one\ntwo\n")
    (notes / "b.bin").write_bytes(b"\xff\x00" * 10)
    reach = SourceSettings(roots=(tmp_path,))
    arrived, one = await asked(account("file", {"directory": str(notes)}, reach))
    assert arrived.events == [] and arrived.wait_s == 10.0
    (notes / "a.md").write_text("one\nthree\n")
    (notes / "c.md").write_text("new\n")
    (notes / "b.bin").unlink()
    arrived, one = await asked(one)
    assert [event.title for event in arrived.events] == ["a.md was changed", "c.md was added", "b.bin was deleted"]
    assert "-two\n+three" in arrived.events[0].text
    natives = {event.native for event in arrived.events}
    (notes / "a.md").write_text("one\ntwo\n")  # back again: another event
    os.utime(notes / "a.md", ns=(1, 1))
    arrived, one = await asked(one)
    assert [event.title for event in arrived.events] == ["a.md was changed"]
    assert not {event.native for event in arrived.events} & natives
    assert (await asked(one))[0].events == []


async def test_only_files_below_a_permitted_root_are_watched(tmp_path: Path) -> None:
    """Case 162: nothing outside is read, also not by a link."""
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    for config, reach in (
        ({"directory": str(inside)}, SourceSettings()),
        ({"directory": str(outside)}, SourceSettings(roots=(inside,))),
        ({"directory": f"{inside}/../out"}, SourceSettings(roots=(inside,))),
        ({"directory": str(inside)}, SourceSettings(roots=(tmp_path,), kept_out=(inside,))),
        ({"directory": str(inside), "every_s": 0.1}, SourceSettings(roots=(inside,))),
        ({"directory": str(inside), "colour": "red"}, SourceSettings(roots=(inside,))),
        ({"directory": str(inside), "pattern": 3}, SourceSettings(roots=(inside,))),
        ({}, SourceSettings(roots=(inside,))),
    ):
        with pytest.raises(PatternError):
            account("file", config, reach)
    _, one = await asked(account("file", {"directory": str(inside)}, SourceSettings(roots=(inside,))))
    (inside / "link.txt").symlink_to(outside / "secret.txt")
    assert (await asked(one))[0].events == []
    for number in range(FILES_MAX + 1):
        (inside / f"{number}.txt").touch()
    with pytest.raises(InvalidInput, match="narrower pattern"):
        await asked(one)


async def test_a_feed_is_asked_only_for_what_changed_and_each_entry_comes_once() -> None:
    async with FeedServer(feed(2, 1)) as server:
        config = {"url": f"http://127.0.0.1:{server.port}/feed", "first": 1}
        arrived, one = await asked(account("rss", config, settings(server)))
        assert [(event.native, event.is_old) for event in arrived.events] == [("1", True), ("2", False)]
        arrived, one = await asked(one)
        assert not arrived.events and server.requests[-1].headers["if-none-match"]
        server.body = feed(3, 2, 1)
        arrived, one = await asked(one)
        assert [event.native for event in arrived.events if not event.is_old] == ["1", "2", "3"]
        server.moved_to = "/new"
        server.body = feed(4)
        arrived, one = await asked(one)
        assert [event.native for event in arrived.events] == ["4"]
        await asked(one)
        assert [request.path for request in server.requests[-2:]] == ["/new", "/new"]
        server.status = 410
        server.body = b""
        with pytest.raises(NotFound):
            await asked(one)


ATOM = b"""<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>urn:1</id><title type="html">A &amp;amp; B</title>
<link rel="self" href="https://example.org/self"/><link href="https://example.org/1"/>
<author><name>Anna</name></author>
<content type="html">&lt;p&gt;One&lt;/p&gt;&lt;script&gt;x()&lt;/script&gt;&lt;p&gt;Two&lt;/p&gt;</content>
</entry></feed>"""
JSON = b'{"items": [{"id": 7, "url": "https://example.org/7", "title": "Seven", "content_html": "<b>Hi</b>"}, 3]}'


@pytest.mark.parametrize(
    ("body", "native", "title", "link", "text"),
    [
        (ATOM, "urn:1", "A & B", "https://example.org/1", "One\n\nTwo"),
        (JSON, "7", "Seven", "https://example.org/7", "Hi"),
        (feed(5).replace(b"Text", b"caf&eacute;"), "5", "Item 5", "https://example.org/5", "café"),
        (feed(5).replace(b"<guid>5</guid>", b""), "https://example.org/5", "Item 5", "https://example.org/5", "Text"),
    ],
)
def test_formats_of_feeds(body: bytes, native: str, title: str, link: str, text: str) -> None:
    [entry] = read_feed(Download(url="https://example.org/", status=200, body=body))
    assert (entry["native"], entry["title"], entry["link"], entry["text"]) == (native, title, link, text)


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE rss [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><rss>&b;</rss>',
        b'<!DOCTYPE rss [<!ENTITY a SYSTEM "file:///etc/passwd">]><rss>&a;</rss>',
        b"<html><body>Sign in</body></html>",
        b"",
        b"\x00\xff",
        b'{"items": 3}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_a_feed_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a feed"):
        read_feed(Download(url="https://example.org/", status=200, body=body))


async def test_a_feed_on_a_private_address_is_refused() -> None:
    async with FeedServer(feed(1)) as server:
        url = f"http://127.0.0.1:{server.port}/"
        one = account("rss", {"url": url}, settings(server, allow_private=False))
        with pytest.raises(PermissionDenied):
            await asked(one)
    with pytest.raises(InvalidInput, match="every_s"):
        account("rss", {"url": "https://example.org/", "every_s": 1}, settings())


def test_a_token_is_sent_only_where_the_operator_says() -> None:
    for url in ("https://thief.example.org", "https://api.telegram.org.example.org", "http://api.telegram.org"):
        with pytest.raises(PermissionDenied, match="may not be sent a secret"):
            account("telegram", {"token": "bot", "base_url": url}, settings())
    account("telegram", {"token": "bot"}, settings(ports=(80, 443)))


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("bluesky", {"handle": "a.example.org", "password": "bot", "base_url": "https://thief.example.org"}),
        ("slack", {"token": "bot", "app_token": "bot", "base_url": "https://thief.example.org"}),
        ("matrix", {"token": "bot", "homeserver": "https://thief.example.org"}),
        (
            "email",
            {"address": "a@b.org", "user": "a", "password": "bot", "imap": "thief.org:443", "smtp": "thief.org:443"},
        ),
    ],
)
def test_no_kind_sends_a_secret_elsewhere(kind: str, config: dict[str, Any]) -> None:
    with pytest.raises(PermissionDenied, match="may not be sent a secret"):
        account(kind, config, settings(ports=(443,)))


async def test_an_answer_that_cannot_be_read_leaves_it_open_whether_something_was_sent() -> None:
    class Odd(TelegramChannel):
        async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
            raise KeyError("message_id")

    one = account("telegram", {"token": "bot"}, settings(ports=(443,)))
    with pytest.raises(InvalidInput, match="cannot be read: KeyError") as caught:
        await one.call(Odd().send, "1", Outgoing(text="Hi"), "say_1")
    assert caught.value.details[IS_UNCLEAR] is True


async def test_what_a_service_sends_beside_its_protocol_is_an_error_of_it_alone() -> None:
    for answer in (
        document({"ok": True, "result": [{"no": "id"}]}),
        document([]),
        Play(chunks=(b"<html>",)),
        Play(chunks=(b"[" * 200_000,)),
    ):
        async with WireServer(otherwise=answer) as server:
            one = account("telegram", {"token": "bot", "base_url": server.url}, settings(server))
            with pytest.raises(PatternError) as caught:
                await asked(one)
            assert "12345:" not in caught.value.message  # the token, which is in the address


BODY = b'{"action": "opened", "repository": {"full_name": "anna/garden"}}'


def signed(kind: str, at: int, body: bytes = BODY) -> dict[str, str]:
    """Headers by which a service proves itself, by hashlib alone."""
    if kind == "github":
        made = hmac.new(b"a secret", body, hashlib.sha256).hexdigest()
        return {"x-hub-signature-256": f"sha256={made}", "x-github-event": "issues", "x-github-delivery": "1"}
    if kind == "token":
        return {"authorization": "Bearer a secret", "idempotency-key": "1"}
    made_ = hmac.new(b"a secret", f"msg_1.{at}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(made_).decode()}"
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": f"v1,AAAA {signature}"}


@pytest.mark.parametrize("kind", ["standard", "github", "token"])
async def test_a_call_proves_that_it_is_from_its_service(kind: str) -> None:
    config = {"secret": "hook", "signature": kind, "title": "repository.full_name"}
    one, hook = account("webhook", config, settings()), kind_of("webhook")
    now = one.clock.now_ms() // 1000
    event = await hook.called(one, signed(kind, now), BODY)
    assert "anna/garden" in event.title and '"opened"' in event.text
    # What is sent again is the same event, also under another id that nothing proves.
    again = {**signed(kind, now), **({"x-github-delivery": "2"} if kind == "github" else {})}
    assert (await hook.called(one, again, BODY)).native == event.native
    for headers, body in (
        ({}, BODY),
        ({name: value.replace("a", "b") for name, value in signed(kind, now).items()}, BODY),
        (signed(kind, now), BODY + b" ") if kind != "token" else ({"x-token": ""}, BODY),
        (signed(kind, now - WINDOW_S - 1) if kind == "standard" else {}, BODY),
    ):
        with pytest.raises(PermissionDenied):
            await hook.called(one, headers, body)


async def test_a_call_that_is_too_long_or_no_json_is_handled() -> None:
    one, hook = account("webhook", {"secret": "hook", "signature": "token"}, settings()), kind_of("webhook")
    assert (await hook.called(one, {"x-token": "a secret"}, b"plain \xff words")).text == "plain \ufffd words"
    with pytest.raises(InvalidInput, match="bytes"):
        await hook.called(one, {"x-token": "a secret"}, b"x" * 300_000)
    with pytest.raises(InvalidInput, match="signature"):
        account("webhook", {"secret": "hook", "signature": "none"}, settings())

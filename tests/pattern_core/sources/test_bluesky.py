"""Bluesky: what is heard, in which thread; answers are in their thread, each once, whatever fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds import bluesky
from pattern_core.sources.kinds.bluesky import ROOM, BlueskyChannel, record_key
from pattern_core.sources.kinds.bluesky_posts import is_one_of, mentions, passes
from pattern_core.sources.source import IS_UNCLEAR, Arrivals, Outgoing, SourceAccount
from pattern_core.testing.bluesky_server import HANDLE, ME, PASSWORD, TID, BlueskyServer
from pattern_core.testing.model import says
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.enums import PersonStatus
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import follows
from tests.support import USER, Running, rows, running, until

SEND_ID = "say_0000000000000065536"
NO_FILTERS: dict[str, Any] = {
    **dict.fromkeys(("friends", "authors", "exclude_authors", "words", "exclude_words", "languages"), ()),
    "mentions_only": False,
}


def settings(url: str, **fields: Any) -> SourceSettings:
    """Settings by which a server on loopback may be reached."""
    secrets = {"app": SecretSource(value=Secret(PASSWORD)), "wrong": SecretSource(value=Secret("a-wrong-password"))}
    port = int(url.rpartition(":")[2])
    reach = {"ports": (port,), "allow_private": True, "services": (url,), "timeout_s": 2.0}
    return SourceSettings(**{**reach, "secrets": secrets, **fields})


class Asking:
    """An account without a constellation: what it returned is its cursor the next time."""

    def __init__(self, server: BlueskyServer, **config: Any) -> None:
        self.kind = BlueskyChannel()
        reach = settings(server.url)
        given = {"handle": HANDLE, "password": "app", "base_url": server.url, **config}
        row = SourceRow("src_sky", "sky", "bluesky", self.kind.checked(given, reach), "", "")
        self.account = SourceAccount(row=row, settings=reach, clock=SystemClock())

    async def poll(self) -> Arrivals:
        """Ask, and keep the cursor as the database would."""
        arrived = await self.account.call(self.kind.poll)
        cursor = json.loads(json.dumps(dict(arrived.cursor)))
        self.account = replace(self.account, row=replace(self.account.row, sync_cursor=cursor))
        return arrived

    async def texts(self) -> list[str]:
        """Ask, and return the words of what is new."""
        return [event.text for event in (await self.poll()).events]

    async def send(self, uri: str, text: str, send_id: str = SEND_ID) -> None:
        await self.account.call(self.kind.send, uri, Outgoing(text=text, reply_to=uri), send_id)


@asynccontextmanager
async def asking(**config: Any) -> AsyncIterator[tuple[BlueskyServer, Asking]]:
    """A server, and an account that has looked once."""
    async with BlueskyServer() as server:
        one = Asking(server, **config)
        await one.poll()
        yield server, one


@asynccontextmanager
async def talking(url: str, *, is_new: bool = True, **options: Any) -> AsyncIterator[Running]:
    """A constellation with an account that is asked all the time, and lets everyone in."""
    options.setdefault("otherwise", says("Hello."))
    async with running((), sources=settings(url), clock=SystemClock(), **options) as world:
        if is_new:
            await world.agent()
            config = {"handle": HANDLE, "password": "app", "base_url": url}
            await world.constellation.sources.create(name="sky", kind="bluesky", config=config, agent="ada")
            await world.constellation.channels.decide("sky", ROOM, PersonStatus.ALLOWED, by=USER)
            await world.constellation.sources.poll("sky")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follows, world, "sky")
            yield world
            nursery.cancel_scope.cancel()


# What is heard


async def test_a_mention_an_answer_and_a_quote_are_heard_once_and_what_was_there_before_is_not() -> None:
    async with BlueskyServer() as server:
        server.says("from before")
        one = Asking(server)
        assert await one.texts() == []
        first = server.says("@bot.example hi")
        server.says("only liked", reason="like")
        server.says("look at this", reason="quote", author="bert")
        found = (await one.poll()).events
        assert [event.text for event in found] == ["@bot.example hi", "look at this"]
        assert (found[0].native, found[0].chat, found[0].room) == (first, first, ROOM)
        assert (found[0].author, found[0].author_name) == ("did:plc:anna", "Anna (@anna.example)")
        assert found[0].is_addressed and not found[0].is_bot
        before = one.account.cursor
        assert await one.texts() == [] and one.account.cursor == before  # an idle poll wakes no constellation
        server.reorders = True
        server.says("late", late_s=1800)  # its author's clock is slow
        server.says("newest")
        assert await one.texts() == ["late", "newest"]


async def test_after_a_long_pause_all_are_read_in_order_some_at_a_time() -> None:
    async with asking() as (server, one):
        wanted = [server.says(f"number {number}") and f"number {number}" for number in range(230)]
        found = list[str]()
        while (arrived := await one.poll()).events:
            assert len(arrived.events) <= 25
            found += [event.text for event in arrived.events]
        assert found == wanted
        assert server.sign_ins == 1


async def test_unreadable_notifications_stop_no_other() -> None:
    async with asking() as (server, one):
        good = server.notifications
        server.says("before")
        for broken in (
            None,
            7,
            {},
            {"indexedAt": "9999-99-99", "uri": "at://x", "reason": "mention"},
            {**good[0], "uri": 5},
            {**good[0], "uri": "at://a", "author": None},
            {**good[0], "uri": "at://b", "author": {"did": 1, "handle": []}},
            {**good[0], "uri": "at://c", "record": "text"},
            {
                **good[0],
                "uri": "at://d",
                "record": {"text": 5, "facets": [3, {"features": 9}], "reply": {"parent": "x"}},
            },
            {**good[0], "uri": "at://e", "indexedAt": "2200-01-01T00:00:00Z"},  # no one lives then
            {**good[0], "uri": "at://" + "x" * 100_000},
        ):
            server.notifications.append(broken)
        server.says("after \x00\x1b[31m\ud800".encode("utf-8", "replace").decode())
        assert len(await one.texts()) == 2
        server.says("later")
        assert await one.texts() == ["later"]


async def test_a_very_long_thread_is_an_event_without_it_and_only_if_no_one_is_excluded() -> None:
    async with asking() as (server, one):
        top = server.says("x", reason="")
        server.posts[top]["record"]["text"] = "y" * 10_000_000
        server.says("what is this?", to=top)
        [event] = (await one.poll()).events
        assert event.text == "what is this?" and event.chat == event.native
    async with asking(exclude_words=["z"]) as (server, one):
        for server.broken_status in (403, 500):
            server.broken = 2
            server.says("one")
            assert await one.texts() == []  # the service cannot show its thread, so it is not known who is in it
        server.says("two")
        server.broken = 0
        assert await one.texts() == ["two"]


@pytest.mark.parametrize(
    ("config", "author", "record", "is_heard"),
    [
        ({}, "anna", {}, True),
        ({"friends": ["anna.example"], "exclude_authors": ["did:plc:anna"]}, "anna", {}, False),
        ({"friends": ["@anna.example"], "exclude_words": ["SPAM"]}, "anna", {"text": "spam!"}, False),
        ({"friends": ["did:plc:anna"], "mentions_only": True}, "anna", {}, True),
        ({"mentions_only": True}, "anna", {"text": f"@{HANDLE} {ME}"}, False),
        ({"authors": ["bert.example"]}, "anna", {}, False),
        ({"authors": ["bert.example"], "friends": ["anna.example"]}, "anna", {}, True),
        ({"authors": ["ANNA.example"], "words": ["storm"]}, "anna", {"text": "a Storm"}, True),
        ({"words": ["storm"]}, "anna", {"text": "calm"}, False),
        ({"languages": ["en"]}, "anna", {"text": "hi"}, True),
        ({"languages": ["en"]}, "anna", {"langs": ["en-GB"]}, True),
        ({"languages": ["en"]}, "anna", {"langs": ["de"]}, False),
        ({"languages": ["en"], "friends": ["anna.example"]}, "anna", {"langs": ["de"]}, True),
    ],
)
def test_what_is_excluded_beats_friends_and_friends_beat_the_rest(
    config: Mapping[str, Any], author: str, record: Mapping[str, Any], is_heard: bool
) -> None:
    """Case 172."""
    writer = {"did": f"did:plc:{author}", "handle": f"{author}.example"}
    assert passes({**NO_FILTERS, **config}, writer, record, ME) is is_heard
    assert is_one_of([writer["did"].upper()], writer) and not is_one_of([author], writer)


def test_a_mention_is_a_facet_and_not_a_word() -> None:
    """Defect 65."""
    feature = {"$type": "app.bsky.richtext.facet#mention", "did": ME}
    assert mentions({"text": "hi", "facets": [{"features": [feature]}]}, ME)
    assert not mentions({"text": f"@{HANDLE} {ME}", "facets": [{"features": [{**feature, "did": "did:plc:x"}]}]}, ME)


# Answers


async def test_an_answer_is_a_record_that_is_the_same_when_it_is_repeated() -> None:
    async with asking() as (server, one):
        post = server.says("@bot.example hi", to=server.says("top", reason=""))
        server.drops = 1
        with pytest.raises(Unavailable) as caught:
            await one.send(post, "Hello.")
        assert caught.value.details[IS_UNCLEAR]
        await one.send(post, "Hello.")
        [(kind, key)] = server.written
        assert len(server.writes) == 2 and kind == "app.bsky.feed.post" and TID.fullmatch(key)
        [record] = server.written.values()
        assert record["reply"]["parent"] == server.place(post)
        assert record["reply"]["root"]["uri"] != post
        assert "llm_bot" in record["tags"]


def test_keys_of_records_differ_and_are_in_the_order_of_answers() -> None:
    sends = [f"say_{(1_000 << 16) + number:019d}" for number in range(40)] + [f"say_{1_001 << 16:019d}"]
    keys = [record_key("src_a", send, part) for send in sends for part in range(12)]
    assert keys == sorted(set(keys)) and all(TID.fullmatch(key) for key in keys)
    assert record_key("src_b", sends[0], 0) != keys[0] == record_key("src_a", sends[0], 0)


async def test_a_long_answer_is_a_thread_of_own_posts_within_the_limits() -> None:
    text = " ".join(["Gletscher fließen 🧊 langsam,"] * 60)
    async with asking() as (server, one):
        post = server.says("@bot.example tell me")
        server.drops = 1  # after the first of them
        with pytest.raises(Unavailable):
            await one.send(post, text)
        await one.send(post, text)
        assert " ".join(server.texts) == text and len(server.texts) > 5
        parents = [record["reply"]["parent"]["uri"] for record in server.written.values()]
        own = [f"at://{ME}/{kind}/{key}" for kind, key in server.written]
        assert parents == [post, *own[:-1]]
        assert {record["reply"]["root"]["uri"] for record in server.written.values()} == {post}


async def test_links_and_mentions_are_marked_at_their_bytes() -> None:
    text = "Grüße 🧊 @anna.example, see https://example.org/ä?b=1. Not a@b.example or @no.one"
    async with asking() as (server, one):
        await one.send(server.says("@bot.example hi"), text)
        [record] = server.written.values()
        marked = {
            text.encode()[facet["index"]["byteStart"] : facet["index"]["byteEnd"]].decode(): facet["features"][0]
            for facet in record["facets"]
        }
        assert {name: feature.get("did") or feature.get("uri") for name, feature in marked.items()} == {
            "@anna.example": "did:plc:anna",
            "https://example.org/ä?b=1": "https://example.org/ä?b=1",
        }


async def test_like_is_a_like() -> None:
    async with asking() as (server, one):
        post = server.says("@bot.example thanks")
        server.closed.add(post)  # no one needs to be allowed to answer for that
        await one.send(post, " Like\n")
        await one.send(post, "like")
        [(kind, _key)] = server.written
        [record] = server.written.values()
        assert kind == "app.bsky.feed.like" and record["subject"] == server.place(post)


async def test_no_answer_where_none_is_allowed() -> None:
    async with asking() as (server, one):
        post, gone = server.says("@bot.example hi", author="bert"), server.says("@bot.example bye")
        below = server.says("@bot.example hey", to=post)
        server.closed.add(post)
        server.gone.add(gone)
        for place, why in ((post, "does not allow"), (below, "does not allow"), (gone, "gone")):
            with pytest.raises(PermissionDenied, match=why) as caught:
                await one.send(place, "Hello.")
            assert caught.value.details[IS_FINAL]
        server.closed.clear()
        for viewer in ({"blockedBy": True}, {"blocking": "at://x"}):
            server.posts[post]["author"] = {**server.posts[post]["author"], "viewer": viewer}
            with pytest.raises(PermissionDenied, match="block one another"):
                await one.send(post, "Hello.")
        assert server.written == {}


# The service


async def test_tokens_that_end_are_replaced_and_no_error_shows_one() -> None:
    async with asking() as (server, one):
        server.expire()
        server.says("hi")
        assert await one.texts() == ["hi"]
        server.expire()
        server.says("again")
        assert await one.texts() == ["again"]
        assert server.sign_ins == 3
        assert "access" not in json.dumps(one.account.cursor)
        wrong = Asking(server, password="wrong")
        with pytest.raises(PermissionDenied, match="app password") as caught:
            await wrong.poll()
        assert "a-wrong-password" not in caught.value.message


async def test_what_cannot_be_asked_for_now_is_asked_for_again_and_what_came_before_is_kept() -> None:
    async with asking() as (server, one):
        server.says("one")
        server.says("two")
        server.broken, server.broken_status = 1, 503
        with pytest.raises(Unavailable) as caught:
            await one.poll()
        assert "with Bearer" in caught.value.message and "access" not in caught.value.message
        assert await one.texts() == ["one", "two"]


async def test_an_answer_that_cannot_be_read_is_no_defect_of_ours() -> None:
    async with asking() as (server, one):
        post = server.says("@bot.example hi")
        server.posts[post]["cid"] = 5
        with pytest.raises(InvalidInput, match="cannot be read") as caught:
            await one.send(post, "Hello.")
        assert caught.value.details[IS_UNCLEAR]


async def test_limits_of_the_service_and_silence_are_obeyed() -> None:
    async with asking() as (server, one):
        post = server.says("@bot.example hi")
        server.too_many = 1
        with pytest.raises(Overloaded) as caught:
            await one.send(post, "Hello.")
        assert caught.value.details["retry_after_s"] == 1
        server.silent = 1
        with pytest.raises(Unavailable):
            await one.poll()
        assert await one.texts() == ["@bot.example hi"]


@pytest.mark.parametrize(
    "config", [{"handle": ""}, {"every_s": 1}, {"friends": [5]}, {"words": "storm"}, {"base_url": "http://10.0.0.1"}]
)
async def test_a_wrong_configuration_is_refused(config: Mapping[str, Any]) -> None:
    async with BlueskyServer() as server:
        with pytest.raises(PatternError):
            Asking(server, **config)
    with pytest.raises(InvalidInput, match="secret"):
        one = Asking(server)
        await replace(one.account, settings=settings(server.url, secrets={})).secret("password")


async def test_of_many_accounts_the_one_that_signed_in_first_signs_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bluesky, "SESSIONS_MAX", 2)
    async with asking() as (server, one):
        for name, sign_ins in (("b", 2), ("c", 3), ("c", 3), ("b", 3), ("src_sky", 4)):
            await replace(one.account, row=replace(one.account.row, id=name)).call(one.kind.poll)
            assert server.sign_ins == sign_ins


# The whole mechanism


async def test_a_person_in_public_is_answered_in_the_thread_once_the_public_is_let_in() -> None:
    async with BlueskyServer() as server, talking(server.url) as world:
        await world.constellation.channels.decide("sky", ROOM, PersonStatus.BLOCKED, by=USER)
        server.says("@bot.example psst")
        while "source.refused" not in [event.name for event in await world.events()]:
            await trio.sleep(0.01)
        assert server.written == {}
        await world.constellation.channels.decide("sky", ROOM, PersonStatus.ALLOWED, by=USER)
        post = server.says("@bot.example hi")
        await until(lambda: server.texts == ["Hello."])
        [record] = server.written.values()
        assert record["reply"]["parent"]["uri"] == post
        [(sender,)] = await world.database.read(rows, "SELECT DISTINCT sender FROM turn")
        assert str(sender).startswith("conversant:src_")  # also a partner is no more than that in public

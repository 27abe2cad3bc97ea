"""Jetstream: new posts of those who are named come once, in their order, however often the connection ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.memory.block import NewBlock
from pattern_core.sources.kinds import jetstream
from pattern_core.sources.kinds.jetstream import BACK_US, PUBLIC, JetstreamSource, address
from pattern_core.sources.source import Arrivals
from pattern_core.testing import StoppedClock
from pattern_core.testing.jetstream_server import LIST, JetstreamServer
from pattern_core.testing.model import says
from pattern_core.web.policy import SourceSettings
from pattern_db.enums import BlockType
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import Account, settings
from tests.support import BY_USER, START, Running, last_words, running, until

KIND = JetstreamSource()
ANNA = "did:plc:anna"


def config(server: JetstreamServer, **fields: Any) -> dict[str, Any]:
    """A configuration by which the stand-in is asked, for Anna's posts unless it names others."""
    who = {} if fields.keys() & {"authors", "list", "words"} else {"authors": [ANNA]}
    return {"endpoint": server.gateway_url, "base_url": server.url, **who, **fields}


def reach(server: JetstreamServer, timeout_s: float = 2.0) -> SourceSettings:
    """Settings by which the stand-in may be reached."""
    return settings(ports=server.ports, timeout_s=timeout_s)


def of(server: JetstreamServer, *, timeout_s: float = 2.0, clock: Any = None, **fields: Any) -> Account:
    """An account at the stand-in."""
    allowed = reach(server, timeout_s)
    row = SourceRow("src_sky", "sky", "jetstream", KIND.checked(config(server, **fields), allowed), START, START)
    return Account(KIND, row, allowed, clock)


@asynccontextmanager
async def listening(server: JetstreamServer | None = None, **options: Any) -> AsyncIterator[tuple[Any, Account]]:
    """A server, and an account that is connected to it."""
    if server is None:
        async with JetstreamServer() as made, listening(made, **options) as both:
            yield both
        return
    one = of(server, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.listens)
        await until(lambda: server.wanted)
        yield server, one
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("jetstream.example.org", "wss://jetstream.example.org/subscribe"),
        ("wss://jetstream.example.org", "wss://jetstream.example.org/subscribe"),
        ("https://jetstream.example.org/", "wss://jetstream.example.org/subscribe"),
        ("wss://jetstream.example.org/subscribe", "wss://jetstream.example.org/subscribe"),
        ("https://jetstream.example.org/subscribe/", "wss://jetstream.example.org/subscribe"),
        (" jetstream.example.org/subscribe", "wss://jetstream.example.org/subscribe"),
        ("https://example.org/jet/stream/subscribe", "wss://example.org/jet/stream/subscribe"),
        ("http://localhost:6008", "ws://localhost:6008/subscribe"),
        ("ws://localhost:6008/subscribe", "ws://localhost:6008/subscribe"),
        *((one, None) for one in ("", "ftp://a.example", "https://", "a.example?x=1", "a b", "a.example/#x")),
    ],
)
def test_case_171_a_server_is_named_by_its_host_or_any_of_its_addresses(given: str, wanted: str | None) -> None:
    if wanted is None:
        with pytest.raises(InvalidInput, match="such as"):
            address(given)
    else:
        assert address(given) == wanted


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"authors": []}, InvalidInput),  # all of the network
        ({"authors": [5]}, InvalidInput),
        ({"authors": "anna.example"}, InvalidInput),
        ({"mentions_only": True}, InvalidInput),
        ({"list": "at://did:plc:anna/app.bsky.feed.generator/3k"}, InvalidInput),
        ({"list": "friends"}, InvalidInput),
        ({"endpoint": "ftp://example.org"}, InvalidInput),
        ({"endpoint": "example.org:8443"}, PermissionDenied),
        ({"base_url": "https://example.org:8443"}, PermissionDenied),
    ],
)
def test_a_wrong_configuration_is_refused(fields: dict[str, Any], error: type[PatternError]) -> None:
    with pytest.raises(error):
        KIND.checked({"authors": [ANNA], **fields}, SourceSettings())
    found = KIND.checked({"authors": [ANNA]}, SourceSettings())
    assert found["endpoint"].startswith("wss://jetstream") and found["base_url"] == PUBLIC


# What is heard


async def test_new_posts_of_those_who_are_named_are_heard_and_nothing_else() -> None:
    async with JetstreamServer() as server:
        server.says("from before")
        async with listening(server, authors=["@anna.example", "did:plc:bert"]) as (_, one):
            assert server.wanted == [[ANNA, "did:plc:bert"]]
            post = server.says("hi")
            server.says("from someone else", author="eve")
            server.says("changed", operation="update")
            server.says("", operation="delete")
            server.put({"did": ANNA, "kind": "identity", "identity": {"handle": "anna.example"}})
            like = {"operation": "create", "collection": "app.bsky.feed.like", "rkey": "3k", "record": {"text": "x"}}
            server.put({"did": ANNA, "kind": "commit", "commit": like})
            place = {"uri": post, "cid": "bafy"}
            media = {"$type": "app.bsky.embed.images", "images": [{"alt": "a cat", "image": {}}]}
            server.says("", author="bert", reply={"parent": place, "root": place}, embed=media)
            await until(lambda: len(one.events) == 2)
        link = f"https://bsky.app/profile/{ANNA}/post/{post.rpartition('/')[2]}"
        first, second = one.events
        assert (first.native, first.text, first.link, first.chat) == (post, "hi", link, None)
        assert (first.author, first.author_name) == (ANNA, "anna.example")
        assert second.text == f"[images: 1]\n[image: a cat]\n[in answer to {link}]"
        assert not one.failures


async def test_a_server_that_sends_more_than_was_asked_for_is_not_believed() -> None:
    async with JetstreamServer() as server, listening(server) as (_, one):
        server._wants = lambda *_: True  # type: ignore[method-assign]  # the stand-in misbehaves
        server.says("from someone else", author="eve")
        server.says("hi")
        await one.heard("hi")


async def test_members_of_a_list_are_heard_and_the_list_is_read_again_with_each_connection() -> None:
    async with JetstreamServer() as server:
        server.members = [f"member{number}" for number in range(230)]
        where = "https://bsky.app/profile/anna.example/lists/3kfriends"
        assert LIST.endswith("3kfriends")
        async with listening(server, list=where, authors=["carl.example"]) as (_, one):
            assert len(server.wanted[0]) == 231 and server.wanted[0][0] == "did:plc:carl"
            server.says("I am new here", author="dora")
            server.says("hi", author="member229")
            await one.heard("hi")
            server.members.append("dora")
            server.drops = 1
            server.says("bye", author="member0")
            await until(lambda: len(server.wanted) == 2)
            server.says("and now?", author="dora")
            await until(lambda: "and now?" in one.texts)
            assert one.events[0].author_name == "member229.example"


async def test_a_list_without_members_is_not_all_of_the_network() -> None:
    async with JetstreamServer() as server:
        for fields in ({"list": LIST}, {"authors": ["gone.example"]}):
            one = of(server, **fields)
            with pytest.raises(InvalidInput, match="known to Bluesky"), trio.fail_after(5):
                await one.account.call(KIND.listen, one.receive)
        assert server.queries == []


@pytest.mark.parametrize(
    ("fields", "heard"),
    [
        ({"words": ["storm"]}, ["a Storm", "storm and spam"]),
        ({"words": ["storm"], "exclude_words": ["SPAM"]}, ["a Storm"]),
        ({"words": ["storm"], "exclude_authors": ["anna.example"]}, ["storm and spam"]),
        ({"words": ["storm"], "friends": ["bert.example"]}, ["a Storm", "calm", "storm and spam"]),
        ({"authors": ["anna.example"], "words": ["storm"], "friends": ["@bert.example"]}, ["a Storm", "calm"]),
        ({"authors": ["anna.example", "carl.example"], "languages": ["en"]}, ["a Storm"]),
    ],
)
async def test_filters_choose_by_author_words_and_language(fields: dict[str, Any], heard: list[str]) -> None:
    async with listening(**{**fields, "friends": [*fields.get("friends", ()), "zoe.example"]}) as (server, one):
        server.says("a Storm", langs=["en-GB"])
        server.says("calm", author="bert", langs=["de"])
        server.says("storm and spam", author="carl", langs=["de"])
        server.says("the end", author="zoe")
        await one.heard(*heard, "the end")


async def test_unreadable_frames_stop_no_other() -> None:
    async with listening() as (server, one):
        post = {"operation": "create", "collection": "app.bsky.feed.post", "rkey": "3k", "record": {"text": "x"}}
        for broken in (
            "not JSON",
            "7",
            '{"time_us": "now", "commit": 5}',
            {"commit": None},
            {"did": 5, "commit": post},
            {"did": [ANNA], "commit": post},
            {"did": ANNA, "commit": {**post, "record": 5}},
            {"did": ANNA, "commit": {**post, "record": None}},
            {"did": ANNA, "commit": {**post, "rkey": "x" * 9_000}},
            {"did": ANNA, "time_us": -5, "commit": {**post, "operation": "update"}},
            {"did": ANNA, "time_us": True, "commit": {"operation": []}},
        ):
            server.put(broken)
        server.says("", reply={"parent": 5}, embed={"$type": 5}, langs="en")
        server.says("x" * 300_000)  # the service leaves it out
        server.says("after")
        await one.heard("[something that cannot be shown]", "after")
        assert not one.failures


async def test_a_time_in_the_future_makes_no_one_miss_others() -> None:
    async with listening() as (server, one):
        commit = {"operation": "create", "collection": "app.bsky.feed.post", "rkey": "3k9", "record": {"text": "soon"}}
        server.put({"did": ANNA, "time_us": 10**17, "commit": commit})
        await one.heard("soon")
        server.drops = 1
        server.says("now")
        await until(lambda: len(server.queries) == 2)
        server.says("later")
        await one.heard("soon", "now", "later")


# Connections


async def test_a_connection_begins_five_seconds_before_the_last_place_and_all_comes_once() -> None:
    clock = StoppedClock()
    async with JetstreamServer(clock) as server, listening(server, clock=clock) as (_, one):
        assert "cursor" not in server.queries[0] and server.queries[0]["requireHello"] == ["true"]
        assert one.account.cursor == {"at": clock.now_ms() * 1000}
        clock.advance(60_000)
        server.drops = 1
        server.says("one")
        await until(lambda: len(server.queries) == 2)
        place = one.account.cursor["at"]
        assert place == clock.now_ms() * 1000 and server.queries[1]["cursor"] == [str(place - BACK_US)]
        server.says("two")
        await one.heard("one", "two")


async def test_frames_that_are_repeated_reordered_and_lost_with_their_connection_come_once() -> None:
    async with listening() as (server, one):
        server.repeats = server.reorders = True
        for number in range(300):
            server.drops += number % 60 == 30
            server.says(f"number {number}")
            await trio.sleep(0.001)
        await until(lambda: len(one.events) == 300)
        assert sorted(one.texts) == sorted(f"number {number}" for number in range(300))
        assert len(server.queries) > 4


async def test_what_cannot_be_stored_is_sent_again() -> None:
    async with listening() as (server, one):
        one.refuses = 2
        server.says("one")
        server.says("two")
        await until(lambda: len(one.events) == 2)
        assert [error.code for error in one.failures] == ["overloaded"] * 2


async def test_what_was_not_heard_moves_the_place_when_a_connection_ends() -> None:
    clock = StoppedClock()
    async with JetstreamServer(clock) as server, listening(server, clock=clock, words=["storm"]) as (_, one):
        begun = one.account.cursor["at"]
        clock.advance(60_000)
        server.says("calm")
        await trio.sleep(0.05)
        assert one.batches == [0] and one.account.cursor == {"at": begun}  # no constellation is woken for it
        server.drops = 1
        server.says("calm")
        await until(lambda: len(server.queries) == 2)
        assert one.account.cursor["at"] >= begun + 60_000_000


async def test_a_connection_that_is_half_open_ends_and_one_that_is_only_silent_does_not() -> None:
    async with JetstreamServer() as server:
        server.deaf = 1
        one = of(server, timeout_s=0.3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.listens)
            await until(lambda: server.wanted)
            assert len(server.queries) == 2
            assert "nothing came for 0.3 s" in one.failures[0].message
            await trio.sleep(1.0)
            assert len(server.queries) == 2 and len(one.failures) == 1  # its pings are answered
            server.drops = 1
            server.says("hi")
            await until(lambda: len(server.queries) == 3)
            await one.heard("hi")
            assert len(one.failures) == 1
            nursery.cancel_scope.cancel()


async def test_the_list_is_read_again_after_a_while_also_if_no_one_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "CONNECTION_S", 0.5)
    async with JetstreamServer() as server:
        server.members = ["anna"]
        async with listening(server, list=LIST, timeout_s=0.2) as (_, one):
            server.members.append("bert")
            await until(lambda: len(server.wanted) == 2)
            server.says("hi", author="bert")
            await one.heard("hi")
            assert not one.failures


async def test_a_server_that_is_of_no_use_is_asked_at_growing_intervals() -> None:
    """An error is what they grow with; a connection that was of use ends them."""
    async with JetstreamServer() as server:
        one = of(server)

        async def ended(count: int) -> None:
            await until(lambda: len(server.wanted) >= count)
            await server.breaks()
            await until(lambda: len(one.failures) >= count)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.listens)
            for count in range(1, 4):
                await ended(count)
            nursery.cancel_scope.cancel()
        assert all(isinstance(error, Unavailable) and "of no use" in error.message for error in one.failures)


async def test_a_question_that_ends_returns_what_came_within_seconds() -> None:
    async with JetstreamServer() as server:
        one = of(server)

        async def speak() -> None:
            await until(lambda: server.wanted)
            server.says("hi")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak)
            arrived = await one.account.call(KIND.poll)
        assert [event.text for event in arrived.events] == ["hi"]
        assert arrived.cursor["at"] == server.frames[-1]["time_us"]


# In a constellation


@asynccontextmanager
async def living(server: JetstreamServer, **options: Any) -> AsyncIterator[Running]:
    """A constellation with a source of the stand-in, followed as the server does."""
    options |= {"sources": reach(server), "clock": SystemClock(), "otherwise": says("Hm.")}
    async with running((), **options) as world, trio.open_nursery() as nursery:
        await world.agent()
        about = config(server, authors=["anna.example", "bert.example"])
        await world.constellation.sources.create(name="sky", kind="jetstream", config=about, agent="ada")
        nursery.start_soon(_follows, world)
        await until(lambda: server.wanted)
        yield world
        nursery.cancel_scope.cancel()


async def _follows(world: Running) -> None:
    sources = world.constellation.sources
    while True:
        kind, account = await sources.account("sky")

        async def receive(arrived: Arrivals, source_id: str = account.row.id) -> None:
            await sources.receive(source_id, arrived)

        try:
            await account.call(kind.listen, receive)
        except PatternError:
            await trio.sleep(0.02)


async def test_posts_are_messages_of_the_least_trust_and_the_place_is_stored_with_them() -> None:
    async with JetstreamServer() as server, living(server) as world:
        server.says("hi <system>")
        await until(lambda: world.provider.requests)
        said = last_words(world.provider.requests[0])
        assert '<data from="jetstream sky">' in said and "by anna.example\nhi &lt;system>" in said
        row = await world.constellation.sources.get("sky")
        assert row.sync_cursor == {"at": server.frames[0]["time_us"]} and row.last_event_at is not None


async def test_case_177_notes_on_the_authors_of_a_batch_are_shown_with_it() -> None:
    async with JetstreamServer() as server, living(server) as world:
        ada = await world.constellation.roster.get("ada")
        for name in ("anna", "bert", "carl"):
            block = NewBlock(label=f"{name}.example", content=f"{name} likes ice", block_type=BlockType.WORKING)
            await world.constellation.memory.create(ada.id, block, by=BY_USER)
        await world.constellation.sources.set_receiver("sky", "ada", batch_s=0.3)
        server.says("one")
        server.says("two", author="bert")
        await until(lambda: world.provider.requests)
        said = last_words(world.provider.requests[0])
        assert "anna likes ice" in said and "bert likes ice" in said and "carl" not in said

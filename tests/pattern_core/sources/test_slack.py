"""Slack: connections that end in every way; who is heard; what is said, once, and in the thread where it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.models.providers.settings import Secret
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.slack import MISSED_MAX, PAGE, PLACES_MAX, SlackChannel
from pattern_core.sources.source import IS_UNCLEAR, Arrivals, Outgoing, SourceAccount
from pattern_core.testing.model import calls, says
from pattern_core.testing.slack_server import APP_TOKEN, BOT, RETRIES, ROOM, TOKEN, SlackServer
from pattern_core.web.download import Download
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.enums import DeliveryStatus, PersonStatus
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import Account, listening, settings
from tests.support import Outside, last_words, until

NOW = "2026-11-21T00:00:00.000Z"
ASKS = f"<@{BOT}>"
ANNA = "U1"
CONFIG = {"token": "bot", "app_token": "app"}
KIND = SlackChannel()


def reach(server: SlackServer, **fields: Any) -> SourceSettings:
    values = {"bot": TOKEN, "app": APP_TOKEN, "wrong": "another-token", "odd": "two words"}
    secrets = {name: SecretSource(value=Secret(value)) for name, value in values.items()}
    return settings(server, ports=server.ports, secrets=secrets, **fields)


def account_of(server: SlackServer, timeout_s: float = 2.0, **config: str) -> Account:
    """An account at the stand-in."""
    row = SourceRow("src_1", "work", "slack", {**CONFIG, "base_url": server.url, **config}, NOW, NOW)
    return Account(KIND, row, reach(server, timeout_s=timeout_s))


@asynccontextmanager
async def following(server: SlackServer, account: Account | None = None) -> AsyncIterator[Account]:
    """An account that is listened to."""
    account, before = account or account_of(server), len(server.begun)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.listens)
        await until(lambda: len(server.begun) > before and account.batches)
        yield account
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def talking(*script: Any, **options: Any) -> AsyncIterator[Any]:
    """A constellation with a channel of the stand-in."""
    async with SlackServer() as server:
        config = {**CONFIG, "base_url": server.url}
        async with listening("slack", server, config, reach(server), *script, **options) as one:
            yield one


# Connections


async def test_an_envelope_is_acknowledged_only_after_it_is_stored_and_else_sent_again() -> None:
    async with SlackServer() as server, following(server) as account:
        account.refuses = 2
        server.says("one")
        await account.heard("one")
        await until(lambda: len(server.acknowledged) == 1)
        assert len(server.begun) == 3 and server.retries == 2


async def test_what_is_stored_too_slowly_comes_again_and_is_one_message() -> None:
    async with SlackServer(patience_s=0.05) as server:
        account = account_of(server)
        store = account.receive

        async def slowly(arrived: Arrivals) -> None:
            await trio.sleep(0.3 if arrived.events else 0)
            await store(arrived)

        account.receive = slowly  # type: ignore[method-assign]  # the test's own
        async with following(server, account):
            server.says("one")
            await account.heard("one")
            await until(lambda: server.retries == RETRIES)
            server.says("two")
            await account.heard("one", "two")


@pytest.mark.parametrize("reason", ["refresh_requested", "warning"])
async def test_a_connection_that_is_replaced_loses_nothing(reason: str) -> None:
    async with SlackServer() as server, following(server) as account:
        for at in range(40):
            server.says(f"{at}")
            if at % 10 == 5:
                server.disconnects(reason)
                await trio.sleep(0.05)
        await account.heard(*map(str, range(40)))
        assert len(server.begun) > 1


async def test_what_the_service_gave_up_is_read_from_the_known_places() -> None:
    async with SlackServer() as server:
        account = account_of(server)
        async with following(server, account):
            server.says("direct")
            root = server.says(f"{ASKS} in the room", chat=ROOM)
            await account.heard("direct", "in the room")
        for at in range(PAGE + 5):
            server.says(f"missed {at}")
            server.says("not for the app", chat=ROOM)
        server.says(f"{ASKS} in the thread", chat=ROOM, thread=root)
        other = server.says(f"{ASKS} in another one", chat=ROOM)
        server.says(f"{ASKS} there, too", chat=ROOM, thread=other)
        server.history["D1"].insert(5, {"ts": "what is this"})
        server.gives_up()
        async with following(server, account):
            server.says("after")
            missed = [f"missed {at}" for at in range(PAGE + 5)]
            await until(lambda: len(account.events) >= len(missed) + 6)
            by_chat = {
                chat: [one.text for one in account.events if one.chat == chat] for chat in ("D1", f"{ROOM}:{root}")
            }
            assert by_chat == {"D1": ["direct", *missed, "after"], f"{ROOM}:{root}": ["in the room", "in the thread"]}
            assert [one.text for one in account.events if one.chat == f"{ROOM}:{other}"] == [
                "in another one",
                "there, too",
            ]
            assert MISSED_MAX > PAGE


async def test_a_place_that_is_gone_is_forgotten_and_other_refusals_are_errors() -> None:
    async with SlackServer() as server:
        account = account_of(server)
        async with following(server, account):
            server.says("one")
            server.says("two", author=2)
            await account.heard("one", "two")
        del server.history["D1"]
        arrived = await account.account.call(KIND.poll)
        assert list(arrived.cursor["places"]) == ["D2"] and not arrived.events
        server.errors["conversations.history"] = "missing_scope"
        with pytest.raises(PermissionDenied, match="add the scope"):
            await account.account.call(KIND.poll)


async def test_a_half_open_connection_is_replaced() -> None:
    async with SlackServer() as server:
        account = account_of(server, timeout_s=0.2)
        async with following(server, account):
            await trio.sleep(1)  # without events: pings and their answers keep it
            assert len(server.begun) == 1
            server.deaf = 1
            await server.breaks()
            await until(lambda: server.deaf == 0)
            server.says("one")
            await account.heard("one")


@pytest.mark.parametrize(
    ("reason", "words"), [("link_disabled", "Socket Mode is off"), ("too_many_websockets", "stop the others")]
)
async def test_reasons_that_a_person_must_do_something_about_say_what(reason: str, words: str) -> None:
    async with SlackServer() as server, trio.open_nursery() as nursery:
        account = account_of(server)

        async def ends() -> None:
            await until(lambda: server.begun)
            server.disconnects(reason)

        nursery.start_soon(ends)
        with pytest.raises(PatternError, match=words):
            await account.account.call(KIND.listen, account.receive)


async def test_wrong_tokens_are_errors_in_words_without_the_token() -> None:
    async with SlackServer() as server:
        configs: list[dict[str, Any]] = [
            {"token": "wrong"},
            {"app_token": "wrong"},
            {"token": "app"},
            {"app_token": "odd"},
        ]
        for config in configs:
            with pytest.raises(PatternError, match="copy") as error:
                await account_of(server, **config).account.call(KIND.poll)
            assert not any(secret in str(error.value) for secret in ("another-token", "two words", TOKEN, APP_TOKEN))
        assert server.begun == []


async def test_a_connection_that_is_not_encrypted_is_refused_where_the_api_is() -> None:
    class Encrypted(SourceAccount):
        async def fetch(self, url: str, **request: Any) -> Download:
            return await super().fetch(url.replace("https:", "http:"), **request)

    async with SlackServer() as server:
        account = account_of(server, base_url=server.url.replace("http:", "https:"))
        encrypted = Encrypted(row=account.row, settings=account.settings, clock=SystemClock())
        with pytest.raises(InvalidInput, match="not encrypted"):
            await encrypted.call(KIND.listen, account.receive)


# What comes in


async def test_only_what_is_for_the_app_is_heard_and_names_are_there_instead_of_ids() -> None:
    async with SlackServer() as server, following(server) as account:
        server.says("not for it", chat=ROOM)
        server.says("<!channel> all", chat=ROOM)
        asked = server.says(f"{ASKS} and <@U2>, <#C7|news>, <https://a.org|see> &lt;b&gt;?", chat=ROOM)
        server.says(f"{ASKS} joined", chat=ROOM, subtype="channel_join")
        server.says(f"{ASKS} I am a program", chat=ROOM, author=3, bot_id="B3")
        server.files["/files-pri/a.pdf"] = b"%PDF"
        names = ("a.pdf", f"{server.url}/files-pri/a.pdf"), ("b.pdf", "https://elsewhere.example.org/b.pdf"), ("c", "")
        shared = [{"name": name, "url_private": url} for name, url in names]
        server.says("", files=shared, subtype="file_share")
        server.says("in a thread", thread="1795999999.000001")
        await account.heard("and @Anna, #news, see (https://a.org) <b>?", "I am a program", "", "in a thread")
        first, program, direct, thread = account.events
        assert (first.author_name, first.chat_name, first.room, first.is_bot) == ("Anna", "#general", ROOM, False)
        assert (first.chat, first.native) == (f"{ROOM}:{asked}", f"{ROOM}/{asked}")
        assert program.is_bot
        assert (direct.chat, direct.room, direct.author) == ("D1", "", ANNA)
        there, *others = direct.files
        assert there.name == "a.pdf" and await account.account.call(KIND.download, there.ref) == b"%PDF"
        for other in others:  # the token is sent nowhere else
            with pytest.raises(InvalidInput, match="not at Slack"):
                await account.account.call(KIND.download, other.ref)
        server.files.clear()
        with pytest.raises(PatternError) as error:
            await account.account.call(KIND.download, there.ref)
        assert TOKEN not in error.value.message
        assert thread.chat == "D1:1795999999.000001"


async def test_an_edit_is_an_event_and_a_preview_is_none() -> None:
    async with SlackServer() as server, following(server) as account:
        number = server.says("one")
        preview = {"type": "message", "subtype": "message_changed", "channel": "D1"}
        server.put({**preview, "message": {**server.history["D1"][0], "attachments": [{}]}})
        server.edits("D1", number, "uno!")
        server.put({**preview, "message": {**server.history["D1"][0], "attachments": [{}]}})
        server.edits("D1", number, "uno!!")
        await account.heard("one", "(edited) uno!", "(edited) uno!!")


async def test_events_that_cannot_be_read_or_come_twice_stop_no_other() -> None:
    async with SlackServer() as server, following(server) as account:
        good = {"type": "message", "user": "U1", "ts": "1796000000.900000", "text": "no"}
        for event in (
            None,
            {"type": "message"},
            {**good, "channel": "../../D1"},
            {**good, "channel": "D1", "user": 5},
            {**good, "channel": "D1", "ts": "1"},
            {**good, "channel": "D1", "channel_type": "channel"},  # not a direct message, whatever its id says
            {**good, "channel": "D1", "thread_ts": "x"},
            {**good, "channel": "D1", "files": 7},
            {"type": ["what"]},
        ):
            server.put(event)
        server._add({"type": "interactive", "payload": {"type": "block_actions", "actions": []}})
        server._add({"type": "slash_commands", "payload": {}})
        server.repeats = 3
        server.says("one")
        server.says("control \x00\x1b[31m\ud800")
        server.says("x" * 10_000_000)
        await until(lambda: len(account.events) == 3)
        assert account.texts[:2] == ["one", "control \u2400\x1b[31m?"]
        assert account.texts[2].endswith("more characters were left out]")
        await until(lambda: len(server.acknowledged) >= 14)  # also what is not understood, else it would come again
        assert len(server.begun) == 1


async def test_only_some_places_are_remembered() -> None:
    async with SlackServer() as server, following(server) as account:
        for author in range(200, PLACES_MAX + 205):
            server.says("Hi", author=author)
        await until(lambda: len(account.events) == PLACES_MAX + 5)
        assert len(account.cursor["places"]) == PLACES_MAX and "D200" not in account.cursor["places"]


# What goes out


async def test_an_answer_has_an_id_by_which_a_repetition_is_known_and_notifies_no_one() -> None:
    async with SlackServer() as server:
        account = account_of(server).account
        said = Outgoing(text="<!channel> <@U1> & you", reply_to=f"{ROOM}/1796000000.000001")
        server.drops = 1
        with pytest.raises(Unavailable) as error:
            await KIND.send(account, f"{ROOM}:1796000000.000001", said, "say_1")
        assert error.value.details[IS_UNCLEAR]
        await KIND.send(account, f"{ROOM}:1796000000.000001", said, "say_1")
        [sent] = server.sent
        assert sent["text"] == "&lt;!channel&gt; &lt;@U1&gt; &amp; you"
        assert (sent["channel"], sent["thread_ts"]) == (ROOM, "1796000000.000001")
        server.errors["chat.postMessage"] = "duplicate_message_not_found"  # it was sent, and deleted since
        await KIND.send(account, ROOM, said, "say_1")
        assert not KIND.is_idempotent  # how long an id is known is not documented


async def test_the_service_s_limits_are_obeyed_and_its_refusals_have_words() -> None:
    async with SlackServer() as server:
        account = account_of(server).account
        server.too_many = 1
        with pytest.raises(Overloaded) as error:
            await KIND.send(account, ROOM, Outgoing(text="Hi"), "say_1")
        assert error.value.details["retry_after_s"] == 7
        with pytest.raises(InvalidInput, match="channel_not_found") as final:
            await KIND.send(account, "C404", Outgoing(text="Hi"), "say_2")
        assert final.value.details[IS_FINAL]
        server.errors["chat.postMessage"] = "internal_error"
        with pytest.raises(Unavailable) as unclear:
            await KIND.send(account, ROOM, Outgoing(text="Hi"), "say_3")
        assert unclear.value.details[IS_UNCLEAR]
        with pytest.raises(PermissionDenied, match="copy") as later:
            await KIND.send(account_of(server, token="wrong").account, ROOM, Outgoing(text="Hi"), "say_2")
        assert not later.value.details.get(IS_FINAL)


# The whole


async def test_a_person_pairs_talks_and_is_answered_where_it_was_asked() -> None:
    async with talking() as one:
        one.server.says("Hi")
        [words] = await one.sent(1)
        [person] = await one.channels.people("phone")
        assert person.code in words and person.name == "Anna" and await one.turns() == []
        await one.channels.approve("phone", person.code, PersonStatus.ALLOWED, by="user:test")
        await one.lets_in(PersonStatus.ALLOWED, ROOM)
        one.server.says("directly")
        await one.sent(2)
        asked = one.server.says(f"{ASKS} in the room", chat=ROOM)
        await one.sent(3)
        one.server.says(f"{ASKS} in its thread", chat=ROOM, thread=asked)
        await one.sent(4)
        other = one.server.says(f"{ASKS} something else", chat=ROOM)
        await one.sent(5)
        await one.idle()
        places = [(sent["channel"], sent.get("thread_ts")) for sent in one.server.sent[1:]]
        assert places == [("D1", None), (ROOM, asked), (ROOM, asked), (ROOM, other)]
        sessions = [session for _sender, session in await one.turns()]
        assert sessions[1] == sessions[2] and len(set(sessions)) == 3


async def test_a_room_that_is_not_allowed_and_a_program_are_not_answered() -> None:
    async with talking() as one:
        await one.lets_in(person=ANNA)
        one.server.says(f"{ASKS} Hi", chat=ROOM)
        one.server.says("I am a program", author=5, bot_id="B5")
        one.server.says("a question")
        await one.sent(1)
        await one.idle()
        assert len(await one.turns()) == 1


async def test_long_answers_are_split_at_lines() -> None:
    long = "\n".join(f"{at} " + " ".join(map(str, range(at, at + 50))) for at in range(100, 150))
    async with talking(says(long)) as one:
        await one.lets_in(person=ANNA)
        one.server.says("Tell me all")
        await one.sent(3)
        await one.idle()
        assert all(len(text) <= 4000 and text.split()[0] == text.split()[1] for text in one.server.texts)
        assert " ".join(one.server.texts).split() == long.split()


async def test_an_approval_is_a_button_that_only_a_partner_may_press() -> None:
    outside = Outside()
    rule = [{"tool": "mail", "type": "requires_consent"}]
    async with talking(calls("mail", {"to": "bob"}), says("Done."), tools=outside.tools) as one:
        await one.world.constellation.roster.update("ada", {"tool_rules": rule})
        await one.lets_in(PersonStatus.PARTNER, ANNA)
        one.server.says("Write to Bob")
        [question] = await one.sent(1)
        assert "mail" in question and outside.done == []
        one.server.presses("Approve", author=2)  # a stranger
        one.server.presses("Approve")
        one.server.presses("Approve")  # twice: the second one changes nothing
        await until(lambda: "Done." in one.server.texts)
        await one.idle()
        assert outside.done == [("mail", "bob")]
        assert one.server.texts.count("Approved.") == 1


async def test_an_answer_with_an_unknown_outcome_is_sent_once_more_and_is_there_once() -> None:
    async with talking() as one:
        await one.lets_in(person=ANNA)
        one.server.drops = 1
        one.server.says("Hi")
        await one.sent(1)
        await until(lambda: one.world.constellation.outbox.is_idle)
        [said, _heard] = await one.deliveries()
        assert (said.status, said.unclear) == (DeliveryStatus.PENDING, 1)
        await one.world.database.write(lambda c: c.execute("UPDATE outbox SET next_at = created_at").fetchall())
        one.world.constellation.outbox.changed()
        await one.idle()
        assert (await one.deliveries())[0].status is DeliveryStatus.DELIVERED
        assert one.server.texts == ["Hello."]


async def test_a_hundred_messages_through_lost_connections_are_each_in_one_turn() -> None:
    async with talking() as one:
        for person in range(1, 6):
            await one.lets_in(PersonStatus.ALLOWED, f"U{person}")
        one.server.repeats = 20
        for at in range(100):
            one.server.says(f"m{at % 5 + 1}-{at // 5}.", author=at % 5 + 1)
            if at % 10 == 9:
                await trio.sleep(0.05)
                await one.server.breaks()
                if at in (49, 79):
                    one.server.gives_up()
        await until(lambda: sum(last_words(each).count(".") for each in one.world.provider.requests) >= 100)
        await one.idle()
        said = "\n".join(map(last_words, one.world.provider.requests))
        for person in range(1, 6):
            places = [said.index(f"m{person}-{at}.") for at in range(20)]
            assert places == sorted(places)
        assert all(said.count(f"m{at % 5 + 1}-{at // 5}.") == 1 for at in range(100))
        assert {sent["channel"] for sent in one.server.sent} == {f"D{person}" for person in range(1, 6)}


def test_configuration() -> None:
    found = KIND.checked(CONFIG, SourceSettings())
    assert found == {**CONFIG, "base_url": "https://slack.com/api"}
    with pytest.raises(PermissionDenied, match="may not be sent a secret"):
        KIND.checked({**CONFIG, "base_url": "https://example.org:81/"}, SourceSettings())
    assert KIND.chars_max == 4000

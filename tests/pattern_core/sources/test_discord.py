"""Discord: a session that is begun, resumed and lost; who is heard; what is said, once, and where it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PermissionDenied, Unavailable
from pattern_core.models.providers.settings import Secret
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.kinds.discord import CHANNELS_MAX, INTENTS, PAGE, DiscordChannel
from pattern_core.sources.source import IS_UNCLEAR, Outgoing
from pattern_core.testing.discord_server import BOT, REST, ROOM, SERVER, THREAD, TOKEN, DiscordServer
from pattern_core.testing.model import calls, says
from pattern_core.web.policy import SecretSource, SourceSettings
from pattern_db.enums import DeliveryStatus, PersonStatus
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import Account, listening, settings
from tests.support import Outside, last_words, until

NOW = "2026-11-21T00:00:00.000Z"
ASKS = f"<@{BOT['id']}>"
KIND = DiscordChannel()


def reach(server: DiscordServer) -> SourceSettings:
    tokens = {"bot": TOKEN, "wrong": "another-token", "pasted": "another-token and more"}
    secrets = {name: SecretSource(value=Secret(token)) for name, token in tokens.items()}
    return settings(server, ports=server.ports, secrets=secrets, services=(f"{server.url}{REST}",))


def account_of(server: DiscordServer, token: str = "bot") -> Account:
    """An account at the stand-in."""
    config = {"token": token, "base_url": f"{server.url}{REST}"}
    return Account(KIND, SourceRow("src_1", "disc", "discord", config, NOW, NOW), reach(server))


@asynccontextmanager
async def following(server: DiscordServer) -> AsyncIterator[Account]:
    """An account that is listened to."""
    account = account_of(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(account.listens)
        await until(lambda: "session" in account.cursor)
        yield account
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def talking(*script: Any, server: DiscordServer | None = None, **options: Any) -> AsyncIterator[Any]:
    """A constellation with a channel of the stand-in."""
    async with server or DiscordServer() as there:
        config = {"token": "bot", "base_url": f"{there.url}{REST}"}
        async with listening("discord", there, config, reach(there), *script, **options) as one:
            yield one


# Sessions


async def test_a_session_is_begun_and_its_place_is_stored_before_the_next_connection() -> None:
    async with DiscordServer() as server, following(server) as account:
        assert server.begun == ["identify"] and server.intents == INTENTS
        server.says("one")
        await account.heard("one")
        server.reconnects()
        await until(lambda: server.begun == ["identify", "resume"])
        server.says("two")
        await account.heard("one", "two")
        assert account.cursor["session"] == "session1"


async def test_what_came_while_no_one_was_connected_is_repeated_by_the_service() -> None:
    async with DiscordServer() as server:
        account = account_of(server)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(account.listens)
            await until(lambda: "session" in account.cursor)
            nursery.cancel_scope.cancel()
        for at in range(150):
            server.says(str(at))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(account.listens)
            await account.heard(*map(str, range(150)))
            nursery.cancel_scope.cancel()
        assert server.begun == ["identify", "resume"]


async def test_after_a_lost_session_what_was_missed_is_read_from_the_known_channels() -> None:
    async with DiscordServer() as server, following(server) as account:
        server.says("direct")
        server.says(f"{ASKS} in the room", chat=ROOM)
        server.says(f"{ASKS} in the thread", chat=THREAD)
        await account.heard("direct", "in the room", "in the thread")
        await server.expires()
        for _ in range(PAGE):
            server.says("unreadable", mentions=5)
        for at in range(70):
            server.says(f"missed {at}")
            server.says("not for the bot", chat=ROOM)
        server.says(f"{ASKS} missed, too", chat=THREAD)
        server.history["1001"].insert(5, {"id": "what is this"})
        await until(lambda: server.begun[-1] == "identify" and len(server.begun) == 3)
        server.says(f"{ASKS} after", chat=THREAD)  # order is kept in each chat
        missed = [f"missed {at}" for at in range(70)]
        await account.heard("direct", "in the room", "in the thread", *missed, "missed, too", "after")
        assert [one.room for one in account.events[:3]] == ["", ROOM, ROOM]
        assert [one.chat for one in account.events[:3]] == ["1001", ROOM, THREAD]
        assert 5.0 in account.waits


async def test_a_batch_that_cannot_be_stored_is_sent_again() -> None:
    async with DiscordServer() as server, following(server) as account:
        account.refuses = 2
        server.says("one")
        await account.heard("one")
        assert server.begun == ["identify", "resume", "resume"]


async def test_heartbeats_name_the_last_stored_event_and_a_connection_without_answers_is_closed() -> None:
    async with DiscordServer(heartbeat_ms=40) as server, following(server) as account:
        await until(lambda: len(server.beats) > 3)
        server.says("one")
        await account.heard("one")
        await until(lambda: server.beats[-1] == 2)
        server.deaf = 2  # half open: it says nothing more
        await server.breaks()
        server.says("two")
        await account.heard("one", "two")
        assert server.deaf == 0 and server.begun == ["identify", "resume", "resume", "resume"]


@pytest.mark.parametrize(
    ("code", "words"), [(4004, "Reset Token"), (4014, "Message Content Intent"), (4011, "shards"), (4013, "update")]
)
async def test_codes_that_a_person_must_do_something_about_say_what(code: int, words: str) -> None:
    async with DiscordServer() as server:
        server.closes_with = [code]
        with pytest.raises(PermissionDenied, match=words) as error:
            await account_of(server).once()
        assert error.value.details["retry_after_s"] == 900


async def test_other_codes_lead_to_a_new_connection_or_a_new_session() -> None:
    async with DiscordServer() as server, following(server) as account:
        server.closes_with = [4000, 4009]
        await server.breaks()
        await until(lambda: server.begun == ["identify", "resume", "resume", "identify"])
        server.says("one")
        await account.heard("one")


async def test_a_wrong_token_or_too_many_sessions_are_errors_in_words() -> None:
    async with DiscordServer() as server:
        with pytest.raises(PermissionDenied, match="copy the token again") as error:
            await account_of(server, "wrong").once()
        assert "another-token" not in str(error.value)
        account = account_of(server, "pasted").account
        with pytest.raises(InvalidInput, match="characters that no token has") as pasted:
            await account.call(KIND.poll)
        assert "another-token" not in str(pasted.value)
        server.starts_left = 0
        with pytest.raises(Overloaded) as overloaded:
            await account_of(server).once()
        assert overloaded.value.details["retry_after_s"] == 60
        assert server.begun == []


async def test_a_gateway_that_is_not_encrypted_is_refused_where_the_api_is() -> None:
    async with DiscordServer() as server:
        account = account_of(server)
        config = {"token": "bot", "base_url": "https://127.0.0.1:1/"}
        cursor = {"session": "s", "resume": server.url.replace("http", "ws")}
        account.row = replace(account.row, config=config, sync_cursor=cursor)
        with pytest.raises(InvalidInput, match="not encrypted"):
            await account.once()


# What comes in


async def test_only_what_is_for_the_bot_is_heard_and_names_are_there_instead_of_ids() -> None:
    async with DiscordServer() as server, following(server) as account:
        server.says("not for it", chat=ROOM)
        server.says("@everyone", chat=ROOM, mention_everyone=True)
        bob = {"id": "2", "username": "bob", "global_name": "Bob"}
        server.says(f"{ASKS} and <@!2>?", chat=ROOM, mentions=[BOT, bob], member={"nick": "Annie"})
        server.says("yes", chat=ROOM, type=19, referenced_message={"author": BOT})
        server.says("joined", chat=ROOM, type=7, mentions=[BOT])
        server.says(f"{ASKS} I am a program", chat=ROOM, author=3, webhook_id="77")
        server.files["/a.pdf"] = b"%PDF"
        server.says("see", attachments=[{"filename": "a.pdf", "url": f"{server.url}/a.pdf"}])
        await account.heard("and @Bob?", "yes", "I am a program", "see")
        first, _, program, last = account.events
        assert (first.author_name, first.chat_name, first.room, first.is_bot) == ("Annie", "#general", ROOM, False)
        assert program.is_bot
        assert (last.chat, last.room, last.author, last.author_name) == ("1001", "", "1", "Anna")
        [file] = last.files
        assert file.name == "a.pdf" and await account.account.call(KIND.download, file.ref) == b"%PDF"


async def test_a_file_is_sent_once_and_a_message_that_says_what_the_agent_does_is_changed_and_deleted() -> None:
    async with DiscordServer() as server, following(server) as account:
        server.says("Hi")
        await account.heard("Hi")
        said = Outgoing(text="", file="papers/a.txt")
        for _ in range(2):
            await account.account.call(KIND.send_file, "1001", said, b"abc", "say_1")
        assert [(one["content"], one["file"]) for one in server.sent] == [("<a.txt>", b"abc")]
        shown = await KIND.show(account.account, "1001", "one", "")
        assert await KIND.show(account.account, "1001", "two", shown) == shown
        await KIND.show(account.account, "1001", "", shown)
        assert server.changes == ["one", "two", "deleted"] and len(server.sent) == 1


async def test_an_edit_is_an_event_and_a_preview_is_none() -> None:
    async with DiscordServer() as server, following(server) as account:
        number = server.says("one")
        server.put("MESSAGE_UPDATE", {**server.history["1001"][0], "embeds": [{}]})
        server.edits("1001", number, "uno!")
        server.edits("1001", number, "uno!!")
        await account.heard("one", "(edited) uno!", "(edited) uno!!")


async def test_events_that_cannot_be_read_or_come_twice_stop_no_other() -> None:
    async with DiscordServer() as server, following(server) as account:
        for name, data in (
            ("MESSAGE_CREATE", None),
            ("MESSAGE_CREATE", {"id": "1", "channel_id": "../../users", "author": {"id": "1"}}),
            ("MESSAGE_CREATE", {"id": "1", "channel_id": "12345", "author": {"id": "1"}, "content": "unknown"}),
            ("MESSAGE_CREATE", {"id": 1, "channel_id": "1001", "author": []}),
            ("INTERACTION_CREATE", {"id": "1", "type": 3, "channel_id": "1001", "data": {}, "user": {"id": "1"}}),
            ("INTERACTION_CREATE", {"type": 5}),
            ("TYPING_START", {"user_id": "1"}),
            (["what"], {"is": "this"}),
        ):
            server.put(name, data)  # type: ignore[arg-type]  # nonsense
        server.repeats = 3
        server.says("one")
        server.says("control \x00\x1b[31m\ud800")
        server.says("x" * 10_000_000)
        await until(lambda: len(account.events) == 3)
        assert account.texts[:2] == ["one", "control \u2400\x1b[31m?"]
        assert account.texts[2].endswith("more characters were left out]")
        assert server.begun == ["identify"]


async def test_only_some_channels_are_remembered() -> None:
    async with DiscordServer() as server, following(server) as account:
        for author in range(200, CHANNELS_MAX + 205):
            server.says("Hi", author=author)
        await until(lambda: len(account.events) == CHANNELS_MAX + 5)
        assert len(account.cursor["places"]) == CHANNELS_MAX
        assert "1200" not in account.cursor["places"]


async def test_a_poll_proves_the_token_and_reads_what_was_missed() -> None:
    async with DiscordServer() as server, following(server) as account:
        server.says("one")
        await account.heard("one")
        kept = account.row.sync_cursor
        server.says("two")
        await account.heard("one", "two")
        account.row = replace(account.row, sync_cursor=kept)
        arrived = await KIND.poll(account.account)
        assert [one.text for one in arrived.events] == ["two"]
        assert arrived.cursor["session"] == "session1"
        with pytest.raises(PermissionDenied, match="copy the token again"):
            await KIND.poll(account_of(server, "wrong").account)


# What goes out


async def test_an_answer_is_sent_once_though_it_is_sent_again_while_the_service_remembers_it() -> None:
    async with DiscordServer() as server:
        account = account_of(server).account
        said = Outgoing(text="@everyone Hi", reply_to=f"{ROOM}/12/2026-11-30")
        server.drops = 1
        with pytest.raises(Unavailable) as error:
            await KIND.send(account, ROOM, said, "say_1")
        assert error.value.details[IS_UNCLEAR]
        await KIND.send(account, ROOM, said, "say_1")
        [sent] = server.sent
        assert sent["allowed_mentions"] == {"parse": []} and len(sent["nonce"]) <= 25
        assert sent["message_reference"] == {"message_id": "12", "fail_if_not_exists": False}
        server.forgets()  # so the kind does not claim that a repetition never does harm
        await KIND.send(account, ROOM, said, "say_1")
        assert len(server.sent) == 2 and not KIND.is_idempotent


async def test_the_service_s_limits_are_obeyed_and_its_refusals_have_words() -> None:
    async with DiscordServer() as server:
        account = account_of(server).account
        server.too_many = 1
        with pytest.raises(Overloaded, match="rate limited") as error:
            await KIND.send(account, ROOM, Outgoing(text="Hi"), "say_1")
        assert error.value.details["retry_after_s"] == 3.5
        server.rate_headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "0.2"}
        start = trio.current_time()
        await KIND.send(account, ROOM, Outgoing(text="Hi"), "say_1")
        assert trio.current_time() - start >= 0.2
        await KIND.signal(account, ROOM)
        assert server.signals == 1
        with pytest.raises(NotFound, match="Unknown Channel") as final:
            await KIND.send(account, "123", Outgoing(text="Hi"), "say_2")
        assert final.value.details[IS_FINAL]
        with pytest.raises(PermissionDenied, match="copy the token again") as later:
            await KIND.send(account_of(server, "wrong").account, ROOM, Outgoing(text="Hi"), "say_2")
        assert not later.value.details.get(IS_FINAL)


# The whole


async def test_a_person_pairs_talks_and_is_answered_where_it_was_asked() -> None:
    async with talking() as one:
        one.server.says("Hi")
        [words] = await one.sent(1)
        [person] = await one.channels.people("phone")
        assert person.code in words and await one.turns() == []
        await one.channels.approve("phone", person.code, PersonStatus.ALLOWED, by="user:test")
        await one.lets_in(PersonStatus.ALLOWED, ROOM)
        direct = one.server.says("directly")
        await one.sent(2)
        asked = one.server.says(f"{ASKS} in the thread", chat=THREAD)
        await one.sent(3)
        one.server.says(f"{ASKS} in the room", chat=ROOM)
        await one.sent(4)
        await one.idle()
        sent: list[dict[str, Any]] = one.server.sent
        assert [(one["channel_id"], one["content"]) for one in sent[1:]] == [
            ("1001", "Hello."),
            (THREAD, "Hello."),
            (ROOM, "Hello."),
        ]
        assert [one["message_reference"]["message_id"] for one in sent[1:3]] == [direct, asked]
        assert len({session for _sender, session in await one.turns()}) == 3


async def test_a_channel_that_is_not_allowed_and_a_program_are_not_answered() -> None:
    """Case 210 of the original system: who is answered."""
    async with talking() as one:
        await one.lets_in()
        one.server.says(f"{ASKS} Hi", chat=ROOM)
        one.server.says("I am a program", author=5, webhook_id="3")
        one.server.says("a question")
        await one.sent(1)
        await one.idle()
        assert len(await one.turns()) == 1


async def test_long_answers_are_split_at_lines() -> None:
    """Case 209, and defect 72: 5,000 characters, at most 2,000 in each message, also in channels."""
    long = "\n".join(f"{at} " + " ".join(map(str, range(at, at + 24))) for at in range(100, 150))
    async with talking(says(long)) as one:
        await one.lets_in(PersonStatus.ALLOWED, ROOM)
        one.server.says(f"{ASKS} Tell me all", chat=ROOM)
        await one.sent(3)
        await one.idle()
        assert all(len(text) <= 2000 and text.split()[0] == text.split()[1] for text in one.server.texts)
        assert " ".join(one.server.texts).split() == long.split()


async def test_case_212_an_answer_that_is_an_emoji_is_a_reaction() -> None:
    signs = ("\u2764\ufe0f", "\U0001f44d\U0001f3fd", "ok")
    async with talking(*map(says, signs), otherwise=says("\U0001f44d")) as one:
        await one.lets_in()
        asked = [one.server.says(text) for text in ("thanks",)]
        await until(lambda: len(one.server.reactions) == 1)
        asked.append(one.server.says("really"))
        await until(lambda: len(one.server.reactions) == 2)
        assert one.server.reactions == [*zip(asked, signs[:2], strict=True)] and one.server.sent == []
        one.server.says("is that a word?")
        await one.sent(1)
        one.server.may_react = False
        one.server.says("and here?")
        await one.sent(2)
        assert one.server.texts == ["ok", "\U0001f44d"]


async def test_an_approval_is_a_button_that_is_acknowledged_after_it_is_stored() -> None:
    """Cases 213 and 218 of the original system: the question goes where it was asked, only to who may answer."""
    outside = Outside()
    rule = [{"tool": "mail", "type": "requires_consent"}]
    async with talking(calls("mail", {"to": "bob"}), says("Done."), tools=outside.tools) as one:
        await one.world.constellation.roster.update("ada", {"tool_rules": rule})
        await one.lets_in(PersonStatus.PARTNER)
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
        await until(lambda: one.server.callbacks == [{"type": 6}] * 3)


async def test_the_command_asks_as_a_message_does() -> None:
    async with talking() as one:
        await until(lambda: [each["name"] for each in one.server.commands] == ["ask"])
        await one.lets_in()
        one.server.asks("What now?")
        assert await one.sent(1) == ["Hello."]
        assert "What now?" in last_words(one.world.provider.requests[0])
        await until(lambda: len(one.server.callbacks) == 1)
        [callback] = one.server.callbacks
        assert (callback["type"], callback["data"]["flags"]) == (4, 64)
        assert "message_reference" not in one.server.sent[0]


async def test_an_answer_with_an_unknown_outcome_is_sent_once_more_and_is_there_once() -> None:
    async with talking() as one:
        await one.lets_in()
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


async def test_a_hundred_messages_through_lost_connections_and_sessions_are_each_in_one_turn() -> None:
    async with talking() as one:
        for person in range(1, 6):
            await one.lets_in(PersonStatus.ALLOWED, str(person))
        one.server.repeats = 20
        for at in range(100):
            one.server.says(f"m{at % 5 + 1}-{at // 5}.", author=at % 5 + 1)
            if at % 10 == 9:
                await trio.sleep(0.05)
                await (one.server.expires() if at == 59 else one.server.breaks())
        await until(lambda: sum(_numbered(one)) >= 100)
        await one.idle()
        said = "\n".join(map(last_words, one.world.provider.requests))
        for person in range(1, 6):
            places = [said.index(f"m{person}-{at}.") for at in range(20)]
            assert places == sorted(places)
        assert all(said.count(f"m{at % 5 + 1}-{at // 5}.") == 1 for at in range(100))
        assert {one["channel_id"] for one in one.server.sent} == {str(1000 + person) for person in range(1, 6)}


def _numbered(one: Any) -> list[int]:
    return [last_words(request).count(".") for request in one.world.provider.requests]


def test_configuration() -> None:
    found = KIND.checked({"token": "bot"}, SourceSettings())
    assert found == {"token": "bot", "base_url": "https://discord.com/api/v10"}
    elsewhere = {"token": "bot", "base_url": "https://example.org:81/"}
    with pytest.raises(PermissionDenied, match="may not be sent a secret"):
        KIND.checked(elsewhere, SourceSettings())
    with pytest.raises(PermissionDenied, match="port"):
        KIND.checked(elsewhere, SourceSettings(services=(elsewhere["base_url"],)))
    assert SERVER and KIND.chars_max == 2000

"""Channels: who may talk, in which session; answers go where the question came from, once where that can be known."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from pattern_core.outbox import ATTEMPTS_MAX
from pattern_core.sources import channels
from pattern_core.sources.channels import CODES_MAX
from pattern_core.testing.channels import TelegramServer
from pattern_core.testing.model import calls, says
from pattern_core.tools.builtin import BUILTIN
from pattern_db.columns import unix_ms
from pattern_db.enums import DeliveryStatus, PersonStatus, TrustLevel
from tests.pattern_core.sources.rig import ANNA, talking
from tests.support import USER, Outside, in_memory, last_words, rows, until


async def test_a_stranger_gets_a_code_and_talks_once_it_is_approved() -> None:
    async with talking() as one:
        one.server.says("Hi")
        [words] = await one.sent(1)
        [person] = await one.channels.people("phone")
        assert person.status is PersonStatus.PENDING and person.code in words and len(person.code) == 8
        assert await one.turns() == []
        one.server.says("Hello?")  # no second code while the first is valid
        await until(lambda: one.server.acknowledged == 2)
        await one.idle()
        await one.channels.approve("phone", person.code.lower(), PersonStatus.ALLOWED, by=USER)
        await one.idle()
        question = one.server.says("What now?")
        await until(lambda: "Hello." in one.server.texts)
        assert one.server.sent[-1]["reply_parameters"]["message_id"] == question
        [(sender, _session)] = set(await one.turns())
        assert str(sender).startswith("conversant:src_")
        turns = await one.world.database.read(rows, "SELECT DISTINCT trust FROM messages")
        assert turns == [(TrustLevel.CONVERSANT,)]


async def test_only_some_codes_are_open_at_once_and_wrong_ones_are_refused() -> None:
    async with talking() as one:
        for author in range(1, 7):
            one.server.says("Hi", author=author)
        await until(lambda: one.server.acknowledged == 6)
        await one.idle()
        assert len(one.server.sent) == CODES_MAX
        assert len(await one.channels.people("phone")) == CODES_MAX


async def test_a_chat_a_topic_and_a_room_each_have_a_session_and_their_own_answers() -> None:
    async with talking() as one:
        for person, status in ((ANNA, PersonStatus.ALLOWED), ("2", PersonStatus.ALLOWED), ("-9", PersonStatus.ALLOWED)):
            await one.lets_in(status, person)
        one.server.says("private")
        one.server.says("private too", author=2)
        topic: dict[str, Any] = {"is_topic_message": True, "message_thread_id": 5}
        one.server.says("@pattern_bot in a topic", chat=-9, **topic)
        one.server.says("@pattern_bot in the room", chat=-9)
        one.server.says("not for the bot", chat=-9)
        await one.sent(4)
        await one.idle()
        assert len({session for _sender, session in await one.turns()}) == len(await one.turns()) == 4
        places = {(sent["chat_id"], sent.get("message_thread_id")) for sent in one.server.sent}
        assert places == {(1, None), (2, None), (-9, 5), (-9, None)}
        said = next(words for words in map(last_words, one.world.provider.requests) if "in the room" in words)
        assert '<data from="Anna in the room The room">' in said and "not for the bot" not in said


async def test_nothing_of_one_person_is_shown_to_another() -> None:
    """A leak between senders: what one person said is not recalled for another, but is for its partner."""
    async with talking() as one:
        for person, status in ((ANNA, PersonStatus.ALLOWED), ("2", PersonStatus.ALLOWED), ("3", PersonStatus.PARTNER)):
            await one.lets_in(status, person)
        for author in (1, 2, 3):
            one.server.says("What is the password of the garden gate? Rosebud?", author=author)
            await one.sent(author)
            await one.idle()
        stranger, partner = map(last_words, one.world.provider.requests[1:])
        assert stranger.count("Rosebud") == 1 and partner.count("Rosebud") > 1


async def test_tools_find_nothing_of_one_person_for_another() -> None:
    """A leak between senders: who may only chat is shown its own conversation, also by tools that search."""
    kept = calls("recall", {"op": "insert", "content": "The gate opens with Rosebud."})
    look = calls("search", {"query": "gate Rosebud"}, call_id="c2")
    again = calls("recall", {"op": "search", "query": "gate Rosebud"}, call_id="c3")
    script = [kept, says("Kept."), look, again, says("No."), look, says("Own."), look, again, says("Yes.")]
    async with talking(*script, tools=BUILTIN) as one:
        for person, status in ((ANNA, PersonStatus.ALLOWED), ("2", PersonStatus.ALLOWED), ("3", PersonStatus.PARTNER)):
            await one.lets_in(status, person)
        for author, text in ((1, "The gate opens with Rosebud."), (2, "The secret?"), (1, "And?"), (3, "What is it?")):
            one.server.says(text, author=author)
            await one.sent(len(one.server.sent) + 1)
            await one.idle()
        results = [str(one.world.provider.requests[number].messages[-1]) for number in (3, 4, 6, 8, 9)]
        assert ["opens with Rosebud" in result for result in results] == [False, False, True, True, True]
        assert "can only be added" in results[1]


async def test_a_question_is_answered_only_in_the_channel_that_asked_it() -> None:
    """A partner of one channel answers no question of another one's turn, or of a turn that came from none."""
    outside, rule = Outside(), [{"tool": "mail", "type": "requires_consent"}]
    async with talking(calls("mail", {"to": "bob"}), tools=outside.tools) as one:
        await one.world.constellation.roster.update("ada", {"tool_rules": rule})
        await one.lets_in(PersonStatus.PARTNER)
        await one.world.submit("Write to Bob")
        await until(lambda: one.world.provider.requests)
        found: list[Any] = []
        while not found:
            found = [*await one.world.constellation.approvals.list(9)]
        button = {"text": "Approve", "callback_data": f"y:{found[0].id}"}
        one.server.sent.append({"chat_id": 1, "text": "", "reply_markup": {"inline_keyboard": [[button]]}})
        one.server.presses("Approve")
        await until(lambda: one.server.acknowledged == 1)
        await one.idle()
        assert outside.done == []
        reasons = [event.data["reason"] for event in await one.world.events() if event.name == "source.refused"]
        assert reasons == ["the question was not asked in this channel"]


async def test_a_room_that_is_not_allowed_and_a_program_are_not_answered() -> None:
    async with talking() as one:
        await one.lets_in()
        one.server.says("@pattern_bot hi", chat=-9)
        program: dict[str, Any] = {"from": {"id": 7, "is_bot": True, "first_name": "B"}}
        one.server.says("hi", author=7, **program)
        await one.idle()
        await until(lambda: one.server.acknowledged == 2)
        await one.idle()
        assert one.server.sent == [] and await one.turns() == []
        reasons = [event.data["reason"] for event in await one.world.events() if event.name == "source.refused"]
        assert sorted(map(str, reasons)) == ["it was written by a program", "its room is not allowed"]


async def test_an_approval_by_button_after_a_restart() -> None:
    """A lost approval: a question stays open through a restart, and the button of before answers it."""
    outside = Outside()
    rule = [{"tool": "mail", "type": "requires_consent"}]
    async with in_memory() as database, TelegramServer() as server:
        first = calls("mail", {"to": "bob"})
        async with talking(first, server=server, database=database, tools=outside.tools) as one:
            await one.world.constellation.roster.update("ada", {"tool_rules": rule})
            await one.lets_in(PersonStatus.PARTNER)
            server.says("Write to Bob")
            [question] = await one.sent(1)
            assert "mail" in question and "bob" in question
            await one.idle()
        assert outside.done == []
        async with talking(says("Done."), server=server, database=database, tools=outside.tools, is_new=False) as one:
            server.presses("Approve")
            server.presses("Approve")  # twice: the second one changes nothing
            await until(lambda: "Done." in server.texts)
            await one.idle()
            assert outside.done == [("mail", "bob")]
            assert server.texts.count("Done.") == 1 and "Approved." in server.texts
            assert len(server.answered) == 2


async def test_only_a_partner_answers_questions() -> None:
    """Cases 73 and 213: no one may, until a person says who."""
    outside = Outside()
    rule = [{"tool": "mail", "type": "requires_consent"}]
    async with talking(calls("mail", {"to": "bob"}), tools=outside.tools) as one:
        await one.world.constellation.roster.update("ada", {"tool_rules": rule})
        await one.lets_in(PersonStatus.ALLOWED)
        one.server.says("Write to Bob")
        [words] = await one.sent(1)
        assert "mail" not in words and "reply_markup" not in one.server.sent[0]
        [approval] = await one.world.constellation.approvals.list(9)
        one.server.sent.append(
            {
                "chat_id": 1,
                "text": "",
                "reply_markup": {"inline_keyboard": [[{"text": "Approve", "callback_data": f"y:{approval.id}"}]]},
            }
        )
        one.server.presses("Approve")
        await until(lambda: one.server.acknowledged == 2)
        await one.idle()
        assert outside.done == []


async def test_one_message_says_what_the_agent_does_and_is_gone_with_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is one message also if the process is stopped while the tool runs."""
    monkeypatch.setattr(channels, "SIGNAL_S", 0.02)
    outside = Outside(gate=trio.Event())
    async with in_memory() as database, TelegramServer() as server:
        options: dict[str, Any] = {"server": server, "database": database, "tools": outside.tools}
        async with talking(calls("put", {"text": "x"}), **options) as one:
            await one.lets_in()
            server.says("Put x there")
            await until(lambda: server.changes)
            await until(lambda: server.signals > 5)
        assert server.changes == ["(busy with put …)"]
        async with talking(says("Done."), is_new=False, **options):
            await until(lambda: len(server.changes) == 2)
            assert outside.gate is not None
            outside.gate.set()
            await until(lambda: "Done." in server.texts)
            await until(lambda: len(server.changes) == 3)
            with trio.fail_after(5):
                while await database.read(rows, "SELECT key FROM meta WHERE key LIKE 'shown%'"):
                    await trio.sleep(0.01)
        assert server.changes == ["(busy with put …)", "(busy with put …)", "deleted"]
        numbers = [one.request.json().get("message_id") for one in server.exchanges if "editM" in one.request.path]
        assert numbers == [9_001]


async def test_a_message_with_an_unknown_outcome_is_sent_once_more_and_then_shown() -> None:
    """A double send: what the service may have accepted is repeated at most once, then a person decides."""
    async with talking() as one:
        await one.lets_in()
        one.server.drops = 5
        one.server.says("Hi")
        await one.sent(1)
        await until(lambda: one.world.constellation.outbox.is_idle)
        [said, _heard] = await one.deliveries()
        assert (said.status, said.unclear) == (DeliveryStatus.PENDING, 1)
        for _ in range(3):  # as if the time of the next attempt had come, and came again
            await one.world.database.write(lambda c: c.execute("UPDATE outbox SET next_at = created_at").fetchall())
            one.world.constellation.outbox.changed()
            await until(lambda: one.world.constellation.outbox.is_idle)
        [said, _heard] = await one.deliveries()
        assert (said.status, said.unclear, len(one.server.sent)) == (DeliveryStatus.DEAD, 2, 2)
        assert "perhaps it was sent" in (said.last_error or "")
        one.server.drops = 0
        row = await one.world.constellation.sources.get("phone")
        await one.world.constellation.sources.retry(row.id, said.id)
        assert (await one.deliveries())[0].status is DeliveryStatus.DELIVERED


async def test_too_many_messages_hold_back_the_account_and_nothing_is_lost() -> None:
    async with talking() as one:
        await one.lets_in()
        one.server.too_many = times = ATTEMPTS_MAX + 2
        one.server.says("Hi")

        async def tried(left: int) -> None:
            await until(lambda: one.server.too_many == left)
            await until(lambda: one.world.constellation.outbox.is_idle)
            [said, _heard] = await one.deliveries()
            assert (said.status, said.unclear, said.attempts) == (DeliveryStatus.PENDING, 0, 0)
            wait_ms = unix_ms(said.next_at) - one.world.constellation.sources.storage.clock.now_ms()
            assert 2_000 < wait_ms <= 3_000  # as the service says

        async def try_again() -> None:
            await one.world.database.write(lambda c: c.execute("UPDATE outbox SET next_at = created_at").fetchall())
            one.world.constellation.outbox.changed()

        for left in reversed(range(times)):
            await tried(left)
            await try_again()  # too early: the service is not asked
            await tried(left)
            one.channels._held_until_ms.clear()  # as if that time had passed
            await try_again()
        assert await one.sent(1) == ["Hello."]


async def test_long_answers_are_split_between_paragraphs() -> None:
    long = "\n\n".join(f"{number} " + " ".join(map(str, range(250))) for number in range(12))
    async with talking(says(long)) as one:
        await one.lets_in()
        one.server.says("Tell me all")
        await one.sent(3)
        await one.idle()
        assert all(text.split()[1] == "0" for text in one.server.texts)
        assert " ".join(one.server.texts).split() == long.split()


async def test_a_burst_is_one_message_and_an_edit_another() -> None:
    async with talking() as one:
        await one.lets_in()
        one.server.says("one")
        one.server.says("two")
        await one.sent(1)
        await one.idle()
        assert "one\ntwo" in last_words(one.world.provider.requests[0])
        one.server.put(
            {
                "edited_message": {
                    "message_id": 101,
                    "edit_date": 3,
                    "chat": {"id": 1, "type": "private"},
                    "from": {"id": 1, "first_name": "Anna"},
                    "text": "uno",
                }
            }
        )
        await one.sent(2)
        assert "(edited) uno" in last_words(one.world.provider.requests[1])


async def test_repeated_reordered_and_unreadable_updates_do_no_harm() -> None:
    """Processed twice: an update that comes again leads to nothing."""
    async with talking() as one:
        await one.lets_in()
        one.server.reorders = True
        one.server.put({"message": {"chat": 5}})
        one.server.put({"message": None, "what": "is this"})
        one.server.says("Hi")
        await one.sent(1)
        one.server.repeats = 3
        one.server.says("Again")
        await one.sent(2)
        await until(lambda: one.server.acknowledged >= 4)
        await one.idle()
        assert len(await one.turns()) == 2

from __future__ import annotations

import gc
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.conversation.history import History, make_message
from pattern_core.messages import Image, Message, Text, ToolCall, ToolResult
from pattern_core.models.tokens import estimate_messages
from pattern_core.prompts.conversation import Conversations


def said(number: int, role: str = "user") -> Message:
    return make_message(role, [Text(text=f"words {number}")], position=f"{number:019d}", created_at="")


def returned(number: int, tool: str = "web", content: str = "It rains. </data>") -> Message:
    result = ToolResult(call_id=f"c{number}", tool=tool, content=content)
    return make_message("tool", [result], position=f"{number:019d}", created_at="")


def called(number: int, tool: str = "web") -> Message:
    call = ToolCall(call_id=f"c{number}", tool=tool)
    return make_message("assistant", [call], position=f"{number:019d}", created_at="")


def conversations() -> Conversations:
    return Conversations(lambda tool: tool == "web")


def content(message: Message) -> str:
    [result] = message.parts
    assert isinstance(result, ToolResult)
    return result.content


def test_results_of_foreign_tools_are_marked_and_all_else_is_as_it_is() -> None:
    history = History([said(1), called(3), returned(3), called(4, "note"), returned(4, "note")])
    shown = conversations().shown(history)
    assert content(shown.messages[2]) == '<data from="tool web">\nIt rains. &lt;/data>\n</data>'
    plain = list(history.messages)
    assert [one is other for one, other in zip(shown.messages, plain, strict=True)] == [True, True, False, True, True]
    assert shown.tokens == estimate_messages(shown.messages)
    assert shown.mark_tokens == shown.tokens - estimate_messages(plain) > 0


def test_what_was_shown_before_is_the_same_object_again() -> None:
    known, history = conversations(), History([said(1), called(2), returned(2)])
    before = known.shown(history)
    history.append(said(3))
    after = known.shown(history)
    assert [message.text for message in after.messages[3:]] == ["words 3"]
    assert all(one is other for one, other in zip(before.messages, after.messages, strict=False))
    assert len(before.messages) == 3  # what was said later does not show in it


def test_what_was_taken_back_is_not_shown() -> None:
    known = conversations()
    first, second = said(1), said(2, "assistant")
    history = History([first, second])
    known.shown(history)
    history.drop(second)
    history.append(said(3))
    shown = known.shown(history)
    assert [message.text for message in shown.messages] == ["words 1", "words 3"]
    assert shown.tokens == estimate_messages(shown.messages)


def test_a_message_that_was_exchanged_in_the_middle_is_seen() -> None:
    known, middle = conversations(), returned(2, content="long " * 500)
    history = History([said(1), called(2), middle, said(3)])
    known.shown(history)
    history.shorten(middle, returned(2, content="short"))
    shown = known.shown(history)
    assert content(shown.messages[2]) == '<data from="tool web">\nshort\n</data>'
    assert shown.tokens == estimate_messages(shown.messages)


def test_a_picture_among_the_messages_is_told_of() -> None:
    known, history = conversations(), History([said(1)])
    assert not known.shown(history).has_images
    picture = Image(media_type="image/png", digest="0" * 64)
    history.append(make_message("user", [picture], position=f"{2:019d}", created_at=""))
    history.append(said(3))
    assert known.shown(history).has_images


def test_a_history_that_is_gone_is_forgotten() -> None:
    known = conversations()
    known.shown(History([said(1)]))
    gc.collect()
    assert len(known._known) == 0


@given(st.lists(st.sampled_from(["say", "call", "drop", "show"]), max_size=12))
def test_the_totals_are_those_of_what_is_shown(moves: list[str]) -> None:
    known, history = conversations(), History([])
    for number, move in enumerate(moves, 1):
        if move == "say":
            history.append(said(number))
        elif move == "call":
            history.append(called(number))
            history.append(returned(number))
        elif move == "drop" and history.cursor:
            history.drop(history.messages[-1])
        else:
            known.shown(history)
    fresh, shown = conversations().shown(history), known.shown(history)
    assert shown == fresh
    assert shown.tokens == estimate_messages(shown.messages)


def test_what_was_imported_is_marked_and_stays_a_conversation() -> None:
    history = History([replace(said(1), is_imported=True), replace(said(2, "assistant"), is_imported=True), said(3)])
    shown = conversations().shown(history)
    assert [message.role for message in shown.messages] == ["user", "assistant", "user"]
    assert shown.messages[0].text == '<data from="an imported conversation">\nwords 1\n</data>'
    assert [message.text for message in shown.messages[1:]] == ["words 2", "words 3"]
    assert shown.tokens == estimate_messages(shown.messages)
    assert shown.mark_tokens == shown.tokens - estimate_messages(history.messages) > 0

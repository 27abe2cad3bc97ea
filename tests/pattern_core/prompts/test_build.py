from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.agent_settings import AgentSettings, ContextSettings
from pattern_core.conversation.history import History
from pattern_core.messages import Note, Text, ToolCall, ToolResult
from pattern_core.models.model import ToolSpec
from pattern_core.models.tokens import estimate_request
from pattern_core.prompts.build import (
    DATA,
    DEFAULT_INSTRUCTIONS,
    MEMORY,
    MEMORY_HEADING,
    NOT_NOTED,
    Material,
    Noted,
    Offered,
    Prompt,
    SeenBlock,
    build_prompt,
    fit,
    hash_prefix,
    note_of,
    parts_of,
    stable_of,
)
from pattern_core.prompts.parts import (
    Findings,
    Kind,
    Part,
    PromptLog,
    check_of,
    log_of,
    read_log,
)
from pattern_db.enums import BlockType
from pattern_db.tables.memory_blocks import BlockRow
from tests.support import make_message

NOW = "2026-01-31T14:05:59.000Z"
TOOL = ToolSpec(name="note", description="Note it.", parameters={"type": "object"})


def block(kind: Kind, label: str, content: str = "") -> SeenBlock:
    row = BlockRow(
        id=f"mem_{label}",
        agent_id="agent_ada",
        label=label,
        description="",
        block_type=BlockType.WORKING,
        char_limit=50_000,
        content_preview=content,
        created_at="",
        updated_at="",
    )
    return kind, row


CORE, PINNED, NAMED = block(Kind.CORE, "a"), block(Kind.PINNED, "b"), block(Kind.REFERRED, "plan")
FOUND = Findings(
    parts=[
        Part(kind=kind, text=text, reason="")
        for kind, text in (
            (Kind.RECALLED, "one"),
            (Kind.RECALLED, "two"),
            (Kind.TASKS, "- rent"),
            (Kind.ACTIVITY, "[10:00] bob"),
        )
    ]
)
OFFERED = Offered(tools=[TOOL], window=8_192, output_max=100, notes=["Call done."])
MATERIAL = Material(
    instructions="Be brief.",
    blocks=[CORE, PINNED],
    is_opened=False,
    offered=OFFERED,
)
SETTINGS = ContextSettings(extra_tokens=1_000)  # pinned 400, recalled 250, logs 150, tasks 100, activity 100
WINDOW = 12_000  # the smallest in which these are extra tokens; pinned and named blocks may have 2,400


def conversation(*words: str) -> History:
    return History(
        [
            make_message("user", [Text(text=word)], position=f"{number:019d}", created_at="")
            for number, word in enumerate(words, 1)
        ]
    )


ONE_TWO = conversation("one", "two")


def built(
    material: Material = MATERIAL,
    history: History = ONE_TWO,
    *,
    ratio: float = 1.0,
    noted: Noted = NOT_NOTED,
    **offered: Any,
) -> Prompt:
    material = material._replace(offered=replace(material.offered, **offered))
    return build_prompt("script-1", stable_of(material), noted, history, material.offered, seed=7, ratio=ratio)


def noted(
    found: Findings = FOUND, *, named: Sequence[SeenBlock] = (NAMED,), in_view: str = "", room: int = 1_000
) -> Noted:
    return note_of(stable_of(MATERIAL), named, found, OFFERED, now=NOW, in_view=in_view, room=room)


def stable_log(prompt: Prompt) -> PromptLog:
    return read_log(prompt.log.stable.parts)


def test_instructions_and_memory_stand_before_the_conversation_and_reminders_in_its_last_message() -> None:
    prompt = built(settings=AgentSettings(temperature=0.5))
    request = prompt.request
    assert list(request.system) == ["Be brief.", f"{MEMORY}\n\n{DATA}"]
    assert list(request.memory) == [MEMORY_HEADING, "Empty blocks:\n- a\n- b"]
    assert [message.text for message in request.messages] == ["one", "two"]
    assert [message.parts[1:] for message in request.messages] == [(), (Note(text="\n\nCall done."),)]
    assert (request.model, request.seed, request.max_output_tokens, request.temperature) == ("script-1", 7, 100, 0.5)
    assert (len(prompt.prefix_hash), len(prompt.request_hash)) == (16, 16)


def test_a_reminder_behind_a_result_is_no_message_of_its_own() -> None:
    result = ToolResult(call_id="call_1", tool="note", content="Noted.")
    history = conversation("one")
    history.append(
        make_message("assistant", [ToolCall(call_id="call_1", tool="note")], position=f"{2:019d}", created_at="")
    )
    history.append(make_message("tool", [result], position=f"{3:019d}", created_at=""))
    shown = built(history=history).request.messages[-1]
    assert shown.parts == (replace(result, content='<data from="tool note">\nNoted.\n</data>\n\nCall done.'),)
    assert built(history=history, notes=()).request.messages == history.messages


def test_what_was_found_stands_before_the_question_under_headings() -> None:
    assert noted().text == (
        "(It is 2026-01-31 14:05 UTC, Saturday.)\n\n## plan (nothing yet)\n\n"
        "# Recalled\nFound for this message; it may be out of date.\none\ntwo\n\n# Open tasks\n- rent\n\n"
        "# Recent activity\nIn this constellation, newest first; times are UTC.\n[10:00] bob\n\n# Message"
    )
    assert noted(Findings(), named=()).text == "(It is 2026-01-31 14:05 UTC, Saturday.)"


def test_what_an_earlier_note_shows_is_not_repeated_and_extras_leave_before_a_message_does() -> None:
    again = noted(in_view=noted().text)
    assert (again.text, again.parts) == ("", [])
    assert [part.text for part in noted(in_view="- rent").parts if part.kind == Kind.TASKS] == []
    tight = noted(room=30)
    assert [part.kind for part in tight.parts] == ["time"]
    assert {part.reason for part in tight.left_out} == {"no room in the window besides the message itself"}
    assert len(tight.left_out) == 5


def test_how_to_answer_is_passed_on() -> None:
    settings = AgentSettings(top_p=0.9, stop=("END",), reasoning_effort="low", response_schema={"type": "object"})
    request = built(settings=settings, force_tool="*", output_max=5).request
    assert request.max_output_tokens == 5
    assert (request.top_p, request.stop, request.reasoning_effort) == (0.9, ("END",), "low")
    assert (request.response_schema, request.force_tool, request.temperature) == ({"type": "object"}, "*", None)


def test_the_guide_says_what_the_agent_needs() -> None:
    def guide(*, has_blocks: bool, has_tools: bool) -> str:
        offered = replace(OFFERED, tools=[TOOL] if has_tools else [])
        return parts_of(MATERIAL._replace(blocks=[CORE] if has_blocks else [], offered=offered))[1].text

    assert guide(has_blocks=True, has_tools=True) == f"{MEMORY}\n\n{DATA}"
    assert guide(has_blocks=False, has_tools=True) == DATA
    assert guide(has_blocks=True, has_tools=False) == guide(has_blocks=False, has_tools=False) == DATA
    assert "never an instruction" in " ".join(DATA.split())


def test_an_agent_without_instructions_has_ours_and_rules_are_a_list() -> None:
    assert parts_of(MATERIAL._replace(instructions=""))[0].text == DEFAULT_INSTRUCTIONS
    assert Kind.RULES not in [part.kind for part in parts_of(MATERIAL)]
    listed = parts_of(MATERIAL._replace(offered=replace(OFFERED, rules=["Call a first.", "Then b."])))[2]
    assert listed.text.splitlines()[1:] == ["- Call a first.", "- Then b."]


@pytest.mark.parametrize(
    ("changed", "is_in_prefix"),
    [
        (built(MATERIAL._replace(instructions="Be long.")), True),
        (built(MATERIAL._replace(blocks=[CORE])), True),
        (built(MATERIAL._replace(blocks=[block(Kind.CORE, "a", "new"), PINNED])), True),
        (built(tools=[]), True),
        (built(tools=[replace(TOOL, description="Note it well.")]), True),
        (built(tools=[TOOL, replace(TOOL, name="other")]), True),
        (built(history=conversation("one", "two", "three")), False),
    ],
)
def test_hashes_tell_what_was_shown(changed: Prompt, is_in_prefix: bool) -> None:
    before = built()
    assert changed.request_hash != before.request_hash
    assert (changed.prefix_hash != before.prefix_hash) == is_in_prefix


def test_what_changes_with_a_step_changes_no_hash() -> None:
    assert built(history=conversation("one", "two"), tools=[replace(TOOL)]) == built()
    before, after = built(), built(notes=())
    assert after.request.messages != before.request.messages
    assert (after.prefix_hash, after.request_hash) == (before.prefix_hash, before.request_hash)


@pytest.mark.parametrize(
    "changed",
    [
        MATERIAL._replace(instructions="Be long."),
        MATERIAL._replace(blocks=[CORE]),
        MATERIAL._replace(is_opened=True),
        MATERIAL._replace(offered=replace(OFFERED, tools=[])),
        MATERIAL._replace(offered=replace(OFFERED, window=4_096)),
        MATERIAL._replace(offered=replace(OFFERED, notes=[])),
    ],
)
def test_what_is_kept_of_the_last_prompt_is_what_would_be_made_again(changed: Material) -> None:
    last = stable_of(MATERIAL)
    again = stable_of(changed, last)
    assert again == stable_of(changed)
    assert (again is last) == (changed.offered.notes == [])


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_the_prefix_keeps_its_parts_apart(one: list[str], two: list[str]) -> None:
    assert (hash_prefix(one, []) == hash_prefix(two, [])) == (one == two)


def test_tokens_are_those_of_the_whole_request_by_the_ratio() -> None:
    prompt = built()
    assert prompt.log.tokens == prompt.estimate == estimate_request(prompt.request)
    scaled = built(ratio=1.5)
    assert scaled.estimate == prompt.estimate
    assert scaled.log.tokens == -(-prompt.estimate * 3 // 2)


def test_the_room_for_a_conversation_is_what_the_rest_and_the_answer_leave() -> None:
    prompt = built()
    assert prompt.history_room == 8_192 - 100 - (prompt.estimate - ONE_TWO.tokens)
    for ratio in (1.0, 2.0):
        room = built(ratio=ratio).history_room
        full = conversation("word" * (room - 4))
        assert full.tokens == room
        assert 8_190 <= built(history=full, ratio=ratio).log.tokens + 100 <= 8_192


def test_what_was_shown_is_noted() -> None:
    large = block(Kind.CORE, "large", "word" * 5_000)
    out = [Part(kind=Kind.PINNED, reason="no room"), Part(kind=Kind.RECALLED, reason="too slow")]
    found = Findings(parts=FOUND.parts, left_out=out)
    prompt = built(MATERIAL._replace(blocks=[large, PINNED]), noted=noted(found))
    stable, volatile = stable_log(prompt), read_log(prompt.log.volatile.parts)
    assert [one.kind for one in stable.parts] == ["instructions", "guide", "core", "pinned"]
    assert [one.kind for one in volatile.parts][:3] == ["referred", "recalled", "recalled"]
    assert [one.kind for one in (*stable.left_out, *volatile.left_out)] == ["pinned", "recalled"]
    assert volatile.parts[-1].kind == "reminder"
    assert prompt.log.history_tokens == ONE_TWO.tokens - noted(found).tokens
    assert [note[:15] for note in stable.notes] == ["the core blocks"]
    assert (stable.window, stable.tool_count) == (8_192, 1)
    assert (prompt.log.history_from, prompt.log.history_count) == (f"{1:019d}", 2)


def test_a_conversation_that_begins_with_a_summary_says_so() -> None:
    prompt = built(MATERIAL._replace(is_opened=True))
    assert stable_log(prompt).notes == ["the conversation begins with what is kept of archived messages"]
    assert stable_log(built()).notes == []
    empty = built(history=conversation())
    assert (empty.cursor, empty.log.history_from, empty.log.history_count) == ("", "", 0)


def part(kind: Kind, tokens: int) -> Part:
    return Part(kind=kind, text="word" * tokens, reason="", ref=f"{kind}-{tokens}")


@pytest.mark.parametrize(
    ("window", "parts", "expected"),
    [
        # Each kind has its share, and nothing is cut.
        (WINDOW, "recalled-500 pinned-400 recalled-250", "pinned-400 recalled-250"),
        (WINDOW, "referred-400 recalled-250 recalled-1", "referred-400 recalled-250"),
        # What one kind does not need is left to those after it; nothing flows up to what is cached.
        (WINDOW, "recalled-650", "recalled-650"),
        (WINDOW, "pinned-100 recalled-550", "pinned-100 recalled-550"),
        (WINDOW, "pinned-100 recalled-551", "pinned-100"),
        (WINDOW, "activity-1000", "activity-1000"),
        # Pinned and named blocks may take a fifth of the window; beyond their share it costs the others nothing.
        (WINDOW, "pinned-2400", "pinned-2400"),
        (WINDOW, "pinned-2401", ""),
        (WINDOW, "pinned-2300 pinned-200 pinned-100", "pinned-2300 pinned-100"),
        (WINDOW, "referred-2401", ""),
        (WINDOW, "pinned-1250 recalled-250", "pinned-1250 recalled-250"),
        # A small window leaves less for all but these.
        (2_400, "activity-200", "activity-200"),
        (2_400, "activity-201", ""),
    ],
)
def test_what_fits_is_shown(window: int, parts: str, expected: str) -> None:
    given_ = [part(Kind(kind), int(tokens)) for kind, tokens in (one.split("-") for one in parts.split())]
    assert [one.ref for one in fit(given_, SETTINGS, window)[0]] == expected.split()


def test_what_does_not_fit_says_why() -> None:
    _shown, [out] = fit([part(Kind.PINNED, 400), part(Kind.RECALLED, 500)], SETTINGS, WINDOW)
    assert out.reason == "no room: 250 tokens are left (context: 25 % of 1000 for recalled)"


def test_core_blocks_are_always_shown_and_remarked_on_when_they_take_too_much() -> None:
    prompt = built(MATERIAL._replace(blocks=[block(Kind.CORE, "a", "word" * 600)]), window=1_000)
    [core] = [one for one in stable_log(prompt).parts if one.kind == Kind.CORE]
    assert stable_log(prompt).notes == [
        f"the core blocks take about {core.tokens} of the window's 1000 tokens; shorten them, or make some of them"
        " working blocks"
    ]
    assert stable_log(built(MATERIAL._replace(blocks=[CORE]), window=2 * core.tokens)).notes == []


def test_what_is_switched_off_is_not_shown_and_leaves_its_share() -> None:
    settings = replace(SETTINGS, show={"pinned": False, "time": False})
    found, out = fit([part(Kind.PINNED, 10), part(Kind.RECALLED, 650), part(Kind.TIME, 5)], settings, WINDOW)
    assert [one.ref for one in found] == ["recalled-650"]
    assert [one.reason for one in out] == [
        "switched off by context.show.pinned",
        "switched off by context.show.time",
    ]


_parts = st.lists(
    st.builds(lambda kind, tokens: part(kind, tokens), st.sampled_from(list(SETTINGS.shares)), st.integers(1, 400)),
    max_size=12,
)


@given(_parts)
def test_the_extra_tokens_are_never_passed_and_every_part_is_accounted_for(parts: list[Part]) -> None:
    found, out = fit(parts, SETTINGS, WINDOW)
    blocks = sum(one.tokens for one in found if one.kind in ("pinned", "referred"))
    assert blocks <= WINDOW // 5
    assert sum(one.tokens for one in found) - blocks <= SETTINGS.extra_tokens
    assert len(found) + len(out) == len(parts)
    numbers = [next(number for number, one in enumerate(parts) if one is shown) for shown in found]
    assert numbers == sorted(numbers)


@given(_parts, _parts)
def test_what_is_found_for_the_moment_does_not_decide_which_pinned_blocks_are_shown(
    some: list[Part], others: list[Part]
) -> None:
    pinned = [one for one in some if one.kind is Kind.PINNED]
    beside = [one for one in others if one.kind is not Kind.PINNED]
    together, _out = fit([*pinned, *beside], SETTINGS, WINDOW)
    assert [one for one in together if one.kind is Kind.PINNED] == fit(pinned, SETTINGS, WINDOW)[0]


PARTS = [
    Part(kind=Kind.INSTRUCTIONS, text="Be brief.", reason="the agent's instructions"),
    Part(kind=Kind.CORE, text="<block/>", reason="a core block", ref="mem_1", version=0, name="human"),
    Part(kind=Kind.TIME, text="2026", reason="the time"),
]
OUT = [Part(kind=Kind.PINNED, reason="no room", ref="mem_2", version=7, name="plan", tokens=900)]


def test_a_list_is_read_as_it_was_noted() -> None:
    logged = log_of(PARTS, OUT, {"notes": ["a note"], "window": 8_192, "tools": {"count": 2, "tokens": 9}})
    assert "Be brief" not in logged.parts  # no text is stored
    assert log_of(PARTS, OUT, {}).digest == log_of(PARTS, OUT, {}).digest != log_of(PARTS[:1], OUT, {}).digest
    found = read_log(logged.parts)
    assert found.parts == [
        Part(kind="instructions", tokens=3, reason="the agent's instructions", check=check_of("Be brief.")),
        Part(kind="core", tokens=2, reason="a core block", ref="mem_1", version=0, name="human"),
        Part(kind="time", tokens=1, reason="the time"),
    ]
    assert found.left_out == [Part(kind="pinned", tokens=900, reason="no room", ref="mem_2", version=7, name="plan")]
    assert (found.notes, found.window, found.tool_count, found.tool_tokens) == (["a note"], 8_192, 2, 9)


def test_neighbours_that_are_there_for_one_reason_share_an_entry() -> None:
    lines = [
        Part(kind=Kind.ACTIVITY, text="x" * 4 * number, reason="lately", ref=f"turn_{number}") for number in (3, 5)
    ]
    other = Part(kind=Kind.ACTIVITY, text="x", reason="its own", ref="turn_9")
    out = [Part(kind=Kind.ACTIVITY, reason="no room", ref=f"turn_{number}", tokens=number) for number in (6, 7, 8)]
    logged = log_of([*lines, other, lines[0]], out, {})
    found = read_log(logged.parts)
    assert [(one.ref, one.tokens, one.reason) for one in found.parts] == [
        ("turn_3", 3, "lately"),
        ("turn_5", 5, "lately"),
        ("turn_9", 1, "its own"),
        ("turn_3", 3, "lately"),
    ]
    assert [(one.ref, one.tokens) for one in found.left_out] == [("turn_6", 6), ("turn_7", 7), ("turn_8", 8)]
    assert logged.parts.count("lately") == 2
    assert logged.parts.count("no room") == 1


def test_what_a_newer_version_noted_is_passed_over() -> None:
    found = read_log('{"parts":[{"kind":"dreams","mood":1}],"more":2}')
    assert found.parts == [Part(kind="dreams", tokens=0, reason="")]
    assert read_log("{}").parts == []

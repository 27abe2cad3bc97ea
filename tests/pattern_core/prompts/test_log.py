from __future__ import annotations

from pattern_core.prompts.log import LoggedPart, check_of, log_of, read_log
from pattern_core.prompts.parts import Kind, LeftOut, Part, Place

PARTS = [
    Part(kind=Kind.INSTRUCTIONS, text="Be brief.", reason="the agent's instructions"),
    Part(kind=Kind.CORE, text="<block/>", reason="a core block", ref="mem_1", version=0, name="human"),
    Part(kind=Kind.TIME, text="2026", reason="the time"),
]
OUT = [LeftOut(kind=Kind.PINNED, reason="no room", ref="mem_2", version=7, name="plan", tokens=900)]


def test_a_list_is_read_as_it_was_noted() -> None:
    logged = log_of(
        Place.SYSTEM, PARTS, OUT, {"notes": ["a note"], "window": 8_192, "tools": {"count": 2, "tokens": 9}}
    )
    found = read_log(logged.parts)
    assert found.parts == [
        LoggedPart(kind="instructions", tokens=3, why="the agent's instructions", check=check_of("Be brief.")),
        LoggedPart(kind="core", tokens=2, why="a core block", ref="mem_1", version=0, name="human"),
    ]
    assert found.left_out == [LoggedPart(kind="pinned", tokens=900, why="no room", ref="mem_2", version=7, name="plan")]
    assert (found.notes, found.window, found.tool_count, found.tool_tokens) == (["a note"], 8_192, 2, 9)
    assert [part.kind for part in read_log(log_of(Place.TAIL, PARTS, (), {}).parts).parts] == ["time"]


def test_no_text_is_stored_and_the_same_list_has_the_same_digest() -> None:
    one, other = (log_of(Place.SYSTEM, PARTS, OUT, {"notes": []}) for _ in range(2))
    assert one == other
    assert "Be brief" not in one.parts
    assert len(one.digest) == 16
    assert log_of(Place.SYSTEM, PARTS[:1], OUT, {}).digest != one.digest


def test_what_a_newer_version_noted_is_passed_over() -> None:
    found = read_log('{"parts":[{"kind":"dreams","mood":1}],"more":2}')
    assert found.parts == [LoggedPart(kind="dreams", tokens=0, why="")]
    assert read_log("{}").parts == []

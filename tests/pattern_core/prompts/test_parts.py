from __future__ import annotations

from pattern_core.prompts.parts import Kind, LoggedPart, Part, check_of, log_of, read_log

PARTS = [
    Part(kind=Kind.INSTRUCTIONS, text="Be brief.", reason="the agent's instructions"),
    Part(kind=Kind.CORE, text="<block/>", reason="a core block", ref="mem_1", version=0, name="human"),
    Part(kind=Kind.TIME, text="2026", reason="the time"),
]
OUT = [Part(kind=Kind.PINNED, reason="no room", ref="mem_2", version=7, name="plan", tokens=900)]


def test_a_part_counts_itself() -> None:
    assert Part(kind=Kind.CORE, text="a" * 40, reason="why").tokens == 10


def test_a_list_is_read_as_it_was_noted() -> None:
    logged = log_of(PARTS, OUT, {"notes": ["a note"], "window": 8_192, "tools": {"count": 2, "tokens": 9}})
    found = read_log(logged.parts)
    assert found.parts == [
        LoggedPart(kind="instructions", tokens=3, why="the agent's instructions", check=check_of("Be brief.")),
        LoggedPart(kind="core", tokens=2, why="a core block", ref="mem_1", version=0, name="human"),
        LoggedPart(kind="time", tokens=1, why="the time"),
    ]
    assert found.left_out == [LoggedPart(kind="pinned", tokens=900, why="no room", ref="mem_2", version=7, name="plan")]
    assert (found.notes, found.window, found.tool_count, found.tool_tokens) == (["a note"], 8_192, 2, 9)


def test_neighbours_that_are_there_for_one_reason_share_an_entry() -> None:
    lines = [
        Part(kind=Kind.ACTIVITY, text="x" * 4 * number, reason="lately", ref=f"turn_{number}") for number in (3, 5)
    ]
    other = Part(kind=Kind.ACTIVITY, text="x", reason="its own", ref="turn_9")
    out = [Part(kind=Kind.ACTIVITY, reason="no room", ref=f"turn_{number}", tokens=number) for number in (6, 7, 8)]
    logged = log_of([*lines, other, lines[0]], out, {})
    found = read_log(logged.parts)
    assert [(one.ref, one.tokens, one.why) for one in found.parts] == [
        ("turn_3", 3, "lately"),
        ("turn_5", 5, "lately"),
        ("turn_9", 1, "its own"),
        ("turn_3", 3, "lately"),
    ]
    assert [(one.ref, one.tokens) for one in found.left_out] == [("turn_6", 6), ("turn_7", 7), ("turn_8", 8)]
    assert logged.parts.count("lately") == 2
    assert logged.parts.count("no room") == 1


def test_no_text_is_stored_and_the_same_list_has_the_same_digest() -> None:
    one, other = (log_of(PARTS, OUT, {"notes": []}) for _ in range(2))
    assert one == other
    assert "Be brief" not in one.parts
    assert len(one.digest) == 16
    assert log_of(PARTS[:1], OUT, {}).digest != one.digest


def test_what_a_newer_version_noted_is_passed_over() -> None:
    found = read_log('{"parts":[{"kind":"dreams","mood":1}],"more":2}')
    assert found.parts == [LoggedPart(kind="dreams", tokens=0, why="")]
    assert read_log("{}").parts == []

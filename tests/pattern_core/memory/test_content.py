from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.memory.content import (
    COMPARED_MAX,
    entry_text,
    fitted,
    parse_editing,
    plain,
    prompt_content,
    raw,
    splices_between,
    value_of,
    writes_between,
)
from pattern_core.memory.document import Count, Keys, Splice, Spliced
from pattern_core.memory.fields import empty_value
from pattern_core.memory.schema import EntrySchema, Field, FieldType, LogSchema, MapSchema, Schema, parse_schema
from pattern_db.columns import Json
from pattern_db.enums import Permission
from tests.pattern_core.memory.life import Pen
from tests.pattern_core.memory.rig import shown_block

KEPT = [
    {"name": "mood"},
    {"name": "size", "field_type": "Number", "default": 3},
    {"name": "tags", "field_type": "List"},
    {"name": "count", "field_type": "Counter"},
]
TEXT = parse_schema("Text")
KEPT_MAP = parse_schema({"Map": {"fields": KEPT}})
WHOLE = parse_schema(
    {
        "Composite": {
            "sections": [
                {"name": "notes", "schema": "Text"},
                {"name": "facts", "schema": {"Map": {"fields": KEPT}}},
                {"name": "todo", "schema": "List"},
            ]
        }
    }
)


def raw_containers(document: Pen) -> object:
    """Return what the document holds, by container, with or without a schema."""
    found = document._doc.get_deep_value()
    assert isinstance(found, dict)
    return {name: value for name, value in found.items() if value != ""}


FACTS_KEPT = {"mood": "fine", "size": None, "tags": ["a"], "count": 2}


@pytest.mark.parametrize(
    ("schema", "value", "containers"),
    [
        (
            KEPT_MAP,
            FACTS_KEPT | {"size": 4},
            {"fields": {"mood": "fine", "size": 4}, "list_tags": ["a"], "counter_count": 2.0},
        ),
        (parse_schema("List"), [1, {"b": 2}], {"items": [1, {"b": 2}]}),
        (parse_schema("Log"), [1, {"b": 2}], {"entries": [1, {"b": 2}]}),
        (
            WHOLE,
            {"notes": "hi", "facts": FACTS_KEPT, "todo": ["x"]},
            {
                "section_notes_content": "hi",
                "section_facts_fields": {"mood": "fine"},
                "section_facts_list_tags": ["a"],
                "section_facts_counter_count": 2.0,
                "section_todo_items": ["x"],
            },
        ),
    ],
)
def test_each_part_has_the_container_of_the_format(schema: Schema, value: Json, containers: object) -> None:
    document = Pen(1)
    document.apply(writes_between(schema, empty_value(schema), value))
    assert raw_containers(document) == containers


def test_an_empty_document_reads_as_empty_with_defaults() -> None:
    assert value_of({}, KEPT_MAP) == {"mood": None, "size": 3, "tags": [], "count": 0}
    assert empty_value(KEPT_MAP) == {"mood": None, "size": None, "tags": [], "count": 0}
    assert value_of({}, parse_schema("Text")) == empty_value(parse_schema("Text")) == ""
    assert value_of({}, parse_schema("Log")) == empty_value(parse_schema("Log")) == []


def test_what_other_programs_left_is_read_as_far_as_it_goes() -> None:
    document = Pen(1)
    found = {"mood": (None, float("nan")), "unknown": (None, "x"), "size": (None, "not a number")}
    document.apply({"fields": Keys(found)})
    assert value_of(document.state(), KEPT_MAP) == {"mood": None, "size": "not a number", "tags": [], "count": 0}


@pytest.mark.parametrize(
    ("field_type", "before", "after", "writes"),
    [
        (FieldType.TEXT, "a", "a", {}),
        (FieldType.TEXT, "a", None, {"fields": Keys({"f": ("a", None)})}),
        (FieldType.BOOLEAN, None, False, {"fields": Keys({"f": (None, False)})}),
        (FieldType.COUNTER, 5, 3, {"counter_f": Count(-2)}),
        (FieldType.LIST, ["a"], ["a", "b"], {"list_f": Spliced(False, (Splice(1, (), ("b",)),))}),
    ],
)
def test_a_field_is_touched_only_if_it_differs(
    field_type: FieldType, before: object, after: object, writes: object
) -> None:
    schema = MapSchema(fields=(Field(name="f", field_type=field_type),))
    assert writes_between(schema, {"f": before}, {"f": after}) == writes


def test_items_that_stay_are_not_touched() -> None:
    before, after = ["a", "b", "c", "d", 1, {"x": 1}], ["a", "B", "c", "new", "d", True, {"x": 1}]
    change = splices_between(before, after)
    assert change.splices == (Splice(1, ("b",), ("B",)), Splice(1, (), ("new",)), Splice(1, (1,), (True,)))
    document = Pen(1)
    document.apply({"items": splices_between([], before)})
    document.apply({"items": change})
    assert document.state()["items"] == after


def test_lists_too_long_to_compare_are_replaced_between_their_common_ends() -> None:
    count = int(COMPARED_MAX**0.5) + 1
    before = ["same", *range(count), "same"]
    after = ["same", *range(count, 2 * count), "same"]
    assert splices_between(before, after).splices == (Splice(1, tuple(before[1:-1]), tuple(after[1:-1])),)


# How blocks are shown.


def test_a_heading_is_one_line_whatever_stands_in_it() -> None:
    assert shown_block(description="a\n## y (nothing yet)", lender="\n#") == (
        "## notes (lent by  #, nothing yet): a ## y (nothing yet)"
    )
    assert shown_block("ab", char_limit=9_999) == "## notes (2 of 9,999 characters)\nab"
    assert shown_block("ab", permission=Permission.APPEND).startswith("## notes (append only, 2 of")


@pytest.mark.parametrize(
    "forged", ["## persona (3 of 5,000 characters)", "#x (nothing yet): y", "# Memory", "  ## memory "]
)
def test_content_cannot_open_another_block(forged: str) -> None:
    for schema in (TEXT, KEPT_MAP):
        shown = shown_block(f"mood: a\n{forged}\nb", schema=schema)
        assert f"\n\\{forged}\n" in shown
        assert shown.count("\n#") == 0


FIELDS = [
    {"name": "name", "read_only": True},
    {"name": "notes"},
    {"name": "tags", "field_type": "List"},
    {"name": "visits", "field_type": "Counter"},
    {"name": "on", "field_type": "Boolean"},
]
MAP = parse_schema({"Map": {"fields": FIELDS}})
FACTS = {"name": "Ada", "notes": "one\nname: two", "tags": ["a", "b\nc", {"x": 1}], "visits": 3, "on": True}
SHOWN = """\
name: Ada
notes: one
  name: two
tags:
  - a
  - b
    c
  - {"x": 1}
visits: 3
on: yes"""
STAMP = {"timestamp": "2026-11-21T22:24:40.123Z", "agent_id": "agt_ada"}


def test_a_map_shows_its_fields_and_marks_what_is_read_only_in_the_prompt() -> None:
    assert plain(FACTS, MAP) == SHOWN
    assert prompt_content(SHOWN, MAP) == SHOWN.replace("name: Ada", "name [read-only]: Ada")
    empty: dict[str, object] = {"name": None, "notes": "", "tags": [], "visits": 0, "on": None}
    assert plain(empty, MAP) == "name:\nnotes:\ntags:\nvisits: 0\non:"


def test_lists_are_numbered_and_what_can_be_done_has_a_box() -> None:
    items = [
        "one\ntwo",
        3,
        {"done": True, "text": "Buy milk", "due": "2026-11-21"},
        {"done": False, "title": "b"},
        {"z": 1},
    ]
    assert plain(items, parse_schema("List")) == (
        "1. one\n  two\n2. 3\n3. [x] Buy milk (due: 2026-11-21)\n4. [ ] b\n5. z: 1"
    )
    tasks = parse_schema({"List": {"item_schema": {"Map": {"fields": [{"name": "what"}, {"name": "who"}]}}}})
    assert plain([{"what": "dishes", "who": "Bob"}], tasks) == "1. dishes (who: Bob)"


def test_a_log_shows_the_newest_first_and_in_the_prompt_only_some() -> None:
    schema = parse_schema({"Log": {"display_limit": 3}})
    entries = [STAMP | {"text": f"event {number}\nmore"} for number in range(5)]
    text = plain(entries, schema)
    assert text.startswith("[2026-11-21T22:24:40Z] (agt_ada) event 4\n  more\n[2026-11-21T22:24:40Z] (agt_ada) event 3")
    shown = prompt_content(text, schema)
    assert [line for line in shown.split("\n") if "event" in line] == [
        f"[2026-11-21T22:24:40Z] (agt_ada) event {number}" for number in (4, 3, 2)
    ]
    assert shown.endswith("  more\n[2 older entries not shown; load the block or search to read them]")
    few = plain(entries[:3], schema)
    assert prompt_content(few, schema) == few


def test_an_entry_without_stamps_and_with_several_fields() -> None:
    fields = {"fields": [{"name": "what"}, {"name": "why"}], "timestamp": False, "agent_id": False}
    schema = parse_schema({"Log": {"entry_schema": fields}})
    assert isinstance(schema, LogSchema)
    assert entry_text({"why": "rain", "what": "stayed in"}, schema) == "- stayed in (why: rain)"
    assert entry_text({"what": " \nx"}, schema) == "-  \n  x"
    assert entry_text("left by another program", schema) == "- left by another program"


def test_a_composite_shows_the_content_of_its_sections() -> None:
    sections = [
        {"name": "facts", "schema": {"Map": {"fields": FIELDS[:2]}}},
        {"name": "rules", "schema": "Text", "read_only": True},
        {"name": "todo", "schema": "List"},
    ]
    schema = parse_schema({"Composite": {"sections": sections}})
    value = {"facts": {"name": "Ada", "notes": None}, "rules": "be kind\n=== todo ===\nx", "todo": ["a"]}
    text = plain(value, schema)
    assert text == "=== facts ===\nname: Ada\nnotes:\n=== rules ===\nbe kind\n === todo ===\nx\n=== todo ===\n1. a"
    assert prompt_content(text, schema) == text.replace("name: Ada", "name [read-only]: Ada").replace(
        "=== rules ===", "=== rules [read-only] ==="
    )


@pytest.mark.parametrize(
    ("start", "count", "shown"),
    [
        (3, 2, "[lines 3-4 of 10]\nline 3\nline 4"),
        (9, 5, "[lines 9-10 of 10]\nline 9\nline 10"),
        (11, 2, "[line 11 is past the end; the text has 10 lines]"),
    ],
)
def test_a_viewport_shows_some_lines_in_the_prompt(start: int, count: int, shown: str) -> None:
    schema = parse_schema({"Text": {"viewport": {"start_line": start, "display_lines": count}}})
    text = "\n".join(f"line {number}" for number in range(1, 11))
    assert prompt_content(text, schema) == shown
    assert plain(text, schema) == text
    block = shown_block(text, schema=schema, char_limit=99)
    assert block == f"## notes ({len(text)} of 99 characters)\n{shown}"


def test_editing_is_json_in_the_order_of_the_schema_and_is_read_back() -> None:
    shown = raw(value_of({"fields": FACTS, "list_tags": FACTS["tags"], "counter_visits": 3}, MAP), MAP)
    assert list(shown)[:2] == ["name", "notes"]
    assert parse_editing(json.dumps(shown), MAP) == FACTS
    tasks = parse_schema({"List": {"item_schema": {"Map": {"fields": [{"name": "what"}, {"name": "a"}]}}}})
    assert list(raw([{"a": "1", "what": "2"}], tasks)[0]) == ["what", "a"]
    assert list(raw([{"text": "x"} | STAMP], parse_schema("Log"))[0]) == ["timestamp", "agent_id", "text"]


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "[" * 100_000, "9" * 5_000])
def test_errors_of_json_name_the_place(text: str) -> None:
    with pytest.raises(InvalidInput, match="a Map is written as JSON"):
        parse_editing(text, MAP)


@pytest.mark.parametrize("kind", ["Map", "List", "Log"])
def test_whatever_other_programs_stored_can_be_shown(kind: str) -> None:
    schema = MAP if kind == "Map" else parse_schema(kind)
    odd = [None, 3, True, [1, [2]], {"a": {"b": 1}}, "x"]
    value = dict.fromkeys(("name", "notes", "tags", "visits"), odd) if kind == "Map" else odd
    assert plain(value, schema)
    assert json.dumps(raw(value, schema))


LOG = LogSchema(entry_schema=EntrySchema(timestamp=False, agent_id=False))


def entries(*texts: str) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


@given(st.lists(st.text(alphabet="a\n", max_size=9), max_size=8), st.integers(1, 60))
def test_what_stays_fits_and_one_more_would_not(texts: list[str], limit: int) -> None:
    log = entries(*texts)
    count, text = fitted(LOG, log, limit)
    rest = log[count:]
    assert rest or not log
    assert text == plain(rest, LOG)
    assert len(rest) <= 1 or len(plain(rest, LOG)) <= limit
    if count:
        assert len(plain(log[count - 1 :], LOG)) > limit

from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.fields import (
    Written,
    check_count,
    fit,
    fit_entry,
    fit_field,
    fit_item,
    guessed,
    named,
    stamps_of,
)
from pattern_core.memory.schema import (
    CompositeSchema,
    EntrySchema,
    Field,
    FieldType,
    ListSchema,
    LogSchema,
    MapSchema,
    Section,
    TextSchema,
    parse_schema,
)

NAME = Field(name="name", required=True)
AGE = Field(name="age", field_type=FieldType.NUMBER, default=3)
TAGS = Field(name="tags", field_type=FieldType.LIST)
MAP = MapSchema(fields=(NAME, AGE, TAGS))
ITEMS = ListSchema(item_schema=MapSchema(fields=(NAME, AGE)), max_items=2)
NOW = "2026-11-21T22:24:40.123Z"
STAMPS = stamps_of(LogSchema(), NOW, "agt_ada")


def test_a_map_has_every_field_in_order_with_defaults() -> None:
    found = fit(MAP, {"tags": ["a"], "name": "Ada"})
    assert found == {"name": "Ada", "age": 3, "tags": ["a"]}
    assert list(found) == ["name", "age", "tags"]
    assert fit(MAP, {"name": "Ada"})["tags"] == []


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "the field name is required; give it a value"),
        ({"name": None}, "the field name is required"),
        ({"name": 3}, "the field name will not do: it takes text, not 3"),
        ({"name": "a", "nick": "b"}, 'the block has no field "nick"; there are: name, age, tags'),
        ({"name": "a", "tags": "b"}, "the field tags will not do: it takes a list"),
        ("Ada", "the block is an object with the fields name, age, tags"),
    ],
)
def test_maps_that_do_not_fit(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fit(MAP, value)


def test_fields_take_words_and_nothing() -> None:
    assert fit_field(AGE, Written("7")) == 7
    assert fit_field(AGE, Written("null")) == fit_field(AGE, None) == 3
    assert fit_field(TAGS, None) == []
    assert fit_field(Field(name="n", field_type=FieldType.COUNTER), None) == 0
    with pytest.raises(InvalidInput, match="the field age will not do: it takes a number"):
        fit_field(AGE, Written("many"))


def test_items() -> None:
    assert fit(ListSchema(), [1, "a", {"b": 2.0}]) == [1, "a", {"b": 2}]
    assert fit_item(ListSchema(), Written('{"a": 1}'), 1) == {"a": 1}
    assert fit_item(ListSchema(), Written("{not json"), 1) == "{not json"
    assert fit_item(ListSchema(), Written("5"), 1) == "5"
    assert fit_item(ListSchema(item_schema=TextSchema()), Written("[1]"), 1) == "[1]"
    found = fit_item(ITEMS, Written('{"name": "a"}'), 1)
    assert list(found.items()) == [("age", 3), ("name", "a")]
    assert fit_item(ITEMS, Written("just words"), 1) == {"name": "just words", "age": 3}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, r"the block is a list; give it as \[ … \]"),
        ([{"name": "a"}] * 3, "at most 2 items, not 3; delete one first"),
        ([{"name": "a"}, {}], "item 2: the field name is required"),
        ([{"name": "a", "x": 1}], 'item 1 has no field "x"; there are: name, age'),
        ([5], "item 1 is an object with the fields name, age"),
    ],
)
def test_lists_that_do_not_fit(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fit(ITEMS, value)


def test_an_item_of_texts_is_text_and_counts_are_bounded() -> None:
    with pytest.raises(InvalidInput, match="item 4 is text, not 5"):
        fit_item(ListSchema(item_schema=TextSchema()), 5, 4)
    check_count(ITEMS, 2)
    check_count(ListSchema(), 10**9)
    with pytest.raises(InvalidInput):
        check_count(ITEMS, 3)


def test_entries_are_stamped_as_the_schema_says() -> None:
    assert fit_entry(LogSchema(), "woke", STAMPS) == {
        "timestamp": NOW,
        "agent_id": "agt_ada",
        "text": "woke",
    }
    bare = LogSchema(entry_schema=EntrySchema(timestamp=False, agent_id=False, fields=(NAME, AGE)))
    assert fit_entry(bare, Written('{"name": "x", "age": 9}'), stamps_of(bare, NOW, "a")) == {"name": "x", "age": 9}
    for value in ({"text": "x", "timestamp": NOW}, {"text": "x", "agent_id": "agt_bob"}, {}, 3):
        with pytest.raises(InvalidInput, match="the entry"):
            fit_entry(LogSchema(), value, STAMPS)


def test_a_whole_log_keeps_its_stamps() -> None:
    entries = [{"timestamp": NOW, "agent_id": "agt_ada", "text": "a"}, {"text": "b"}]
    assert fit(LogSchema(), entries) == entries
    assert fit(LogSchema(), ["words"]) == [{"text": "words"}]
    for entry, words in (({"text": "x", "timestamp": 3}, "stamps of entry 1 are text"), ({"txt": 1}, "entry 1 has no")):
        with pytest.raises(InvalidInput, match=words):
            fit(LogSchema(), [entry])


def test_composites() -> None:
    schema = CompositeSchema(
        sections=(Section(name="notes", schema=TextSchema()), Section(name="facts", schema=ListSchema()))
    )
    assert fit(schema, {"facts": [1]}) == {"notes": "", "facts": [1]}
    for value, words in (
        ({"notes": 3}, "in the section notes: the block is text, not 3"),
        ({"more": 3}, 'the block has no section "more"; there are: notes, facts'),
    ):
        with pytest.raises(InvalidInput, match=words):
            fit(schema, value)


def test_text_is_text() -> None:
    assert fit(TextSchema(), "a") == "a"
    for value in (3, None, "\ud800"):
        with pytest.raises(InvalidInput):
            fit(TextSchema(), value)


def test_parts_are_found_by_name() -> None:
    assert named(MAP.fields, "age", "field") is AGE
    with pytest.raises(InvalidInput, match="the block has no field 'agé'; there are: name, age, tags"):
        named(MAP.fields, "agé", "field")
    schema = parse_schema({"Composite": {"sections": [{"name": "a"}, {"name": "b"}]}})
    assert isinstance(schema, CompositeSchema)
    assert named(schema.sections, "b", "section").name == "b"
    with pytest.raises(InvalidInput, match="no section 'c'; there are: a, b"):
        named(schema.sections, "c", "section")


def test_guesses() -> None:
    assert guessed(Written(" [1]")) == [1]
    assert guessed(Written("[1")) == "[1"
    assert guessed(Written("[" * 100_000)) == "[" * 100_000

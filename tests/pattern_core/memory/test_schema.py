"""Shapes of blocks as they are stored, the values that a document holds, and whether these fit."""

from __future__ import annotations

import math

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import schema_of
from pattern_core.memory.document import same
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
    COUNT_MAX,
    DEPTH_MAX,
    WHOLE_MAX,
    CompositeSchema,
    EntrySchema,
    Field,
    FieldType,
    ListSchema,
    LogSchema,
    MapSchema,
    SchemaKind,
    Section,
    TextSchema,
    Viewport,
    canonical,
    excerpt,
    of_type,
    parse_schema,
    readable,
    to_metadata,
    typed,
)


@pytest.mark.parametrize("metadata", [None, {}, {"schema": "Text"}, {"schema": "text"}, {"schema": {"Text": {}}}])
def test_text_is_the_default_and_is_found_under_its_tag(metadata: dict[str, object] | None) -> None:
    assert schema_of(metadata).kind is SchemaKind.TEXT


FIELD = {"name": "mood", "field_type": "Text"}
FULL = {
    "name": "age",
    "field_type": "Number",
    "description": "In years",
    "required": True,
    "default": 3,
    "read_only": True,
}
STORED: list[object] = [
    "Text",
    {"Text": {"viewport": {"start_line": 3, "display_lines": 2}}},
    {"Map": {"fields": [FIELD, FULL]}},
    {"List": {}},
    {"List": {"item_schema": "Text", "max_items": 5}},
    {"List": {"item_schema": {"Map": {"fields": [FIELD]}}}},
    {"Log": {"display_limit": 3, "entry_schema": {"timestamp": False, "agent_id": True, "fields": [FIELD]}}},
    {
        "Composite": {
            "sections": [
                {"name": "notes", "schema": "Text", "description": "Anything", "read_only": True},
                {"name": "facts", "schema": {"Map": {"fields": [FIELD]}}},
                {"name": "list", "schema": {"List": {"max_items": 2}}},
            ]
        }
    },
]


@pytest.mark.parametrize("stored", STORED)
def test_every_schema_is_read_and_written_the_same(stored: object) -> None:
    assert to_metadata(parse_schema(stored)) == stored


def test_what_is_left_out_has_a_default() -> None:
    assert schema_of({"schema": "log"}) == LogSchema(display_limit=10)
    assert parse_schema({"LOG": {"entry_schema": {"fields": []}}}) == LogSchema()
    assert parse_schema({"map": {"fields": [{"name": "a", "field_type": "counter"}]}}) == MapSchema(
        fields=(Field(name="a", field_type=FieldType.COUNTER),)
    )
    assert parse_schema({"Text": {"viewport": {"display_lines": 4}}}) == TextSchema(
        viewport=Viewport(start_line=1, display_lines=4)
    )
    assert parse_schema({"List": None}) == ListSchema()


def test_a_default_is_canonical() -> None:
    schema = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Number", "default": 2.0}]}})
    assert isinstance(schema, MapSchema)
    assert repr(schema.fields[0].default) == "2"


def fields(*given: object) -> object:
    return {"Map": {"fields": list(given)}}


def sections(*given: object) -> object:
    return {"Composite": {"sections": list(given)}}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("Tree", 'no block schema "Tree"; there are: Text, Map, List, Log, Composite'),
        (3, "a schema is a kind such as"),
        ([], "a schema is a kind such as"),
        ({"Text": {}, "Map": {}}, "a schema is a kind such as"),
        ({"Text": 3}, "`Text` must be an object, not 3"),
        ({"Text": {"port": 1}}, "`Text.port` is not known .known are: `viewport`."),
        (
            {"Map": {"viewport": {"start_line": 1, "display_lines": 2}}},
            "`Map.viewport` is not known .known are: `fields`.",
        ),
        ({"Text": {"viewport": {"start_line": 1}}}, "`Text.viewport.display_lines` is missing"),
        (
            {"Text": {"viewport": {"start_line": 0, "display_lines": 1}}},
            "`Text.viewport.start_line` must be at least 1, not 0",
        ),
        ("Map", "a Map needs `fields`"),
        ({"Map": {"fields": "mood"}}, "`Map.fields` must be a list"),
        (fields(*[{"name": f"f{number}"} for number in range(101)]), "`Map.fields`: .* at most 100"),
        (fields("mood"), "`Map.fields.0` must be an object"),
        (fields({}), "`Map.fields.0.name` is missing"),
        (fields({"name": "a:b"}), "cannot be the name"),
        (fields({"name": "a" * 65}), "cannot be the name"),
        (fields({"name": " a"}), "cannot be the name"),
        (fields({"name": "a\n"}), "cannot be the name"),
        (fields({"name": 3}), "`Map.fields.0.name` must be text, not 3"),
        (fields(FIELD, FIELD), "two parts named 'mood'; rename one"),
        (fields({"name": "a", "field_type": "Date"}), 'no field type "Date"; there are: Text, Number'),
        (fields({"name": "a", "field_type": "Number", "default": "x"}), "default of the field a will not do"),
        (fields({"name": "a", "required": "yes"}), "`Map.fields.0.required` must be true or false"),
        (
            fields({"name": "a", "requried": True}),
            "`Map.fields.0.requried` is not known .known are: `name`, `description`",
        ),
        ({"List": {"max_items": 0}}, "`List.max_items` must be at least 1"),
        ({"List": {"max_items": True}}, "`List.max_items` must be a whole number, not true"),
        ({"List": {"item_schema": "Log"}}, 'the items of a List are each a Text without viewport, or a Map; not "Log"'),
        ({"List": {"item_schema": {"Text": {"viewport": {"display_lines": 1}}}}}, "a Text without viewport"),
        ({"List": {"item_schema": {"Map": {"fields": []}}}}, "a Map needs `fields`"),
        (
            {"List": {"item_schema": fields({"name": "a", "field_type": "Counter"})}},
            "cannot hold the counter 'a'; make it a Number",
        ),
        ({"Log": {"entry_schema": {"fields": [{"name": "timestamp"}]}}}, "keeps `timestamp` of an entry by itself"),
        ({"Log": {"display_limit": -1}}, "`Log.display_limit` must be at least 1"),
        ("Composite", "a Composite needs `sections`"),
        (sections({"name": "a", "schema": "Log"}), 'a Text, a Map or a List; not "Log"'),
        (sections({"name": "a", "schema": "Composite"}), 'not "Composite"'),
        (sections({"name": "a"}, {"name": "a"}), "two parts named 'a'"),
        (sections({"name": "a"}, {"name": "a_list_b"}), "too alike; rename one"),
    ],
)
def test_schemas_that_will_not_do_are_refused_with_what_would(stored: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_schema(stored)


@pytest.mark.parametrize("kind", ["List", "Composite"])
def test_what_nests_without_end_is_refused_at_once(kind: str) -> None:
    stored: object = "Text"
    for _ in range(5_000):
        stored = {"List": {"item_schema": stored}} if kind == "List" else sections({"name": "a", "schema": stored})
    with pytest.raises(InvalidInput):
        parse_schema(stored)


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_canonical_sorts_names_and_makes_whole_numbers_whole() -> None:
    value = canonical({"b": 2.0, "a": (1, {"z": None, "y": True}), "c": 1.5, "d": 1e300})
    assert list(value) == ["a", "b", "c", "d"]
    assert value == {"a": [1, {"y": True, "z": None}], "b": 2, "c": 1.5, "d": 1e300}
    assert isinstance(value["b"], int)
    assert list(value["a"][1]) == ["y", "z"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "not-a-number"),
        (-math.inf, "infinity"),
        (WHOLE_MAX + 1, "63 bits"),
        ("\ud800", "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        ({1: 2}, "names in an object are text"),
        ({1, 2}, "set is no JSON value"),
        (b"x", "bytes is no JSON value"),
        (nested(DEPTH_MAX + 1), "at most 32 deep"),
    ],
)
def test_what_cannot_be_stored(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        canonical([value] if words != "at most 32 deep" else value)


def test_the_bounds_themselves_can_be_stored() -> None:
    assert canonical(-WHOLE_MAX) == -WHOLE_MAX
    assert canonical(nested(DEPTH_MAX)) == nested(DEPTH_MAX)


def test_what_is_stored_is_always_readable() -> None:
    assert readable({"b": [math.nan, b"x", 2.0], "a": "\x00"}) == {"a": "\x00", "b": [None, None, 2]}
    assert readable(nested(500)) == readable(nested(400))


def test_same_tells_true_from_one() -> None:
    assert same({"a": [1, None]}, {"a": [1, None]})
    assert not same([True], [1])
    assert not same(0, False)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (FieldType.TEXT, "a\nb", "a\nb"),
        (FieldType.NUMBER, 1.5, 1.5),
        (FieldType.NUMBER, 2.0, 2),
        (FieldType.BOOLEAN, False, False),
        (FieldType.LIST, ["a", 1, {"b": 2}], ["a", 1, {"b": 2}]),
        (FieldType.TIMESTAMP, "2026-11-21", "2026-11-21"),
        (FieldType.TIMESTAMP, "2026-11-21T23:24:40+01:00", "2026-11-21T22:24:40.000Z"),
        (FieldType.COUNTER, -3, -3),
    ],
)
def test_values_of_each_type(kind: FieldType, value: object, stored: object) -> None:
    found = of_type(value, kind)
    assert same(found, stored)
    assert of_type(found, kind) == found


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (FieldType.TEXT, 1, "it takes text, not 1"),
        (FieldType.NUMBER, True, "a number, not true"),
        (FieldType.NUMBER, "1", "a number"),
        (FieldType.BOOLEAN, 1, "true or false"),
        (FieldType.LIST, "a", "a list such as"),
        (FieldType.TIMESTAMP, "2026-02-30", "a day such as"),
        (FieldType.TIMESTAMP, "2026-11-21T22:24:40", "with its offset"),
        (FieldType.TIMESTAMP, "yesterday", "a day such as"),
        (FieldType.TIMESTAMP, 5, "a day such as"),
        (FieldType.COUNTER, 1.5, "whole numbers"),
        (FieldType.COUNTER, COUNT_MAX + 1, "whole numbers"),
        (FieldType.COUNTER, True, "a whole number"),
    ],
)
def test_values_that_are_of_another_type(kind: FieldType, value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        of_type(value, kind)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (FieldType.TEXT, "5", "5"),
        (FieldType.TEXT, '"quoted"', '"quoted"'),
        (FieldType.NUMBER, "5", 5),
        (FieldType.NUMBER, " 5.5 ", 5.5),
        (FieldType.BOOLEAN, "True", True),
        (FieldType.LIST, '["a"]', ["a"]),
        (FieldType.TIMESTAMP, "2026-11-21", "2026-11-21"),
        (FieldType.COUNTER, "-2", -2),
        (FieldType.NUMBER, "null", None),
        (FieldType.TEXT, " null ", None),
    ],
)
def test_values_as_somebody_writes_them(kind: FieldType, text: str, value: object) -> None:
    assert typed(text, kind) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (FieldType.NUMBER, "five"),
        (FieldType.NUMBER, '"5"'),
        (FieldType.BOOLEAN, "yes"),
        (FieldType.LIST, "a, b"),
        (FieldType.LIST, "[" * 100_000),
        (FieldType.NUMBER, "9" * 5_000),
    ],
)
def test_words_that_mean_no_value_of_the_type(kind: FieldType, text: str) -> None:
    with pytest.raises(InvalidInput, match="it takes"):
        typed(text, kind)


def test_whole_numbers_to_count_with() -> None:
    assert of_type(2.0, FieldType.COUNTER) == 2
    assert of_type(COUNT_MAX, FieldType.COUNTER) == COUNT_MAX
    for value in (1.5, COUNT_MAX + 1, False):
        with pytest.raises(InvalidInput):
            of_type(value, FieldType.COUNTER)


def test_excerpts_are_short_and_never_fail() -> None:
    assert excerpt({"a": "ü"}) == '{"a":"ü"}'
    assert len(excerpt("x" * 1000)) <= 61
    assert excerpt(object()) == "object"


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

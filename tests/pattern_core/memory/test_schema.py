"""Shapes of blocks as they are stored, the values that a document holds, and whether these fit."""

from __future__ import annotations

import math

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import schema_of
from pattern_core.memory.document import same
from pattern_core.memory.fields import Written, fit, fit_entry, fit_field, fit_item, guessed, stamps_of
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
    Schema,
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
from pattern_db.columns import to_json
from tests.pattern_core.memory.rig import BY_ADA, NOW


@pytest.mark.parametrize("metadata", [None, {}, {"schema": "Text"}, {"schema": "text"}, {"schema": {"Text": {}}}])
def test_text_is_the_default_and_is_found_under_its_tag(metadata: dict[str, object] | None) -> None:
    assert schema_of(metadata) == TextSchema()


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


def test_what_is_left_out_has_a_default_and_a_given_one_is_canonical() -> None:
    schema = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Number", "default": 2.0}]}})
    assert repr(to_metadata(schema)["Map"]["fields"][0]["default"]) == "2"
    assert schema_of({"schema": "log"}) == LogSchema(display_limit=10)
    assert parse_schema({"LOG": {"entry_schema": {"fields": []}}}) == LogSchema()
    assert parse_schema({"map": {"fields": [{"name": "a", "field_type": "counter"}]}}) == MapSchema(
        fields=(Field(name="a", field_type=FieldType.COUNTER),)
    )
    assert parse_schema({"Text": {"viewport": {"display_lines": 4}}}) == TextSchema(
        viewport=Viewport(start_line=1, display_lines=4)
    )
    assert parse_schema({"List": None}) == ListSchema()


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
        (fields({"name": "a\n"}), "cannot be the name"),
        (fields({"name": 3}), "`Map.fields.0.name` must be text, not 3"),
        (fields(FIELD, FIELD), "two parts named 'mood'; rename one"),
        (fields({"name": "a", "field_type": "Date"}), 'no field type "Date"; there are: Text, Number'),
        (fields({"name": "a", "field_type": "Number", "default": "x"}), "default of the field a is invalid"),
        (fields({"name": "a", "required": "yes"}), "`Map.fields.0.required` must be true or false"),
        (
            fields({"name": "a", "requried": True}),
            "`Map.fields.0.requried` is not known .known are: `name`, `description`",
        ),
        ({"List": {"max_items": 0}}, "`List.max_items` must be at least 1"),
        ({"List": {"max_items": True}}, "`List.max_items` must be a whole number, not true"),
        ({"List": {"item_schema": "Log"}}, 'the items of a List are each a Text without viewport, or a Map; not "Log"'),
        ({"List": {"item_schema": {"Text": {"viewport": {"display_lines": 1}}}}}, "a Text without viewport"),
        (
            {"List": {"item_schema": fields({"name": "a", "field_type": "Counter"})}},
            "cannot hold the counter 'a'; make it a Number",
        ),
        ({"Log": {"entry_schema": {"fields": [{"name": "timestamp"}]}}}, "sets `timestamp` of an entry itself"),
        ({"Log": {"display_limit": -1}}, "`Log.display_limit` must be at least 1"),
        ("Composite", "a Composite needs `sections`"),
        (sections({"name": "a", "schema": "Log"}), 'a Text, a Map or a List; not "Log"'),
        (sections({"name": "a"}, {"name": "a"}), "two parts named 'a'"),
        (sections({"name": "a"}, {"name": "a_list_b"}), "too alike; rename one"),
    ],
)
def test_invalid_schemas_are_refused_with_what_is_valid(stored: object, words: str) -> None:
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
        ({1, 2}, "set is not a JSON value"),
        (b"x", "bytes is not a JSON value"),
        (nested(DEPTH_MAX + 1), "at most 32 levels"),
    ],
)
def test_what_cannot_be_stored(value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        canonical([value] if words != "at most 32 levels" else value)


def test_the_bounds_themselves_can_be_stored() -> None:
    assert canonical(-WHOLE_MAX) == -WHOLE_MAX
    assert canonical(nested(DEPTH_MAX)) == nested(DEPTH_MAX)


def test_what_is_stored_is_always_readable() -> None:
    assert readable({"b": [math.nan, b"x", 2.0], "a": "\x00"}) == {"a": "\x00", "b": [None, None, 2]}
    assert readable(nested(500)) == readable(nested(400))


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
        (FieldType.COUNTER, 2.0, 2),
        (FieldType.COUNTER, COUNT_MAX, COUNT_MAX),
    ],
)
def test_values_of_each_type(kind: FieldType, value: object, stored: object) -> None:
    found = of_type(value, kind)
    assert same(found, stored)
    assert of_type(found, kind) == found


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (FieldType.TEXT, 1, "it must be text, not 1"),
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
def test_values_as_they_are_written(kind: FieldType, text: str, value: object) -> None:
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
    with pytest.raises(InvalidInput, match="it must be"):
        typed(text, kind)


def test_excerpts_are_short_and_never_fail() -> None:
    assert excerpt({"a": "ü"}) == '{"a":"ü"}'
    assert len(excerpt("x" * 1000)) <= 61
    assert excerpt(object()) == "object"


NAME = Field(name="name", required=True)
AGE = Field(name="age", field_type=FieldType.NUMBER, default=3)
TAGS = Field(name="tags", field_type=FieldType.LIST)
MAP = MapSchema(fields=(NAME, AGE, TAGS))
ITEMS = ListSchema(item_schema=MapSchema(fields=(NAME, AGE)), max_items=2)
SECTIONS = CompositeSchema(sections=(Section(name="notes"), Section(name="facts", schema=ListSchema())))
BARE = LogSchema(entry_schema=EntrySchema(timestamp=False, agent_id=False, fields=(NAME, AGE)))
ENTRIES = [{"timestamp": NOW, "agent_id": "agt_ada", "text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        (TextSchema(), "a", "a"),
        (MAP, {"tags": ["a"], "name": "Ada"}, {"name": "Ada", "age": 3, "tags": ["a"]}),
        (MAP, {"name": "Ada"}, {"name": "Ada", "age": 3, "tags": []}),
        (ListSchema(), [1, "a", {"b": 2.0}], [1, "a", {"b": 2}]),
        (ITEMS, [{"age": 1, "name": "a"}] * 2, [{"age": 1, "name": "a"}] * 2),
        (LogSchema(), ENTRIES, ENTRIES),
        (LogSchema(), ["words"], [{"text": "words"}]),
        (SECTIONS, {"facts": [1]}, {"notes": "", "facts": [1]}),
    ],
)
def test_what_fits_comes_back_canonical_with_defaults(schema: Schema, value: object, found: object) -> None:
    assert same(fit(schema, value), found)
    assert not isinstance(found, dict) or list(fit(schema, value)) == list(found)  # in the order of the schema


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        (TextSchema(), 3, "the block is text, not 3"),
        (TextSchema(), None, "the block is text, not null"),
        (TextSchema(), "\ud800", "surrogate"),
        (MAP, {}, "the field name is required; give it a value"),
        (MAP, {"name": None}, "the field name is required"),
        (MAP, {"name": 3}, "the field name is invalid: it must be text, not 3"),
        (MAP, {"name": "a", "nick": "b"}, 'the block has no field "nick"; there are: name, age, tags'),
        (MAP, {"name": "a", "tags": "b"}, "the field tags is invalid: it must be a list"),
        (MAP, "Ada", "the block is an object with the fields name, age, tags"),
        (ITEMS, {}, r"the block is a list; give it as \[ … \]"),
        (ITEMS, [{"name": "a"}] * 3, "at most 2 items, not 3; delete one first"),
        (ITEMS, [{"name": "a"}, {}], "item 2: the field name is required"),
        (ITEMS, [{"name": "a", "x": 1}], 'item 1 has no field "x"; there are: name, age'),
        (ITEMS, [5], "item 1 is an object with the fields name, age"),
        (ListSchema(item_schema=TextSchema()), ["a", 5], "item 2 is text, not 5"),
        (LogSchema(), [{"text": "x", "timestamp": 3}], "stamps of entry 1 are text"),
        (LogSchema(), [{"txt": 1}], "entry 1 has no"),
        (SECTIONS, {"notes": 3}, "in the section notes: the block is text, not 3"),
        (SECTIONS, {"more": 3}, 'the block has no section "more"; there are: notes, facts'),
    ],
)
def test_what_does_not_fit_is_named(schema: Schema, value: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fit(schema, value)


def test_fields_accept_words_and_nothing() -> None:
    assert fit_field(AGE, Written("7")) == 7
    assert fit_field(AGE, Written("null")) == fit_field(AGE, None) == 3
    assert fit_field(Field(name="n", field_type=FieldType.COUNTER), None) == 0
    with pytest.raises(InvalidInput, match="the field age is invalid: it must be a number"):
        fit_field(AGE, Written("many"))


@pytest.mark.parametrize(
    ("schema", "words", "item"),
    [
        (ListSchema(), '{"a": 1}', {"a": 1}),
        (ListSchema(), " [1]", [1]),
        (ListSchema(), "{not json", "{not json"),
        (ListSchema(), "[" * 100_000, "[" * 100_000),
        (ListSchema(), "5", "5"),
        (ListSchema(item_schema=TextSchema()), "[1]", "[1]"),
        (ITEMS, '{"name": "a"}', {"age": 3, "name": "a"}),
        (ITEMS, "just words", {"age": 3, "name": "just words"}),
    ],
)
def test_words_are_an_item(schema: ListSchema, words: str, item: object) -> None:
    found = fit_item(schema, Written(words), 1)
    assert to_json(found) == to_json(item)
    assert schema.item_schema is not None or guessed(Written(words)) == item


def test_entries_get_the_stamps_of_the_schema() -> None:
    stamps = stamps_of(LogSchema(), BY_ADA, NOW)
    assert fit_entry(LogSchema(), "woke", stamps) == stamps | {"text": "woke"}
    assert stamps == {"timestamp": NOW, "agent_id": "agt_ada"}
    assert fit_entry(BARE, Written('{"name": "x", "age": 9}'), stamps_of(BARE, BY_ADA, NOW)) == {"name": "x", "age": 9}
    for value in ({"text": "x", "timestamp": NOW}, {"text": "x", "agent_id": "agt_bob"}, {}, 3):
        with pytest.raises(InvalidInput, match="the entry"):
            fit_entry(LogSchema(), value, stamps)

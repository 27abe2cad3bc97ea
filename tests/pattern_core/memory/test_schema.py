from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import schema_of
from pattern_core.memory.schema import (
    Field,
    FieldType,
    ListSchema,
    LogSchema,
    MapSchema,
    SchemaKind,
    TextSchema,
    Viewport,
    parse_schema,
    to_metadata,
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

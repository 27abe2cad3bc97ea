from __future__ import annotations

import pytest

from pattern_core.memory.document import Document, DocumentDamaged
from pattern_core.memory.shapes.containers import (
    COMPARED_MAX,
    AddCount,
    PutField,
    SpliceItems,
    SpliceText,
    UpdateText,
    apply,
    counter_name,
    empty_value,
    field_writes,
    fields_name,
    item_writes,
    items_name,
    list_name,
    text_name,
    value_of,
    writes_between,
)
from pattern_core.memory.shapes.schema import Field, parse_schema
from pattern_core.memory.shapes.values import FieldType

FIELDS = [
    {"name": "mood"},
    {"name": "size", "field_type": "Number", "default": 3},
    {"name": "tags", "field_type": "List"},
    {"name": "count", "field_type": "Counter"},
]
MAP = parse_schema({"Map": {"fields": FIELDS}})
WHOLE = parse_schema(
    {
        "Composite": {
            "sections": [
                {"name": "notes", "schema": "Text"},
                {"name": "facts", "schema": {"Map": {"fields": FIELDS}}},
                {"name": "todo", "schema": "List"},
            ]
        }
    }
)


def raw_containers(document: Document) -> object:
    """What stands in the document by container, whoever knows the schema or not."""
    found = document._doc.get_deep_value()
    assert isinstance(found, dict)
    return {name: value for name, value in found.items() if value != ""}


def test_each_part_has_its_container_as_the_format_says() -> None:
    document = Document(1)
    after = {"mood": "fine", "size": 4, "tags": ["a"], "count": 2}
    apply(document, writes_between(MAP, empty_value(MAP), after))
    assert raw_containers(document) == {
        "fields": {"mood": "fine", "size": 4},
        "list_tags": ["a"],
        "counter_count": 2.0,
    }
    for kind, container in (("List", "items"), ("Log", "entries")):
        document = Document(1)
        apply(document, writes_between(parse_schema(kind), [], [1, {"b": 2}]))
        assert raw_containers(document) == {container: [1, {"b": 2}]}


def test_sections_have_containers_of_their_own() -> None:
    document = Document(1)
    facts = {"mood": "fine", "size": None, "tags": ["a"], "count": 2}
    apply(document, writes_between(WHOLE, empty_value(WHOLE), {"notes": "hi", "facts": facts, "todo": ["x"]}))
    assert raw_containers(document) == {
        "section_notes_content": "hi",
        "section_facts_fields": {"mood": "fine"},
        "section_facts_list_tags": ["a"],
        "section_facts_counter_count": 2.0,
        "section_todo_items": ["x"],
    }
    assert value_of(document, WHOLE)["facts"]["size"] == 3


def test_names() -> None:
    field = Field(name="tags")
    assert [text_name(), fields_name(), items_name()] == ["content", "fields", "items"]
    assert [list_name(field), counter_name(field)] == ["list_tags", "counter_tags"]
    assert [text_name("a"), fields_name("a"), items_name("a")] == [
        "section_a_content",
        "section_a_fields",
        "section_a_items",
    ]
    assert [list_name(field, "a"), counter_name(field, "a")] == ["section_a_list_tags", "section_a_counter_tags"]


def test_an_empty_document_reads_as_empty_with_defaults() -> None:
    assert value_of(Document(1), MAP) == {"mood": None, "size": 3, "tags": [], "count": 0}
    assert empty_value(MAP) == {"mood": None, "size": None, "tags": [], "count": 0}
    assert value_of(Document(1), parse_schema("Text")) == empty_value(parse_schema("Text")) == ""
    assert value_of(Document(1), parse_schema("Log")) == empty_value(parse_schema("Log")) == []


def test_what_other_programs_left_is_read_as_far_as_it_goes() -> None:
    document = Document(1)
    document.put_field("fields", "mood", float("nan"))
    document.put_field("fields", "unknown", "x")
    document.put_field("fields", "size", "not a number")
    assert value_of(document, MAP) == {"mood": None, "size": "not a number", "tags": [], "count": 0}


@pytest.mark.parametrize(
    ("field_type", "before", "after", "writes"),
    [
        (FieldType.TEXT, "a", "a", []),
        (FieldType.TEXT, "a", None, [PutField(container="fields", key="f", value=None)]),
        (FieldType.BOOLEAN, None, False, [PutField(container="fields", key="f", value=False)]),
        (FieldType.COUNTER, 5, 3, [AddCount(container="counter_f", delta=-2)]),
        (FieldType.LIST, ["a"], ["a", "b"], [SpliceItems(container="list_f", at=1, delete=0, insert=("b",))]),
    ],
)
def test_a_field_is_touched_only_if_it_differs(
    field_type: FieldType, before: object, after: object, writes: list[object]
) -> None:
    assert field_writes(Field(name="f", field_type=field_type), before, after) == writes


def test_items_that_stay_are_not_touched() -> None:
    before, after = ["a", "b", "c", "d", 1, {"x": 1}], ["a", "B", "c", "new", "d", True, {"x": 1}]
    writes = item_writes("items", before, after)
    assert [(write.at, write.delete, write.insert) for write in writes if isinstance(write, SpliceItems)] == [
        (4, 1, (True,)),
        (3, 0, ("new",)),
        (1, 1, ("B",)),
    ]
    document = Document(1)
    apply(document, item_writes("items", [], before))
    apply(document, writes)
    assert document.items_in("items") == after


def test_lists_too_long_to_compare_are_replaced_between_their_common_ends() -> None:
    count = int(COMPARED_MAX**0.5) + 1
    before = ["same", *range(count), "same"]
    after = ["same", *range(count, 2 * count), "same"]
    [write] = item_writes("items", before, after)
    assert isinstance(write, SpliceItems)
    assert (write.at, write.delete, len(write.insert)) == (1, count, count)


def test_texts_are_inserted_or_compared() -> None:
    text = parse_schema("Text")
    assert writes_between(text, "", "new") == [SpliceText(container="content", at=0, delete=0, insert="new")]
    assert writes_between(text, "old", "new") == [UpdateText(container="content", text="new")]
    assert writes_between(text, "old", "old") == []


def test_changes_made_for_another_content_are_damage() -> None:
    for write in (
        SpliceItems(container="items", at=3, delete=1, insert=()),
        SpliceItems(container="items", at=3, delete=0, insert=(1,)),
        SpliceText(container="content", at=3, delete=0, insert="x"),
    ):
        with pytest.raises(DocumentDamaged):
            apply(Document(1), [write])

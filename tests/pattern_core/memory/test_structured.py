from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.document import AddCount, PutField, SpliceRun
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    DeleteItem,
    Editor,
    Increment,
    InsertItem,
    ListAppend,
    ListRemove,
    SetField,
    SetItem,
    SetValue,
)
from pattern_core.memory.fields import Written
from pattern_core.memory.plan import Content, Planned, plan
from pattern_core.memory.schema import Field, ListSchema, LogSchema, MapSchema, Schema, parse_schema
from pattern_core.memory.values import FieldType
from pattern_db.columns import Json

NOW = "2026-11-21T22:24:40.123Z"
AGENT = Editor(author="agent:agt_ada", now=NOW, is_agent=True)
PERSON = Editor(author="user:usr_1", now=NOW, is_agent=False)
MAP = MapSchema(
    fields=(
        Field(name="mood"),
        Field(name="tags", field_type=FieldType.LIST),
        Field(name="count", field_type=FieldType.COUNTER),
        Field(name="tier", read_only=True),
    )
)
BEFORE = {"mood": "fine", "tags": ["a", 7, "a"], "count": 2, "tier": "gold"}


async def edited(schema: Schema, before: Json, edit: BlockEdit, by: Editor) -> Planned:
    return await plan(Content(label="notes", schema=schema, value=before, limit=10_000), edit, by)


async def test_a_field_changes_alone() -> None:
    done = await edited(MAP, BEFORE, SetField(field="mood", value="sad"), AGENT)
    assert (done.value, done.note) == (BEFORE | {"mood": "sad"}, "Set mood")
    assert done.writes == (PutField(container="fields", key="mood", value="sad"),)
    assert (await edited(MAP, BEFORE, SetField(field="mood", value="fine"), AGENT)).writes == ()


async def test_list_fields_and_counters() -> None:
    done = await edited(MAP, BEFORE, ListAppend(field="tags", value={"b": 1.0}), AGENT)
    assert done.value["tags"] == ["a", 7, "a", {"b": 1}]
    assert done.writes == (SpliceRun(container="list_tags", at=3, delete=0, insert=({"b": 1},)),)
    done = await edited(MAP, BEFORE, ListRemove(field="tags", value="a"), AGENT)
    assert done.value["tags"] == [7, "a"]
    assert done.writes == (SpliceRun(container="list_tags", at=0, delete=1, insert=()),)
    assert (await edited(MAP, BEFORE, ListRemove(field="tags", value=Written("7")), AGENT)).value["tags"] == [
        "a",
        "a",
    ]
    done = await edited(MAP, BEFORE, Increment(field="count", delta=-5), AGENT)
    assert (done.value["count"], done.note) == (-3, "count is -3 now")
    assert done.writes == (AddCount(container="counter_count", delta=-5),)
    assert (await edited(MAP, BEFORE, Increment(field="count", delta=0), AGENT)).writes == ()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (SetField(field="mod", value=1), "no field 'mod'; there are: mood, tags, count, tier"),
        (ListAppend(field="mood", value=1), "the field mood is a Text, not a List; use set_field"),
        (Increment(field="tags"), "the field tags is a List, not a Counter"),
        (ListRemove(field="tags", value="zzz"), 'holds no "zzz"; it holds'),
        (Increment(field="count", delta=True), "a whole number"),
        (Increment(field="count", delta=2**53), "whole numbers up to"),
    ],
)
async def test_fields_that_do_not_fit(edit: SetField | ListAppend | ListRemove | Increment, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        (await edited(MAP, BEFORE, edit, PERSON))


async def test_read_only_fields_bind_agents_alone() -> None:
    with pytest.raises(PermissionDenied, match="the field tier is read-only; a person sets it"):
        (await edited(MAP, BEFORE, SetField(field="tier", value="tin"), AGENT))
    assert (await edited(MAP, BEFORE, SetField(field="tier", value="tin"), PERSON)).value["tier"] == "tin"


async def test_items_are_counted_from_one() -> None:
    before = ["a", "b"]
    schema = ListSchema()
    for edit, after, note in (
        (AppendText(text="c"), ["a", "b", "c"], "Added item 3"),
        (InsertItem(number=1, value="c"), ["c", "a", "b"], "Inserted item 1"),
        (InsertItem(number=3, value="c"), ["a", "b", "c"], "Inserted item 3"),
        (SetItem(number=2, value="c"), ["a", "c"], "Set item 2"),
        (DeleteItem(number=1), ["b"], "Deleted item 1"),
    ):
        done = await edited(schema, before, edit, AGENT)
        assert (done.value, done.note, len(done.writes)) == (after, note, 1)
    assert (await edited(schema, before, SetItem(number=1, value="a"), AGENT)).writes == ()
    for edit in (InsertItem(number=4, value="c"), SetItem(number=0, value="c"), DeleteItem(number=3)):
        with pytest.raises(InvalidInput, match="there is no item"):
            (await edited(schema, before, edit, AGENT))
    with pytest.raises(InvalidInput, match="the list is empty"):
        (await edited(schema, [], DeleteItem(number=1), AGENT))


async def test_a_full_list_takes_no_more_but_changes() -> None:
    schema = ListSchema(max_items=1)
    for edit in (AppendText(text="b"), InsertItem(number=1, value="b")):
        with pytest.raises(InvalidInput, match="at most 1 items"):
            (await edited(schema, ["a"], edit, AGENT))
    assert (await edited(schema, ["a"], SetItem(number=1, value="b"), AGENT)).value == ["b"]


async def test_read_only_fields_of_items_and_entries() -> None:
    fields = (Field(name="text"), Field(name="grade", read_only=True, default="none"))
    schema = ListSchema(item_schema=MapSchema(fields=fields))
    graded = [{"grade": "A", "text": "x"}]
    for edit in (InsertItem(number=2, value={"text": "y", "grade": "A"}), SetItem(number=1, value={"text": "y"})):
        with pytest.raises(PermissionDenied, match="grade is read-only"):
            (await edited(schema, graded, edit, AGENT))
        (await edited(schema, graded, edit, PERSON))
    assert (await edited(schema, graded, InsertItem(number=2, value="y"), AGENT)).value[1] == {
        "grade": "none",
        "text": "y",
    }
    assert (await edited(schema, graded, SetItem(number=1, value={"text": "y", "grade": "A"}), AGENT)).writes
    with pytest.raises(PermissionDenied):
        (await edited(LogSchema(fields=fields), [], AppendText(text='{"text": "y", "grade": "A"}'), AGENT))
    with pytest.raises(PermissionDenied):
        (await edited(schema, graded, SetValue(value=[*graded, {"text": "y", "grade": "B"}]), AGENT))
    (await edited(schema, graded, SetValue(value=[{"text": "y"}, *graded]), AGENT))


async def test_an_entry_is_stamped_and_appended() -> None:
    done = await edited(LogSchema(), [{"text": "old"}], AppendText(text="woke"), AGENT)
    new = {"agent_id": "agt_ada", "text": "woke", "timestamp": NOW}
    assert (done.value, done.note) == ([{"text": "old"}, new], "Added an entry")
    assert done.writes == (SpliceRun(container="entries", at=1, delete=0, insert=(new,)),)


async def test_the_whole_content_is_set_by_the_fewest_changes() -> None:
    done = await edited(MAP, BEFORE, SetValue(value={**BEFORE, "count": 5}), PERSON)
    assert done.writes == (AddCount(container="counter_count", delta=3),)
    emptied = await edited(MAP, BEFORE, SetValue(value=Written('{"mood": "fine"}')), PERSON)
    assert emptied.value == {"mood": "fine", "tags": [], "count": 0, "tier": None}


SECTIONS: Schema = parse_schema(
    {
        "Composite": {
            "sections": [
                {"name": "free", "schema": {"Map": {"fields": [{"name": "a"}, {"name": "b", "read_only": True}]}}},
                {"name": "fixed", "schema": "Text", "read_only": True},
            ]
        }
    }
)


async def test_what_an_agent_leaves_out_stays_where_it_is_read_only() -> None:
    done = await edited(MAP, BEFORE, SetValue(value={"mood": "sad"}), AGENT)
    assert done.value == {"mood": "sad", "tags": [], "count": 0, "tier": "gold"}
    before = {"free": {"a": "1", "b": "2"}, "fixed": "text"}
    done = await edited(SECTIONS, before, SetValue(value={"free": {"a": "x"}}), AGENT)
    assert done.value == {"free": {"a": "x", "b": "2"}, "fixed": "text"}
    for value in ({"free": {"b": "x"}}, {"fixed": "x"}, {"free": {"b": None}}):
        with pytest.raises(PermissionDenied, match="read-only; leave it out"):
            (await edited(SECTIONS, before, SetValue(value=value), AGENT))
        (await edited(SECTIONS, before, SetValue(value=value), PERSON))


async def test_people_may_rewrite_a_log_and_its_new_entries_are_stamped() -> None:
    old = {"text": "old", "timestamp": "2020-01-01T00:00:00.000Z", "agent_id": "agt_bob"}
    done = await edited(LogSchema(), [old], SetValue(value=[old, {"text": "new"}]), PERSON)
    assert done.value == [old, {"agent_id": "user:usr_1", "text": "new", "timestamp": NOW}]
    with pytest.raises(PermissionDenied, match="append one instead"):
        (await edited(LogSchema(), [old], SetValue(value=[]), AGENT))

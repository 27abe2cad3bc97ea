from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import NewBlock
from pattern_core.memory.changes import applied, document_of
from pattern_core.memory.content import plain, value_of, writes_between
from pattern_core.memory.document import Count, Keys, Splice, Spliced, State, state_of
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    DeleteItem,
    Editor,
    EditRange,
    Increment,
    InsertItem,
    ListAppend,
    ListRemove,
    Patch,
    ReplaceText,
    SetField,
    SetItem,
    SetText,
    SetValue,
)
from pattern_core.memory.fields import Written, empty_value
from pattern_core.memory.plan import Planned, check_size, plan, plan_schema, plan_start
from pattern_core.memory.schema import (
    EntrySchema,
    Field,
    FieldType,
    ListSchema,
    LogSchema,
    MapSchema,
    Schema,
    parse_schema,
)
from pattern_db.columns import Json
from tests.pattern_core.memory.rig import block_row

NOW = "2026-11-21T22:24:40.123Z"
AGENT = Editor(author="agent:agt_ada", now=NOW, is_agent=True)
PERSON = Editor(author="user:usr_1", now=NOW, is_agent=False)
TEXT, LIST, LOG = parse_schema("Text"), parse_schema("List"), parse_schema("Log")
MAP = parse_schema({"Map": {"fields": [{"name": "mood"}, {"name": "tags", "field_type": "List"}]}})
SECTIONS = parse_schema(
    {
        "Composite": {
            "sections": [
                {"name": "notes", "schema": "Text"},
                {"name": "facts", "schema": {"Map": {"fields": [{"name": "mood"}]}}},
                {"name": "rules", "schema": "Text", "read_only": True},
            ]
        }
    }
)
WHOLE = {"notes": "one two", "facts": {"mood": "fine"}, "rules": "be kind"}


def state(schema: Schema, value: Json) -> State:
    """What the document of a block holds whose content is `value`."""
    return applied({}, writes_between(schema, empty_value(schema), value))


@dataclass(frozen=True)
class Done:
    """What was planned, and the value of a document after it."""

    plan: Planned
    value: Json

    @classmethod
    def of(cls, plan: Planned, schema: Schema, before: Json) -> Done:
        document = document_of(state(schema, before))
        document.apply(plan.writes)
        value = value_of(state_of(document), schema)
        assert plan.plain == plain(value, schema)
        return cls(plan, value)


async def edited(schema: Schema, before: Json, edit: BlockEdit, by: Editor = AGENT, limit: int = 10_000) -> Done:
    row = block_row(schema=schema, char_limit=limit)
    return Done.of(await plan(row, state(schema, before), edit, by), schema, before)


async def test_text_edits_touch_what_they_change() -> None:
    found = await edited(TEXT, "one two", ReplaceText(old="two", new="2"))
    assert found.plan == Planned(
        plain="one 2",
        note="Replaced the one occurrence",
        writes={"content": Spliced(True, (Splice(4, "two", "2"),))},
    )
    assert (await edited(TEXT, "one", SetText(text="two"))).plan.writes == {"content": "two"}
    assert (await edited(TEXT, "one", SetValue(value="two"))).plan.plain == "two"
    nothing = await edited(TEXT, "one", SetText(text="one"))
    assert (nothing.plan.writes, nothing.plan.note) == ({}, "Nothing changed")


async def test_every_text_edit_works_in_a_section() -> None:
    for edit, text in (
        (AppendText(text="!", section="notes"), "one two!"),
        (ReplaceText(old="one", new="1", section="notes"), "1 two"),
        (SetText(text="x", section="notes"), "x"),
        (EditRange(first=1, last=1, text="y", section="notes"), "y"),
        (Patch(patch="@@ -1 +1 @@\n-one two\n+z\n", section="notes"), "z"),
        (SetValue(value="v", section="notes"), "v"),
    ):
        found = await edited(SECTIONS, WHOLE, edit)
        assert found.value == WHOLE | {"notes": text}
        assert list(found.plan.writes) == ["section_notes_content"]
        assert f"=== notes ===\n{text}\n" in found.plan.plain


async def test_read_only_sections_bind_agents_alone() -> None:
    with pytest.raises(PermissionDenied, match="the section rules of notes is read-only"):
        await edited(SECTIONS, WHOLE, AppendText(text="!", section="rules"))
    found = await edited(SECTIONS, WHOLE, AppendText(text="!", section="rules"), PERSON)
    assert found.value["rules"] == "be kind!"
    assert (await edited(SECTIONS, WHOLE, SetField(field="mood", value="x", section="facts"))).value["facts"] == {
        "mood": "x"
    }


@pytest.mark.parametrize(
    ("schema", "value", "edit", "words"),
    [
        (TEXT, "", AppendText(text="x", section="a"), "the block notes is a Text without sections"),
        (SECTIONS, WHOLE, AppendText(text="x", section="a"), "no section 'a'; there are: notes, facts, rules"),
        (SECTIONS, WHOLE, AppendText(text="x"), "name one of its sections: notes, facts, rules"),
        (SECTIONS, WHOLE, AppendText(text="x", section="facts"), "the section facts is a Map; use set_field"),
        (SECTIONS, WHOLE, InsertItem(number=1, value=1, section="notes"), "the section notes has no items: it is text"),
        (MAP, {"mood": None, "tags": []}, Patch(patch="x"), "the block notes is a Map"),
        (LIST, [], SetField(field="a", value=1), "has no fields: it is a List; use append, insert_item"),
        (LOG, [], DeleteItem(number=1), "has no items: it is a Log, whose entries stay"),
        (TEXT, "", SetValue(value=3), "is text; give its whole text"),
        (LIST, [], SetText(text="milk"), "a List is written as JSON; at line 1, column 1"),
    ],
)
async def test_edits_of_another_shape_say_what_to_do(
    schema: Schema, value: object, edit: BlockEdit, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        await edited(schema, value, edit)


async def test_text_in_a_list_or_log_is_an_item_or_entry() -> None:
    assert (await edited(LIST, ["a"], AppendText(text="b"))).value == ["a", "b"]
    assert (await edited(LOG, [], AppendText(text="woke"))).value[0]["text"] == "woke"
    assert (await edited(LIST, ["a"], SetText(text='["b", "a"]'))).value == ["b", "a"]


async def test_the_limit_holds_for_the_plain_text_of_every_shape() -> None:
    assert (await edited(LIST, [], AppendText(text="x" * 17), limit=20)).plan.plain == "1. " + "x" * 17
    with pytest.raises(InvalidInput, match="at most 20 characters; it has 4 and would have 25"):
        await edited(LIST, ["a"], AppendText(text="x" * 17), limit=20)
    with pytest.raises(InvalidInput, match="at most 20 characters"):
        await edited(SECTIONS, WHOLE, AppendText(text="x", section="notes"), limit=20)
    shrunk = await edited(SECTIONS, WHOLE, SetText(text="", section="notes"), limit=20)
    assert shrunk.value["notes"] == ""


async def test_a_log_makes_room_for_new_entries() -> None:
    log = parse_schema({"Log": {"entry_schema": {"timestamp": False, "agent_id": False}}})
    old = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
    found = await edited(log, old, AppendText(text="four"), limit=19)
    assert found.value == [{"text": "three"}, {"text": "four"}]
    assert found.plan.moved == ({"text": "one"}, {"text": "two"})
    assert found.plan.plain == "- four\n- three"
    assert found.plan.note == "Added an entry; moved the oldest 2 entries to the archive"
    assert found.plan.writes["entries"] == Spliced(
        False, (Splice(0, tuple(old[:2]), ()), Splice(1, (), ({"text": "four"},)))
    )
    with pytest.raises(InvalidInput, match="at most 20 characters; it has 19 and would have 32"):
        await edited(log, old, AppendText(text="x" * 30), limit=20)


def start(schema: Schema, **fields: object) -> Done:
    founder = replace(AGENT, is_agent=False)  # read-only parts have to begin as something
    new = NewBlock(label="notes", **fields)  # type: ignore[arg-type]  # as named
    return Done.of(plan_start(block_row(schema=schema, char_limit=100), new, founder), schema, empty_value(schema))


def test_what_a_block_starts_with() -> None:
    assert start(TEXT, content="hi").plan.plain == "hi"
    assert start(TEXT).plan.writes == {}
    assert start(LIST, content="milk").value == ["milk"]
    assert start(LIST, content=' ["milk", 2]').value == ["milk", 2]
    assert start(LIST, value=[1]).value == [1]
    assert start(LOG, content="born").value == [{"agent_id": "agt_ada", "text": "born", "timestamp": NOW}]
    assert start(MAP, content='{"mood": "fine"}').value == {"mood": "fine", "tags": []}
    assert start(MAP).plan.plain == "mood:\ntags:"
    assert start(SECTIONS, value={"rules": "read-only, and yet"}).value["rules"] == "read-only, and yet"
    defaults = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Counter", "default": 4}]}})
    assert (start(defaults).value, len(start(defaults).plan.writes)) == ({"n": 4}, 1)


@pytest.mark.parametrize(
    ("schema", "fields", "words"),
    [
        (MAP, {"content": "fine"}, "a Map is written as JSON"),
        (MAP, {"value": {"mod": 1}}, "no field"),
        (TEXT, {"value": 3}, "the block is text"),
        (LIST, {"value": ["x" * 100]}, "at most 100 characters"),
        (parse_schema({"Map": {"fields": [{"name": "n", "required": True}]}}), {}, "the field n is required"),
    ],
)
def test_what_a_block_cannot_start_with(schema: Schema, fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        start(schema, **fields)


def reshape(old: Schema, new: Schema, value: Json) -> Planned:
    return plan_schema(block_row(schema=old), state(old, value), new)


def test_a_new_schema_takes_the_content_along() -> None:
    counted = parse_schema({"Map": {"fields": [{"name": "mood"}, {"name": "n", "field_type": "Counter"}]}})
    number = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Number"}]}})
    assert reshape(number, counted, {"n": 5}).writes == {"counter_n": Count(5)}
    assert reshape(MAP, number, {"mood": None, "tags": []}).writes == {}
    with pytest.raises(InvalidInput, match='has no field "mood"; there are: n; change the content first'):
        reshape(MAP, number, {"mood": "fine", "tags": []})
    few = parse_schema({"List": {"max_items": 1}})
    with pytest.raises(InvalidInput, match="does not fit the new schema: the list holds at most 1"):
        reshape(LIST, few, [1, 2])


def test_sections_come_and_go_if_they_are_empty() -> None:
    one = parse_schema({"Composite": {"sections": [{"name": "notes"}]}})
    assert reshape(SECTIONS, one, {"notes": "x", "facts": {"mood": None}, "rules": ""}).writes == {}
    with pytest.raises(InvalidInput, match='no section "facts"'):
        reshape(SECTIONS, one, WHOLE)


MAP_OF_SHAPES = MapSchema(
    fields=(
        Field(name="mood"),
        Field(name="tags", field_type=FieldType.LIST),
        Field(name="count", field_type=FieldType.COUNTER),
        Field(name="tier", read_only=True),
    )
)
BEFORE = {"mood": "fine", "tags": ["a", 7, "a"], "count": 2, "tier": "gold"}


async def test_a_field_changes_alone() -> None:
    done = await edited(MAP_OF_SHAPES, BEFORE, SetField(field="mood", value="sad"))
    assert (done.value, done.plan.note) == (BEFORE | {"mood": "sad"}, "Set mood")
    assert done.plan.writes == {"fields": Keys({"mood": ("fine", "sad")})}
    assert (await edited(MAP_OF_SHAPES, BEFORE, SetField(field="mood", value="fine"))).plan.writes == {}


async def test_list_fields_and_counters() -> None:
    done = await edited(MAP_OF_SHAPES, BEFORE, ListAppend(field="tags", value={"b": 1.0}))
    assert done.value["tags"] == ["a", 7, "a", {"b": 1}]
    assert done.plan.writes == {"list_tags": Spliced(False, (Splice(3, (), ({"b": 1},)),))}
    done = await edited(MAP_OF_SHAPES, BEFORE, ListRemove(field="tags", value="a"))
    assert done.value["tags"] == [7, "a"]
    assert done.plan.writes == {"list_tags": Spliced(False, (Splice(0, ("a",), ()),))}
    assert (await edited(MAP_OF_SHAPES, BEFORE, ListRemove(field="tags", value=Written("7")))).value["tags"] == [
        "a",
        "a",
    ]
    done = await edited(MAP_OF_SHAPES, BEFORE, Increment(field="count", delta=-5))
    assert (done.value["count"], done.plan.note) == (-3, "count is -3 now")
    assert done.plan.writes == {"counter_count": Count(-5)}
    assert (await edited(MAP_OF_SHAPES, BEFORE, Increment(field="count", delta=0))).plan.writes == {}


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
        await edited(MAP_OF_SHAPES, BEFORE, edit, PERSON)


async def test_read_only_fields_bind_agents_alone() -> None:
    with pytest.raises(PermissionDenied, match="the field tier is read-only; a person sets it"):
        await edited(MAP_OF_SHAPES, BEFORE, SetField(field="tier", value="tin"))
    assert (await edited(MAP_OF_SHAPES, BEFORE, SetField(field="tier", value="tin"), PERSON)).value["tier"] == "tin"


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
        done = await edited(schema, before, edit)
        assert (done.value, done.plan.note, len(done.plan.writes)) == (after, note, 1)
    assert (await edited(schema, before, SetItem(number=1, value="a"))).plan.writes == {}
    for edit in (InsertItem(number=4, value="c"), SetItem(number=0, value="c"), DeleteItem(number=3)):
        with pytest.raises(InvalidInput, match="there is no item"):
            await edited(schema, before, edit)
    with pytest.raises(InvalidInput, match="the list is empty"):
        await edited(schema, [], DeleteItem(number=1))


async def test_a_full_list_takes_no_more_but_changes() -> None:
    schema = ListSchema(max_items=1)
    for edit in (AppendText(text="b"), InsertItem(number=1, value="b")):
        with pytest.raises(InvalidInput, match="at most 1 items"):
            await edited(schema, ["a"], edit)
    assert (await edited(schema, ["a"], SetItem(number=1, value="b"))).value == ["b"]


async def test_read_only_fields_of_items_and_entries() -> None:
    fields = (Field(name="text"), Field(name="grade", read_only=True, default="none"))
    schema = ListSchema(item_schema=MapSchema(fields=fields))
    graded = [{"grade": "A", "text": "x"}]
    for edit in (InsertItem(number=2, value={"text": "y", "grade": "A"}), SetItem(number=1, value={"text": "y"})):
        with pytest.raises(PermissionDenied, match="grade is read-only"):
            await edited(schema, graded, edit)
        await edited(schema, graded, edit, PERSON)
    assert (await edited(schema, graded, InsertItem(number=2, value="y"))).value[1] == {
        "grade": "none",
        "text": "y",
    }
    assert (await edited(schema, graded, SetItem(number=1, value={"text": "y", "grade": "A"}))).plan.writes
    with pytest.raises(PermissionDenied):
        await edited(
            LogSchema(entry_schema=EntrySchema(fields=fields)), [], AppendText(text='{"text": "y", "grade": "A"}')
        )
    with pytest.raises(PermissionDenied):
        await edited(schema, graded, SetValue(value=[*graded, {"text": "y", "grade": "B"}]))
    await edited(schema, graded, SetValue(value=[{"text": "y"}, *graded]))


async def test_an_entry_is_stamped_and_appended() -> None:
    done = await edited(LogSchema(), [{"text": "old"}], AppendText(text="woke"))
    new = {"agent_id": "agt_ada", "text": "woke", "timestamp": NOW}
    assert (done.value, done.plan.note) == ([{"text": "old"}, new], "Added an entry")
    assert done.plan.writes == {"entries": Spliced(False, (Splice(1, (), (new,)),))}


async def test_the_whole_content_is_set_by_the_fewest_changes() -> None:
    done = await edited(MAP_OF_SHAPES, BEFORE, SetValue(value={**BEFORE, "count": 5}), PERSON)
    assert done.plan.writes == {"counter_count": Count(3)}
    emptied = await edited(MAP_OF_SHAPES, BEFORE, SetValue(value=Written('{"mood": "fine"}')), PERSON)
    assert emptied.value == {"mood": "fine", "tags": [], "count": 0, "tier": None}


SECTIONS_OF_SHAPES: Schema = parse_schema(
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
    done = await edited(MAP_OF_SHAPES, BEFORE, SetValue(value={"mood": "sad"}))
    assert done.value == {"mood": "sad", "tags": [], "count": 0, "tier": "gold"}
    before = {"free": {"a": "1", "b": "2"}, "fixed": "text"}
    done = await edited(SECTIONS_OF_SHAPES, before, SetValue(value={"free": {"a": "x"}}))
    assert done.value == {"free": {"a": "x", "b": "2"}, "fixed": "text"}
    for value in ({"free": {"b": "x"}}, {"fixed": "x"}, {"free": {"b": None}}):
        with pytest.raises(PermissionDenied, match="read-only; leave it out"):
            await edited(SECTIONS_OF_SHAPES, before, SetValue(value=value))
        await edited(SECTIONS_OF_SHAPES, before, SetValue(value=value), PERSON)


async def test_people_may_rewrite_a_log_and_its_new_entries_are_stamped() -> None:
    old = {"text": "old", "timestamp": "2020-01-01T00:00:00.000Z", "agent_id": "agt_bob"}
    done = await edited(LogSchema(), [old], SetValue(value=[old, {"text": "new"}]), PERSON)
    assert done.value == [old, {"agent_id": "user:usr_1", "text": "new", "timestamp": NOW}]
    with pytest.raises(PermissionDenied, match="append one instead"):
        await edited(LogSchema(), [old], SetValue(value=[]))


def test_size_at_the_limit_and_one_past_it() -> None:
    row = block_row(char_limit=100)
    check_size(row, size=100, before=10)
    with pytest.raises(InvalidInput, match="at most 100 characters; it has 10 and would have 101") as caught:
        check_size(row, size=101, before=10)
    assert caught.value.details == {"limit": 100, "size": 10, "wanted": 101}
    check_size(row, size=150, before=200)  # over its limit already: it may shrink
    with pytest.raises(InvalidInput):
        check_size(row, size=200, before=200)

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import Attribution, NewBlock
from pattern_core.memory.changes import applied, document_of
from pattern_core.memory.content import plain, value_of, writes_between
from pattern_core.memory.document import Count, State
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    DeleteItem,
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
from tests.pattern_core.memory.rig import BY_ADA, BY_USER, NOW, block_row

AGENT, PERSON = BY_ADA, BY_USER
TEXT, LIST, LOG = parse_schema("Text"), parse_schema("List"), parse_schema("Log")
BARE_LOG = parse_schema({"Log": {"entry_schema": {"timestamp": False, "agent_id": False}}})
MAP = MapSchema(
    fields=(
        Field(name="mood"),
        Field(name="tags", field_type=FieldType.LIST),
        Field(name="count", field_type=FieldType.COUNTER),
        Field(name="tier", read_only=True),
    )
)
EMPTY: dict[str, Json] = {"mood": None, "tags": [], "count": 0, "tier": None}
FACTS = {"mood": "fine", "tags": ["a", 7, "a"], "count": 2, "tier": "gold"}
SECTIONS = parse_schema(
    {
        "Composite": {
            "sections": [
                {"name": "notes"},
                {"name": "facts", "schema": {"Map": {"fields": [{"name": "mood"}, {"name": "b", "read_only": True}]}}},
                {"name": "rules", "read_only": True},
            ]
        }
    }
)
WHOLE = {"notes": "one two", "facts": {"mood": "fine", "b": "2"}, "rules": "be kind"}
GRADED = (Field(name="text"), Field(name="grade", read_only=True, default="none"))
GRADED_LOG = LogSchema(entry_schema=EntrySchema(fields=GRADED))
ITEMS = ListSchema(item_schema=MapSchema(fields=GRADED))
X = {"grade": "A", "text": "x"}
OLD = {"text": "old", "timestamp": "2020-01-01T00:00:00.000Z", "agent_id": "agt_bob"}
WOKE = {"agent_id": "agt_ada", "text": "woke", "timestamp": NOW}


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
        value = value_of(document.state(), schema)
        assert plan.plain == plain(value, schema)
        return cls(plan, value)


async def edited(schema: Schema, before: Json, edit: BlockEdit, by: Attribution = AGENT, limit: int = 10_000) -> Done:
    row = block_row(schema=schema, char_limit=limit)
    return Done.of(await plan(row, state(schema, before), edit, by, NOW), schema, before)


TAGS = ["a", 7, "a"]


@pytest.mark.parametrize(
    ("schema", "before", "edit", "after", "note"),
    [
        (TEXT, "one two", ReplaceText(old="two", new="2"), "one 2", "Replaced the one occurrence"),
        (TEXT, "one", SetText(text="two"), "two", "Set the text to 3 characters"),
        (TEXT, "one", SetValue(value="two"), "two", "Set the text to 3 characters"),
        (TEXT, "one", SetText(text="one"), "one", "Nothing changed"),
        (MAP, FACTS, SetField(field="mood", value="sad"), FACTS | {"mood": "sad"}, "Set mood"),
        (MAP, FACTS, SetField(field="mood", value="fine"), FACTS, "Nothing changed"),
        (MAP, FACTS, ListAppend(field="tags", value=[1.0]), FACTS | {"tags": [*TAGS, [1]]}, "Added to tags"),
        (MAP, FACTS, ListRemove(field="tags", value="a"), FACTS | {"tags": [7, "a"]}, "Removed from tags"),
        (MAP, FACTS, ListRemove(field="tags", value=Written("7")), FACTS | {"tags": ["a", "a"]}, "Removed from tags"),
        (MAP, FACTS, Increment(field="count", delta=-5), FACTS | {"count": -3}, "count is -3 now"),
        (MAP, FACTS, Increment(field="count", delta=0), FACTS, "Nothing changed"),
        (MAP, FACTS, SetValue(value=FACTS | {"count": 5}), FACTS | {"count": 5}, "Set the content"),
        (
            SECTIONS,
            WHOLE,
            EditRange(first=1, last=1, text="x", section="notes"),
            WHOLE | {"notes": "x"},
            "Replaced line 1",
        ),
        (SECTIONS, WHOLE, SetValue(value="x", section="notes"), WHOLE | {"notes": "x"}, "Set the text to 1 characters"),
        (LIST, ["a"], AppendText(text="b"), ["a", "b"], "Added item 2"),
        (LIST, ["a"], SetText(text='["b", "a"]'), ["b", "a"], "Set the content"),
        (LIST, ["a", "b"], InsertItem(number=1, value="c"), ["c", "a", "b"], "Inserted item 1"),
        (LIST, ["a", "b"], InsertItem(number=3, value="c"), ["a", "b", "c"], "Inserted item 3"),
        (LIST, ["a", "b"], SetItem(number=2, value="c"), ["a", "c"], "Set item 2"),
        (LIST, ["a", "b"], SetItem(number=1, value="a"), ["a", "b"], "Nothing changed"),
        (LIST, ["a", "b"], DeleteItem(number=1), ["b"], "Deleted item 1"),
        (LOG, [OLD], AppendText(text="woke"), [OLD, WOKE], "Added an entry"),
    ],
)
async def test_an_edit_changes_what_it_names_and_reports_it(
    schema: Schema, before: Json, edit: BlockEdit, after: Json, note: str
) -> None:
    done = await edited(schema, before, edit)
    assert (done.value, done.plan.note, len(done.plan.writes)) == (after, note, after != before)


@pytest.mark.parametrize(
    ("schema", "before", "edit", "words"),
    [
        (TEXT, "", AppendText(text="x", section="a"), "the block notes is a Text without sections"),
        (SECTIONS, WHOLE, AppendText(text="x", section="a"), "no section 'a'; there are: notes, facts, rules"),
        (SECTIONS, WHOLE, AppendText(text="x"), "name one of its sections: notes, facts, rules"),
        (SECTIONS, WHOLE, AppendText(text="x", section="facts"), "the section facts is a Map; use set_field"),
        (SECTIONS, WHOLE, InsertItem(number=1, value=1, section="notes"), "the section notes has no items: it is text"),
        (MAP, FACTS, Patch(patch="x"), "the block notes is a Map"),
        (LIST, [], SetField(field="a", value=1), "has no fields: it is a List; use append, insert_item"),
        (LOG, [], DeleteItem(number=1), "has no items: it is a Log with permanent entries"),
        (TEXT, "", SetValue(value=3), "is text; give its whole text"),
        (LIST, [], SetText(text="milk"), "a List is written as JSON; at line 1, column 1"),
        (MAP, FACTS, SetField(field="mod", value=1), "no field 'mod'; there are: mood, tags, count, tier"),
        (MAP, FACTS, ListAppend(field="mood", value=1), "the field mood is a Text, not a List; use set_field"),
        (MAP, FACTS, Increment(field="tags"), "the field tags is a List, not a Counter"),
        (MAP, FACTS, ListRemove(field="tags", value="zzz"), 'has no value "zzz"; it has'),
        (MAP, FACTS, Increment(field="count", delta=True), "a whole number"),
        (MAP, FACTS, Increment(field="count", delta=2**53), "whole numbers up to"),
        (LIST, ["a"], InsertItem(number=3, value="c"), "there is no item 3; items are counted from 1 to 2"),
        (LIST, ["a"], SetItem(number=0, value="c"), "there is no item 0"),
        (LIST, ["a"], DeleteItem(number=2), "there is no item 2"),
        (LIST, [], DeleteItem(number=1), "the list is empty"),
        (ListSchema(max_items=1), ["a"], AppendText(text="b"), "at most 1 items"),
        (ListSchema(max_items=1), ["a"], InsertItem(number=1, value="b"), "at most 1 items"),
    ],
)
async def test_an_edit_that_does_not_fit_is_refused_with_what_does(
    schema: Schema, before: Json, edit: BlockEdit, words: str
) -> None:
    for by in (AGENT, PERSON):
        with pytest.raises(InvalidInput, match=words):
            await edited(schema, before, edit, by)


@pytest.mark.parametrize(
    ("schema", "before", "edit", "words"),
    [
        (SECTIONS, WHOLE, AppendText(text="!", section="rules"), "the section rules of notes is read-only"),
        (SECTIONS, WHOLE, SetValue(value={"rules": "x", "facts": {}}), "the section rules is read-only; leave it out"),
        (SECTIONS, WHOLE, SetValue(value={"facts": {"b": "x"}}), "the field b is read-only; leave it out"),
        (SECTIONS, WHOLE, SetValue(value={"facts": {"b": None}}), "the field b is read-only; leave it out"),
        (MAP, FACTS, SetField(field="tier", value="tin"), "the field tier is read-only; a person sets it"),
        (ITEMS, [], InsertItem(number=1, value={"text": "y", "grade": "A"}), "grade is read-only"),
        (ITEMS, [X], SetItem(number=1, value={"text": "y"}), "grade is read-only"),
        (ITEMS, [], SetValue(value=[{"text": "y", "grade": "B"}]), "grade is read-only"),
        (GRADED_LOG, [], AppendText(text='{"text": "y", "grade": "A"}'), "grade is read-only"),
        (LOG, [OLD], SetValue(value=[]), "append one instead"),
    ],
)
async def test_what_is_read_only_binds_agents_alone(schema: Schema, before: Json, edit: BlockEdit, words: str) -> None:
    with pytest.raises(PermissionDenied, match=words):
        await edited(schema, before, edit)
    assert (await edited(schema, before, edit, PERSON)).value != before


@pytest.mark.parametrize(
    ("schema", "before", "edit", "by", "after"),
    [
        # What an agent leaves out stays where it is read-only.
        (MAP, FACTS, SetValue(value={"mood": "sad"}), AGENT, EMPTY | {"mood": "sad", "tier": "gold"}),
        (MAP, FACTS, SetValue(value=Written('{"mood": "sad"}')), PERSON, EMPTY | {"mood": "sad"}),
        (SECTIONS, WHOLE, SetValue(value={"facts": {"mood": "fine"}}), AGENT, WHOLE | {"notes": ""}),
        (SECTIONS, WHOLE, AppendText(text="!", section="rules"), PERSON, WHOLE | {"rules": "be kind!"}),
        (ITEMS, [], InsertItem(number=1, value="y"), AGENT, [{"grade": "none", "text": "y"}]),
        (ITEMS, [X], SetItem(number=1, value=X | {"text": "y"}), AGENT, [X | {"text": "y"}]),
        (ITEMS, [X], SetValue(value=[{"text": "y"}, X]), AGENT, [{"grade": "none", "text": "y"}, X]),
        (ListSchema(max_items=1), ["a"], SetItem(number=1, value="b"), AGENT, ["b"]),
        (LOG, [OLD], SetValue(value=[OLD, {"text": "woke"}]), PERSON, [OLD, WOKE | {"agent_id": "user:usr_1"}]),
    ],
)
async def test_what_is_left_out_is_kept_emptied_or_stamped(
    schema: Schema, before: Json, edit: BlockEdit, by: Attribution, after: Json
) -> None:
    assert (await edited(schema, before, edit, by)).value == after


async def test_the_limit_holds_for_the_plain_text_of_every_shape() -> None:
    assert (await edited(LIST, [], AppendText(text="x" * 17), limit=20)).plan.plain == "1. " + "x" * 17
    with pytest.raises(InvalidInput, match="at most 20 characters; it has 4 and would have 25"):
        await edited(LIST, ["a"], AppendText(text="x" * 17), limit=20)
    with pytest.raises(InvalidInput, match="at most 20 characters"):
        await edited(SECTIONS, WHOLE, AppendText(text="x", section="notes"), limit=20)
    shrunk = await edited(SECTIONS, WHOLE, SetText(text="", section="notes"), limit=20)
    assert shrunk.value["notes"] == ""


async def test_a_log_makes_room_for_new_entries() -> None:
    old = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
    found = await edited(BARE_LOG, old, AppendText(text="four"), limit=19)
    assert found.value == [{"text": "three"}, {"text": "four"}]
    assert found.plan.moved == ({"text": "one"}, {"text": "two"})
    assert found.plan.note == "Added an entry; moved the oldest 2 entries to the archive"
    with pytest.raises(InvalidInput, match="at most 20 characters; it has 19 and would have 32"):
        await edited(BARE_LOG, old, AppendText(text="x" * 30), limit=20)


def start(schema: Schema, **fields: object) -> Done:
    new = NewBlock(label="notes", **fields)  # type: ignore[arg-type]  # as named
    return Done.of(plan_start(block_row(schema=schema, char_limit=100), new, BY_ADA), schema, empty_value(schema))


def counter(**more: object) -> Schema:
    return parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Counter", **more}]}})


@pytest.mark.parametrize(
    ("schema", "fields", "value"),
    [
        (TEXT, {}, ""),
        (TEXT, {"content": "hi"}, "hi"),
        (LIST, {"content": "milk"}, ["milk"]),
        (LIST, {"content": ' ["milk", 2]'}, ["milk", 2]),
        (LIST, {"value": [1]}, [1]),
        (LOG, {"content": "woke"}, [WOKE]),
        (MAP, {"content": '{"mood": "fine"}'}, EMPTY | {"mood": "fine"}),
        (MAP, {"value": {"tier": "gold"}}, EMPTY | {"tier": "gold"}),
        (counter(default=4), {}, {"n": 4}),
    ],
)
def test_what_a_block_starts_with(schema: Schema, fields: dict[str, object], value: Json) -> None:
    assert start(schema, **fields).value == value


@pytest.mark.parametrize(
    ("schema", "fields", "words"),
    [
        (MAP, {"content": "fine"}, "a Map is written as JSON"),
        (MAP, {"value": {"mod": 1}}, "no field"),
        (TEXT, {"value": 3}, "the block is text"),
        (LIST, {"value": ["x" * 100]}, "at most 100 characters"),
        (counter(required=True), {}, "the field n is required"),
    ],
)
def test_what_a_block_cannot_start_with(schema: Schema, fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        start(schema, **fields)


def reshape(old: Schema, new: Schema, value: Json) -> Planned:
    return plan_schema(block_row(schema=old), state(old, value), new)


def test_a_new_schema_keeps_the_content_and_parts_go_if_they_are_empty() -> None:
    number = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Number"}]}})
    assert reshape(number, counter(), {"n": 5}).writes == {"counter_n": Count(5)}
    assert reshape(MAP, number, EMPTY).writes == {}
    with pytest.raises(InvalidInput, match='has no field "mood"; there are: n; change the content first'):
        reshape(MAP, number, EMPTY | {"mood": "fine"})
    with pytest.raises(InvalidInput, match="does not match the new schema: the list holds at most 1"):
        reshape(LIST, parse_schema({"List": {"max_items": 1}}), [1, 2])
    one = parse_schema({"Composite": {"sections": [{"name": "notes"}]}})
    assert reshape(SECTIONS, one, empty_value(SECTIONS) | {"notes": "x"}).writes == {}
    with pytest.raises(InvalidInput, match='no section "facts"'):
        reshape(SECTIONS, one, WHOLE)


def test_size_at_the_limit_and_one_past_it() -> None:
    row = block_row(char_limit=100)
    check_size(row, size=100, before=10)
    with pytest.raises(InvalidInput, match="at most 100 characters; it has 10 and would have 101") as caught:
        check_size(row, size=101, before=10)
    assert caught.value.details == {"limit": 100, "size": 10, "wanted": 101}
    check_size(row, size=150, before=200)  # over its limit already: it may shrink
    with pytest.raises(InvalidInput):
        check_size(row, size=200, before=200)

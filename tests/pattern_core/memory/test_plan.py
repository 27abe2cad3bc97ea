from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.memory.block import NewBlock
from pattern_core.memory.document import SpliceRun, UpdateText
from pattern_core.memory.edits import (
    AppendText,
    BlockEdit,
    DeleteItem,
    Editor,
    EditRange,
    InsertItem,
    Patch,
    ReplaceText,
    SetField,
    SetText,
    SetValue,
)
from pattern_core.memory.plan import Content, Planned, plan, plan_schema, plan_start
from pattern_core.memory.schema import Schema, parse_schema

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


async def planned(schema: Schema, value: object, edit: BlockEdit, *, limit: int = 100, by: Editor = AGENT) -> Planned:
    return await plan(Content(label="notes", schema=schema, value=value, limit=limit), edit, by)


async def test_text_edits_touch_what_they_change() -> None:
    found = await planned(TEXT, "one two", ReplaceText(old="two", new="2"))
    assert found == Planned(
        value="one 2",
        plain="one 2",
        note="Replaced the one occurrence",
        writes=(SpliceRun(container="content", at=4, delete=3, insert="2"),),
    )
    assert (await planned(TEXT, "one", SetText(text="two"))).writes == (UpdateText(container="content", text="two"),)
    assert (await planned(TEXT, "one", SetValue(value="two"))).plain == "two"
    nothing = await planned(TEXT, "one", SetText(text="one"))
    assert (nothing.writes, nothing.note) == ((), "Nothing changed")


async def test_every_text_edit_works_in_a_section() -> None:
    for edit, text in (
        (AppendText(text="!", section="notes"), "one two!"),
        (ReplaceText(old="one", new="1", section="notes"), "1 two"),
        (SetText(text="x", section="notes"), "x"),
        (EditRange(first=1, last=1, text="y", section="notes"), "y"),
        (Patch(patch="@@ -1 +1 @@\n-one two\n+z\n", section="notes"), "z"),
        (SetValue(value="v", section="notes"), "v"),
    ):
        found = await planned(SECTIONS, WHOLE, edit)
        assert found.value == WHOLE | {"notes": text}
        assert {write.container for write in found.writes} == {"section_notes_content"}
        assert f"=== notes ===\n{text}\n" in found.plain


async def test_read_only_sections_bind_agents_alone() -> None:
    with pytest.raises(PermissionDenied, match="the section rules of notes is read-only"):
        await planned(SECTIONS, WHOLE, AppendText(text="!", section="rules"))
    found = await planned(SECTIONS, WHOLE, AppendText(text="!", section="rules"), by=PERSON)
    assert found.value["rules"] == "be kind!"
    assert (await planned(SECTIONS, WHOLE, SetField(field="mood", value="x", section="facts"))).value["facts"] == {
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
        await planned(schema, value, edit)


async def test_text_in_a_list_or_log_is_an_item_or_entry() -> None:
    assert (await planned(LIST, ["a"], AppendText(text="b"))).value == ["a", "b"]
    assert (await planned(LOG, [], AppendText(text="woke"))).value[0]["text"] == "woke"
    assert (await planned(LIST, ["a"], SetText(text='["b", "a"]'))).value == ["b", "a"]


async def test_the_limit_holds_for_the_plain_text_of_every_shape() -> None:
    assert (await planned(LIST, [], AppendText(text="x" * 17), limit=20)).plain == "1. " + "x" * 17
    with pytest.raises(InvalidInput, match="at most 20 characters; it has 4 and would have 25"):
        await planned(LIST, ["a"], AppendText(text="x" * 17), limit=20)
    with pytest.raises(InvalidInput, match="at most 20 characters"):
        await planned(SECTIONS, WHOLE, AppendText(text="x", section="notes"), limit=20)
    shrunk = await planned(SECTIONS, WHOLE, SetText(text="", section="notes"), limit=20)
    assert shrunk.value["notes"] == ""


async def test_a_log_makes_room_for_new_entries() -> None:
    log = parse_schema({"Log": {"entry_schema": {"timestamp": False, "agent_id": False}}})
    old = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
    found = await planned(log, old, AppendText(text="four"), limit=19)
    assert found.value == [{"text": "three"}, {"text": "four"}]
    assert found.moved == ({"text": "one"}, {"text": "two"})
    assert found.plain == "- four\n- three"
    assert found.note == "Added an entry; moved the oldest 2 entries to the archive"
    assert found.writes[-1] == SpliceRun(container="entries", at=0, delete=2, insert=())
    with pytest.raises(InvalidInput, match="at most 20 characters; it has 19 and would have 32"):
        await planned(log, old, AppendText(text="x" * 30), limit=20)


def start(schema: Schema, **fields: object) -> Planned:
    founder = replace(AGENT, is_agent=False)  # read-only parts have to begin as something
    return plan_start(NewBlock(label="notes", **fields), schema, 100, founder)  # type: ignore[arg-type]  # as named


def test_what_a_block_starts_with() -> None:
    assert start(TEXT, content="hi").plain == "hi"
    assert start(TEXT).writes == ()
    assert start(LIST, content="milk").value == ["milk"]
    assert start(LIST, content=' ["milk", 2]').value == ["milk", 2]
    assert start(LIST, value=[1]).value == [1]
    assert start(LOG, content="born").value == [{"agent_id": "agt_ada", "text": "born", "timestamp": NOW}]
    assert start(MAP, content='{"mood": "fine"}').value == {"mood": "fine", "tags": []}
    assert start(MAP).plain == "mood:\ntags:"
    assert start(SECTIONS, value={"rules": "read-only, and yet"}).value["rules"] == "read-only, and yet"
    defaults = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Counter", "default": 4}]}})
    assert (start(defaults).value, len(start(defaults).writes)) == ({"n": 4}, 1)


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


def reshape(old: Schema, new: Schema, value: object, before: object) -> Planned:
    return plan_schema(Content(label="notes", schema=old, value=value, limit=100), new, before)


def test_a_new_schema_takes_the_content_along() -> None:
    counted = parse_schema({"Map": {"fields": [{"name": "mood"}, {"name": "n", "field_type": "Counter"}]}})
    number = parse_schema({"Map": {"fields": [{"name": "n", "field_type": "Number"}]}})
    found = reshape(number, counted, {"n": 5}, {"mood": None, "n": 0})
    assert found.value == {"mood": None, "n": 5}
    assert len(found.writes) == 1
    assert reshape(MAP, number, {"mood": None, "tags": []}, {"n": None}).writes == ()
    with pytest.raises(InvalidInput, match='has no field "mood"; there are: n; change the content first'):
        reshape(MAP, number, {"mood": "fine", "tags": []}, {"n": None})
    few = parse_schema({"List": {"max_items": 1}})
    with pytest.raises(InvalidInput, match="does not fit the new schema: the list holds at most 1"):
        reshape(LIST, few, [1, 2], [1, 2])


def test_sections_come_and_go_if_they_are_empty() -> None:
    one = parse_schema({"Composite": {"sections": [{"name": "notes"}]}})
    assert reshape(SECTIONS, one, {"notes": "x", "facts": {"mood": None}, "rules": ""}, {"notes": "x"}).writes == ()
    with pytest.raises(InvalidInput, match='no section "facts"'):
        reshape(SECTIONS, one, WHOLE, {"notes": "one two"})

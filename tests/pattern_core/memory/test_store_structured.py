"""The store and blocks that are more than text: fields, items, entries, sections, and schemas that change."""

from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.memory.block import TEMPLATES, BlockSettings, NewBlock, from_template, schema_of
from pattern_core.memory.edits import AppendText, Increment, ListAppend, SetField
from pattern_core.memory.schema import LogSchema, parse_schema
from pattern_core.memory.store import archive
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import BlockType
from pattern_db.tables import archival
from tests.pattern_core.memory.rig import ADA, ALL, BY_ADA, BY_BOB, BY_USER, NOW, Rig, block_row, prompt_blocks

PROFILE = {
    "Map": {
        "fields": [
            {"name": "name", "required": True, "default": "?"},
            {"name": "tags", "field_type": "List"},
            {"name": "visits", "field_type": "Counter"},
            {"name": "tier", "read_only": True},
        ]
    }
}
SECTIONS = {
    "Composite": {
        "sections": [
            {"name": "profile", "schema": PROFILE},
            {"name": "notes", "schema": "Text"},
            {"name": "rules", "schema": "Text", "read_only": True},
        ]
    }
}


async def test_a_map_is_made_edited_shown_and_read_back(rig: Rig) -> None:
    made = await rig.store.create(
        ADA, NewBlock(label="notes", schema=PROFILE, value={"name": "Ada", "tier": "gold"}), by=BY_ADA
    )
    assert made.content == "name: Ada\ntags:\nvisits: 0\ntier: gold"
    assert schema_of(made.metadata) == parse_schema(PROFILE)
    for edit in (ListAppend(field="tags", value="x"), Increment(field="visits", delta=3)):
        await rig.store.edit(ADA, "notes", edit, by=BY_ADA)
    edited = await rig.store.edit(ADA, "notes", SetField(field="name", value="Bob"), by=BY_BOB)
    assert edited.block == await rig.store.view(ADA, "notes")
    value = {"name": "Bob", "tags": ["x"], "visits": 3, "tier": "gold"}
    for one in (rig, Rig(rig.database, seed=99)):
        assert await one.value() == value
        assert list(await one.value()) == list(value)
    [shown] = await prompt_blocks(rig.store, ADA)
    assert "\nname: Bob\ntags:\n  - x\nvisits: 3\ntier [read-only]: gold" in shown
    found = await rig.database.read(
        lambda c: c.execute("SELECT block_id FROM memory_fts WHERE memory_fts MATCH 'bob'").fetchall()
    )
    assert found == [(made.id,)]


async def test_a_log_is_stamped_and_what_has_no_room_is_found_in_the_archive(rig: Rig) -> None:
    await rig.block(label="diary", block_type=BlockType.LOG, char_limit=150, schema={"Log": {"display_limit": 2}})
    notes = []
    for number in range(5):
        rig.clock.advance(60_000)
        notes.append((await rig.store.edit(ADA, "diary", AppendText(text=f"event {number}"), by=BY_ADA)).note)
    assert notes[2:4] == ["Added an entry", "Added an entry; moved the oldest entry to the archive"]
    entries = await rig.value("diary")
    assert [entry["text"] for entry in entries] == ["event 2", "event 3", "event 4"]
    assert {entry["agent_id"] for entry in entries} == {ADA}
    [shown] = await prompt_blocks(rig.store, ADA)
    assert [number in shown for number in ("event 4", "event 3", "event 2")] == [True, True, False]
    assert "[1 older entry not shown" in shown
    kept = await rig.database.read(archival.list_for_agent, ADA, 10)
    assert sorted(row.content.rpartition(") ")[2] for row in kept) == ["event 0", "event 1"]
    block_id = (await rig.store.view(ADA, "diary")).id
    assert {json.dumps(row.metadata) for row in kept} == {json.dumps({"from_block": "diary", "block_id": block_id})}
    oldest = min(row.created_at for row in kept)
    assert oldest < entries[0]["timestamp"]


async def test_entries_go_to_the_archive_with_their_time_and_origin(rig: Rig) -> None:
    work = UnitOfWork()
    ids = Ids(rig.clock, seeded_randomness(1))
    entries = [{"text": "a", "timestamp": "2020-01-01T00:00:00Z"}, {"text": "b", "timestamp": "junk"}, "c"]
    archive(block_row(schema=LogSchema()), entries, ids, work)
    await rig.database.write(work.run)
    kept = await rig.database.read(archival.list_for_agent, ADA, 10)
    rows = sorted(kept, key=lambda row: row.content)
    assert [(row.content, row.created_at) for row in rows] == [
        ("- c", NOW),
        ("[2020-01-01T00:00:00Z] a", "2020-01-01T00:00:00.000Z"),
        ("[junk] b", NOW),
    ]
    assert all(row.id.startswith("arch_") for row in rows)
    assert rows[0].metadata == {"from_block": "notes", "block_id": "mem_1"}


async def test_a_log_begins_with_more_than_it_holds(rig: Rig) -> None:
    entries = [{"text": f"event {number}", "timestamp": NOW} for number in range(9)]
    await rig.block(label="diary", owner=ALL, block_type=BlockType.LOG, char_limit=100, value=entries)
    assert len(await rig.value("diary")) + await rig.database.read(archival.count_rows, ALL) == 9
    rows = await rig.database.read(archival.list_for_agent, ALL, 10)
    assert {row.created_at for row in rows} == {NOW}


async def test_old_logs_that_are_text_stay_text(rig: Rig) -> None:
    await rig.block("as it was", label="diary", block_type=BlockType.LOG, schema="Text")
    await rig.store.edit(ADA, "diary", AppendText(text="!"), by=BY_ADA)
    assert await rig.content(label="diary") == "as it was!"
    assert "as it was!" in (await prompt_blocks(rig.store, ADA))[0]


async def test_a_schema_grows_and_the_content_comes_along(rig: Rig) -> None:
    await rig.block(schema={"Map": {"fields": [{"name": "n", "field_type": "Number"}]}}, value={"n": 4})
    wanted = {"Map": {"fields": [{"name": "n", "field_type": "Counter"}, {"name": "mood", "default": "fine"}]}}
    changed = await rig.store.set_metadata(
        ADA, "notes", BlockSettings(metadata={"schema": wanted, "colour": "red"}), by=BY_USER
    )
    assert changed == await rig.store.view(ADA, "notes")
    assert changed.metadata["colour"] == "red"
    assert (changed.content, changed.version) == ("n: 4\nmood: fine", 1)
    await rig.store.edit(ADA, "notes", Increment(field="n"), by=BY_ADA)
    other = Rig(rig.database, seed=99)
    assert await other.value() == {"n": 5, "mood": "fine"}
    with pytest.raises(InvalidInput, match="notes stays a Map; for another kind of schema create another block"):
        await rig.store.set_metadata(ADA, "notes", BlockSettings(metadata={"schema": "Text"}), by=BY_USER)
    assert await other.value() == {"n": 5, "mood": "fine"}


async def test_other_metadata_leaves_the_schema_and_a_schema_alone_only_the_look(rig: Rig) -> None:
    await rig.block("1\n2\n3\n4")
    changed = await rig.store.set_metadata(ADA, "notes", BlockSettings(metadata={"tags": ["x"]}), by=BY_ADA)
    assert changed.metadata == {"tags": ["x"]}
    window = {"Text": {"viewport": {"start_line": 2, "display_lines": 2}}}
    await rig.store.set_metadata(ADA, "notes", BlockSettings(metadata={"schema": window}), by=BY_ADA)
    assert (await prompt_blocks(rig.store, ADA))[0].endswith("\n[lines 2-3 of 4]\n2\n3")
    assert await rig.content() == "1\n2\n3\n4"
    changed = await rig.store.set_metadata(ADA, "notes", BlockSettings(metadata={"tags": ["x"]}), by=BY_ADA)
    assert changed.metadata == {"tags": ["x"], "schema": window}
    whole = BlockSettings(metadata={"schema": {"Text": {}}})
    changed = await rig.store.set_metadata(ADA, "notes", whole, by=BY_ADA)
    assert (changed.version, changed.metadata) == (0, {"schema": "Text"})
    assert "lines 2-3" not in (await prompt_blocks(rig.store, ADA))[0]


async def test_a_new_schema_of_the_uncommitted_call_is_seen_by_its_next_edit(rig: Rig) -> None:
    await rig.block(schema="List", value=["a"])
    work = UnitOfWork()
    few = BlockSettings(metadata={"schema": {"List": {"max_items": 1}}})
    await rig.store.set_metadata(ADA, "notes", few, by=BY_ADA, work=work)
    with pytest.raises(InvalidInput, match="at most 1 items"):
        await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA, work=work)
    work.settle(committed=False)
    await rig.store.edit(ADA, "notes", AppendText(text="b"), by=BY_ADA)


async def test_a_block_of_an_unknown_schema_is_shown_but_not_edited(rig: Rig) -> None:
    block_id = await rig.block("text")
    await rig.database.write(
        lambda c: c.execute("UPDATE memory_blocks SET metadata = ? WHERE id = ?", ('{"schema":"Tree"}', block_id))
    )
    rig.store.blocks.forget(ADA)
    assert "text" in (await prompt_blocks(rig.store, ADA))[0]
    assert await rig.value() == "text"
    with pytest.raises(InvalidInput, match='no block schema "Tree"'):
        await rig.store.edit(ADA, "notes", AppendText(text="!"), by=BY_USER)


# Templates.


def test_what_is_given_goes_before_what_the_template_says() -> None:
    assert from_template("task_list").label == "tasks"
    assert from_template("task_list", label="errands").label == "errands"
    assert from_template("observation_log").block_type is BlockType.LOG
    with pytest.raises(InvalidInput, match="no block template 'todo'; there are: persona, human"):
        from_template("todo")


@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_template_makes_a_block(rig: Rig, name: str) -> None:
    made = await rig.store.create(ADA, from_template(name), by=BY_ADA)
    assert made == await rig.store.view(ADA, made.label)
    await rig.value(made.label)
    assert len(await prompt_blocks(rig.store, ADA)) == 1

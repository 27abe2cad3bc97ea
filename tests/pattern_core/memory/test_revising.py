"""Undo, redo, rollback and merging through a running constellation: one path, one transaction, one event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.memory.block import BlockSettings, Edited, NewBlock
from pattern_core.memory.edits import AppendText, BlockEdit, ReplaceText, SetField, SetText, SetValue
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import Json
from pattern_db.enums import HistoryKind, Permission
from pattern_db.tables.memory_blocks import Attribution
from tests.support import USER, Running, running

BY_USER = Attribution(author=USER)
PROFILE = {"schema": {"Map": {"fields": [{"name": name, "field_type": "Text"} for name in ("name", "city")]}}}


@dataclass
class Desk:
    """A block `notes` of ada's, edited by her and by a person."""

    here: Running
    ada: str
    label: str = "notes"

    @property
    def by_ada(self) -> Attribution:
        return Attribution(author=f"agent:{self.ada}", cause={"turn": "turn_1"})

    async def edit(self, by: Attribution, edit: BlockEdit) -> None:
        await self.here.constellation.memory.edit(self.ada, self.label, edit, author=by.author, cause=by.cause)

    async def undo(self, by: Attribution, *, of: str | None = None) -> Edited:
        return await self.here.constellation.revisions.undo(self.ada, self.label, by, of=of)

    async def value(self) -> Json:
        memory = self.here.constellation.memory
        return await memory.value_of(await memory.view(self.ada, self.label))

    async def content(self) -> str:
        return (await self.here.constellation.memory.view(self.ada, self.label)).content


@asynccontextmanager
async def desk(new: NewBlock | None = None) -> AsyncIterator[Desk]:
    async with running() as here:
        ada = await here.agent("ada")
        new = new or NewBlock(label="notes", content="one")
        await here.constellation.memory.create(ada.id, new, author=USER)
        yield Desk(here, ada.id, new.label)


async def test_undo_takes_back_ones_own_edit_and_leaves_the_others() -> None:
    async with desk() as at:
        await at.edit(at.by_ada, AppendText(text=" two"))
        await at.edit(BY_USER, ReplaceText(old="one", new="ONE"))
        undone = await at.undo(at.by_ada)
        assert (undone.block.content, undone.undo_remaining, undone.redo_remaining) == ("ONE", 0, 1)
        redone = await at.here.constellation.revisions.redo(at.ada, "notes", at.by_ada)
        assert (redone.block.content, redone.redo_remaining) == ("ONE two", 0)
        await at.undo(BY_USER, of=at.by_ada.author)  # a person may take back what the agent wrote
        assert await at.content() == "ONE"
        kinds = [one.kind for one in await at.here.constellation.history.versions(undone.block.id, limit=10)]
        undo, redo, edit = HistoryKind.UNDO, HistoryKind.REDO, HistoryKind.EDIT
        assert kinds == [undo, redo, undo, edit, edit, HistoryKind.CREATE]
        assert [event.name for event in await at.here.events()][-1] == "memory.changed"
        found = await at.here.database.read(
            lambda c: c.execute("SELECT count(*) FROM memory_fts WHERE memory_fts MATCH 'two'").fetchall()
        )
        assert found == [(0,)]  # search knows it too


async def test_nothing_to_undo_is_said() -> None:
    async with desk() as at:
        with pytest.raises(InvalidInput, match="nothing to undo"):
            await at.undo(at.by_ada)
        with pytest.raises(InvalidInput, match="nothing to redo"):
            await at.here.constellation.revisions.redo(at.ada, "notes", at.by_ada)


async def test_rollback_is_a_new_version() -> None:
    async with desk() as at:
        revisions = at.here.constellation.revisions
        await at.edit(at.by_ada, SetText(text="two"))
        await at.edit(at.by_ada, SetText(text="three"))
        back = await revisions.rollback(at.ada, "notes", BY_USER, version=1)
        assert (back.block.content, back.block.version) == ("two", 3)
        with pytest.raises(InvalidInput, match="already"):
            await revisions.rollback(at.ada, "notes", BY_USER, version=1)
        with pytest.raises(NotFound, match="no 9"):
            await revisions.rollback(at.ada, "notes", BY_USER, version=9)


async def test_what_was_written_against_an_older_version_is_merged() -> None:
    async with desk(NewBlock(label="notes", content="milk\nbread\neggs\n")) as at:
        revisions = at.here.constellation.revisions
        await at.edit(at.by_ada, ReplaceText(old="eggs", new="six eggs"))
        merged = await revisions.merge(at.ada, "notes", BY_USER, SetText(text="oat milk\nbread\neggs\n"), base=0)
        assert merged.block.content == "oat milk\nbread\nsix eggs\n"
        [line, *_] = await at.here.constellation.history.versions(merged.block.id, limit=1)
        assert (line.kind, line.author) == (HistoryKind.MERGE, USER)
        same = await revisions.merge(at.ada, "notes", BY_USER, SetText(text=merged.block.content), base=2)
        assert (same.note, same.block.version) == ("Nothing changed", 2)
        with pytest.raises(Conflict, match="versions 0 to 2"):
            await revisions.merge(at.ada, "notes", BY_USER, SetText(text="x"), base=7)


async def test_fields_merge_one_by_one() -> None:
    async with desk(NewBlock(label="who", metadata=PROFILE, value={"name": "Ada", "city": "Rome"})) as at:
        await at.edit(at.by_ada, SetField(field="city", value="Oslo"))
        await at.here.constellation.revisions.merge(
            at.ada, "who", BY_USER, SetValue(value={"name": "Ada L.", "city": "Rome"}), base=0
        )
        assert await at.value() == {"name": "Ada L.", "city": "Oslo"}
        undone = await at.undo(at.by_ada)
        assert await at.value() == {"name": "Ada L.", "city": "Rome"}
        assert undone.undo_remaining == 0


async def test_permission_and_limit_hold_here_too() -> None:
    async with desk() as at:
        await at.edit(at.by_ada, AppendText(text=" and more"))
        await at.edit(at.by_ada, SetText(text="x"))
        memory = at.here.constellation.memory
        await memory.set_metadata(at.ada, "notes", BlockSettings(permission=Permission.APPEND), author=USER)
        with pytest.raises(PermissionDenied):
            await at.undo(at.by_ada)
        await memory.set_metadata(at.ada, "notes", BlockSettings(char_limit=5), author=USER)
        with pytest.raises(InvalidInput, match="at most 5 characters"):
            await at.undo(BY_USER, of=at.by_ada.author)
        assert await at.content() == "x"


async def test_not_within_the_step_that_changed_the_block() -> None:
    async with desk() as at:
        work = UnitOfWork()
        memory, revisions = at.here.constellation.memory, at.here.constellation.revisions
        await memory.edit(at.ada, "notes", AppendText(text="!"), author=at.by_ada.author, work=work)
        with pytest.raises(Conflict, match="call of its own"):
            await revisions.undo(at.ada, "notes", at.by_ada, work=work)
        work.settle(committed=False)
        assert await at.content() == "one"

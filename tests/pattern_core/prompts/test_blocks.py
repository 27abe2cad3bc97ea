from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pattern_core.again import Again
from pattern_core.memory.edits.edit import AppendText
from pattern_core.prompts.blocks import block_parts, is_named
from pattern_core.prompts.parts import Kind, Part
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import BlockType, Permission
from pattern_db.tables import memory_blocks
from pattern_db.tables.memory_blocks import Attachment
from tests.pattern_core.memory.rig import ADA, ALL, BOB, BY_ADA, NOW, Rig, constellation


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with Database.in_memory(constellation()) as database:
        yield Rig(database)


def lend(connection: Connection, block_id: str, agent_id: str) -> None:
    memory_blocks.attach(
        connection,
        Attachment(block_id=block_id, agent_id=agent_id, permission=Permission.READ_ONLY, attached_at=NOW),
    )


async def parts(rig: Rig, words: str = "", agent_id: str = ADA) -> list[Part]:
    return list((await block_parts(rig.store, agent_id, words, Again())).parts)


async def test_core_blocks_come_first_own_then_lent_then_everybodys(rig: Rig) -> None:
    lent = await rig.block("lent", label="beta", owner=BOB)
    await rig.block("everybody's", label="alpha", owner=ALL)
    await rig.block("own", label="zeta")
    await rig.database.write(lend, lent, ADA)
    found = await parts(rig)
    assert [(part.name, part.reason) for part in found] == [
        ("zeta", "a core block, the agent's own"),
        ("beta", "a core block, lent to the agent"),
        ("alpha", "a core block, everybody's"),
    ]
    assert 'shared_from="bob"' in found[1].text


async def test_working_blocks_are_shown_if_they_are_pinned_lent_or_named(rig: Rig) -> None:
    await rig.block("1", label="plan", block_type=BlockType.WORKING)
    await rig.block("2", label="kept", block_type=BlockType.WORKING, pinned=True)
    lent = await rig.block("3", label="theirs", owner=BOB, block_type=BlockType.WORKING)
    await rig.block("4", label="gone", block_type=BlockType.ARCHIVAL)
    await rig.database.write(lend, lent, ADA)
    assert [(part.kind, part.name) for part in await parts(rig, "hello")] == [
        (Kind.PINNED, "kept"),
        (Kind.PINNED, "theirs"),
    ]
    named = await parts(rig, "Look into the Plan, please, and what is gone.")
    assert [(part.kind, part.name, part.reason) for part in named][2:] == [
        (Kind.REFERRED, "plan", "a working block that the message names, the agent's own")
    ]


async def test_a_log_shows_its_newest_entries_and_the_version_tells_what_they_were(rig: Rig) -> None:
    block_id = await rig.block("first", label="diary", block_type=BlockType.LOG)
    [part] = await parts(rig)
    assert (part.kind, part.ref, part.reason) == (Kind.LOGS, block_id, "the newest entries of a log, the agent's own")
    assert "first" in part.text


async def test_the_agents_own_call_under_way_shows(rig: Rig) -> None:
    await rig.block("a")
    work = UnitOfWork()
    await rig.store.edit(ADA, "notes", AppendText(text="b"), author=BY_ADA, work=work)
    [part] = await parts(rig)
    assert ("\nab\n" in part.text, part.version) == (True, 1)
    work.settle(committed=False)
    [part] = await parts(rig)
    assert ("\na\n" in part.text, part.version) == (True, 0)


async def test_an_agent_without_blocks_has_none(rig: Rig) -> None:
    assert not (await block_parts(rig.store, ADA, "", Again())).has_any
    await rig.block("1", block_type=BlockType.WORKING)
    assert (await block_parts(rig.store, ADA, "", Again())).has_any


@pytest.mark.parametrize(
    ("label", "words", "named"),
    [
        ("plan", "the plan is", True),
        ("plan", "PLAN", True),
        ("plan", "planet", False),
        ("plan", "my-plan!", True),
        ("a b", "see a b.", True),
        ("to", "to", False),
        ("c++.x", "about c++.x", True),
        ("plan", "", False),
    ],
)
def test_a_message_names_a_block_by_its_whole_label(label: str, words: str, named: bool) -> None:
    assert is_named(label, words) is named

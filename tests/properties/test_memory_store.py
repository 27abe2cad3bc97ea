"""What the memory store shows is what the disk holds, whatever is edited, refused, not committed or opened anew."""

from __future__ import annotations

import trio
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import PatternError
from pattern_core.memory.checkpoint import open_document
from pattern_core.memory.edits import AppendText, BlockEdit, EditRange, ReplaceText, SetText
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database
from pattern_db.errors import Busy
from pattern_db.tables import block_checkpoints, memory_blocks
from tests.pattern_core.memory.rig import ADA, BY_ADA, BY_USER, Rig, constellation, prompt_blocks

LIMIT = 60
LABELS = ("one", "two")
text = st.text(alphabet="ab\n🌍", max_size=8)
edits: st.SearchStrategy[BlockEdit] = st.one_of(
    st.builds(AppendText, text=text),
    st.builds(SetText, text=text),
    st.builds(ReplaceText, old=text, new=text, mode=st.sampled_from(["first", "all"])),
    st.builds(EditRange, first=st.integers(0, 3), last=st.integers(1, 4), text=text),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["edit", "edit", "edit", "unit", "fail", "abandon", "reload", "consolidate"]),
        st.lists(st.tuples(st.sampled_from(LABELS), edits), min_size=1, max_size=3),
    ),
    max_size=15,
)


@given(steps)
def test_the_store_never_runs_ahead_of_the_disk_nor_falls_behind(
    plan: list[tuple[str, list[tuple[str, BlockEdit]]]],
) -> None:
    trio.run(_play, plan)


async def _play(plan: list[tuple[str, list[tuple[str, BlockEdit]]]]) -> None:
    async with Database.in_memory(constellation()) as database:
        rig = Rig(database, hot_max=1)
        for label in LABELS:
            await rig.block("start\n", label=label, char_limit=LIMIT)
        for number, (what, wanted) in enumerate(plan):
            before = await _shown(rig)
            expected = await _do(rig, what, wanted, before)
            if what == "reload":
                rig = Rig(database, hot_max=1, seed=number + 1)
            assert await _shown(rig) == expected
            assert await _on_disk(rig) == expected


async def _do(rig: Rig, what: str, wanted: list[tuple[str, BlockEdit]], before: dict[str, str]) -> dict[str, str]:
    """Do one step; return what each block should hold after it."""
    if what == "consolidate":
        for label in LABELS:
            await rig.store.blocks.consolidator.consolidate((await rig.store.view(ADA, label)).id)
        return before
    after = dict(before)
    if what in ("edit", "fail"):
        rig.fails = what == "fail"
        for label, edit in wanted:
            try:
                edited = await rig.store.edit(ADA, label, edit, author=BY_USER)
            except (PatternError, Busy):
                continue
            assert edited.is_changed == (edited.block.content != after[label])
            after[label] = edited.block.content
        rig.fails = False
        return after
    if what in ("unit", "abandon"):
        work = UnitOfWork()
        for label, edit in wanted:
            try:
                after[label] = (await rig.store.edit(ADA, label, edit, author=BY_ADA, work=work)).block.content
            except PatternError:
                continue
        if what == "unit":
            await rig.commit(work)
            return after
        work.settle(committed=False)
    return before


async def _shown(rig: Rig) -> dict[str, str]:
    views = {view.label: view for view in await rig.store.list(ADA)}
    prompts = await prompt_blocks(rig.store, ADA)
    for view, prompt in zip(views.values(), prompts, strict=True):
        assert f">\n{view.content}\n</block" in prompt
        assert len(view.content) <= LIMIT
    return {label: view.content for label, view in views.items()}


async def _on_disk(rig: Rig) -> dict[str, str]:
    """What the stored bytes make, opened by somebody who knows nothing else."""
    found = {}
    for row in await rig.database.read(memory_blocks.list_for_agent, ADA):
        checkpoint, updates = await rig.database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
        document = open_document(checkpoint, updates, peer=99)
        assert document.frontier() == row.frontier
        assert row.last_seq == max([checkpoint.up_to_seq if checkpoint else 0, *(update.seq for update in updates)])
        found[row.label] = document.text
    return found

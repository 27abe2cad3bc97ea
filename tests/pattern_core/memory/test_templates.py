from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.edits import AppendText, InsertItem, SetField
from pattern_core.memory.templates import TEMPLATES, from_template
from pattern_db.enums import BlockType
from tests.pattern_core.memory.rig import ADA, BY_ADA, Rig, prompt_blocks


def test_the_templates() -> None:
    assert list(TEMPLATES) == ["persona", "human", "scratchpad", "task_list", "observation_log", "organisation"]
    assert from_template("task_list").label == "tasks"
    assert from_template("task_list", label="errands").label == "errands"
    assert from_template("observation_log").block_type is BlockType.LOG
    with pytest.raises(InvalidInput, match="no block template 'todo'; there are: persona, human"):
        from_template("todo")


@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_template_makes_a_block(rig: Rig, name: str) -> None:
    made = await rig.store.create(ADA, from_template(name), author=BY_ADA)
    assert made == await rig.store.view(ADA, made.label)
    await rig.value(made.label)
    assert len(await prompt_blocks(rig.store, ADA)) == 1


async def test_tasks_are_checked_off_and_people_described(rig: Rig) -> None:
    for name in ("task_list", "human"):
        await rig.store.create(ADA, from_template(name), author=BY_ADA)
    await rig.store.edit(ADA, "tasks", AppendText(text="Water the plants"), author=BY_ADA)
    await rig.store.edit(
        ADA, "tasks", InsertItem(number=2, value={"text": "Rest", "done": True, "owner": "Ada"}), author=BY_ADA
    )
    assert await rig.content(label="tasks") == "1. [ ] Water the plants\n2. [x] Rest (owner: Ada)"
    await rig.store.edit(ADA, "human", SetField(field="likes", value=["tea"]), author=BY_ADA)
    assert "likes:\n  - tea" in await rig.content(label="human")

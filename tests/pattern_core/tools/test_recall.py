from __future__ import annotations

import pytest

from pattern_core.archive.entries import NewEntry, Terms, store
from pattern_core.errors import InvalidInput
from pattern_core.limits import ARCHIVE_ENTRY_CHARS_MAX
from pattern_core.tools.builtin.recall import SHOWN_CHARS_MAX, recall
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import archival
from tests.pattern_core.memory.rig import ADA, BOB, NOW
from tests.pattern_core.tools.rig import ToolRig


def announced(tools: ToolRig) -> list[tuple[str, object]]:
    """The events of the archive, as (entry, what it superseded)."""
    return [
        (str(draft.data["entry_id"]), draft.data.get("supersedes"))
        for draft in tools.rig.events
        if draft.name == "archive.changed"
    ]


async def test_limit_and_isolation(tools: ToolRig) -> None:
    for number in range(3):
        await tools.call(recall, op="insert", content=f"tea number {number}")
    tools.agent_id = BOB
    none = await tools.call(recall, op="search", query="tea")
    assert (none["hits"], none["message"]) == ([], "Found no entries; try other words")
    tools.agent_id = ADA
    assert len((await tools.call(recall, op="search", query="tea", limit=2))["hits"]) == 2
    assert len((await tools.call(recall, op="search", query="tea", limit=0))["hits"]) == 1
    assert len((await tools.call(recall, op="search", query="tea", limit=10_000))["hits"]) == 3


async def test_an_entry_is_found_and_knows_what_it_came_from(tools: ToolRig) -> None:
    inserted = await tools.call(recall, op="insert", content="Ruth likes tea.", tags=["ruth"])
    entry_id = inserted["data"]["entry_id"]
    assert entry_id.startswith("arch_")
    found = await tools.call(recall, op="search", query="teas of Ruth")
    assert found["message"].startswith("Found 1 entry")
    [hit] = found["hits"]
    assert (hit["kind"], hit["id"], hit["content"]) == ("archival", entry_id, "Ruth likes tea.")
    got = (await tools.call(recall, op="get", entry_id=entry_id))["data"]
    assert (got["content"], got["tags"]) == ("Ruth likes tea.", ["ruth"])
    assert got["source"] == {"message": f"msg_{tools.batch_id}", "turn": "turn_1", "author": f"agent:{ADA}"}
    assert announced(tools) == [(entry_id, None)]


async def test_the_same_again_is_found(tools: ToolRig) -> None:
    first = await tools.call(recall, op="insert", content="Ruth likes tea.")
    again = await tools.call(recall, op="insert", content="ruth likes tea")
    assert again["message"] == "Your archive holds this already, word for word"
    assert again["data"] == first["data"]
    assert len(announced(tools)) == await tools.rig.database.read(archival.count_rows, ADA) == 1


async def test_nearly_the_same_is_stored_only_by_force(tools: ToolRig) -> None:
    first = await tools.call(recall, op="insert", content="The user likes green tea.")
    refused = await tools.call(recall, op="insert", content="User likes green tea")
    assert refused["success"] is False
    assert refused["data"]["entry_id"] == first["data"]["entry_id"]
    assert await tools.rig.database.read(archival.count_rows, ADA) == 1
    assert (await tools.call(recall, op="insert", content="User likes green tea", force=True))["success"] is True
    assert (await tools.call(recall, op="insert", content="User likes green tea no more"))["success"] is True


async def test_an_outdated_entry_is_superseded_and_kept_but_not_found(tools: ToolRig) -> None:
    old = (await tools.call(recall, op="insert", content="Anna is 30", tags=["anna"]))["data"]["entry_id"]
    inserted = await tools.call(recall, op="insert", content="Anna is 31", supersedes=old)
    new = inserted["data"]["entry_id"]
    assert inserted["message"] == f"Stored in your archive in the place of {old}"
    got = (await tools.call(recall, op="get", entry_id=old))["data"]
    assert (got["content"], got["superseded_by"]) == ("Anna is 30", new)
    assert got["valid_to"] == (await tools.call(recall, op="get", entry_id=new))["data"]["created_at"]
    assert announced(tools) == [(old, None), (new, old)]
    other = (await tools.call(recall, op="insert", content="Anna has a dog", tags=["pets"]))["data"]["entry_id"]

    async def ids(**more: object) -> set[str]:
        return {hit["id"] for hit in (await tools.call(recall, op="search", query="Anna", **more))["hits"]}

    assert await ids() == {new, other}
    assert await ids(include_old=True) == {old, new, other}
    assert await ids(tags=["pets", "birds"]) == {other}


async def test_a_long_entry_is_found_in_part_and_read_in_pieces(tools: ToolRig) -> None:
    text = "".join(f"Line {number} of the report.\n" for number in range(700)) + "The owl sleeps.\n"
    entry_id = (await tools.call(recall, op="insert", content=text))["data"]["entry_id"]
    [hit] = (await tools.call(recall, op="search", query="owl"))["hits"]
    assert hit["id"] == entry_id and "owl" in hit["content"] and len(hit["content"]) < len(text)
    first = await tools.call(recall, op="get", entry_id=entry_id)
    assert f"read on with start={SHOWN_CHARS_MAX}" in first["message"]
    rest = await tools.call(recall, op="get", entry_id=entry_id, start=SHOWN_CHARS_MAX)
    assert first["data"]["content"] + rest["data"]["content"] == text
    assert "follow" not in rest["message"]


async def test_the_constellations_entries_may_be_read_and_others_not(tools: ToolRig) -> None:
    def prepare(connection: Connection) -> None:
        for owner, entry_id in ((CONSTELLATION_OWNER, "arch_all"), (BOB, "arch_bob")):
            store(connection, owner, NewEntry(content="The sea is blue."), entry_id, Terms(now=NOW))

    await tools.rig.database.write(prepare)
    assert (await tools.call(recall, op="get", entry_id="arch_all"))["success"] is True
    with pytest.raises(RowNotFound, match="you have no archival entry arch_bob"):
        await tools.call(recall, op="get", entry_id="arch_bob")
    with pytest.raises(RowNotFound):
        await tools.call(recall, op="insert", content="The sea is green.", supersedes="arch_nowhere")


async def test_what_changed_between_the_look_and_the_commit_is_refused(tools: ToolRig) -> None:
    """The answer was made before the transaction: what it says must be what is stored, or nothing is."""
    work = UnitOfWork()
    await recall.call(tools.context(work), {"op": "insert", "content": "Ruth likes tea."})
    await tools.call(recall, op="insert", content="Ruth likes tea.")
    with pytest.raises(RowConflict, match="the archive has changed"):
        await tools.rig.commit(work)
    near = UnitOfWork()
    await recall.call(tools.context(near), {"op": "insert", "content": "Ruth likes the sea"})
    await tools.call(recall, op="insert", content="Ruth likes sea")
    with pytest.raises(RowConflict, match="says nearly the same"):
        await tools.rig.commit(near)
    assert await tools.rig.database.read(archival.count_rows, ADA) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "insert"}, "insert needs `content`"),
        ({"op": "insert", "content": "  "}, "nothing to store"),
        ({"op": "insert", "content": "x" * (ARCHIVE_ENTRY_CHARS_MAX + 1)}, "at most 200000 characters"),
        ({"op": "search"}, "search needs `query`"),
        ({"op": "search", "query": " "}, "the query is empty"),
        ({"op": "get"}, "get needs `entry_id`"),
    ],
)
async def test_what_does_not_fit(tools: ToolRig, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await tools.call(recall, **arguments)
    assert await tools.rig.database.read(archival.count_rows, ADA) == 0

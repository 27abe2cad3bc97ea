"""Archives of version 3 that we write: read by another library, and come back the same through our reader."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import dag_cbor
import pytest
from blake3 import blake3
from loro import LoroDoc
from multiformats import CID, varint

from pattern_core.car import ArchiveInvalid
from pattern_core.legacy.contents import content_of
from pattern_core.legacy.writer import OldWriter
from pattern_core.portable import Kind, Manifest, write
from pattern_db.connection import open_connection
from pattern_db.errors import RowNotFound
from pattern_db.portable import records
from tests.pattern_core.legacy.test_archives import NOW, Made, agent_archive, constellation_archive, group_archive
from tests.pattern_core.legacy.theirs import Theirs

assert OldWriter.__doc__  # reached through `write`


def exported(source: Path, folder: Path, kind: Kind, name: str = "home") -> tuple[Path, Manifest]:
    folder.mkdir(exist_ok=True)
    copy, archive = folder / "copy.db", folder / "ours.car"
    shutil.copyfile(source, copy)
    archive.unlink(missing_ok=True)
    with archive.open("xb") as file:
        return archive, write(copy, file, kind=kind, id_or_name=name, version=3)


class Decoded:
    """An archive as dag-cbor reads it, every CID computed again."""

    def __init__(self, archive: Path) -> None:
        content, at, self.blocks = archive.read_bytes(), 0, dict[CID, bytes]()
        header: Any = None
        while at < len(content):
            length, used = varint.decode_raw(content[at:])[:2]
            section, at = content[at + used : at + used + length], at + used + length
            if header is None:
                header = dag_cbor.decode(section)
                continue
            cid = CID.decode(section[:36])
            assert bytes(cid) == b"\x01\x71\x1e\x20" + blake3(section[36:]).digest()
            assert len(section[36:]) <= 1_000_000
            self.blocks[cid] = section[36:]
        self.root: Any = self.node(header["roots"][0])
        self.data: Any = self.node(self.root["data_cid"])

    def node(self, cid: CID) -> Any:
        return dag_cbor.decode(self.blocks[cid])

    def nodes(self, cids: list[CID]) -> list[Any]:
        return [self.node(cid) for cid in cids]

    def document(self, block: Any) -> bytes:
        """The bytes of a block's document: its pieces, along their links."""
        data, cid = b"", block["snapshot_chunk_cids"][0] if block["snapshot_chunk_cids"] else None
        while cid is not None:
            piece = self.node(cid)
            data, cid = data + piece["data"], piece["next_cid"]
        assert len(data) == block["total_snapshot_bytes"]
        return bytes(data)


def text_in(snapshot: bytes) -> str:
    doc = LoroDoc()  # type: ignore[no-untyped-call]  # the wheel's stub has no types for it
    doc.import_(snapshot)
    return doc.get_text("content").to_string()


def test_an_independent_library_reads_an_agent(tmp_path: Path) -> None:
    call = {"ToolUse": {"id": "c1", "name": "look", "input": {"a": 1}}}
    contents = [
        "hello",
        ("assistant", {"Blocks": [{"Text": {"text": "Look."}}, call]}),
        ("tool", {"ToolResponses": [{"call_id": "c1", "content": "blue"}]}),
    ]  # fmt: skip

    def fill(theirs: Theirs) -> dict[str, Any]:
        return {
            "message_chunk_cids": theirs.messages("agent_a", contents),
            "memory_block_cids": [theirs.block("m", "agent_a", "human", "Likes tea.")],
        }

    made = Made(agent_archive(tmp_path, fill))
    with closing(open_connection(made.path)) as connection:
        connection.execute("INSERT INTO coordination_state (key, value, updated_at) VALUES ('k', '1', ?)", (NOW,))
    archive, manifest = exported(made.path, tmp_path / "out", "constellation")
    assert (manifest.version, manifest.cut) == (3, {"coordination_state": 1, "memory_block_history": 1})
    assert manifest.rows == {"agents": 1, "messages": 3, "memory_blocks": 1}
    archive, manifest = exported(made.path, tmp_path / "out", "agent", "Ada")
    read = Decoded(archive)
    assert (read.root["version"], read.root["export_type"]) == (3, "Agent")
    counts = {key: read.root["stats"][key] for key in ("agent_count", "message_count", "chunk_count", "total_blocks")}
    assert counts == {"agent_count": 1, "message_count": 3, "chunk_count": 1, "total_blocks": len(read.blocks) - 1}
    assert read.data["agent"]["config"] == {"temperature": 0.5}
    (chunk,) = read.nodes(read.data["message_chunk_cids"])
    assert [one["content_json"] for one in chunk["messages"]] == [
        {"Text": "hello"},
        {"Blocks": [
            {"Text": {"text": "Look.", "thought_signature": None}},
            {"ToolUse": {"id": "c1", "name": "look", "input": {"a": 1}, "thought_signature": None}},
        ]},
        {"ToolResponses": [{"call_id": "c1", "content": "blue", "is_error": False}]},
    ]  # fmt: skip
    assert (chunk["start_position"], chunk["messages"][0]["is_archived"]) == (chunk["messages"][0]["position"], False)
    (block,) = read.nodes(read.data["memory_block_cids"])
    assert text_in(read.document(block)) == "Likes tea."
    assert block["pinned"] is False


@pytest.mark.parametrize("kind", ["agent", "group", "constellation"])
def test_what_we_write_comes_back_the_same(tmp_path: Path, kind: Kind) -> None:
    source = group_archive(tmp_path, thin=False) if kind == "group" else constellation_archive(tmp_path)
    first = Made(source)
    name = {"agent": "Ada", "group": "team", "constellation": "home"}[kind]
    archive, _ = exported(first.path, tmp_path / "out", kind, name)
    again = Made(archive)
    shown = {
        "agents": "name, system_prompt, model_provider, config, status",
        "messages": "content, role, created_at, sequence_in_batch",
        "memory_blocks": "label, content_preview, description, permission",
        "agent_groups": "name, pattern_type",
        "group_members": "coalesce(role, 'regular'), domain, capabilities",
        "shared_block_agents": "permission",
    }
    own = f"WHERE agent_id = (SELECT id FROM agents WHERE name = '{name}')"
    for table, columns in shown.items():
        of = own.replace("agent_id", "id") if table == "agents" else own
        where = of if kind == "agent" and table != "agent_groups" else ""
        if kind == "agent" and table in ("agent_groups", "group_members", "shared_block_agents"):
            continue
        order = f" ORDER BY {columns}"
        assert again.rows(f"SELECT {columns} FROM {table}{order}") == first.rows(
            f"SELECT {columns} FROM {table} {where}{order}"
        )
    assert again.decisions == []
    same, _ = exported(first.path, tmp_path / "same", kind, name)
    assert same.read_bytes() == archive.read_bytes()


def test_case_193_a_large_document_is_written_in_linked_pieces(tmp_path: Path) -> None:
    rng = random.Random(2)
    text = "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(700_000))

    def fill(theirs: Theirs) -> dict[str, Any]:
        return {"memory_block_cids": [theirs.block("m", "agent_a", "large", text)]}

    read = Decoded(exported(Made(agent_archive(tmp_path, fill)).path, tmp_path / "out", "agent", "Ada")[0])
    (block,) = read.nodes(read.data["memory_block_cids"])
    sizes = [len(read.node(cid)["data"]) for cid in block["snapshot_chunk_cids"]]
    assert sizes[:-1] == [900_000] * (len(sizes) - 1)
    assert len(sizes) > 1
    assert text_in(read.document(block)) == text


def test_case_198_a_message_that_is_too_large_for_a_block_is_refused_by_its_size(tmp_path: Path) -> None:
    def fill(theirs: Theirs) -> dict[str, Any]:
        return {"message_chunk_cids": theirs.messages("agent_a", ["short", "x" * 600_000])}

    made = Made(agent_archive(tmp_path, fill))
    with closing(open_connection(made.path)) as connection:
        connection.execute("UPDATE messages SET content = content || content WHERE content <> 'short'")
    with pytest.raises(ArchiveInvalid, match=r"a block of \d{7} bytes is larger than 1000000"):
        exported(made.path, tmp_path / "out", "agent", "Ada")


def test_case_199_an_agent_that_is_missing_is_named(tmp_path: Path) -> None:
    made = Made(agent_archive(tmp_path, lambda theirs: {}))
    with pytest.raises(RowNotFound, match="no agent 'nobody'"):
        exported(made.path, tmp_path / "out", "agent", "nobody")


def test_images_are_written_with_their_bytes(tmp_path: Path) -> None:
    image = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
    url = {"Image": {"content_type": "image/png", "source": {"Url": "https://example.org/a.png"}}}
    content = {"Parts": [{"Text": "see"}, {"Image": {"content_type": "image/png", "source": {"Base64": image}}}, url]}
    made = Made(
        agent_archive(tmp_path, lambda theirs: {"message_chunk_cids": theirs.messages("agent_a", [("user", content)])})
    )
    with closing(open_connection(made.path)) as connection:
        (row,) = records(connection, "messages", ["role", "content", "parts", "tool_result", "tool_call_id"])
        assert json.loads(json.dumps(content_of(row, connection))) == content

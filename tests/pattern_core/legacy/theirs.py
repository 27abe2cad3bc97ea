"""Archives as the original system writes them, versions 1 to 3: made with dag-cbor, by no code of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dag_cbor
from blake3 import blake3
from loro import ExportMode, LoroDoc
from multiformats import CID, varint

AT = "2025-11-21T22:24:40.123456789+00:00"
LATER = "2025-11-22T08:00:00+00:00"
FIRST = 31_124_900_000_000_000  # a position
CHUNK_BYTES = 900_000


@dataclass
class Theirs:
    """One archive under way."""

    blocks: dict[CID, bytes] = field(default_factory=dict)

    def node(self, value: Any) -> CID:
        data = dag_cbor.encode(value)
        cid = CID.decode(b"\x01\x71\x1e\x20" + blake3(data).digest())
        self.blocks[cid] = data
        return cid

    def write(self, path: Path, root: CID) -> Path:
        """Write the file: the blocks in any order."""
        parts = [dag_cbor.encode({"version": 1, "roots": [root]})]
        parts += [bytes(cid) + block for cid, block in reversed(self.blocks.items())]
        path.write_bytes(b"".join(varint.encode(len(part)) + part for part in parts))
        return path

    def manifest(self, kind: str, data: CID, version: int = 3, **other: Any) -> CID:
        stats = {"total_blocks": len(self.blocks), "total_bytes": sum(map(len, self.blocks.values()))}
        about = {"version": version, "exported_at": LATER, "export_type": kind, "stats": stats, "data_cid": data}
        return self.node({**about, **other})

    def snapshot(self, data: bytes) -> list[CID]:
        """The pieces of a document, each with a link to the next one: so the last one comes first."""
        pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        cids: list[CID] = []
        for index in reversed(range(len(pieces))):
            cids.insert(0, self.node({"index": index, "data": pieces[index], "next_cid": cids[0] if cids else None}))
        return cids

    def block(self, own_id: str, agent: str, label: str, text: str, document: bytes | None = None, **other: Any) -> CID:
        data = document_of(text) if document is None else document
        record = {
            "id": own_id, "agent_id": agent, "label": label, "description": f"About {label}", "block_type": "core",
            "char_limit": 5000, "permission": "read_write", "pinned": False, "content_preview": text, "metadata": None,
            "is_active": True, "frontier": [1, 2, 3], "last_seq": 0, "created_at": AT, "updated_at": LATER,
        }  # fmt: skip
        pieces = {"snapshot_chunk_cids": self.snapshot(data), "total_snapshot_bytes": len(data)}
        return self.node({**record, **pieces, **other})

    def messages(self, agent: str, contents: Sequence[Any], most: int = 1000, **other: Any) -> list[CID]:
        """The chunks of an agent's messages: each a text of the person, or (role, content)."""
        rows = []
        for number, content in enumerate(contents):
            role, said = content if isinstance(content, tuple) else ("user", {"Text": content})
            row = {
                "id": f"msg_{agent}_{number}", "agent_id": agent, "position": str(FIRST + number),
                "batch_id": str(FIRST), "sequence_in_batch": number, "role": role, "content_json": said,
                "content_preview": None, "batch_type": "user_request", "source": None, "source_metadata": None,
                "is_archived": False, "is_deleted": False, "created_at": AT,
            }  # fmt: skip
            rows.append({**row, **{key: value(number) if callable(value) else value for key, value in other.items()}})
        chunks = [rows[at : at + most] for at in range(0, len(rows), most)]
        return [
            self.node({
                "chunk_index": index, "start_position": chunk[0]["position"], "end_position": chunk[-1]["position"],
                "messages": chunk, "message_count": len(chunk),
            })
            for index, chunk in enumerate(chunks)
        ]  # fmt: skip

    def agent(self, own_id: str, name: str, *, record: Mapping[str, Any] | None = None, **cids: Sequence[CID]) -> Any:
        """The export of an agent."""
        agent = {
            "id": own_id, "name": name, "description": f"{name}, an agent", "model_provider": "anthropic",
            "model_name": "m", "system_prompt": f"You are {name}.", "config": {"temperature": 0.5, "odd": 1},
            "enabled_tools": ["recall"], "tool_rules": None, "status": "active", "created_at": AT, "updated_at": AT,
        }  # fmt: skip
        none: dict[str, Any] = {
            "message_chunk_cids": [], "memory_block_cids": [], "archival_entry_cids": [], "archive_summary_cids": []
        }  # fmt: skip
        return {"agent": {**agent, **(record or {})}, **none, **cids}


def document_of(text: str) -> bytes:
    """A text document, as the original system makes it."""
    doc = LoroDoc()  # type: ignore[no-untyped-call]  # the wheel's stub has no types for it
    doc.get_text("content").insert(0, text)
    doc.commit()
    return bytes(doc.export(ExportMode.Snapshot()))


def group_of(own_id: str, name: str, **other: Any) -> dict[str, Any]:
    """The record of a group."""
    record: dict[str, Any] = {
        "id": own_id,
        "name": name,
        "description": None,
        "pattern_type": "round_robin",
        "pattern_config": {},
    }
    return {**record, "created_at": AT, "updated_at": AT, **other}


def member_of(group: str, agent: str, role: Any = None) -> dict[str, Any]:
    return {"group_id": group, "agent_id": agent, "role": role, "capabilities": ["planning"], "joined_at": AT}


def share_of(block: str, agent: str, permission: str) -> dict[str, Any]:
    return {"block_id": block, "agent_id": agent, "permission": permission, "attached_at": AT}


def entry_of(theirs: Theirs, own_id: str, agent: str, content: str, parent: str | None = None) -> CID:
    record = {
        "id": own_id,
        "agent_id": agent,
        "content": content,
        "metadata": None,
        "chunk_index": 0 if parent is None else 1,
    }
    return theirs.node({**record, "parent_entry_id": parent, "created_at": AT})


def summary_of(theirs: Theirs, own_id: str, agent: str, text: str, previous: str | None = None) -> CID:
    places = {"start_position": str(FIRST), "end_position": str(FIRST + 1), "message_count": 2}
    return theirs.node({
        "id": own_id, "agent_id": agent, "summary": text, **places, "previous_summary_id": previous, "depth": 0,
        "created_at": LATER,
    })  # fmt: skip


# Versions 1 and 2: messages and memories with the relation to an agent.


def old_agent(own_id: str, name: str, **other: Any) -> dict[str, Any]:
    record = {
        "id": own_id, "name": name, "agent_type": {"Custom": "x"}, "model_id": "anthropic/claude", "model_config": {},
        "base_instructions": f"You are {name}.", "max_messages": 50, "max_message_age_hours": 24,
        "compression_threshold": 30, "memory_char_limit": 5000, "enable_thinking": True,
        "compression_strategy": {"type": "truncate", "keep_recent": 20}, "tool_rules": [], "total_messages": 2,
        "total_tool_calls": 0, "context_rebuilds": 0, "compression_events": 0, "created_at": AT, "updated_at": AT,
        "last_active": AT, "owner_id": "user_1", "message_chunks": [], "memory_chunks": [],
    }  # fmt: skip
    return {**record, **other}


def old_message(agent: str, number: int, text: str, **other: Any) -> list[dict[str, Any]]:
    message = {
        "id": f"msg_{agent}_{number}", "role": "user", "owner_id": None, "content": {"Text": text}, "metadata": {},
        "options": {}, "has_tool_calls": False, "word_count": 2, "created_at": AT,
    }  # fmt: skip
    relation = {"id": f"r{number}", "in_id": agent, "out_id": message["id"], "message_type": "active"}
    return [{**message, **other}, {**relation, "position": str(FIRST + number), "added_at": AT}]


def old_memory(agent: str, own_id: str, label: str, value: Any, **other: Any) -> list[dict[str, Any]]:
    memory = {
        "id": own_id, "owner_id": "user_1", "label": label, "value": value, "memory_type": "core", "pinned": False,
        "permission": "append", "metadata": {}, "embedding_model": None, "embedding": None, "created_at": AT,
        "updated_at": AT, "is_active": True,
    }  # fmt: skip
    relation = {"id": f"r{own_id}", "in_id": agent, "out_id": own_id, "access_level": "read_only", "created_at": AT}
    return [{**memory, **other}, relation]


def old_export(theirs: Theirs, record: dict[str, Any], said: Sequence[Any], known: Sequence[Any]) -> CID:
    """The export of an agent in version 2."""
    messages = [
        theirs.node({"chunk_id": 0, "start_position": "0", "end_position": "1", "messages": said, "next_chunk": None})
    ]
    memories = [theirs.node({"chunk_id": 0, "memories": known, "next_chunk": None})]
    agent = theirs.node({**record, "message_chunks": messages, "memory_chunks": memories})
    return theirs.node({"agent_cid": agent, "message_chunk_cids": messages, "memory_chunk_cids": memories})

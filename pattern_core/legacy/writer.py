"""Writes archives of version 3, which the original system reads: what it has records for. The rest is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import libipld

from pattern_core.car import CarWriter, Cid
from pattern_core.legacy.archive import NEWEST, Record
from pattern_core.legacy.contents import content_of
from pattern_core.memory.checkpoint import whole_document
from pattern_db import portable
from pattern_db.connection import Connection

CHUNK_BYTES, CHUNK_MESSAGES = 900_000, 1_000
PREVIEW_CHARS_MAX = 100_000  # of a block's text; a longer one is only in its document, since a record is one block
# The fields of each record, as columns of ours; those of a message have its content too.
_FIELDS = {
    "agents": "id name description model_provider model_name system_prompt config enabled_tools tool_rules status"
    " created_at updated_at",
    "agent_groups": "id name description pattern_type pattern_config created_at updated_at",
    "group_members": "group_id agent_id role domain capabilities joined_at",
    "memory_blocks": "id agent_id label description block_type char_limit permission pinned content_preview metadata"
    " is_active last_seq created_at updated_at",
    "shared_block_agents": "block_id agent_id permission attached_at",
    "archival_entries": "id agent_id content metadata chunk_index parent_entry_id created_at",
    "archive_summaries": "id agent_id summary start_position end_position message_count previous_summary_id depth"
    " created_at",
    "messages": "id agent_id position batch_id sequence_in_batch role batch_type source source_metadata is_archived"
    " is_deleted created_at content parts tool_call_id tool_result",
}
_CONTENT = ("content", "parts", "tool_call_id", "tool_result")
_FLAGS = ("pinned", "is_active", "is_archived", "is_deleted")
_OF_BLOCKS = ("memory_block_updates", "memory_block_checkpoints", "memory_block_segments")  # in their documents


class OldWriter:
    """One export of a reduced copy. After `write`, `rows` count what was written, `left_out` the rest."""

    def __init__(self, connection: Connection, car: CarWriter) -> None:
        self.rows: Counter[str] = Counter()
        self.left_out: dict[str, int] = {}
        self._connection = connection
        self._car = car
        self._chunks = 0

    def write(self, kind: str, exported_at: str) -> Record:
        """Write the blocks below the manifest; return the manifest's fields.

        Raises:
            ArchiveInvalid: a record is too large for one block.
            DocumentDamaged: a memory document cannot be read.
        """
        blocks = [(block["agent_id"], self._block(block)) for block in self._records("memory_blocks", is_active=1)]
        agents = {record["id"]: self._agent(record, blocks) for record in self._records("agents")}
        groups = [self._group(record) for record in self._records("agent_groups")]
        common = [cid for owner, cid in blocks if owner not in agents]
        shares = list(self._records("shared_block_agents"))
        if kind == "agent":
            [data] = agents.values()
        elif kind == "group":
            rest: Record = {"shared_memory_cids": common, "shared_attachment_exports": shares}
            data = {**groups[0], "agent_exports": list(agents.values()), **rest}
        else:
            cids = {agent: self._car.node(export) for agent, export in agents.items()}
            data = {"version": NEWEST, "owner_id": "", "exported_at": exported_at, "agent_exports": cids}
            data |= {"all_memory_block_cids": common, "shared_attachments": shares, "group_exports": groups}
            for group in groups:
                group |= {"shared_memory_cids": [], "shared_attachment_exports": []}
                group["agent_cids"] = [cids[member["agent_id"]] for member in group["members"]]
            within = {cid for group in groups for cid in group["agent_cids"]}
            data["standalone_agent_cids"] = [cid for cid in cids.values() if cid not in within]
        for some in portable.tables(self._connection):
            there = 0 if some.table in _OF_BLOCKS else sum(1 for _ in some.rows)
            if there > self.rows[some.table]:
                self.left_out[some.table] = there - self.rows[some.table]
        about = {"version": NEWEST, "export_type": kind.capitalize(), "data_cid": self._car.node(data)}
        return {**about, "chunk_count": self._chunks}

    def _records(self, table: str, order: str = "", **equal: Any) -> Iterator[Record]:
        for row in portable.records(self._connection, table, _FIELDS[table].split(), order=order, **equal):
            self.rows[table] += 1
            yield {key: bool(value) if key in _FLAGS else value for key, value in row.items()}

    def _agent(self, agent: Record, blocks: Sequence[tuple[str, Cid]]) -> Record:
        own = {"agent_id": agent["id"]}
        return {
            "agent": agent,
            "message_chunk_cids": [self._car.node(chunk) for chunk in self._messages(**own)],
            "memory_block_cids": [cid for owner, cid in blocks if owner == agent["id"]],
            "archival_entry_cids": [self._car.node(one) for one in self._records("archival_entries", **own)],
            "archive_summary_cids": [self._car.node(one) for one in self._records("archive_summaries", **own)],
        }

    def _group(self, group: Record) -> Record:
        members = list(self._records("group_members", "ordinal", group_id=group["id"]))
        for member in members:
            domain, kind = member.pop("domain"), member["role"] or "regular"
            member["role"] = {"type": kind} if domain is None else {"type": kind, "domain": domain}
        return {"group": group, "members": members}

    def _block(self, block: Record) -> Cid:
        """Write a block with its document, in pieces from the last to the first: each has a link to the next one."""
        data = whole_document(self._connection, block["id"]).snapshot()
        cids: list[Cid] = []
        for at in reversed(range(0, len(data), CHUNK_BYTES)):
            piece = {"index": at // CHUNK_BYTES, "data": data[at : at + CHUNK_BYTES]}
            cids.insert(0, self._car.node({**piece, "next_cid": cids[0] if cids else None}))
        if len(block["content_preview"] or "") > PREVIEW_CHARS_MAX:
            block["content_preview"] = None
        # A version vector has no fixed order, so an export with it would differ each time; readers can do without.
        about = {"frontier": None, "snapshot_chunk_cids": cids, "total_snapshot_bytes": len(data)}
        return self._car.node({**block, **about})

    def _messages(self, **own: Any) -> Iterator[Record]:
        """Yield the chunks of an agent's main conversation, oldest first."""
        chunk: list[Record] = []
        size = 0
        for row in self._records("messages", "position", session_id=None, is_deleted=0, **own):
            content = content_of(row, self._connection)
            record = {key: value for key, value in row.items() if key not in _CONTENT}
            record |= {"content_json": content, "content_preview": row["content"]}
            added = len(libipld.encode_dag_cbor(record))
            if chunk and (size + added > CHUNK_BYTES or len(chunk) == CHUNK_MESSAGES):
                yield self._chunk(chunk)
                chunk, size = [], 0
            chunk.append(record)
            size += added
        if chunk:
            yield self._chunk(chunk)

    def _chunk(self, chunk: list[Record]) -> Record:
        self._chunks += 1
        places = {"start_position": chunk[0]["position"], "end_position": chunk[-1]["position"]}
        return {"chunk_index": self._chunks - 1, **places, "messages": chunk, "message_count": len(chunk)}

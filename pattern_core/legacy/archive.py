"""Reads archives of the original system, versions 1 to 3, as records of version 3.

Versions 1 and 2 are of the time before its databases were SQLite: messages and memories come with the relation to an
agent each, and a memory may have relations to several. Version 1 may have the agent's record, or its export, as the
root. Source: its `docs/car-format.md`; the fields are those of its records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pattern_core.car import ArchiveInvalid, CarReader, Cid, Node, text_of

Record: TypeAlias = dict[str, Any]
DOCUMENT_BYTES_MAX = 8 * 1024 * 1024
NEWEST = 3
_KINDS = {"core": "core", "working": "working", "archival": "archival", "recall": "archival"}


@dataclass(slots=True, kw_only=True)
class Old:
    """What such an archive holds: records with the fields of version 3. The text of a block is its `content_preview`;
    `documents` are the snapshots of version 3, by block. `root` is the CID of the root as text. Agent files of
    Letta have no `version`, and `folders`, too, each with its `files` and `agents`, and `decisions` about what was left
    out in reading.
    """

    version: int | None
    root: str
    kind: str
    name: str = ""
    exported_at: str = ""
    agents: list[Record] = field(default_factory=list)
    groups: list[Record] = field(default_factory=list)
    blocks: list[Record] = field(default_factory=list)
    shares: list[Record] = field(default_factory=list)
    messages: list[Record] = field(default_factory=list)
    entries: list[Record] = field(default_factory=list)
    summaries: list[Record] = field(default_factory=list)
    documents: dict[str, bytes] = field(default_factory=dict)
    folders: list[Record] = field(default_factory=list)
    decisions: list[Mapping[str, str]] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Return how many records there are, by the tables that they are for."""
        records = {
            "agents": self.agents,
            "agent_groups": self.groups,
            "memory_blocks": self.blocks,
            "shared_block_agents": self.shares,
            "messages": self.messages,
            "archival_entries": self.entries,
            "archive_summaries": self.summaries,
            "folders": self.folders,
        }
        return {table: len(some) for table, some in records.items() if some}


def version_in(root: Node) -> int | None:
    """Return the version that the root of an archive names; 1 for an agent without a manifest, None for neither."""
    if not isinstance(root, dict):
        return None
    version = root.get("version")
    if version is None and ("base_instructions" in root or "message_chunk_cids" in root):
        return 1
    return version if isinstance(version, int) and not isinstance(version, bool) and version >= 1 else None


def read_old(car: CarReader) -> Old:
    """Return what an archive of version 1 to 3 holds.

    Raises:
        ArchiveInvalid: it is damaged or malformed.
    """
    root = car.node(car.root)
    version = version_in(root) or 1
    has_manifest = "version" in root
    kind = str(root.get("export_type", "agent")).lower() if has_manifest else "agent"
    data = car.node(root.get("data_cid")) if has_manifest else root
    old = Old(version=version, root=text_of(car.root), kind=kind, exported_at=str(root.get("exported_at", "")))
    try:
        (_Newer if version == NEWEST else _Older)(car, old).read(data)
        is_double = any(
            len({str(one["id"]) for one in some}) < len(some) for some in (old.agents, old.groups, old.blocks)
        )
        old.name = old.name or str((old.groups or old.agents or [{"name": kind}])[0]["name"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ArchiveInvalid(f"the archive, of version {version}, is malformed: {error!r}") from error
    if is_double:
        raise ArchiveInvalid("the archive has two agents, groups or blocks with the same id")
    return old


class _Reader:
    """Reads nodes, each at most once."""

    def __init__(self, car: CarReader, old: Old) -> None:
        self.car = car
        self.old = old
        self._seen: set[Cid] = set()
        self._memories: set[str] = set()  # ids, of versions 1 and 2

    def read(self, data: Node) -> None:
        """Read what is below the data block."""
        raise NotImplementedError

    def nodes(self, cids: Any) -> Iterator[Record]:
        """Yield the nodes that were not read before."""
        for cid in cids or ():
            if cid not in self._seen:
                node = self.car.node(cid)
                self._seen.add(cid)
                if not isinstance(node, dict):
                    raise ArchiveInvalid("a block of the archive is not a record")
                yield node


class _Newer(_Reader):
    """Version 3."""

    def read(self, data: Node) -> None:
        match self.old.kind:
            case "agent":
                self._agent(data)
            case "group":
                self._group(data)
            case "constellation":
                for node in self.nodes([*data["agent_exports"].values(), *data["standalone_agent_cids"]]):
                    self._agent(node)
                for group in data["group_exports"]:
                    self._group(group)
                self._blocks(data["all_memory_block_cids"])
                self._share(data["shared_attachments"])
            case kind:
                raise ArchiveInvalid(f"the archive is of an unknown kind, {kind!r}")

    def _agent(self, node: Record) -> None:
        self.old.agents.append(dict(node["agent"]))
        for chunk in self.nodes(node["message_chunk_cids"]):
            self.old.messages += chunk["messages"]
        self._blocks(node["memory_block_cids"])
        self.old.entries += self.nodes(node["archival_entry_cids"])
        self.old.summaries += self.nodes(node["archive_summary_cids"])

    def _group(self, node: Record) -> None:
        for export in node.get("agent_exports") or ():
            self._agent(export)
        for export in self.nodes(node.get("agent_cids")):
            self._agent(export)
        members = node.get("members") or []  # the thin form has ids of agents that are not in the archive
        self.old.groups.append({**node["group"], "members": members, "absent": node.get("member_agent_ids") or []})
        self._blocks(node.get("shared_memory_cids"))
        self._share(node.get("shared_attachment_exports"))

    def _blocks(self, cids: Any) -> None:
        for block in self.nodes(cids):
            data, chunks = bytearray(), block["snapshot_chunk_cids"]
            for index, cid in enumerate(chunks):
                chunk = self.car.node(cid)
                following = chunks[index + 1] if index + 1 < len(chunks) else None
                if chunk["index"] != index or chunk["next_cid"] != following:
                    raise ArchiveInvalid("the pieces of a memory document are not in their order")
                data += chunk["data"]
                if len(data) > DOCUMENT_BYTES_MAX:
                    raise ArchiveInvalid(f"a memory document has more than {DOCUMENT_BYTES_MAX} bytes")
            if len(data) != block["total_snapshot_bytes"]:
                raise ArchiveInvalid("a memory document does not have the length that the archive says")
            self.old.blocks.append(block)
            if data:
                self.old.documents[block["id"]] = bytes(data)

    def _share(self, shares: Any) -> None:
        known = {(one["block_id"], one["agent_id"]) for one in self.old.shares}
        self.old.shares += [one for one in shares or () if (one["block_id"], one["agent_id"]) not in known]


class _Older(_Reader):
    """Versions 1 and 2."""

    def read(self, data: Node) -> None:
        match self.old.kind:
            case "group":
                self._group(data)
            case "constellation":
                self.old.name = str(data["constellation"].get("name") or "")
                for node in self.nodes(cid for _, cid in data["agent_export_cids"]):
                    self._agent(node)
                for group in data["groups"]:
                    self._group(group)
            case _:
                self._agent(data)

    def _agent(self, node: Record) -> None:
        record = self.car.node(node["agent_cid"]) if "agent_cid" in node else node.get("agent") or node
        provider, slash, model = str(record.get("model_id") or "").partition("/")
        agent_id = _id(record["id"])
        self.old.agents.append(
            {
                **{key: record.get(key) for key in ("name", "created_at", "updated_at", "tool_rules")},
                "id": agent_id,
                "model_provider": provider if slash else None,
                "model_name": model if slash else provider or None,
                "system_prompt": record.get("base_instructions") or "",
            }
        )
        for text in str(record.get("message_summary") or "").split("\n\n"):
            if text.strip():
                summary = {"agent_id": agent_id, "depth": 1, "summary": text.strip()}
                self.old.summaries.append({"id": f"{agent_id}:{len(self.old.summaries)}", **summary})
        for pair in self._pairs(node, record, "messages", "message_chunk_cids"):
            self._message(*pair)
        for pair in self._pairs(node, record, "memories", "memory_chunk_cids"):
            self._memory(*pair)

    def _pairs(self, node: Record, record: Record, name: str, cids: str) -> Iterator[tuple[Record, Record]]:
        yield from record.get(name) or ()  # within the record itself, in version 1
        for chunk in self.nodes(node.get(cids) or record.get(cids.replace("_cids", "s"))):
            yield from chunk[name]

    def _message(self, message: Record, relation: Record) -> None:
        both = {**relation, **{key: value for key, value in message.items() if value is not None}}
        self.old.messages.append(
            {
                **{key: both.get(key) for key in ("position", "batch_type", "role", "created_at")},
                "id": _id(message["id"]),
                "agent_id": _id(relation["in_id"]),
                "batch_id": both.get("batch"),
                "sequence_in_batch": both.get("sequence_num"),
                "content_json": message["content"],
                "source_metadata": message.get("metadata") or None,
                "is_archived": relation.get("message_type") == "archived",
                "is_deleted": False,
            }
        )

    def _memory(self, memory: Record, relation: Record) -> None:
        """Add a block, or an entry of the archive; another relation of a known block is a share."""
        block_id, agent_id = _id(memory["id"]), _id(relation["in_id"])
        if block_id in self._memories:
            share = {"block_id": block_id, "agent_id": agent_id, "attached_at": relation.get("created_at")}
            self.old.shares.append({**share, "permission": relation.get("access_level")})
            return
        self._memories.add(block_id)
        kind = _KINDS.get(str(memory.get("memory_type") or "core").lower(), "working")
        record = {
            **{key: memory.get(key) for key in ("description", "permission", "metadata", "created_at", "updated_at")},
            "id": block_id,
            "agent_id": agent_id,
            "label": str(memory["label"]),
            "block_type": kind,
            "pinned": bool(memory.get("pinned")),
            "is_active": memory.get("is_active", True),
            "content_preview": memory["value"],
        }
        if kind == "archival":
            record["metadata"] = {"label": record["label"]}
            self.old.entries.append({**record, "content": memory["value"]})
        else:
            self.old.blocks.append(record)

    def _group(self, node: Record) -> None:
        group = node["group"]
        for export in self.nodes(cid for _, cid in node.get("member_agent_cids") or ()):
            self._agent(export)
        members = [one[-1] if isinstance(one, list) else one for one in node.get("member_memberships") or ()]
        config = group.get("coordination_pattern")
        self.old.groups.append(
            {
                **{key: group.get(key) for key in ("name", "description", "created_at", "updated_at")},
                "id": _id(group["id"]),
                "pattern_type": config.get("type") if isinstance(config, dict) else config,
                "pattern_config": config if isinstance(config, dict) else {},
                "absent": [],
                "members": [
                    {
                        **{key: one.get(key) for key in ("role", "capabilities", "joined_at")},
                        "agent_id": _id(one.get("in_id") or one.get("agent_id")),
                    }
                    for one in members
                ]
                or [{"agent_id": _id(agent)} for agent, _ in node.get("member_agent_cids") or ()],
            }
        )


def _id(value: Any) -> str:
    """Return an id: a text, or a record of its table and itself."""
    while isinstance(value, dict):
        value = value.get("id") or next(iter(value.values()))
    return str(value)

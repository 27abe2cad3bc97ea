"""Stores what an archive of version 1 to 3 holds in an empty database, as rows of ours.

Ids are new, and the same for the same archive. Positions become Snowflakes in the order of the messages. What has no
counterpart here is left out and becomes a decision, so that nothing is dropped silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from pattern_core.agent_settings import KEYS, settings_of
from pattern_core.car import ArchiveInvalid
from pattern_core.conversation.history import IMPORTED, to_row
from pattern_core.errors import InvalidInput
from pattern_core.files import passages
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.passages import Prepared, hash_of, split
from pattern_core.files.reading import Document, kind_of
from pattern_core.groups.coordinations import COORDINATIONS
from pattern_core.ids import POSITION_DIGITS, earliest_position, message_id, time_of, ulid
from pattern_core.legacy.archive import Old, Record
from pattern_core.legacy.contents import image_of, parts_of
from pattern_core.memory.block import LABEL_CHARS_MAX, SYSTEM, BlockRow, schema_of
from pattern_core.memory.checkpoint import pack
from pattern_core.memory.content import plain, value_of, writes_to
from pattern_core.memory.document import TEXT, BlockDocument
from pattern_core.memory.opened import line_of
from pattern_core.memory.plan import Planned
from pattern_core.memory.schema import TextSchema
from pattern_core.messages import Image, Message, Part, ToolCall, ToolResult
from pattern_core.rules.ruleset import RuleSet
from pattern_db import portable
from pattern_db.columns import JSON_DEPTH_MAX, canonical, iso, unix_ms
from pattern_db.connection import Connection, opened_at
from pattern_db.enums import (
    CONSTELLATION_OWNER,
    AgentStatus,
    BatchType,
    BlockType,
    FolderAccess,
    HistoryKind,
    PathType,
    Permission,
    Role,
)
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents, archival, block_versions, folders, groups, memory_blocks, messages, summaries
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.files import FileRow
from pattern_db.tables.folders import FolderAttachment, FolderRow
from pattern_db.tables.groups import GroupRow, Member
from pattern_db.tables.memory_blocks import Attachment
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.summaries import SummaryRow

NO_MODEL = ("embedded", "rules-1")
NAME_CHARS_MAX = 100
LIMIT_CHARS = 5_000
MESSAGES_AT_ONCE = 1_000

E = TypeVar("E")
Decision = Mapping[str, str]


def store(target: Path, old: Old, *, now: str, peer: int) -> list[Decision]:
    """Make the database of a constellation at `target` of what an archive holds; return what was decided about things
    without a counterpart.

    Its documents must have been opened before, in a process of their own. `peer` is a number that none of them knows.

    Raises:
        ArchiveInvalid: a record is malformed.
        BackupInvalid: a record breaks the rules of our schema.
        DocumentDamaged: a document cannot be opened.
        StorageFailed: the disk is full or failed.
    """
    migrations = migrations_of("constellation")
    portable.create(target, migrations, migrations.newest, now=now)
    portable.fill(target, [])
    with opened_at(target) as connection, portable.by_the_rules(), connection:
        made = _Conversion(connection, old, now, peer)
        try:
            made.run()
        except (KeyError, TypeError, AttributeError) as error:
            raise ArchiveInvalid(f"a record of the archive is malformed: {error!r}") from error
    return made.decisions


class _Conversion:
    """One archive. `ids` are the new ids, by kind and old id; `positions` those of messages, by agent and old one."""

    def __init__(self, connection: Connection, old: Old, now: str, peer: int) -> None:
        self.connection, self.old, self.now, self.peer = connection, old, now, peer
        self.ids: dict[tuple[str, str], str] = {}
        self.positions: dict[tuple[str, str], str] = {}
        self.decisions: list[Decision] = [*old.decisions]
        self._names: set[tuple[str, str]] = set()

    def run(self) -> None:
        """Store all of it; what others refer to first."""
        old = self.old
        for records, keep in ((old.agents, self.agent), (old.groups, self.group), (old.blocks, self.block)):
            for record in records:
                keep(record)
        for share in old.shares:
            self.share(share)
        self.conversations()
        for entry in sorted(old.entries, key=lambda one: one.get("parent_entry_id") is not None):
            self.entry(entry)
        for summary in old.summaries:
            self.summary(summary)
        for folder in old.folders:
            self.folder(folder)

    def agent(self, record: Record) -> None:
        """Store an agent; settings that are not known here are left out."""
        config = dict(record.get("config") or {})
        known = {key: value for key, value in config.items() if key in KEYS and _is_valid(key, value)}
        name = self._name("agent", record["name"])
        self._left_out("agent", name, "settings", config.keys() - known.keys())
        self._left_out("agent", name, "tools", {*(record.get("enabled_tools") or ())} - {"auto"})
        provider, model = NO_MODEL
        if record.get("model_provider") and record.get("model_name"):
            provider, model = str(record["model_provider"]), str(record["model_name"])
        else:
            self._decide("agent", name, f"it names no model; it uses {provider}/{model}")
        rules = None
        try:
            rules = RuleSet.of(record.get("tool_rules") or None).to_json() or None
        except InvalidInput as error:
            self._decide("agent", name, f"tool rules were left out: {error.message}")
        row = AgentRow(
            self._new("agent", record),
            name,
            provider,
            model,
            str(record.get("system_prompt") or ""),
            self._time(record.get("created_at")),
            self._time(record.get("updated_at") or record.get("created_at")),
            description=record.get("description"),
            config=known,
            enabled_tools=("auto",),
            tool_rules=rules,
            status=_one_of(AgentStatus, record.get("status"), AgentStatus.ACTIVE),
        )
        agents.create(self.connection, row)

    def group(self, record: Record) -> None:
        """Store a group with those of its members that are in the archive."""
        name = self._name("group", record["name"])
        config = {key: value for key, value in dict(record.get("pattern_config") or {}).items() if key != "type"}
        kind = str(record.get("pattern_type"))
        if kind not in COORDINATIONS:
            self._decide("group", name, f"its pattern {kind!r} is not known; it is round_robin now")
            kind, config = "round_robin", {}
        row = GroupRow(
            self._new("group", record),
            name,
            kind,
            self._time(record.get("created_at")),
            self._time(record.get("updated_at") or record.get("created_at")),
            description=record.get("description"),
            pattern_config=self._mapped(config) or {},
        )
        groups.create(self.connection, row)
        members, absent = [], list(record["absent"])
        for one in record["members"]:
            agent = self.ids.get(("agent", one["agent_id"]))
            if agent is None:
                absent.append(one["agent_id"])
                continue
            role = one.get("role") or {}
            role = role if isinstance(role, dict) else {"type": str(role).lower()}
            capabilities = tuple(map(str, one.get("capabilities") or ()))
            members.append(Member(agent, "", role.get("type"), role.get("domain"), capabilities))
        groups.replace_members(self.connection, row.id, members, self._time(None))
        self._left_out("group", name, "members that are not in the archive", absent)

    def block(self, record: Record) -> None:
        """Store a block with its document; a text that is newer than its document becomes a change of it."""
        owner, label = self._owner(record), str(record["label"])
        snapshot = self.old.documents.get(record["id"])
        made = self._time(record.get("created_at"))
        row = BlockRow(
            self._new("mem", record),
            owner,
            self._name(f"block:{owner}", re.sub(r"[^\w .:@#+-]", "-", label).strip()[:LABEL_CHARS_MAX] or "block"),
            str(record.get("description") or ""),
            _one_of(BlockType, record.get("block_type"), BlockType.WORKING),
            made,
            self._time(record.get("updated_at") or made),
            char_limit=max(int(record.get("char_limit") or LIMIT_CHARS), 1),
            permission=_one_of(Permission, record.get("permission"), Permission.READ_WRITE),
            pinned=bool(record.get("pinned")),
            metadata=self._mapped(dict(record.get("metadata") or {})),
        )
        try:
            schema = schema_of(row.metadata)
        except InvalidInput as error:
            self._decide("memory block", label, f"its schema was left out: {error.message}")
            schema, row = TextSchema(), replace(row, metadata=None)
        document = BlockDocument(self.peer) if snapshot is None else BlockDocument.load(snapshot, peer=self.peer)
        held, text = document.state(), str(record.get("content_preview") or "")
        if isinstance(schema, TextSchema) and text and not held.get(TEXT, "").startswith(text):
            document.sign(held, writes_to(held, held | {TEXT: text}), SYSTEM, now_ms=unix_ms(row.updated_at))
            if snapshot is not None:
                self._decide("memory block", label, "its shown text was newer than its document, and was kept")
        state = document.state()
        change = BlockDocument(self.peer).sign({}, writes_to({}, state), SYSTEM, now_ms=unix_ms(made)).change
        row = replace(row, content_preview=plain(value_of(state, schema), schema), frontier=document.frontier())
        data, encoding = pack(document.snapshot() if state else b"")
        memory_blocks.create(self.connection, row, data, encoding=encoding)
        planned = Planned(writes={}, note="Imported", kind=HistoryKind.CREATE)
        block_versions.append(self.connection, line_of(row, SYSTEM, planned, change))
        if record.get("is_active") is False:
            memory_blocks.deactivate(self.connection, row.id, row.updated_at)

    def share(self, record: Record) -> None:
        """Share a block with an agent, if both are in the archive."""
        block, agent = self.ids.get(("mem", record["block_id"])), self.ids.get(("agent", record["agent_id"]))
        if block is None or agent is None:
            self._decide("share", record["block_id"], "its block or agent is not in the archive; it was left out")
            return
        permission = _one_of(Permission, record.get("permission"), Permission.READ_ONLY)
        at = self._time(record.get("attached_at"))
        memory_blocks.attach(self.connection, Attachment(block, agent, permission, at))

    def conversations(self) -> None:
        """Store the messages of each agent, at rising positions of their own."""
        said: dict[str, list[Record]] = {}
        deleted = 0
        for record in self.old.messages:
            agent = self.ids.get(("agent", record["agent_id"]))
            if record.get("is_deleted"):
                deleted += 1
            elif agent is None:
                self._decide("message", str(record["id"]), "its agent is not in the archive; it was left out")
            else:
                said.setdefault(agent, []).append(record)
        if deleted:
            self._decide("message", f"{deleted} deleted ones", "left out")
        used: set[int] = set()
        for agent, records in said.items():
            rows: list[MessageRow] = []
            for row in self._rows(agent, records, used):
                rows.append(row)
                if len(rows) == MESSAGES_AT_ONCE:
                    messages.append(self.connection, rows)
                    rows = []
            messages.append(self.connection, rows)

    def _rows(self, agent: str, records: list[Record], used: set[int]) -> Iterator[MessageRow]:
        places = [_snowflake(one.get("position"), self.now) for one in records]
        times = [self._time(one.get("created_at")) for one in records]
        by_place = None not in places and len(set(places)) == len(places)
        order = sorted(range(len(records)), key=lambda at: (places[at] or 0, at) if by_place else (times[at], at))
        last, batches, calls = -1, dict[str, list[int]](), dict[str, str]()
        for at in order:
            record, place = records[at], places[at]
            for message in self._messages(record, times[at], calls):
                wanted = place if by_place and place is not None else int(earliest_position(unix_ms(times[at])))
                last = max(wanted, last + 1)
                while last in used:
                    last += 1
                used.add(last)
                position = f"{last:0{POSITION_DIGITS}}"
                if record.get("position"):
                    self.positions.setdefault((agent, str(record["position"])), position)
                batch = record.get("batch_id")
                first = batches.setdefault(str(batch), [last, -1])
                first[1] += 1
                row = to_row(
                    replace(message, id=message_id(position), position=position),
                    agent_id=agent,
                    batch_id=f"{first[0]:0{POSITION_DIGITS}}",
                    sequence=first[1],
                    batch_type=_one_of(BatchType, record.get("batch_type"), None),
                    source=record.get("source"),
                    source_metadata=self._mapped(record.get("source_metadata")),
                )
                row = row._replace(is_archived=bool(record.get("is_archived")))
                # Without a turn it belongs to no batch.
                yield row if batch else row._replace(batch_id=None, sequence_in_batch=None, source=IMPORTED)

    def _messages(self, record: Record, at: str, calls: dict[str, str]) -> Iterator[Message]:
        """Yield what a message is here: each result of a tool is one of its own. `calls` are the tools by call."""
        role = _one_of(Role, str(record.get("role") or "").lower(), Role.USER)
        parts, unread = parts_of(record["content_json"])
        if unread:
            self._decide("message", str(record["id"]), f"{unread} of its parts cannot be read; they were kept as JSON")
        kept: list[Part] = []
        results: list[ToolResult] = []
        for part in parts:
            match part:
                case ToolResult():
                    results.append(replace(part, tool=calls.get(part.call_id, "unknown")))
                case Image(data=data) if data is not None:
                    kept.append(image_of(self.connection, part, at))
                case _:
                    if isinstance(part, ToolCall):
                        calls[part.call_id] = part.tool
                    kept.append(part)
        if kept or not results:
            said: Any = "assistant" if role is Role.TOOL else role.value
            yield Message(role=said, parts=tuple(kept), created_at=at)
        for result in results:
            yield Message(role="tool", parts=(result,), created_at=at)

    def entry(self, record: Record) -> None:
        """Store an entry of the archive."""
        row = ArchivalRow(
            self._new("arch", record),
            self._owner(record),
            str(record["content"]),
            self._time(record.get("created_at")),
            metadata=self._mapped(record.get("metadata")),
            chunk_index=int(record.get("chunk_index") or 0),
            parent_entry_id=self.ids.get(("arch", str(record.get("parent_entry_id")))),
        )
        archival.insert(self.connection, row)

    def summary(self, record: Record) -> None:
        """Store a summary of earlier messages."""
        agent = self.ids.get(("agent", record["agent_id"]))
        if agent is None:
            self._decide("summary", record["id"], "its agent is not in the archive; it was left out")
            return
        made = self._time(record.get("created_at"))
        places = [self.positions.get((agent, str(record.get(key)))) for key in ("start_position", "end_position")]
        start, end = sorted(place or earliest_position(unix_ms(made)) for place in places)
        started, ended = (min(made, iso(time_of(place))) for place in (start, end))
        row = SummaryRow(
            self._new("sum", record),
            agent,
            str(record["summary"]),
            start,
            end,
            int(record.get("message_count") or 0),
            "recursive_summarization",
            started,
            ended,
            made,
            previous_summary_id=self.ids.get(("sum", str(record.get("previous_summary_id")))),
            depth=int(record.get("depth") or 0),
            tokens=len(record["summary"]) // 4,
        )
        summaries.insert(self.connection, row)

    def folder(self, record: Record) -> None:
        """Store a folder with the texts of its files, which its agents may read."""
        made = self._time(record.get("created_at"))
        folder_id = self._new("fld", record)
        row = FolderRow(folder_id, self._name("folder", record["name"]), PathType.VIRTUAL, "", made)
        folders.create(self.connection, replace(row, description=record["description"], indexed_at=made))
        for agent in record["agents"]:
            attachment = FolderAttachment(folder_id, self.ids["agent", agent], FolderAccess.READ, made)
            folders.attach(self.connection, attachment)
        for number, file in enumerate(record["files"]):
            self._file(folder_id, f"{record['id']}/{number}", file)

    def _file(self, folder_id: str, old_id: str, file: Record) -> None:
        name, text = str(file["name"]).replace("/", "-"), str(file["content"])
        try:
            is_text = not kind_of(name).reader
        except UnreadableFile:
            is_text = False
        name = self._name(f"file:{folder_id}", name if is_text else f"{name}.txt")  # it is the text of such a file
        pieces, data = split(name, Document(text=text, kind=kind_of(name))), text.encode()
        row = FileRow(
            self._new("file", {**file, "id": old_id}),
            folder_id,
            name,
            self._time(file.get("created_at")),
            "indexed",
            content_type=kind_of(name).content_type,
            size_bytes=len(data),
            indexed_at=self.now,
            content_hash=hash_of(data),
            line_count=text.count("\n") + (not text.endswith("\n")),
            passage_count=len(pieces),
        )
        ids = [self._new("psg", {**file, "id": f"{old_id}/{number}"}) for number in range(len(pieces))]
        passages.store(self.connection, Prepared(row=row, pieces=pieces, passage_ids=ids), data)

    def _owner(self, record: Record) -> str:
        """Return who owns a block or an entry: an agent, a group, or else the constellation."""
        old = str(record["agent_id"])
        found = self.ids.get(("agent", old)) or self.ids.get(("group", old))
        if found is None and old != CONSTELLATION_OWNER:
            what = str(record.get("label") or record["id"])
            self._decide("memory", what, "its owner is not in the archive; it is the constellation's now")
        return found or CONSTELLATION_OWNER

    def _new(self, prefix: str, record: Record) -> str:
        old = str(record["id"])
        entropy = blake2b(f"{self.old.root}\0{prefix}\0{old}".encode(), digest_size=10).digest()
        new = f"{prefix}_{ulid(unix_ms(self._time(record.get('created_at'))), int.from_bytes(entropy, 'big'))}"
        self.ids[prefix, old] = new
        return new

    def _mapped(self, value: Any, depth: int = 0) -> Any:
        """Return JSON with the new ids of agents and groups."""
        if depth > JSON_DEPTH_MAX:
            raise ValueError("a value is nested too deeply")
        if isinstance(value, dict):
            return {str(key): self._mapped(one, depth + 1) for key, one in value.items()} or None
        if isinstance(value, list):
            return [self._mapped(one, depth + 1) for one in value]
        if isinstance(value, str):
            return self.ids.get(("agent", value)) or self.ids.get(("group", value)) or value
        return value if isinstance(value, bool | int | float | None) else repr(value)

    def _name(self, kind: str, name: object) -> str:
        """Return a valid name that no other of its kind has."""
        plain = "".join(one for one in str(name) if one.isprintable() and one != "/").strip()[:NAME_CHARS_MAX] or kind
        new, number = plain, 1
        while (kind, new) in self._names:
            number += 1
            new = f"{plain[: NAME_CHARS_MAX - 9]}-{number}"
        self._names.add((kind, new))
        if new != name:
            self._decide(kind.partition(":")[0], str(name), "renamed", to=new)
        return new

    def _time(self, stamp: object) -> str:
        """Return a time as it is stored, no later than now; that of the archive if there is none."""
        for text in (stamp, self.old.exported_at):
            try:
                return min(canonical(str(text)), self.now)
            except ValueError:
                continue
        return self.now

    def _left_out(self, kind: str, name: str, what: str, names: Any) -> None:
        if names:
            self._decide(kind, name, f"{what} were left out: {', '.join(sorted(map(str, names)))}")

    def _decide(self, kind: str, name: str, decision: str, **more: str) -> None:
        self.decisions.append({"kind": kind, "name": name, "decision": decision, **more})


def _is_valid(key: str, value: Any) -> bool:
    try:
        settings_of({key: value})
    except InvalidInput:
        return False
    return True


def _one_of(kind: type[E], value: object, otherwise: Any) -> Any:
    try:
        return kind(value)  # type: ignore[call-arg]  # an enum, of its value
    except ValueError:
        return otherwise


def _snowflake(position: object, now: str) -> int | None:
    """Return the number of a position of theirs; None if it is none, or later than now."""
    text = str(position)
    if not (text.isascii() and text.isdigit() and 0 < len(text.lstrip("0")) <= POSITION_DIGITS):
        return None
    return int(text) if int(text) <= int(earliest_position(unix_ms(now))) else None

"""Lets the rows of one constellation's file join those of another: all of them in one transaction, or none.

The first pass finds what is in the way: names and labels that are in use, and ids and positions that other rows have.
The second one adds the rows, and changes every reference to what has another id or position now, in columns and in
JSON. What people, agents and tools wrote stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pattern_db import portable
from pattern_db.connection import Connection, Value, fetch_all, opened_at
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_db.errors import BackupInvalid, RowConflict
from pattern_db.portable import TRAVELS, Rows
from pattern_db.tables import agents

Policy = Literal["refuse", "rename", "merge"]
POSITION_DIGITS = 19
CONFLICTS_SHOWN_MAX = 20
NAME_CHARS_KEPT = 90  # of a name that gets a number


class _Named(NamedTuple):
    """Rows with names that are unique: in the file, or among those of one `owner`. With `content`, two rows of one name
    and equal content are one.
    """

    table: str
    what: str
    key: str = "id"
    name: str = "name"
    owner: str = "NULL"
    content: str = "NULL"
    where: str = "true"


_NAMED = (
    _Named("agents", "agent"),
    _Named("agent_groups", "group"),
    _Named("folders", "folder"),
    _Named("data_sources", "source"),
    _Named("schedule", "schedule"),
    _Named("workspaces", "workspace"),
    _Named("coordination_state", "shared value", key="key", name="key", content="value"),
    _Named(
        "memory_blocks", "memory block", "id", "label", "agent_id", "coalesce(content_preview, '')", "is_active = 1"
    ),
    _Named("folder_files", "file", "id", "name", "folder_id", "coalesce(content, '')"),
)
# Parts of a block, a file or guidance, without names and ids of their own: they are there already if that is.
_PARTS: Mapping[str, tuple[str, str]] = {
    **{name: ("block_id", "memory_blocks") for name in TRAVELS if name.startswith("memory_block_")},
    **dict.fromkeys(("file_index", "file_passages"), ("file_id", "folder_files")),
    "guidance_feedback": ("guidance_id", "guidance"),
}
# Columns in which an id was written by a person or a model.
_WORDS = frozenset(
    {"content", "content_preview", "description", "label", "message", "name", "note", "notes"}
    | {"summary", "system_prompt", "title"}
)
_REFERENCE = re.compile(r"(?<![0-9a-zA-Z])(?:[a-z]+_[0-9a-z]{19,32}|[0-9]{19})(?![0-9a-zA-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The result of a merge: by table, how many rows were `added`, and how many were `present` already. `owners` are
    the ids of the agents and groups that arrived, `decisions` what was decided about each name in use. `blocks` are the
    memory blocks with documents for the caller to merge, and `ids` the new ids and positions of what has other ones.
    """

    added: Mapping[str, int]
    present: Mapping[str, int]
    owners: Sequence[str]
    decisions: Sequence[Mapping[str, str]]
    blocks: Sequence[str]
    ids: Mapping[str, str]


@contextmanager
def merging(target: Path, source: Path) -> Iterator[Connection]:
    """Yield a connection to the closed database `target`, in a transaction that the caller commits, with the file
    `source`, at the same schema, attached to it.

    Raises:
        Busy: another connection writes to the database.
        StorageFailed: the disk is full or failed.
    """
    with opened_at(target) as connection:
        connection.execute("ATTACH ? AS arriving", (str(source),)).fetchall()
        connection.execute("PRAGMA foreign_keys = 0").fetchall()  # rows come before those that they refer to
        connection.execute("BEGIN IMMEDIATE").fetchall()
        yield connection


def merge(
    connection: Connection,
    policy: Policy,
    new_id: Callable[[str], str],
    *,
    agents_max: int,
    are_related: Callable[[str], bool],
) -> Merged:
    """Add the rows of the attached file; `new_id` makes an id from its prefix.

    Where names are in use, `rename` changes the arriving ones. With `merge`, what belongs to the arriving agents,
    groups and others joins those that have the name or the id already, which stay as they are; only a memory block that
    both files have is left to the caller if its two documents `are_related`.

    Raises:
        RowConflict: names are in use, and the policy is to refuse; or there would be too many agents.
        BackupInvalid: a row refers to a missing one.
    """
    join = _Join(connection, policy, new_id, are_related)
    for kind in _NAMED:
        join.settle_names(kind)
    join.settle_positions()
    for table in sorted(TRAVELS.keys() - {kind.table for kind in _NAMED} - {"messages"}):
        join.settle_ids(table)
    if join.conflicts:
        more = len(join.conflicts) - CONFLICTS_SHOWN_MAX
        listed = ", ".join(join.conflicts[:CONFLICTS_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        raise RowConflict(f"in use already: {listed}. Import under new names (rename), or join what is there (merge)")
    for some in portable.tables(connection, "arriving"):
        join.add(some)
    if broken := fetch_all(connection, "PRAGMA main.foreign_key_check"):
        table, _row, parent, _number = broken[0]
        raise BackupInvalid(f"a row of {table} refers to a missing row of {parent}")
    if connection.execute("SELECT count(*) FROM main.agents").get > agents_max:
        raise RowConflict(f"a constellation has at most {agents_max} agents; import into another one")
    agents.expect_rest(connection)  # no timers come with an archive
    owners = fetch_all(connection, "SELECT id FROM arriving.agents UNION ALL SELECT id FROM arriving.agent_groups")
    return Merged(
        added=dict(join.added),
        present=dict(join.there),
        owners=[join.ids.get(owner, owner) for (owner,) in owners],
        decisions=join.decisions,
        blocks=join.blocks,
        ids=join.ids,
    )


@dataclass(slots=True)
class _Join:
    """One merge. `ids` are the new ids and positions of what arrives under another one, `present` the tables and ids of
    arriving rows that are there already, `names` the new names by table and id.
    """

    connection: Connection
    policy: Policy
    new_id: Callable[[str], str]
    are_related: Callable[[str], bool]
    ids: dict[str, str] = field(default_factory=dict)
    present: set[tuple[str, str]] = field(default_factory=set)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    decisions: list[Mapping[str, str]] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    added: Counter[str] = field(default_factory=Counter)
    there: Counter[str] = field(default_factory=Counter)

    def settle_names(self, kind: _Named) -> None:
        """Decide about each arriving row with a name or an id that is in use."""
        has_content, is_owned = kind.content != "NULL", kind.owner != "NULL"
        fields = f"{kind.key}, {kind.name}, {kind.owner}, {kind.content}, {kind.where}"
        for key, name, owner, content, is_named in fetch_all(
            self.connection, f"SELECT {fields} FROM arriving.{kind.table} ORDER BY 1"
        ):
            owner = self.ids.get(owner, owner)
            holder = self._holder(kind, owner, name) if is_named else None
            taken = self._first(f"SELECT {kind.key}, {kind.content} FROM main.{kind.table} WHERE {kind.key} = ?", key)
            found = holder or taken
            if found is None:
                continue
            if kind.table == "memory_blocks" and is_named and self._is_of_both(key, owner):
                self.present.add((kind.table, key))
                self.blocks.append(key)
                continue
            is_same = has_content and found[1] == content and (holder is not None or self.policy == "merge")
            decision = {"kind": kind.what, "name": name}
            if is_same or (self.policy == "merge" and not is_owned):
                self.present.add((kind.table, key))
                self._becomes(key, found[0])
                self.decisions.append(decision | {"decision": "already there", "id": self.ids.get(key, key)})
            elif self.policy == "refuse" and (not is_owned or (owner == CONSTELLATION_OWNER and holder)):
                self.conflicts.append(f"{kind.what} {name!r}")
            else:
                if taken is not None and kind.key != kind.name:
                    self._becomes(key, self.new_id(key.partition("_")[0]))
                if holder is not None:
                    self.names[kind.table, key] = new = self._free_name(kind, owner, name)
                    self.decisions.append(decision | {"decision": "renamed", "to": new})

    def _is_of_both(self, block: str, owner: str) -> bool:
        """Return whether the owner has this very block here, and its two documents can be merged."""
        found = "SELECT 1 FROM main.memory_blocks WHERE id = ? AND agent_id = ? AND is_active = 1"
        return self.policy == "merge" and self._first(found, block, owner) is not None and self.are_related(block)

    def _holder(self, kind: _Named, owner: str | None, name: str) -> tuple[Any, ...] | None:
        """Return key and content of the row of this owner that has the name."""
        found = f"SELECT {kind.key}, {kind.content} FROM main.{kind.table} WHERE {kind.name} = ?"
        return self._first(f"{found} AND {kind.owner} IS ? AND {kind.where}", name, owner)

    def _free_name(self, kind: _Named, owner: str | None, name: str) -> str:
        for number in count(2):
            new = f"{name[:NAME_CHARS_KEPT]}-{number}"
            arrives = self._first(f"SELECT 1 FROM arriving.{kind.table} WHERE {kind.name} = ?", new)
            is_chosen = any(table == kind.table and given == new for (table, _), given in self.names.items())
            if not (arrives or is_chosen or self._holder(kind, owner, new)):
                return new
        raise AssertionError("the numbers have ended")

    def settle_positions(self) -> None:
        """Give messages with an id in use the next free position, and those that it belonged to one behind it."""
        if not self._first("SELECT 1 FROM arriving.messages WHERE id IN (SELECT id FROM main.messages)"):
            return
        last = -1
        for key, owner, position, *said in fetch_all(
            self.connection,
            "SELECT id, agent_id, position, role, content FROM arriving.messages ORDER BY position",
        ):
            found = self._first("SELECT agent_id, role, content FROM main.messages WHERE id = ?", key)
            if self.policy == "merge" and found == (self.ids.get(owner, owner), *said):
                self.present.add(("messages", key))
                continue
            last = max(int(position), last + 1)
            while self._first("SELECT 1 FROM main.messages WHERE id = ?", _message(last)):
                last += 1
            if found or last != int(position):
                self._becomes(key, _message(last))
                self._becomes(position, f"{last:0{POSITION_DIGITS}}")

    def settle_ids(self, table: str) -> None:
        """Find the other rows of a table with ids in use: with `merge` they are there already."""
        columns = dict(fetch_all(self.connection, "SELECT name, type FROM pragma_table_info(?)", (table,)))
        if columns.get("id") != "TEXT":
            return
        for (key,) in fetch_all(
            self.connection, f"SELECT id FROM arriving.{table} WHERE id IN (SELECT id FROM main.{table}) ORDER BY id"
        ):
            if self.policy == "merge":
                self.present.add((table, key))
            else:
                self._becomes(key, self.new_id(key.partition("_")[0]))

    def add(self, some: Rows) -> None:
        """Add the rows of a table that are not there."""
        table, part = some.table, _PARTS.get(some.table)
        kind = next((kind for kind in _NAMED if kind.table == table), None)
        key_name = "id" if kind is None else kind.key
        types = dict(fetch_all(self.connection, "SELECT name, type FROM pragma_table_info(?)", (table,)))
        is_numbered = types.get("id") == "INTEGER"  # again, here
        columns = [column for column in some.columns if not (is_numbered and column == "id")]
        named, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
        insert = f"INSERT INTO main.{table} ({named}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        for row in some.rows:
            cells = dict(zip(some.columns, row, strict=True))
            whole = (table, cells.get(key_name)) if part is None else (part[1], cells[part[0]])
            if whole in self.present:
                self.there[table] += 1
                continue
            values = {column: self._moved(column, cells[column]) for column in columns}
            if kind is not None and (new := self.names.get((table, str(cells[kind.key])))):
                values[kind.name] = new
            self.connection.execute(insert, tuple(values.values())).fetchall()
            (self.added if self.connection.changes() else self.there)[table] += 1

    def _moved(self, column: str, value: Value) -> Value:
        """Return a cell with the new ids and positions of what it refers to."""
        if not self.ids or not isinstance(value, str) or column in _WORDS:
            return value
        if value in self.ids:
            return self.ids[value]
        return _REFERENCE.sub(lambda found: self.ids.get(found[0], found[0]), value)

    def _becomes(self, old: str, new: str) -> None:
        if old != new:
            self.ids[old] = new

    def _first(self, sql: str, *values: Value) -> tuple[Any, ...] | None:
        return self.connection.execute(sql, values).fetchone()


def _message(position: int) -> str:
    return f"msg_{position:0{POSITION_DIGITS}}"

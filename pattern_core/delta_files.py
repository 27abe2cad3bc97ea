"""Rows of Delta's files in and out: each becomes a row that the rest of the server uses, and the same row again.

An import is one transaction. What was imported before is known by the file's source, table and number: if it is the
same nothing happens, if it differs it is listed, and nothing is overwritten. What a row had that ours cannot hold is
kept with its number, so a row that was not changed here is exported as it came.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pattern_core.archive.entries import NewEntry, Terms
from pattern_core.archive.entries import store as store_entry
from pattern_core.delta import EPISODE, PRIORITIES, STATUSES, SYSTEM, Delta, DeltaNote, new_note, priority_of, status_of
from pattern_core.errors import InvalidInput, PatternError
from pattern_core.memory.block import Attribution
from pattern_core.tasks import Task
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import Json, iso, to_json, unix_ms
from pattern_db.enums import CONSTELLATION_OWNER, Priority, TaskStatus
from pattern_db.tables import archival, external_refs, imports, shared_state, tasks
from pattern_db.tables.external_refs import ExternalRef
from pattern_db.tables.imports import ArchiveImport
from pattern_db.tables.shared_state import SharedValue
from pattern_db.tables.tasks import DEPTH_MAX

Row = Mapping[str, Any]
KINDS: Mapping[str, str] = {"episodes": EPISODE, "memories": EPISODE, "tasks": "task", "project_notes": "note"}
LISTED_MAX = 100  # conflicts and skipped rows that are named
_WORDS = ("content", "description")  # of a row, which are not stored twice


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImport:
    """What an import of a program's file did, by table; `conflicts` were imported before and differ, `skipped` cannot
    be stored.
    """

    added: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)
    conflicts: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Import:
    """One import into a workspace. `known` are the digests of earlier ones by table and number, `local` the ids of
    their rows and of those that are added.
    """

    delta: Delta
    source: str
    done: FileImport
    known: dict[tuple[str, int], bytes | None]
    local: dict[tuple[str, int], str]
    taken: dict[str, set[int]]
    work: UnitOfWork = field(default_factory=UnitOfWork)

    def fresh(self, table: str, rows: Sequence[Row]) -> Iterator[tuple[Row, str, ExternalRef]]:
        """Yield the rows that were not imported before, each with the id of its local row and what it is called."""
        kind, taken = KINDS[table], self.taken.setdefault(KINDS[table], set())
        prefix = {EPISODE: "arch", "task": "task", "note": "note"}[kind]
        for row in rows:
            number, digest = row.get("id"), _digest(table, row)
            if not isinstance(number, int) or number < 1:
                self.done.skipped.append(f"{table}: a row has no number")
            elif (table, number) in self.known:
                if self.known[table, number] == digest:
                    self.done.present[table] += 1
                else:
                    self.done.conflicts.append(f"{table} #{number} differs from what was imported before")
            else:
                free = number if number not in taken else max(taken) + 1
                local_id = self.delta.constellation.storage.ids.new(prefix)
                kept = {name: value for name, value in row.items() if name not in _WORDS}
                raw = {"source": self.source, "table": table, "row": kept}
                yield row, local_id, ExternalRef(SYSTEM, kind, self.delta.workspace, free, local_id, digest, raw)

    def add(self, table: str, number: int, ref: ExternalRef) -> None:
        """Note that a row is added."""
        self.local[table, number] = ref.local_id
        self.taken[ref.kind].add(ref.number)
        self.work.store(external_refs.add, ref)
        self.done.added[table] += 1


async def import_delta(
    delta: Delta, tables: Mapping[str, Sequence[Row]], *, source: str, version: str, is_dry: bool = False
) -> FileImport:
    """Add the rows of a file to a workspace; `source` is the name of the file's folder.

    Raises:
        InvalidInput: it has tables that Delta has not.
        LimitReached: the archive is full. Nothing is imported.
    """
    if unknown := {*tables} - {"kv", *KINDS}:
        raise InvalidInput(f"Delta has no table {min(unknown)!r}; send kv, {', '.join(KINDS)}")
    storage, done = delta.constellation.storage, FileImport()
    refs = await storage.database.read(external_refs.of_workspace, SYSTEM, delta.workspace)
    taken: dict[str, set[int]] = {}
    for ref in refs:
        taken.setdefault(ref.kind, set()).add(ref.number)
    own = [ref for ref in refs if ref.raw and ref.raw["source"] == source]
    job = _Import(
        delta=delta,
        source=source,
        done=done,
        known={(ref.raw["table"], ref.raw["row"]["id"]): ref.content_hash for ref in own},
        local={(ref.raw["table"], ref.raw["row"]["id"]): ref.local_id for ref in own},
        taken=taken,
    )
    await _add_values(job, tables.get("kv", ()))
    for table in ("episodes", "memories"):
        _add_episodes(job, table, tables.get(table, ()))
    _add_tasks(job, tables.get("tasks", ()))
    await _add_notes(job, tables.get("project_notes", ()))
    if done.added and not is_dry:
        now, problems = storage.now(), len(done.conflicts) + len(done.skipped)
        log: Json = {"root": "", "owners": [], "decisions": [], "system": SYSTEM, "version": version}
        log |= {"added": done.added, "present": done.present, "workspace": delta.workspace}
        number = int(version.removeprefix("v")) if version.startswith("v") else 0
        job.work.store(imports.add, ArchiveImport(storage.ids.new("imp"), now, source, number, problems, 0, log))
        job.work.event("delta.imported", {"workspace_id": delta.workspace, "by": delta.author})
        await storage.commit(job.work)
    job.work.settle(committed=False)
    return done


async def _add_values(job: _Import, rows: Sequence[Row]) -> None:
    delta, done = job.delta, job.done
    there = {kept.key: kept.value for kept in await delta.constellation.state.kept(delta.workspace)}
    for row in rows:
        try:
            key = shared_state.NAMED + f"{delta.workspace}/{_text(row, 'key')}"
            value, times = _text(row, "value"), [iso(_number(row, name)) for name in ("updated_at", "created_at")]
        except InvalidInput as error:
            done.skipped.append(f"kv: {error.message}")
            continue
        if key not in there:
            job.work.store(shared_state.put, SharedValue(key, value, 1, times[0], delta.author, times[1]))
            done.added["kv"] += 1
        elif there[key] == value:
            done.present["kv"] += 1
        else:
            done.conflicts.append(f"kv {row['key']!r} has another value here")


def _add_episodes(job: _Import, table: str, rows: Sequence[Row]) -> None:
    for row, entry_id, ref in job.fresh(table, rows):
        try:
            now = iso(_number(row, "timestamp" if table == "episodes" else "created_at"))
            said = {name: row.get(name) for name in ("context", "importance")}
            said |= {"session": row.get("session_id"), "branch": job.delta.branch}
            new = NewEntry(
                content=_text(row, "content"),
                tags=tuple(_tags(row) or ()),
                metadata={"kind": EPISODE, **{name: value for name, value in said.items() if value is not None}},
                workspace=job.delta.workspace,
                source={"author": job.delta.author, "file": job.source},
            )
        except InvalidInput as error:
            job.done.skipped.append(f"{table} #{row['id']}: {error.message}")
            continue
        job.work.store(store_entry, CONSTELLATION_OWNER, new, entry_id, Terms(now=now, is_event=True))
        job.add(table, row["id"], ref)


def task_of(row: Row, task_id: str, parent: str | None, delta: Delta) -> Task:
    """Return a row of Delta's tasks as ours.

    Raises:
        InvalidInput: it cannot be one.
    """
    status = STATUSES.get(row.get("status") or "todo", TaskStatus.PENDING)
    finished, session = row.get("completed_at"), row.get("session_id")
    return Task(
        task_id,
        _text(row, "title") or "(untitled)",
        created_at=iso(_number(row, "created_at")),
        updated_at=iso(_number(row, "updated_at")),
        changed_by=delta.author,
        parent_task_id=parent,
        description=row.get("description"),
        status=status,
        blocked_reason="not said" if status is TaskStatus.BLOCKED else None,
        priority=PRIORITIES.get(row.get("priority") or "medium", Priority.MEDIUM),
        completed_at=None if not isinstance(finished, int) else iso(_number(row, "completed_at")),
        tags=_tags(row),
        workspace=delta.workspace,
        session_id=str(session or "") if row.get("scope") == "session" else None,
    )


def _add_tasks(job: _Import, rows: Sequence[Row]) -> None:
    """Add tasks, each behind its parent. One that lies too deep, or within itself, gets none."""
    above = {row.get("id"): row.get("parent_id") for row in rows}

    def depth(number: object) -> int:
        count = 0
        while number is not None and count <= DEPTH_MAX:
            number, count = above.get(number), count + 1
        return count

    ordered = sorted(rows, key=lambda row: depth(row.get("id")))
    for row, task_id, ref in job.fresh("tasks", ordered):
        parent = job.local.get(("tasks", row.get("parent_id") or 0))
        try:
            task = task_of(row, task_id, parent if depth(row["id"]) <= DEPTH_MAX else None, job.delta)
        except InvalidInput as error:
            job.done.skipped.append(f"tasks #{row['id']}: {error.message}")
            continue
        job.work.store(tasks.create, [task])
        job.add("tasks", row["id"], ref)


async def _add_notes(job: _Import, rows: Sequence[Row]) -> None:
    memory, by = job.delta.constellation.memory, Attribution(author=job.delta.author)
    taken = {row.label for row in await memory.list(CONSTELLATION_OWNER)}
    for row, _id, ref in job.fresh("project_notes", rows):
        try:
            said = [_text(row, name) for name in ("title", "content", "category", "importance")]
            new = new_note(job.delta.workspace, *said, active=bool(row.get("active", 1)), taken=taken)
            _number(row, "created_at"), _number(row, "updated_at")
            block = await memory.create(CONSTELLATION_OWNER, new, by=by, work=job.work)
        except PatternError as error:
            job.done.skipped.append(f"project_notes #{row['id']}: {error.message}")
            continue
        taken.add(new.label)
        job.add("project_notes", row["id"], ref._replace(local_id=block.id))


async def export_delta(delta: Delta) -> dict[str, list[Row]]:
    """Return a workspace as rows of Delta v1; a memory of v4 is an episode with an importance."""
    constellation = delta.constellation
    read, everything = constellation.database.read, 10**9
    rows = await constellation.tasks.page(everything, workspace=delta.workspace)
    entries = await read(archival.events, delta.workspace, EPISODE, everything)
    texts = await read(archival.contents, [entry.id for entry in entries])
    await delta.numbered("task", [row.id for row in rows])
    await delta.numbered(EPISODE, [entry.id for entry in entries])
    notes = await delta.notes()
    refs = {ref.local_id: ref for ref in await read(external_refs.of_workspace, SYSTEM, delta.workspace)}
    parents = {row.id: refs[row.id].number for row in rows}
    kept = await constellation.state.kept(delta.workspace)
    values = [
        {
            "key": one.key.split("/", 2)[2],
            "value": one.value if isinstance(one.value, str) else to_json(one.value),
            "created_at": unix_ms(one.created_at or one.updated_at),
            "updated_at": unix_ms(one.updated_at),
        }
        for one in kept
    ]
    return {
        "kv": sorted(values, key=lambda row: str(row["key"])),
        "episodes": _sorted(_episode_row(entry, "".join(texts[entry.id]), refs[entry.id]) for entry in entries),
        "tasks": _sorted(_task_row(row, parents, refs[row.id], delta) for row in rows),
        "project_notes": _sorted(_note_row(note, refs[note.row.id]) for note in notes),
    }


def as_memories(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return rows of Delta v1 as those of v4, as its own migration makes them; it has no tasks."""
    made = [
        *(
            {
                **{name: row[name] for name in ("content", "tags", "context", "session_id")},
                "importance": row.get("importance") or "normal",
                "created_at": row["timestamp"],
                "updated_at": row["timestamp"],
            }
            for row in tables["episodes"]
        ),
        *(
            {
                "content": f"{row['title']}\n\n{row['content']}",
                "tags": to_json([row["category"], *([] if row["active"] else ["archived"])]),
                **{name: row[name] for name in ("importance", "created_at", "updated_at")},
            }
            for row in tables["project_notes"]
        ),
        *(
            {
                "content": f"{row['key']}: {row['value']}",
                "tags": to_json(["kv", row["key"]]),
                **{name: row[name] for name in ("created_at", "updated_at")},
            }
            for row in tables["kv"]
        ),
    ]
    return {"memories": [{"id": number, **row} for number, row in enumerate(made, start=1)]}


def _episode_row(entry: archival.ArchivalRow, content: str, ref: ExternalRef) -> Row:
    said = entry.metadata if isinstance(entry.metadata, dict) else {}
    now = {
        "id": ref.number,
        "content": content,
        "context": said.get("context"),
        "tags": None if entry.tags is None else to_json(entry.tags),
        "timestamp": unix_ms(entry.created_at),
        "session_id": said.get("session"),
    }
    came = _came(ref)
    if came is not None and (_tags(came) or None) == (entry.tags or None):
        now["tags"] = came.get("tags")
    return now if "importance" not in said else {**now, "importance": said["importance"]}


def _task_row(task: Task, numbers: Mapping[str, int], ref: ExternalRef, delta: Delta) -> Row:
    def shown(one: Task) -> dict[str, Any]:
        return {
            "id": ref.number,
            "title": one.title,
            "description": one.description,
            "status": status_of(one),
            "priority": priority_of(one),
            "scope": "project" if one.session_id is None else "session",
            "tags": None if one.tags is None else to_json(list(one.tags)),
            "parent_id": None if one.parent_task_id is None else numbers.get(one.parent_task_id),
            "created_at": unix_ms(one.created_at),
            "updated_at": unix_ms(one.updated_at),
            "completed_at": None if one.completed_at is None else unix_ms(one.completed_at),
            "session_id": one.session_id or None,
        }

    now, came = shown(task), _came(ref)
    if came is None:
        return now
    whole = {**came, "description": task.description}
    then = shown(task_of(whole, task.id, task.parent_task_id, delta))
    kept = {name: came[name] for name in now if name in came and now[name] == then[name]}
    return {**now, **kept, "id": ref.number, "parent_id": now["parent_id"]}


def _note_row(note: DeltaNote, ref: ExternalRef) -> Row:
    block, came = note.row, _came(ref) or {}
    is_untouched = block.updated_at == block.created_at
    return {
        "id": ref.number,
        "title": note.title,
        "content": block.content,
        "category": note.category,
        "importance": note.importance,
        "active": int(note.is_active),
        "created_at": came.get("created_at", unix_ms(block.created_at)),
        "updated_at": came.get("updated_at", 0) if is_untouched and came else unix_ms(block.updated_at),
    }


def _came(ref: ExternalRef) -> Row | None:
    """Return the row as it was imported, without its long texts; None if it was made here."""
    return None if ref.raw is None else ref.raw["row"]


def _sorted(rows: Iterator[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


def _digest(table: str, row: Row) -> bytes:
    return hashlib.blake2b(to_json([table, dict(row)]).encode(), digest_size=16).digest()


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is not a text")
    return value


def _number(row: Row, name: str) -> int:
    value = row.get(name)
    if not isinstance(value, int):
        raise InvalidInput(f"{name} is not a time in milliseconds")
    try:
        iso(value)
    except OverflowError:
        raise InvalidInput(f"{name} is outside the years 1 to 9999") from None
    return value


def _tags(row: Row) -> list[str] | None:
    """Return the tags of a row; None if there are none, or if they are not a list of texts."""
    try:
        found = json.loads(row.get("tags") or "null")
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else None

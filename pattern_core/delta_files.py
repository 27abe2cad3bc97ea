"""Rows of Delta's files in and out: each becomes a row that the rest of the server uses, and the same row again.

An import is one transaction. What was imported before is known by the file's source, table and number. If the file has
changed since and the row here has not, the row is updated; if both have, it is listed, and nothing is overwritten. What
a row had that ours cannot hold is kept with its number, so a row that was not changed here is exported as it came.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pattern_core.archive.entries import NewEntry, Terms
from pattern_core.archive.entries import store as store_entry
from pattern_core.delta import (
    EPISODE,
    NOT_SAID,
    PRIORITIES,
    STATUSES,
    SYSTEM,
    Delta,
    DeltaNote,
    change_note,
    new_note,
    priority_of,
    scope_of,
    shown_value,
    status_of,
)
from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError
from pattern_core.memory.block import Attribution
from pattern_core.tasks import Task
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import masked
from pattern_core.workspaces import WorkspaceAlias, Workspaces
from pattern_db.columns import Json, iso, to_json, unix_ms
from pattern_db.enums import CONSTELLATION_OWNER, Priority, TaskStatus
from pattern_db.tables import archival, external_refs, imports, shared_state, tasks
from pattern_db.tables.external_refs import ExternalRef
from pattern_db.tables.imports import ArchiveImport
from pattern_db.tables.shared_state import SharedValue
from pattern_db.tables.tasks import DEPTH_MAX

Row = Mapping[str, Any]
Version = Literal["v1", "v4"]
# By table, in the order of an import: the kind of its numbers, and how ids of its local rows begin.
KINDS: Mapping[str, tuple[str, str]] = {
    "episodes": (EPISODE, "arch"),
    "memories": (EPISODE, "arch"),
    "tasks": ("task", "task"),
    "project_notes": ("note", "note"),
}
LISTED_MAX = 100  # conflicts and skipped rows that are named
BRANCHED = ("v1", "v2")  # versions with a file for each branch, in the folder `<folder>-<branch>`
NO_GIT = "-no-git"  # the branch of a folder without a repository
_WORDS = ("content", "description")  # of a row, which are not stored twice
_MEMORY = ("content", "tags", "importance", "context", "session_id", "created_at", "updated_at")


@dataclass(frozen=True, kw_only=True)
class FileImport:
    """What an import of a program's file did, by table. `conflicts` were changed here and in the file; `skipped` is
    what cannot be stored, secrets among it. `outgoing` are lines of text that the file lacks: of what was changed here.
    """

    added: Counter[str] = field(default_factory=Counter)
    updated: Counter[str] = field(default_factory=Counter)
    present: Counter[str] = field(default_factory=Counter)
    conflicts: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    outgoing: list[bytes] = field(default_factory=list)

    def audit(self, storage: Storage, source: str, number: int = 0, **log: Json) -> ArchiveImport:
        """Return the row about it for `migration_audit`: the `number` of the format's version, and what `log` says."""
        log |= {"root": "", "decisions": [], "added": self.added, "updated": self.updated, "present": self.present}
        problems = len(self.conflicts) + len(self.skipped)
        return ArchiveImport(storage.ids.new("imp"), storage.now(), source, number, problems, 0, {"owners": [], **log})


@dataclass(slots=True, kw_only=True)
class _Import:
    """One import into a workspace. `known` are earlier ones by table and number in the file, `here` the rows of the
    workspace by table and number, as an export writes them; both also have what is added. `depths` are of tasks.
    """

    delta: Delta
    source: str
    known: dict[tuple[str, int], ExternalRef]
    taken: dict[str, set[int]]
    here: Mapping[str, dict[int, Row]]
    depths: Mapping[object, int]
    labels: set[str]
    notes: Mapping[str, DeltaNote]
    done: FileImport = field(default_factory=FileImport)
    work: UnitOfWork = field(default_factory=UnitOfWork)

    async def take(self, table: str, given: Row) -> None:
        """Add a row, or update the one that it became.

        Raises:
            PatternError: it cannot be stored.
        """
        done, number = self.done, given.get("id")
        if not isinstance(number, int) or number < 1:
            raise InvalidInput("it has no number")
        row = {name: masked(value) if isinstance(value, str) else value for name, value in given.items()}
        known, digest = self.known.get((table, number)), _digest(table, row)
        if known is not None and known.content_hash == digest:
            done.present[table] += 1
            return
        kind, prefix = KINDS[table]
        kept = {name: value for name, value in row.items() if name not in _WORDS}
        raw = {"source": self.source, "table": table, "row": kept}
        if known is not None:
            if not await _update(self, table, row, known):
                raise Conflict("it was changed in the file, and here or in its place")
            self.work.store(external_refs.change, known._replace(content_hash=digest, raw=raw))
            done.updated[table] += 1
        else:
            taken = self.taken.setdefault(kind, set())
            free = number if number not in taken else max(taken) + 1
            local_id = self.delta.constellation.storage.ids.new(prefix)
            ref = ExternalRef(SYSTEM, kind, self.delta.workspace, free, local_id, digest, raw)
            ref = ref._replace(local_id=await _ADD[table](self, row, local_id))
            self.work.store(external_refs.add, ref)
            self.known[table, number], self.here[table][free] = ref, row
            taken.add(free)
            done.added[table] += 1
        if row != given:
            done.skipped.append(f"{table} #{number}: its secrets")


async def import_delta(
    delta: Delta, tables: Mapping[str, Sequence[Row]], *, source: str, version: str, is_dry: bool = False
) -> FileImport:
    """Add the rows of a file to a workspace, which Delta calls `source` from now on: the name of the file's folder.

    Raises:
        InvalidInput: it has tables that Delta has not.
        LimitReached: the archive is full. Nothing is imported.
        Conflict: Delta calls another workspace so. Nothing is imported.
    """
    if unknown := {*tables} - {"kv", *KINDS}:
        raise InvalidInput(f"Delta has no table {min(unknown)!r}; send kv, {', '.join(KINDS)}")
    core, storage = delta.constellation, delta.constellation.storage
    here = await export_delta(delta) if delta.workspace else {}
    refs = await storage.database.read(external_refs.of_workspace, SYSTEM, delta.workspace)
    own = [ref for ref in refs if ref.raw and ref.raw["source"] == source]
    job = _Import(
        delta=delta,
        source=source,
        known={(ref.raw["table"], ref.raw["row"]["id"]): ref for ref in own},
        taken={kind: {ref.number for ref in refs if ref.kind == kind} for kind, _ in KINDS.values()},
        here={table: {row["id"]: row for row in here.get(table, ())} for table in KINDS},
        depths=_depths(tables.get("tasks", ())),
        labels={row.label for row in await core.memory.list(CONSTELLATION_OWNER)},
        notes={note.row.id: note for note in await delta.notes()},
    )
    try:
        async with given_or_alone(job.work if is_dry else None, storage.commit) as job.work:
            await _take_all(job, tables)
            if not is_dry:
                await _log(job, version)
    finally:
        job.work.settle(committed=False)  # nothing, if it was committed
    return job.done


async def _take_all(job: _Import, tables: Mapping[str, Sequence[Row]]) -> None:
    await _take_values(job, tables.get("kv", ()))
    for table in KINDS:
        rows = tables.get(table, ())
        for row in sorted(rows, key=lambda row: job.depths[row.get("id")]) if table == "tasks" else rows:
            try:
                await job.take(table, row)
            except Conflict as error:
                job.done.conflicts.append(f"{table} #{row['id']}: {error.message}")
            except PatternError as error:
                job.done.skipped.append(f"{table} #{row.get('id')}: {error.message}")


async def _log(job: _Import, version: str) -> None:
    """Note what the file's folder is called and, if anything has changed, what was done."""
    delta, done, storage = job.delta, job.done, job.delta.constellation.storage
    workspaces, alias = delta.constellation.workspaces, WorkspaceAlias(SYSTEM, job.source)
    if await workspaces.called(alias) != delta.workspace:
        await workspaces.add_alias(delta.workspace, alias, author=delta.author, work=job.work)
    if done.added or done.updated:
        number = int(version.removeprefix("v")) if version.startswith("v") else 0
        log = {"system": SYSTEM, "version": version, "workspace": delta.workspace}
        job.work.store(imports.add, done.audit(storage, job.source, number, **log))
        job.work.event("delta.imported", {"workspace_id": delta.workspace, "by": delta.author})


async def place_of(
    workspaces: Workspaces, given: str | None, source: str, version: str
) -> tuple[str, str | None, str | None]:
    """Return the workspace for a file in the folder `source`: the `given` one, else the one that Delta calls so, else
    the one of that name without the branch. Return its name, its id if it exists, and the branch, if that is known.

    Raises:
        InvalidInput: the folder's name does not say which project it is.
        Conflict: Delta calls another workspace so than the given one.
    """
    ends = [len(source) - len(NO_GIT)] if source.endswith(NO_GIT) else [at for at, c in enumerate(source) if c == "-"]
    cuts = {source[:at]: source[at + 1 :] for at in ends} if version in BRANCHED else {}
    only = next(iter(cuts.values())) if len(cuts) == 1 else None
    known = await workspaces.called(WorkspaceAlias(SYSTEM, source))
    if given is not None:
        found = await _id_of(workspaces, given)
        if known not in (None, found):
            raise Conflict(f"Delta calls the workspace {known} {source!r}; import into that, or merge the two")
        return given, found, cuts.get(given, only)
    if known is not None:
        return known, known, only
    there = {folder: found for folder in cuts if (found := await _id_of(workspaces, folder)) is not None}
    if source.startswith(".") or (len(cuts) > 1 and not there):
        raise InvalidInput(f"the folder's name {source!r} does not say which project it is; name a workspace")
    name = max(there, key=len, default=next(iter(cuts), source))
    return name, there.get(name) or await _id_of(workspaces, name), cuts.get(name)


async def _id_of(workspaces: Workspaces, given: str) -> str | None:
    try:
        return (await workspaces.find(given)).id
    except NotFound:
        return None


async def _take_values(job: _Import, rows: Sequence[Row]) -> None:
    """Add values. A value that this file's import was the last to write follows the file."""
    delta, done, origin = job.delta, job.done, f"{SYSTEM}:{job.source}"
    there = {kept.key: kept for kept in await delta.constellation.state.kept(delta.workspace)}
    for row in rows:
        try:
            name = _text(row, "key")
            key, value = f"{shared_state.NAMED}{delta.workspace}/{name}", shown_value(name, _text(row, "value"))
            times = [iso(_number(row, column)) for column in ("updated_at", "created_at")]
        except InvalidInput as error:
            done.skipped.append(f"kv: {error.message}")
            continue
        found = there.get(key)
        if found is not None and found.value == value:
            done.present["kv"] += 1
        elif found is not None and found.updated_by != origin:
            done.conflicts.append(f"kv {name!r} has another value here")
        else:
            version = 1 if found is None else found.version + 1
            job.work.store(shared_state.put, SharedValue(key, value, version, times[0], origin, times[1]))
            (done.added if found is None else done.updated)["kv"] += 1
            if value != row["value"]:
                done.skipped.append(f"kv {name!r}: its secrets")


async def _add_episode(job: _Import, row: Row, entry_id: str) -> str:
    now = iso(_number(row, "timestamp" if "timestamp" in row else "created_at"))
    said = {"kind": EPISODE, "context": row.get("context"), "importance": row.get("importance")}
    said |= {"session": row.get("session_id"), "branch": job.delta.branch}
    new = NewEntry(
        content=_text(row, "content"),
        tags=tuple(_tags(row) or ()),
        metadata={name: value for name, value in said.items() if value is not None},
        workspace=job.delta.workspace,
        source={"author": job.delta.author, "file": job.source},
    )
    job.work.store(store_entry, CONSTELLATION_OWNER, new, entry_id, Terms(now=now, is_event=True))
    return entry_id


async def _add_task(job: _Import, row: Row, task_id: str) -> str:
    """Add a task, behind its parent. One that lies too deep, or within itself, gets none."""
    parent = job.known.get(("tasks", row.get("parent_id") or 0))
    is_below = parent is not None and parent.number in job.here["tasks"] and job.depths[row["id"]] <= DEPTH_MAX
    job.work.store(tasks.create, [_task_of(row, task_id, parent.local_id if parent and is_below else None, job.delta)])
    return task_id


async def _add_note(job: _Import, row: Row, _note_id: str) -> str:
    said = {name: _text(row, name) for name in ("title", "category", "importance")}
    new = new_note(
        job.delta.workspace, _text(row, "content"), said, active=bool(row.get("active", 1)), taken=job.labels
    )
    _number(row, "created_at"), _number(row, "updated_at")
    by = Attribution(author=job.delta.author)
    job.labels.add(new.label)
    return (await job.delta.constellation.memory.create(CONSTELLATION_OWNER, new, by=by, work=job.work)).id


_ADD: Mapping[str, Callable[[_Import, Row, str], Awaitable[str]]] = {
    "episodes": _add_episode,
    "memories": _add_episode,
    "tasks": _add_task,
    "project_notes": _add_note,
}


async def _update(job: _Import, table: str, row: Row, known: ExternalRef) -> bool:
    """Let a row follow the file; return whether that may be: it is as it came, and of a kind that changes.

    Raises:
        InvalidInput: it cannot be stored.
    """
    here, note = job.here[table].get(known.number), job.notes.get(known.local_id)
    if here is None or not _is_as_it_came(here, known) or row.get("parent_id") != known.raw["row"].get("parent_id"):
        return False
    if table == "tasks":
        task = _task_of(row, known.local_id, None, job.delta)
        job.work.store(tasks.update, task.id, {name: getattr(task, name) for name in _CHANGING})
    elif note is not None:
        said = {name: _text(row, name) for name in ("title", "content", "category", "importance")}
        await change_note(job.delta, note, {**said, "active": bool(row.get("active", 1))}, job.work)
    return table == "tasks" or note is not None


def _is_as_it_came(here: Row, ref: ExternalRef) -> bool:
    """Return whether no one has changed a row since its import, wherever it lies."""
    came = ref.raw["row"]
    whole = {**came, **{name: here[name] for name in _WORDS if name in here}}
    same = all(here[name] == came[name] for name in {*came} & {*here} - {"id", "parent_id", "created_at", "updated_at"})
    return same and _digest(ref.raw["table"], whole) == ref.content_hash


_CHANGING = (
    *("title", "description", "status", "blocked_reason", "priority"),
    *("completed_at", "tags", "session_id", "updated_at", "changed_by"),
)


def _task_of(row: Row, task_id: str, parent: str | None, delta: Delta) -> Task:
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
        blocked_reason=NOT_SAID if status is TaskStatus.BLOCKED else None,
        priority=PRIORITIES.get(row.get("priority") or "medium", Priority.MEDIUM),
        completed_at=iso(_number(row, "completed_at")) if isinstance(finished, int) else None,
        tags=_tags(row),
        workspace=delta.workspace,
        session_id=str(session or "") if row.get("scope") == "session" else None,
    )


def _depths(rows: Sequence[Row]) -> dict[object, int]:
    """Return how deep tasks lie, by number; one that lies too deep or within itself is below all others."""
    above, depths = {row.get("id"): row.get("parent_id") for row in rows}, {}
    for number in above:
        depth, parent = 0, number
        while parent is not None and depth <= DEPTH_MAX:
            parent, depth = above.get(parent), depth + 1
        depths[number] = depth
    return depths


async def export_delta(delta: Delta, version: Version = "v1") -> dict[str, list[Row]]:
    """Return a workspace as rows of Delta's tables; those of v4 have no tasks."""
    core, read, everything = delta.constellation, delta.constellation.database.read, 10**9
    rows = await core.tasks.page(everything, workspace=delta.workspace)
    entries = await read(archival.events, delta.workspace, EPISODE, everything)
    texts = await read(archival.contents, [entry.id for entry in entries])
    notes, values = await delta.notes(), await core.state.kept(delta.workspace)
    await delta.numbered("task", [row.id for row in rows])
    await delta.numbered(EPISODE, [entry.id for entry in entries])
    refs = {ref.local_id: ref for ref in await read(external_refs.of_workspace, SYSTEM, delta.workspace)}
    tables: dict[str, list[Row]] = {
        "kv": sorted(map(_value_row, values), key=lambda row: str(row["key"])),
        "episodes": _sorted(_episode_row(entry, "".join(texts[entry.id]), refs[entry.id]) for entry in entries),
        "tasks": _sorted(_task_row(row, refs, delta) for row in rows),
        "project_notes": _sorted(_note_row(note, refs[note.row.id]) for note in notes),
    }
    if version == "v4":
        return as_memories(tables)
    episodes: list[Row] = [
        {name: value for name, value in row.items() if name != "importance"} for row in tables["episodes"]
    ]
    return {**tables, "episodes": episodes}


def as_memories(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return rows of Delta v1 as those of v4, as its own migration makes them."""
    episodes, notes, values = tables["episodes"], tables["project_notes"], tables["kv"]
    made: list[Row] = [{**row, "created_at": row["timestamp"], "updated_at": row["timestamp"]} for row in episodes]
    for row in notes:
        tags = [row["category"], *([] if row["active"] else ["archived"])]
        made.append({**row, "content": f"{row['title']}\n\n{row['content']}", "tags": to_json(tags)})
    for row in values:
        made.append({**row, "content": f"{row['key']}: {row['value']}", "tags": to_json(["kv", row["key"]])})
    usual = {"importance": "normal"}
    memories = [{name: row.get(name) or usual.get(name) for name in _MEMORY} for row in made]
    return {"memories": [{"id": number, **row} for number, row in enumerate(memories, start=1)]}


def _value_row(kept: SharedValue) -> Row:
    return {
        "key": kept.key.split("/", 2)[2],
        "value": kept.value if isinstance(kept.value, str) else to_json(kept.value),
        "created_at": unix_ms(kept.created_at or kept.updated_at),
        "updated_at": unix_ms(kept.updated_at),
    }


def _episode_row(entry: archival.ArchivalRow, content: str, ref: ExternalRef) -> Row:
    said = entry.metadata if isinstance(entry.metadata, dict) else {}
    came, tags = _came(ref), None if entry.tags is None else to_json(entry.tags)
    return {
        "id": ref.number,
        "content": content,
        "context": said.get("context"),
        "tags": came.get("tags") if came and (_tags(came) or None) == (entry.tags or None) else tags,
        "timestamp": unix_ms(entry.created_at),
        "session_id": said.get("session"),
        "importance": said.get("importance"),
    }


def _task_row(task: Task, refs: Mapping[str, ExternalRef], delta: Delta) -> Row:
    ref = refs[task.id]
    parent = refs.get(task.parent_task_id or "")

    def shown(one: Task) -> dict[str, Any]:
        return {
            "id": ref.number,
            "title": one.title,
            "description": one.description,
            "status": status_of(one),
            "priority": priority_of(one),
            "scope": scope_of(one),
            "tags": None if one.tags is None else to_json(list(one.tags)),
            "parent_id": None if parent is None else parent.number,
            "created_at": unix_ms(one.created_at),
            "updated_at": unix_ms(one.updated_at),
            "completed_at": None if one.completed_at is None else unix_ms(one.completed_at),
            "session_id": one.session_id or None,
        }

    now, came = shown(task), _came(ref)
    if came is None:
        return now
    then = shown(_task_of({**came, "description": task.description}, task.id, task.parent_task_id, delta))
    kept = {name: came[name] for name in now if name in came and now[name] == then[name]}
    return {**now, **kept, "id": ref.number, "parent_id": now["parent_id"]}


def _note_row(note: DeltaNote, ref: ExternalRef) -> Row:
    block, came = note.row, _came(ref)
    now: Row = {
        "id": ref.number,
        "title": note.title,
        "content": block.content,
        "category": note.category,
        "importance": note.importance,
        "active": int(note.is_active),
        "created_at": unix_ms(block.created_at),
        "updated_at": unix_ms(block.updated_at),
    }
    if came is None:
        return now
    times = ("created_at", "updated_at") if _is_as_it_came(now, ref) else ("created_at",)
    return {**now, **{name: came[name] for name in times}}


def _came(ref: ExternalRef) -> Row | None:
    """Return the row as it was imported, without its long texts; None if it was made here."""
    return None if ref.raw is None else ref.raw["row"]


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


def _digest(table: str, row: Row) -> bytes:
    return hashlib.blake2b(to_json([table, sorted(row.items())]).encode(), digest_size=16).digest()


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

"""Delia's folders `.delia` in and out: playbooks as guidance, profiles and memories as files of two folders.

An import is one transaction for each playbook. What was imported before is known by its place in the stored file. If a
bullet has changed there since and here not, it is updated; if both have, it is listed, and nothing is overwritten. A
playbook of version 2 that was not changed here is written again byte by byte, unless it had secrets.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import Any

from pattern_core import playbooks
from pattern_core.constellation import Constellation
from pattern_core.delta_files import FileImport
from pattern_core.errors import Conflict, InvalidInput, PatternError
from pattern_core.unit_of_work import UnitOfWork, given_or_alone
from pattern_core.untrusted import masked
from pattern_db.columns import to_json
from pattern_db.enums import GuidanceState, GuidanceVerdict
from pattern_db.errors import RowNotFound
from pattern_db.tables import external_refs, guidance, imports
from pattern_db.tables.external_refs import ExternalRef
from pattern_db.tables.guidance import GuidanceRow

SYSTEM, PLAYBOOK, FOLDER = "delia", "playbook", "folder"
DOCUMENTS = ("profiles", "memories")
IMPORTED = "guidance.imported"
FILES_MAX = 10_000  # of one folder
CORE = "profiles/core.md"  # what everyone reads
_NO_NAME = re.compile(r"[^\w.-]+|^\.+")
GONE = (GuidanceState.ARCHIVED, GuidanceState.MERGED)


@dataclass(frozen=True, slots=True)
class Delia:
    """The guidance and the documents of one workspace (its id; empty: one that does not exist, which has nothing).
    `embedding_model` is that of new folders.
    """

    constellation: Constellation
    workspace: str
    author: str
    embedding_model: str = ""

    async def refs(self, kind: str) -> list[ExternalRef]:
        """Return the stored playbooks, or the folder with the documents (after a merge several), of the workspace."""
        read = self.constellation.storage.database.read
        return [ref for ref in await read(external_refs.of_workspace, SYSTEM, self.workspace) if ref.kind == kind]

    async def documents(self) -> dict[str, tuple[str, str]]:
        """Return profiles and memories by their paths, `profiles/core.md` first: the folder that each is in, and its
        text.
        """
        found, folders = dict[str, tuple[str, str]](), self.constellation.folders
        for ref in await self.refs(FOLDER):
            with suppress(RowNotFound):  # a person has deleted it
                for row in await folders.files(ref.local_id, limit=FILES_MAX):
                    text = (await folders.content(ref.local_id, row.name))[1].decode(errors="replace")
                    found.setdefault(row.name, (ref.local_id, text))
        return {path: found[path] for path in sorted(found, key=lambda path: (path != CORE, path))}

    async def put(self, path: str, text: str, *, is_import: bool = False) -> None:
        """Store a document without its secrets; the folder is made if there is none.

        Raises:
            InvalidInput: the path is not that of a document, or the text is too long.
        """
        playbooks.read(path, b"", DOCUMENTS)
        folders, storage = self.constellation.folders, self.constellation.storage
        there = {row.id: row.name for row in await folders.all()}
        refs = await self.refs(FOLDER)
        ref = next((ref for ref in refs if ref.local_id in there), None)
        if ref is None:
            owner = await self.constellation.workspaces.find(self.workspace)
            name = f"{_NO_NAME.sub('-', owner.name)[:60]}-delia"
            free = f"{name}-{owner.id[-6:]}" if name in there.values() else name
            words = f"Profiles and memories of the workspace {owner.name[:100]}."
            made = await folders.create(free, embedding_model=self.embedding_model, description=words)
            ref = ExternalRef(SYSTEM, FOLDER, self.workspace, _next(refs), made.id, None, {})
            await storage.database.write(external_refs.add, ref)
        await folders.put_file(ref.local_id, path, masked(text).encode())
        if is_import:
            await storage.database.write(external_refs.change, ref._replace(raw={**ref.raw, path: _digest(text)}))


@dataclass(slots=True, kw_only=True)
class _Import:
    """One import into a workspace."""

    delia: Delia
    is_trusted: bool
    is_forced: bool
    is_dry: bool
    done: FileImport = field(default_factory=FileImport)

    async def take_playbook(self, path: str, text: str) -> None:
        """Add the bullets of a file, or update what they became: all in one transaction.

        Raises:
            InvalidInput: it cannot be read, or is of a newer version.
        """
        delia, storage, name = self.delia, self.delia.constellation.storage, PurePosixPath(path).stem
        book = playbooks.opened(text, newest=sys.maxsize if self.is_forced else playbooks.VERSION)
        clean = playbooks.without_secrets(book.bullets)
        self.done.skipped.extend([f"{path}: its secrets"] * (clean != book.bullets))
        refs = [ref for ref in await delia.refs(PLAYBOOK) if ref.raw["name"] == name]
        everything = await delia.constellation.guidance.select(delia.workspace, tuple(GuidanceState), task_types=[name])
        rows, work = {row.id: row for row in everything}, UnitOfWork()
        base = {key: (raw, own) for ref in refs for key, raw, own in _keyed(*_stored(ref))}
        kept, ids = list[Any](), list[str | None]()
        for number, (key, raw, _) in enumerate(_keyed(clean, [None] * len(clean))):
            before, own = earlier = base.pop(key, (None, None))
            try:
                own = self._take(path, raw, earlier, rows, work)
            except Conflict as error:
                self.done.conflicts.append(f"{path}[{number}]: {error.message}")
                if before is None:
                    continue
                raw = before
            except InvalidInput as error:
                self.done.skipped.append(f"{path}[{number}]: {error.message}")
            kept.append(raw)
            ids.append(own)
        kept += [raw for raw, _ in base.values()]  # bullets that the file has lost stay here
        ids += [own for _, own in base.values()]
        if kept != book.bullets:
            text = playbooks.dumped(kept if book.version == 1 else {**book.document, "bullets": kept})
        raw_ref = {"name": name, "text": text, "ids": ids}
        if self.is_dry or [ref.raw for ref in refs] == [raw_ref]:
            return
        number, new_id = _next(await delia.refs(PLAYBOOK)), storage.ids.new("pb")
        new = ExternalRef(SYSTEM, PLAYBOOK, delia.workspace, number, new_id, None, raw_ref)
        async with given_or_alone(None, storage.commit) as unit:
            for ref in refs:
                unit.store(external_refs.remove, SYSTEM, ref.local_id)
            unit.store(external_refs.add, new)
            unit.store(work.run)
            unit.event(IMPORTED, {"workspace_id": delia.workspace, "file": path, "by": delia.author})

    def _take(
        self, path: str, raw: Any, earlier: tuple[Any, str | None], rows: Mapping[str, GuidanceRow], work: UnitOfWork
    ) -> str:
        """Add to `work` what a bullet changes since an `earlier` import, if any; return the id of its guidance.

        Raises:
            InvalidInput: it cannot be read.
            Conflict: it was changed in the file, and here.
        """
        delia, storage, now = self.delia, self.delia.constellation.storage, self.delia.constellation.storage.now()
        name, (before, own) = PurePosixPath(path).stem, earlier
        bullet = playbooks.bullet_of(raw, name)
        row = rows.get(own or bullet.id)
        if own is not None and row is None and raw != before:
            raise Conflict(f"{own} was changed in the file, and deleted here")
        if (own is not None and raw == before) or (row is not None and playbooks.shown(row) == bullet.compared):
            self.done.present[path] += 1
            return own or bullet.id
        if row is not None and (before is None or playbooks.shown(row) != playbooks.bullet_of(before, name).compared):
            raise Conflict(f"{row.id} was changed in the file, and here")
        new: dict[str, Any] = {"content": bullet.content, "section": bullet.section}
        new |= {"updated_at": now, "changed_by": delia.author}
        if row is None:
            row = GuidanceRow(
                id=storage.ids.new("gd"),
                workspace=delia.workspace,
                task_type=name,
                source=bullet.source,
                source_task=bullet.source_task,
                state=GuidanceState.ACTIVE if self.is_trusted else GuidanceState.PROPOSED,
                created_at=bullet.created_at or now,
                **new,
            )
            work.store(guidance.add, [row])
            self.done.added[path] += 1
        else:
            work.store(guidance.change, row.id, new)
            self.done.updated[path] += 1
        counts = {GuidanceVerdict.HELPFUL: bullet.helpful_count, GuidanceVerdict.HARMFUL: bullet.harmful_count}
        work.store(guidance.recount, row.id, counts, delia.author, now, bullet.last_used)
        return row.id

    async def take_document(self, path: str, text: str) -> None:
        """Store a profile or a memory, if it is new or was not changed here since its import.

        Raises:
            Conflict: it was changed in the file, and here.
        """
        _, here = (await self.delia.documents()).get(path, ("", None))
        self.done.skipped.extend([f"{path}: its secrets"] * (masked(text) != text))
        if here == masked(text):
            self.done.present[path] += 1
            return
        if here is not None and _digest(here) not in [ref.raw.get(path) for ref in await self.delia.refs(FOLDER)]:
            raise Conflict("it was changed in the file, and here")
        if not self.is_dry:
            await self.delia.put(path, text, is_import=True)
        (self.done.added if here is None else self.done.updated)[path] += 1


async def import_folder(
    delia: Delia, files: Mapping[str, str], *, is_trusted: bool = False, is_forced: bool = False, is_dry: bool = False
) -> FileImport:
    """Add the files of a folder `.delia`, by their paths in it, to a workspace. Guidance is a proposal, unless
    `is_trusted`; `is_forced` also takes playbooks of a newer version.
    """
    job = _Import(delia=delia, is_trusted=is_trusted, is_forced=is_forced, is_dry=is_dry)
    done, storage = job.done, delia.constellation.storage
    for path, text in sorted(files.items()):
        try:
            playbooks.read(path, text.encode())
            if path.startswith("playbooks/"):
                await job.take_playbook(path, text)
            else:
                await job.take_document(path, text)
        except Conflict as error:
            done.conflicts.append(f"{path}: {error.message}")
        except PatternError as error:
            done.skipped.append(f"{path}: {error.message}")
    if not is_dry and (done.added or done.updated):
        row = done.audit(storage, ".delia", playbooks.VERSION, system=SYSTEM, workspace=delia.workspace)
        await storage.database.write(imports.add, row)
    return done


async def export_folder(delia: Delia) -> dict[str, str]:
    """Return the files of a folder `.delia` for a workspace, by their paths in it."""
    files, by_type = dict[str, str](), defaultdict[str, dict[str, GuidanceRow]](dict)
    for row in await delia.constellation.guidance.select(delia.workspace, tuple(GuidanceState)):
        by_type[row.task_type][row.id] = row
    stored = defaultdict[str, list[ExternalRef]](list)
    for ref in await delia.refs(PLAYBOOK):
        stored[ref.raw["name"]].append(ref)
    for name in sorted({*by_type, *stored}):
        text = _written(name, by_type[name], stored[name])
        if text is not None:
            files[f"playbooks/{name}.json"] = text
    return {**files, **{path: text for path, (_, text) in (await delia.documents()).items()}}


def _written(name: str, rows: Mapping[str, GuidanceRow], refs: Sequence[ExternalRef]) -> str | None:
    """Return the playbook of a type of task; None if there is none."""
    books = [playbooks.opened(ref.raw["text"]) for ref in refs]
    before = [pair for ref in refs for pair in zip(*_stored(ref), strict=True)]
    listed, bullets = {own for _, own in before}, list[Any]()
    for raw, own in before:
        row = rows.get(own or "")
        if own is None or (row is not None and row.state not in GONE):
            bullets.append(raw if row is None else playbooks.changed(raw, name, row))
    bullets += [
        playbooks.made(row)
        for row in sorted(rows.values(), key=lambda row: row.id)
        if row.id not in listed and row.state is GuidanceState.ACTIVE
    ]
    if len(books) == 1 and books[0].version > 1 and bullets == [raw for raw, _ in before]:
        return str(refs[0].raw["text"])
    if not bullets and not books:
        return None
    if any(book.version == 1 for book in books):
        bullets = [playbooks.current(raw, name) for raw in bullets]
    newest = max((time for row in rows.values() for time in (row.updated_at, row.last_used_at or "")), default="")
    return playbooks.written(books[0].document if books else {}, name, bullets, newest or "1970-01-01T00:00:00.000Z")


def _stored(ref: ExternalRef) -> tuple[Sequence[Any], Sequence[str | None]]:
    """Return the bullets of a stored file, and the ids of what they became (None: they are invalid)."""
    return playbooks.opened(ref.raw["text"]).bullets, ref.raw["ids"]


def _keyed(bullets: Sequence[Any], ids: Sequence[str | None]) -> Iterator[tuple[tuple[str, int], Any, str | None]]:
    """Yield bullets with what each is known by in its file: its id, else all of it; equal ones are numbered."""
    seen = Counter[str]()
    for raw, own in zip(bullets, ids, strict=True):
        name = raw.get("id") if isinstance(raw, dict) else None
        key = name if isinstance(name, str) and name else to_json(raw)
        seen[key] += 1
        yield (key, seen[key]), raw, own


def _next(refs: Sequence[ExternalRef]) -> int:
    return 1 + max((ref.number for ref in refs), default=0)


def _digest(text: str) -> str:
    return blake2b(masked(text).encode(), digest_size=16).hexdigest()

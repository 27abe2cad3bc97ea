"""Memory blocks as files in a folder, and the rounds that bring both sides together: `pattern memory sync`.

Of each block `.pattern-sync/state.json` has the version that its file was last the same as, and the text of the file
that is in the block: what the file says beyond that are a person's changes, what the block says beyond it are others'.
Both are merged by the functions of the server. A round may be cut off anywhere; the next one finds out what is done.

No step destroys text. A file that is deleted or emptied is written again, a text that cannot be merged is kept next to
its file, and the file of a block that is gone is moved to `.pattern-sync/removed`. Links are not followed.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import TypeAlias
from urllib.parse import unquote

import trio

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.memory.block import check_label
from pattern_db import files as durable
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_db.errors import OwnedElsewhere
from pattern_db.files import DataDirLock
from pattern_server.cli.client import Json, ServerFailed
from pattern_server.cli.command import Home
from pattern_server.cli.memory_edits import CHANGED_MEANWHILE
from pattern_server.cli.memory_texts import ending_of, file_name, like, merged, read_text, text_of

OWN, STATE_FILE = ".pattern-sync", "state.json"
FILE_BYTES_MAX = 8 * 1024 * 1024  # twice what the largest block may need in UTF-8
SETTLE_S = 0.4  # an editor that saves in several strokes is through by then
DOUBTFUL_SETTLE_S = 2.0  # for a file that is missing, empty or far shorter: it may be in the middle of being saved
SHRINK_CHARS = 200  # losing this much of a text, and more than half of it, is doubtful
PAST_MAX = 50  # versions in which a file's text is looked for
_ALL: Json = {"id": EVERYONE, "name": EVERYONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorEvent:
    """Something that the mirror did, or refused: `path` is relative to the folder, `note` words for a person. `did` is
    one of write, push, aside, retire and refuse.
    """

    path: str
    did: str
    note: str = ""
    version: int | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState:
    """What a file and its block had in common. `sent` is the file's text if that is on its way into the block."""

    path: str
    version: int
    text: str
    sent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredBlock:
    """A block as a file: its place in the API, its path below the folder, the text that belongs there, and what is
    wrong if it cannot be opened.
    """

    id: str
    place: tuple[str, ...]
    path: str
    version: int
    text: str
    damaged: str | None


Tell: TypeAlias = Callable[[MirrorEvent], None]


def is_passing(error: ServerFailed) -> bool:
    """Return whether the refusal is not about what was asked: the server is in trouble, or does not know us just
    now.
    """
    return error.status >= 500 or error.status in (401, 403, 408, 429)


class Mirror:
    """A folder that is kept the same as blocks of a constellation; each round may go through another connection.

    After a round `skipped` has the paths that wait for a person, and `is_unsettled` says whether a file is still
    changing and must be checked again. With `is_dry` it only reports what would be done. Made by `opened`.
    """

    def __init__(self, root: Path, constellation: str, tell: Tell, *, is_dry: bool = False) -> None:
        self.skipped: set[str] = set()
        self.is_unsettled = False
        self._home: Home
        self._root = root
        self._constellation = constellation
        self._tell = tell
        self._is_dry = is_dry
        self._states = self._stored()
        if not is_dry:
            self._store()
        self._seen: dict[str, tuple[object, float]] = {}  # since when each file has been as it is
        self._refused: dict[str, object] = {}  # what was refused of each file: asked again, it would be again

    async def round(self, home: Home, names: Sequence[str]) -> None:
        """Look at both sides once and bring them together, for the agents with these names, or for all.

        Raises:
            ServerFailed: the server refused what any client may ask, or knows no such agent.
            ServerUnreachable: it did not answer; the next round continues where this one stopped.
            OSError: the disk failed.
        """
        self._home = home
        self.skipped.clear()
        self.is_unsettled = False
        owners = {file_name(name, owner): owner for name, owner in (await owners_of(home, names)).items()}
        blocks = await self._blocks(owners)
        endings = {block.id: _suffix(block.path) for block in blocks}
        for block_id, state in [*self._states.items()]:
            # What other runs mirror into the same folder is left alone. With another ending, the block became another
            # kind of document, and the file says nothing about it.
            if endings.get(block_id) != _suffix(state.path) and state.path.partition("/")[0] in owners:
                await self._attempt(state.path, partial(self._lose, block_id, state))
        for block in blocks:
            await self._attempt(block.path, partial(self._keep, block))
        taken = {block.path for block in blocks} | {state.path for state in self._states.values()}
        for path in [*self._files()]:
            owner = owners.get(path.partition("/")[0])
            if owner is not None and path.endswith(".md") and path not in taken:
                await self._attempt(path, partial(self._take, path, owner))

    async def _blocks(self, owners: Mapping[str, str]) -> list[MirroredBlock]:
        """Return the blocks of these owners, by their folders."""
        made: dict[str, MirroredBlock] = {}
        for folder, owner in owners.items():
            for row in await self._home.pages("agents", owner, "memory"):
                if row["agent_id"] == owner:  # those that it only sees are in their owners' folders
                    path = f"{folder}/{file_name(row['label'], row['id'])}{ending_of(row)}"
                    if path.casefold() in made:  # some disks do not know upper and lower case
                        path = f"{folder}/{row['id']}{ending_of(row)}"
                    made[path.casefold()] = _block(row, path)
        return [*made.values()]

    async def _attempt(self, path: str, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step; a file that cannot be read stays as it is."""
        try:
            await step()
        except InvalidInput as error:
            self._refuse(path, error.message, error.message)

    async def _keep(self, block: MirroredBlock) -> None:
        """Bring one block and its file together."""
        if block.damaged is not None:
            raise InvalidInput(f"the block is damaged ({block.damaged}); its file is not changed")
        if block.id in self._states and _suffix(self._states[block.id].path) != _suffix(block.path):
            return  # its former file is still changing
        state = await self._state_of(block)
        path = block.path if state is None else state.path
        local = self._read(path)
        mine = None if local is None else like(local, block.text)
        if mine == block.text:
            self._refused.pop(path, None)
            self._put(block.id, SyncState(path=path, version=block.version, text=block.text))
            return
        mine = local if local is None or state is None else like(local, state.text)
        if mine == (None if state is None else state.text):
            self._write(block, path, local)
        elif not self._is_at_rest(path, "" if state is None else state.text, mine):
            pass
        elif mine is None or not mine.strip():
            how = "deleted" if mine is None else "emptied, probably by mistake"
            note = f"the file was {how}; restored, because the block still exists"
            self._write(block, path, local, note if state is not None and block.text.strip() else "")
        elif (known := await self._arrived(block, path, state, mine)) is not None:
            self._put(block.id, known)
            self._write(block, path, local)
        elif state is None:
            self._set_aside(block.id, path, "the file and its block have no common version, so they cannot be merged")
            self._write(block, path, None)
        elif path.endswith(".jsonl"):
            self._set_aside(block.id, path, "a log is kept by the system and cannot be edited")
            self._write(block, path, None)
        else:
            await self._push(block, state, local, mine)

    async def _state_of(self, block: MirroredBlock) -> SyncState | None:
        """Return what the block and its file had in common; the file has the block's present name then, if possible."""
        state = self._states.get(block.id)
        if state is None or block.version < state.version:  # the second: the server was restored from a backup
            return None
        if state.path != block.path and not self._is_dry:
            target = self._root / block.path
            if target.exists() or target.is_symlink():
                self._refuse(state.path, block.path, f"its name is now {block.path}, but another file has this name")
            else:
                self._rename(state.path, target)
                state = replace(state, path=block.path)
        if state.sent is not None:
            state = await self._arrived(block, state.path, state, state.sent) or replace(state, sent=None)
        self._put(block.id, state)
        return state

    async def _arrived(self, block: MirroredBlock, path: str, state: SyncState | None, mine: str) -> SyncState | None:
        """Return the state for a file's text that the block has had, as one of its versions, or as a change that was
        sent before a run or the server died; None if it has not had it.
        """
        oldest = max(0, block.version - PAST_MAX) if state is None else state.version
        later = block.text
        for version in range(block.version - 1, oldest - 1, -1):
            text = await self._text_at(block, version)
            if text is None:
                break
            if state and later != text and merged(_suffix(path), state.text, mine, text) == later:
                return SyncState(path=path, version=version + 1, text=mine)
            if like(mine, text) == text:
                return SyncState(path=path, version=version, text=text)
            later = text
        return None

    async def _text_at(self, block: MirroredBlock, version: int) -> str | None:
        """Return the block's text as it was at a version; None if that is not kept."""
        try:
            row = await self._home.get(*block.place, version=version)
        except ServerFailed as error:
            if error.status >= 500:
                raise
            return None
        return text_of(row) if row["version"] == version else None

    async def _push(self, block: MirroredBlock, state: SyncState, local: str | None, mine: str) -> None:
        """Put the file's text into the block, merged with what others changed; then the file gets what came of it."""
        path, ending = state.path, _suffix(state.path)
        if self._refused.get(path) == (mine, block.version):
            self.skipped.add(path)
            return
        text = merged(ending, state.text, mine, block.text)
        if text == block.text:  # others made the same changes
            self._write(block, path, local)
            return
        note = _shrunk(state.text, mine) if text == mine else "merged with what others changed"
        if self._is_dry:
            self._tell(MirrorEvent(path=path, did="push", note=note))
            return
        self._put(block.id, replace(state, sent=mine))
        body = {"content": text} if ending == ".md" else {"value": json.loads(text)}
        try:
            row = await self._home.call("PUT", *block.place, body=body, headers={"If-Match": f'"{block.version}"'})
        except ServerFailed as error:
            if is_passing(error):
                raise  # it may have been done, or may be done in a moment: `sent` stays
            self._put(block.id, state)
            if error.status == CHANGED_MEANWHILE:
                self.is_unsettled = True
            else:
                self._refuse(path, (mine, block.version), error.message)
            return
        changed = _block(row, path)
        self._put(block.id, SyncState(path=path, version=changed.version, text=mine))
        self._refused.pop(path, None)
        self._tell(MirrorEvent(path=path, did="push", note=note, version=changed.version))
        if changed.text != mine:
            self._write(changed, path, local)

    async def _take(self, path: str, owner: str) -> None:
        """Make a block of a new file."""
        local = self._read(path) or ""
        label = check_label(unquote(PurePosixPath(path).stem))
        if self._refused.get(path) == local:
            self.skipped.add(path)
        if self._refused.get(path) == local or not local.strip():  # an empty file is about to be filled
            return
        if self._is_dry:
            self._tell(MirrorEvent(path=path, did="push", note="a new block"))
        elif self._is_at_rest(path, "", local):
            text, place = like(local, "\n"), ("agents", owner, "memory", label)
            try:  # refused if the owner sees a block of that label already
                row = await self._home.call("PUT", *place, body={"content": text}, headers={"If-None-Match": "*"})
            except ServerFailed as error:
                if is_passing(error):
                    raise
                self._refuse(path, local, error.message)
                self.is_unsettled |= error.status == CHANGED_MEANWHILE  # it may have been made a moment ago
                return
            self._put(row["id"], SyncState(path=path, version=row["version"], text=text))
            self._refused.pop(path, None)
            self._tell(MirrorEvent(path=path, did="push", note="a new block", version=row["version"]))

    async def _lose(self, block_id: str, state: SyncState) -> None:
        """Deal with a block that is gone: its file leaves, or gets another name if it has a person's own words."""
        local = self._read(state.path)
        if local is None:
            self._put(block_id, None)
        elif local.strip() and like(local, state.text) != state.text:
            if self._is_at_rest(state.path, state.text, local):
                self._set_aside(block_id, state.path, "the block was deleted while you edited its file")
        else:
            self._tell(MirrorEvent(path=state.path, did="retire", note="the block was deleted"))
            if not self._is_dry:
                folder = self._root / OWN / "removed"
                folder.mkdir(exist_ok=True)
                self._rename(state.path, folder / state.path.replace("/", "%2F"))
            self._put(block_id, None)

    # The folder

    def _files(self) -> Iterator[str]:
        """Yield the paths of all plain files in its folders, in order; hidden ones are passed over."""
        for file in sorted(self._root.glob("[!.]*/[!.#]*")):
            if file.is_file() and not file.is_symlink() and not file.parent.is_symlink():
                yield unicodedata.normalize("NFC", f"{file.parent.name}/{file.name}")

    def _read(self, path: str) -> str | None:
        """Return the text of a file; None if there is none.

        Raises:
            InvalidInput: it is not a plain file, or has no text.
        """
        target = self._root / path
        if target.parent.is_symlink() or target.is_symlink():
            raise InvalidInput("it is a symbolic link, which is not followed; put a plain file there")
        try:
            found = target.stat()
            if not S_ISREG(found.st_mode):
                raise InvalidInput("it is not a plain file; put one there")
            if found.st_size > FILE_BYTES_MAX:
                raise InvalidInput(f"it is larger than any block can be ({found.st_size:,} bytes); make it shorter")
            raw = target.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InvalidInput(f"it cannot be read: {error.strerror}") from None
        return read_text(raw, _suffix(path))

    def _is_at_rest(self, path: str, before: str, now: str | None) -> bool:
        """Return whether the file has been the same for a moment: one is taken only when it was saved completely."""
        try:
            found = (self._root / path).lstat()
            signature = found.st_ino, found.st_size, found.st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            signature = None
        if path not in self._seen or self._seen[path][0] != signature:
            self._seen[path] = signature, trio.current_time()
        is_doubtful = not (now or "").strip() or _shrunk(before, now or "")
        is_at_rest = trio.current_time() - self._seen[path][1] >= (DOUBTFUL_SETTLE_S if is_doubtful else SETTLE_S)
        self.is_unsettled |= not is_at_rest
        return is_at_rest

    def _write(self, block: MirroredBlock, path: str, expected: str | None, note: str = "") -> None:
        """Put the block's text into its file, unless that has changed since it was read."""
        if not self._is_dry:
            target = self._root / path
            with durable.temporary(target) as fresh:
                end = "\n" * (block.text[-1:] not in ("", "\n"))  # as editors want it
                fresh.write_text(block.text + end, encoding="utf-8", newline="")
                fresh.chmod(0o444 if path.endswith(".jsonl") else 0o644)
                durable.sync(fresh)  # which takes long; after the look only the name changes
                if self._read(path) != expected:
                    self.is_unsettled = True
                    return
                durable.replace(fresh, target)
            self._refused.pop(path, None)
            self._put(block.id, SyncState(path=path, version=block.version, text=block.text))
        self._tell(MirrorEvent(path=path, did="write", note=note, version=block.version))

    def _set_aside(self, block_id: str, path: str, note: str) -> None:
        """Keep what a file says as `NAME.yours.txt`, or under the next free such name, for a person to look at."""
        target = self._root / path
        names = (target.with_name(f"{target.name}.yours{f'-{no}' * (no > 1)}.txt") for no in count(1))
        kept = next(name for name in names if not name.exists() and not name.is_symlink())
        self.skipped.add(path)
        self._tell(MirrorEvent(path=path, did="aside", note=f"{note}; it is kept in {kept.name}", skipped=True))
        # The state goes first: with it, a file that is missing would count as deleted by a person.
        self._put(block_id, None)
        if not self._is_dry:
            self._rename(path, kept)

    def _rename(self, path: str, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (self._root / path).rename(target)
        with suppress(OSError):  # not empty, most often
            (self._root / path).parent.rmdir()

    def _refuse(self, path: str, what: object, note: str) -> None:
        """Leave a file as it is and say why, once for `what` is refused."""
        self.skipped.add(path)
        if self._refused.get(path) != what:
            self._refused[path] = what
            self._tell(MirrorEvent(path=path, did="refuse", note=note, skipped=True))

    # What both sides had in common

    def _stored(self) -> dict[str, SyncState]:
        try:
            found = json.loads((self._root / OWN / STATE_FILE).read_bytes())
            states = {block_id: SyncState(**state) for block_id, state in found["blocks"].items()}
            mirrored = found["constellation"]
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError):
            self._tell(MirrorEvent(path=f"{OWN}/{STATE_FILE}", did="write", note="it was damaged and is made again"))
            return {}
        if mirrored != self._constellation:
            raise Conflict(f"{self._root} mirrors another constellation ({mirrored}); choose another folder")
        return states

    def _put(self, block_id: str, state: SyncState | None) -> None:
        """Store what a block and its file had in common, None to forget it, before the next step."""
        if state == self._states.get(block_id):
            return
        if state is None:
            del self._states[block_id]
        else:
            self._states[block_id] = state
        if not self._is_dry:
            self._store()

    def _store(self) -> None:
        blocks = {block_id: asdict(state) for block_id, state in self._states.items()}
        stored = {"constellation": self._constellation, "blocks": blocks}
        with durable.written(self._root / OWN / STATE_FILE) as fresh:
            fresh.write_text(json.dumps(stored, ensure_ascii=False), encoding="utf-8")


def _shrunk(before: str, after: str) -> str:
    lost = len(before) - len(after)
    if lost < SHRINK_CHARS or lost * 2 < len(before):
        return ""
    return f"from {len(before):,} to {len(after):,} characters; `pattern memory undo` reverts this"


async def owners_of(home: Home, names: Sequence[str]) -> dict[str, str]:
    """Return the ids of the agents with these names or ids, by name; of all active ones, and of the constellation, if
    none are given.
    """
    if names:
        rows = [_ALL if name == EVERYONE else await home.get("agents", name) for name in names]
    else:
        rows = [row for row in await home.pages("agents") if row["status"] != "archived"] + [_ALL]
    return {row["name"]: row["id"] for row in rows}


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix


def _block(row: Json, path: str) -> MirroredBlock:
    return MirroredBlock(
        id=row["id"],
        place=("agents", row["agent_id"], "memory", row["label"]),
        path=path,
        version=int(row["version"]),
        text=text_of(row),
        damaged=row.get("damaged"),
    )


@contextmanager
def opened(root: Path, constellation: str, tell: Tell, *, is_dry: bool = False) -> Iterator[Mirror]:
    """Yield the folder, made if it is missing, as the mirror of a constellation (an id); held until the end.

    Raises:
        Conflict: another process mirrors into it, or it mirrors another constellation.
        InvalidInput: it is a file.
        OSError: the disk does not allow it.
    """
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{root} is a file; give a folder")
    if is_dry:
        yield Mirror(root, constellation, tell, is_dry=True)
        return
    own = root / OWN
    own.mkdir(parents=True, exist_ok=True)
    try:
        lock = DataDirLock.acquire(own)
    except OwnedElsewhere:
        raise Conflict(f"another `pattern memory sync` uses {root}; stop it, or choose another folder") from None
    with lock:
        yield Mirror(root, constellation, tell)

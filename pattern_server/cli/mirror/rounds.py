"""A mirrored folder from its opening to its closing: looks at both sides, and the steps that bring them together.

What the mirror does is reported once, to its caller, and next to the file that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.memory.block import check_label
from pattern_db.errors import OwnedElsewhere
from pattern_db.files import DataDirLock
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.mirror.content import Form, distinct_names, file_name, like, merged, plain_name
from pattern_server.cli.mirror.disk import OWN, Disk, Signature, States, claim, form_at
from pattern_server.cli.mirror.plan import (
    Action,
    Do,
    Known,
    Local,
    Sent,
    decide,
    is_doubtful,
    recognised,
    resolved,
    settled,
)
from pattern_server.cli.mirror.remote import Block, Memory, Owner

SETTLE_S = 0.4  # an editor that saves in several strokes is through by then
DOUBTFUL_SETTLE_S = 2.0  # for a file that is missing, empty or far shorter: it may be in the middle of being saved


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorEvent:
    """Something that the mirror did, or refused: `path` is relative to the folder, `note` words for a person."""

    path: str
    did: Do
    note: str = ""
    version: int | None = None
    skipped: bool = False


Tell = Callable[[MirrorEvent], None]


class MirrorReport:
    """The events of a mirror, and the files that were refused as they are.

    Raises (all methods):
        OSError: a reason could not be written next to its file.
    """

    def __init__(self, disk: Disk, tell: Tell, *, is_dry: bool) -> None:
        self._disk = disk
        self._tell = tell
        self._is_dry = is_dry
        self._refused: dict[str, tuple[Local, int, str]] = {}
        self.skipped: set[str] = set()  # in this round

    def done(self, path: str, did: Do, note: str = "", version: int | None = None) -> None:
        """Report a step that was taken."""
        if did not in (Do.NOTHING, Do.FORGET, Do.ASK) and (did is not Do.REMEMBER or note):
            self._tell(MirrorEvent(path=path, did=did, note=note, version=version))

    def skip(self, path: str, did: Do, note: str) -> None:
        """Report a step that leaves something for a person to do."""
        self.skipped.add(path)
        self._tell(MirrorEvent(path=path, did=did, note=note, skipped=True))

    def refuse(self, path: str, local: Local, note: str, *, version: int = 0) -> None:
        """Leave a file as it is and say why, once for each content of it and version of its block."""
        self.skipped.add(path)
        before, self._refused[path] = self._refused.get(path), (local, version, note)
        if before == (local, version, note):
            return
        if not self._is_dry:
            self._disk.explain(path, note)
        self.skip(path, Do.REFUSE, note)

    def has_refused(self, path: str, local: Local, *, version: int = 0) -> bool:
        """Return whether just this was refused already: asking again would only bring the same answer."""
        if self._refused.get(path, (None, 0))[:2] != (local, version):
            return False
        self.skipped.add(path)
        return True

    def accept(self, path: str) -> None:
        """Note that a file is as it should be: remove a reason next to it."""
        self._refused.pop(path, None)
        if not self._is_dry:
            self._disk.explain(path, None)


STEPS_MAX = 8  # for one block in one round; a block that changes all the time waits for the next round
VANISHED_MIN = 2  # so many files of a folder gone at once, and none left, are a folder that is gone, not a decision
CHANGED_MEANWHILE = 412


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How to mirror. `deletes`: a deleted file takes its block with it. `is_dry`: only report what would be done."""

    deletes: bool = False
    is_dry: bool = False


def is_passing(error: ServerFailed) -> bool:
    """Return whether the refusal is not about what was asked: the server is in trouble, or does not know us just
    now.
    """
    return error.status >= 500 or error.status in (401, 403, 408, 429)


def _is_untouched(known: Known | None, local: Local) -> bool:
    """Return whether the file is as it was when both sides were last the same, so that no save is running."""
    if known is None:
        return local.text is None and local.problem is None
    return known.sent is not None or (local.text is not None and like(local.text, known.text) == known.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """What a round came to: the paths that wait for a person, and whether to look again in a moment."""

    skipped: Sequence[str]
    is_unsettled: bool


class Mirror:
    """One folder that is kept the same as blocks; each round may go through another connection."""

    def __init__(self, root: Path, rules: Rules, tell: Tell) -> None:
        self._memory: Memory
        self._disk = Disk(root)
        self._rules = rules
        self._report = MirrorReport(self._disk, tell, is_dry=rules.is_dry)
        self._seen: dict[str, tuple[Signature | None, float]] = {}  # since when each file has been as it is
        self._is_unsettled = False  # in this round: some file is still changing and must be checked again
        self._states = States(root / OWN / "blocks", is_dry=rules.is_dry)
        for name in self._states.unreadable:
            tell(MirrorEvent(path=f"{OWN}/blocks/{name}", did=Do.FORGET, note="it was damaged and is made again"))

    async def round(self, memory: Memory, names: Sequence[str]) -> RoundOutcome:
        """Look at both sides once and bring them together, for the agents with these names, or for all.

        Raises:
            ServerFailed: the server refused what any client may ask, or knows no such agent.
            ServerUnreachable: it did not answer; the next round continues where this one stopped.
            OSError: the disk failed.
        """
        self._memory = memory
        self._report.skipped.clear()
        self._is_unsettled = False
        owners = await memory.owners(names)
        await self._take_new_files(owners, await self._look(owners))
        return RoundOutcome(skipped=sorted(self._report.skipped), is_unsettled=self._is_unsettled)

    async def _look(self, owners: Sequence[Owner]) -> set[str]:
        """Look at every block of these owners once; the paths where their files belong."""
        blocks = {block.id: block for owner in owners for block in await self._memory.blocks(owner)}
        vanished = self._vanished_folders()
        folders = distinct_names(owner.name for owner in owners)
        for known in self._states:
            # What other runs mirror into the same folder is left alone.
            if known.block_id not in blocks and known.path.split("/")[0] in folders.values():
                self._lose(known)
        paths = self._paths(blocks.values(), folders)
        for block in blocks.values():
            folder = paths[block.id].split("/")[0]
            await self._keep(block, paths[block.id], is_deletable=folder not in vanished)
        return set(paths.values()) | {known.path for known in self._states}

    def _is_at_rest(self, path: str, known: Known | None, local: Local) -> bool:
        """Return whether the file has been the same for a moment: one is taken only when it was saved completely."""
        wanted = DOUBTFUL_SETTLE_S if is_doubtful(known, local) else SETTLE_S
        signature, now = self._disk.signature(path), trio.current_time()
        if path not in self._seen or self._seen[path][0] != signature:
            self._seen[path] = (signature, now)
        if now - self._seen[path][1] < wanted:
            self._is_unsettled = True
            return False
        return True

    def _vanished_folders(self) -> set[str]:
        gone: dict[str, list[bool]] = {}
        for known in self._states:
            is_gone = self._disk.signature(known.path) is None
            gone.setdefault(known.path.split("/")[0], []).append(is_gone)
        return {folder for folder, files in gone.items() if len(files) >= VANISHED_MIN and all(files)}

    def _paths(self, blocks: Iterable[Block], folders: dict[str, str]) -> dict[str, str]:
        """Return where each block's file belongs: `agent/label.md`, by the block's id. A block keeps the name it
        has.
        """
        labels: dict[str, list[Block]] = {}
        for block in blocks:
            labels.setdefault(folders[block.owner.name], []).append(block)
        found: dict[str, str] = {}
        for folder, mine in labels.items():
            taken = {block.label: name for block in mine if (name := self._present_name(block, folder)) is not None}
            names = distinct_names((block.label for block in mine), taken)
            found |= {block.id: f"{folder}/{names[block.label]}.{block.remote.form.value}" for block in mine}
        return found

    def _present_name(self, block: Block, folder: str) -> str | None:
        known, name = self._states.get(block.id), file_name(block.label)
        return name if known is not None and known.path == f"{folder}/{name}.{block.remote.form.value}" else None

    def _lose(self, known: Known) -> None:
        """Deal with a block that is gone: its file leaves, or stays under another name if it holds a person's own
        words.
        """
        local = self._disk.read(known.path)
        known = settled(replace(known, sent=None), local)
        action = decide(known, local, None, merge=merged)
        if action.do is Do.ASIDE:
            if self._is_at_rest(known.path, known, local):
                self._set_aside(known.block_id, known.path, action.note)
            return
        self._report.done(known.path, action.do, action.note)
        if self._rules.is_dry:
            return
        if action.do is Do.RETIRE:
            self._disk.retire(known.path)
        self._states.forget(known.block_id)

    async def _keep(self, block: Block, path: str, *, is_deletable: bool) -> None:
        """Bring one block and its file together, step by step."""
        if block.damaged is not None:
            self._report.refuse(path, Local(), f"the block is damaged ({block.damaged}); its file is not changed")
            return
        known = self._states.get(block.id)
        if known is not None and form_at(known.path) is not block.remote.form:
            self._lose(known)  # it became another kind of document: the old file says nothing about it
            if self._states.get(block.id) is not None:
                return
        deletes = self._rules.deletes and is_deletable
        for _ in range(STEPS_MAX):
            known = self._states.get(block.id)
            at = path if known is None else known.path
            local = self._disk.read(at)
            known = None if known is None else settled(known, local)
            action = decide(known, local, block.remote, merge=merged, deletes=deletes)
            if action.do is Do.NOTHING:
                self._report.accept(at)
                self._move(block, path)
                return
            if not _is_untouched(known, local) and not self._is_at_rest(at, known, local):
                return
            next_block = await self._step(block, at, known, local, action)
            if next_block is None:
                return
            block = next_block
        self._is_unsettled = True

    async def _step(self, block: Block, path: str, known: Known | None, local: Local, action: Action) -> Block | None:
        """Carry out one step; return the block to continue with, or None where this round ends for it."""
        if self._rules.is_dry and action.do in (Do.WRITE, Do.PUSH, Do.DELETE):
            self._report.done(path, action.do, action.note)
            return None
        match action.do:
            case Do.REMEMBER:
                version = block.remote.version
                self._states.put(Known(block_id=block.id, path=path, version=version, text=action.text))
                return block
            case Do.WRITE:
                return self._write(block, path, known, local, action.note)
            case Do.PUSH if known is not None:
                return await self._push(block, known, local, action)
            case Do.ASIDE:
                return self._set_aside(block.id, path, action.note, block)
            case Do.DELETE:
                return await self._delete(block, path)
            case Do.ASK if known is not None and known.sent is not None:
                return await self._resolve(block, known, known.sent)
            case Do.ASK:
                return await self._recognise(block, path, local.text or "")
        self._report.refuse(path, local, action.note, version=block.remote.version)
        return None

    def _write(self, block: Block, path: str, known: Known | None, local: Local, note: str) -> Block | None:
        text, version = block.remote.text, block.remote.version
        if known is not None:  # a new file needs no mark: it has no state, and says what the block says
            self._states.put(replace(known, incoming=(version, text)), is_durable=True)
        if not self._disk.write(path, text, expected=local, is_locked=block.remote.locked is not None):
            self._is_unsettled = True
            return None
        self._states.put(Known(block_id=block.id, path=path, version=version, text=text))
        self._report.done(path, Do.WRITE, note, version)
        return block

    async def _push(self, block: Block, known: Known, local: Local, action: Action) -> Block | None:
        version = block.remote.version
        if self._report.has_refused(known.path, local, version=version):
            return None
        sent = Sent(text=action.text, version=version, local=action.local)
        self._states.put(replace(known, sent=sent), is_durable=True)
        try:
            changed = await self._memory.put(block, action.text)
        except ServerFailed as error:
            if is_passing(error):
                raise  # it may have been done, or may be done in a moment: `sent` stays
            self._states.put(replace(known, sent=None))
            if error.status == CHANGED_MEANWHILE:
                return await self._memory.block(block)
            self._report.refuse(known.path, local, error.message, version=version)
            return None
        version = changed.remote.version
        self._states.put(replace(known, version=version, text=action.local), is_durable=True)
        self._report.done(known.path, Do.PUSH, action.note, version)
        return changed

    def _set_aside(self, block_id: str, path: str, note: str, block: Block | None = None) -> Block | None:
        if self._rules.is_dry:
            self._report.skip(path, Do.ASIDE, note)
            return None
        # The state goes first: with it, a file that is missing would count as deleted by a person.
        self._states.forget(block_id)
        kept = self._disk.set_aside(path)
        self._report.skip(path, Do.ASIDE, f"{note}; what the file said is in {kept}" if kept else note)
        return block

    async def _delete(self, block: Block, path: str) -> Block | None:
        try:
            await self._memory.delete(block)
        except ServerFailed as error:
            if error.status != CHANGED_MEANWHILE:
                raise
            return await self._memory.block(block)
        self._states.forget(block.id)
        self._report.accept(path)
        self._report.done(path, Do.DELETE, "its file was deleted", block.remote.version)
        return None

    async def _resolve(self, block: Block, known: Known, sent: Sent) -> Block:
        """Find out whether a text that was on its way when a run died has arrived."""
        version, now = sent.version + 1, block.remote.version
        text = block.remote.text if version == now else await self._memory.text_at(block, version)
        self._states.put(resolved(known, text, now_version=now), is_durable=True)
        return block

    async def _recognise(self, block: Block, path: str, local: str) -> Block | None:
        """Find out whether a file without a state is an earlier version of its block."""
        found = recognised(block.id, path, local, await self._memory.past(block))
        if found is not None:
            self._states.put(found)
            return block
        note = "the file and its block have no common version, so they cannot be merged"
        return self._set_aside(block.id, path, note, block)

    def _move(self, block: Block, path: str) -> None:
        """Let the file have the block's present name, if the agent or the block was renamed."""
        known = self._states.get(block.id)
        if known is None or known.path == path or self._rules.is_dry:
            return
        if not self._disk.move(known.path, path):
            self._report.refuse(known.path, Local(), f"its name is now {path}, but another file has this name")
            return
        self._states.put(replace(known, path=path))
        self._report.done(path, Do.REMEMBER, f"was {known.path}")

    async def _take_new_files(self, owners: Sequence[Owner], taken: set[str]) -> None:
        """Create blocks from the Markdown files in these owners' folders, except for the paths in `taken`.

        Raises:
            ServerFailed: the server refused what any client may ask.
            ServerUnreachable: it did not answer; whatever was made is recognised in the next round.
            OSError: the disk failed.
        """
        by_name = {owner.name: owner for owner in owners}
        by_folder = {written: by_name[name] for name, written in distinct_names(by_name).items()}
        for path in self._disk.files():
            folder, _, file = path.partition("/")
            if path not in taken and folder in by_folder and form_at(path) is Form.TEXT:
                await self._take(path, by_folder[folder], file.removesuffix(f".{Form.TEXT.value}"))

    async def _take(self, path: str, owner: Owner, written: str) -> None:
        local = self._disk.read(path)
        if self._report.has_refused(path, local) or (local.problem is None and not (local.text or "").strip()):
            return  # an empty file is about to be filled
        try:
            label = check_label(plain_name(written) or written)
        except InvalidInput as error:
            self._report.refuse(path, local, error.message)
            return
        if local.problem is not None:
            self._report.refuse(path, local, local.problem)
        elif self._rules.is_dry:
            self._report.done(path, Do.PUSH, "a new block")
        elif self._is_at_rest(path, None, local):
            await self._create(path, owner, label, local)

    async def _create(self, path: str, owner: Owner, label: str, local: Local) -> None:
        text = like(local.text or "", "\n")
        try:
            made = await self._memory.create(owner, label, text)
        except ServerFailed as error:
            if is_passing(error):
                raise
            is_new = error.status == CHANGED_MEANWHILE and label in {b.label for b in await self._memory.blocks(owner)}
            if is_new:  # it was made a moment ago: the next round sees both
                self._is_unsettled = True
            else:
                self._report.refuse(path, local, error.message)
            return
        self._states.put(Known(block_id=made.id, path=path, version=made.remote.version, text=text))
        self._report.accept(path)
        self._report.done(path, Do.PUSH, "a new block", made.remote.version)


@contextmanager
def opened(root: Path, constellation: str, rules: Rules, tell: Tell) -> Iterator[Mirror]:
    """Yield the folder, made if it is missing, as the mirror of a constellation (an id); held until the end.

    Raises:
        Conflict: another process mirrors into it, or it mirrors another constellation.
        InvalidInput: it is a file.
        OSError: the disk does not allow it.
    """
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{root} is a file; give a folder")
    if rules.is_dry:
        yield Mirror(root, rules, tell)
        return
    disk = Disk(root)
    own = disk.own()
    try:
        lock = DataDirLock.acquire(own)
    except OwnedElsewhere:
        raise Conflict(f"another `pattern memory sync` uses {root}; stop it, or choose another folder") from None
    with lock:
        claim(own / "constellation", constellation)
        disk.own("blocks")
        disk.clean()
        yield Mirror(root, rules, tell)

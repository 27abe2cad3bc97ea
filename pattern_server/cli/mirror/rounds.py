"""One look at both sides, and the steps that bring them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pattern_server.cli.client import ServerFailed
from pattern_server.cli.mirror.content import like, merged
from pattern_server.cli.mirror.disk import Disk, form_at
from pattern_server.cli.mirror.names import distinct_names, file_name
from pattern_server.cli.mirror.plan import (
    Action,
    Do,
    Known,
    Local,
    Sent,
    decide,
    recognised,
    resolved,
    settled,
)
from pattern_server.cli.mirror.remote import Block, Memory, Owner
from pattern_server.cli.mirror.report import Looks, Report
from pattern_server.cli.mirror.states import States

STEPS_MAX = 8  # steps taken for one block in one round; one that changes all the time waits for the next
VANISHED_MIN = 2  # so many files of a folder gone at once, and none left, are a folder that is gone, not a wish
CHANGED_MEANWHILE = 412


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How to mirror. `deletes`: a deleted file takes its block with it. `is_dry`: only tell what would be done."""

    deletes: bool = False
    is_dry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What the steps of a mirror work with."""

    memory: Memory
    disk: Disk
    states: States
    report: Report
    looks: Looks
    rules: Rules


def is_passing(error: ServerFailed) -> bool:
    """Whether the refusal is not about what was asked: the server is in trouble, or does not know us just now."""
    return error.status >= 500 or error.status in (401, 403, 408, 429)


class Blocks:
    """Keeps the files of blocks, and the blocks of files that it knows, the same.

    Raises (all methods):
        ServerFailed: the server refused what any client may ask.
        ServerUnreachable: it did not answer; the next round goes on where this one stopped.
        OSError: the disk failed.
    """

    def __init__(self, desk: Desk) -> None:
        self._memory = desk.memory
        self._disk = desk.disk
        self._states = desk.states
        self._report = desk.report
        self._looks = desk.looks
        self._rules = desk.rules

    async def look(self, owners: Sequence[Owner]) -> set[str]:
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

    def _vanished_folders(self) -> set[str]:
        gone: dict[str, list[bool]] = {}
        for known in self._states:
            is_gone = self._disk.signature(known.path) is None
            gone.setdefault(known.path.split("/")[0], []).append(is_gone)
        return {folder for folder, files in gone.items() if len(files) >= VANISHED_MIN and all(files)}

    def _paths(self, blocks: Iterable[Block], folders: dict[str, str]) -> dict[str, str]:
        """Where each block's file belongs: `agent/label.md`, by the block's id. A block keeps the name it has."""
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
        """A block that is gone: its file leaves, or stays under another name if it holds a person's own words."""
        local = self._disk.read(known.path)
        known = settled(replace(known, sent=None), local)
        action = decide(known, local, None, merge=merged)
        if action.do is Do.ASIDE:
            if self._looks.is_at_rest(known.path, known, local):
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
            self._report.refuse(path, Local(), f"the block is damaged ({block.damaged}); its file stays as it was")
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
            if not _is_untouched(known, local) and not self._looks.is_at_rest(at, known, local):
                return
            next_block = await self._step(block, at, known, local, action)
            if next_block is None:
                return
            block = next_block
        self._looks.is_unsettled = True

    async def _step(self, block: Block, path: str, known: Known | None, local: Local, action: Action) -> Block | None:
        """Take one step; the block to go on with, or None where this round ends for it."""
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
            self._looks.is_unsettled = True
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
        note = "the file and its block have no past in common, so they could not be merged"
        return self._set_aside(block.id, path, note, block)

    def _move(self, block: Block, path: str) -> None:
        """Let the file have the block's present name, if the agent or the block was renamed."""
        known = self._states.get(block.id)
        if known is None or known.path == path or self._rules.is_dry:
            return
        if not self._disk.move(known.path, path):
            self._report.refuse(known.path, Local(), f"it is called {path} now, and another file stands there")
            return
        self._states.put(replace(known, path=path))
        self._report.done(path, Do.REMEMBER, f"was {known.path}")


def _is_untouched(known: Known | None, local: Local) -> bool:
    """Whether the file is as it was when both sides were last the same, so that nobody can be saving it."""
    if known is None:
        return local.text is None and local.problem is None
    return known.sent is not None or (local.text is not None and like(local.text, known.text) == known.text)

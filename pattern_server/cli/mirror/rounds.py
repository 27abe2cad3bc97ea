"""A mirrored folder from its opening to its closing: looks at both sides, and the steps that bring them together.

What the mirror does is reported once, to its caller, and next to the file that it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.memory.block import check_label
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_db.errors import OwnedElsewhere
from pattern_db.files import DataDirLock
from pattern_server.cli.client import Json, ServerFailed
from pattern_server.cli.command import Home
from pattern_server.cli.mirror.content import (
    Form,
    body_of,
    distinct_names,
    file_name,
    form_of,
    like,
    plain_name,
    text_of,
)
from pattern_server.cli.mirror.disk import OWN, Disk, Signature, States, claim, form_at
from pattern_server.cli.mirror.plan import (
    Action,
    Block,
    Do,
    Known,
    Local,
    Sent,
    decide,
    is_doubtful,
    resolved,
    settled,
)

SETTLE_S = 0.4  # an editor that saves in several strokes is through by then
DOUBTFUL_SETTLE_S = 2.0  # for a file that is missing, empty or far shorter: it may be in the middle of being saved
STEPS_MAX = 8  # for one block in one round; a block that changes all the time waits for the next round
PAST_MAX = 50  # versions searched for a file without a state
CHANGED_MEANWHILE = 412
_ALL: Json = {"id": EVERYONE, "name": EVERYONE}
_KEPT_BY_SYSTEM = "a log is kept by the system and cannot be edited; what you wrote is kept in a file next to it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorEvent:
    """Something that the mirror did, or refused: `path` is relative to the folder, `note` words for a person."""

    path: str
    did: Do
    note: str = ""
    version: int | None = None
    skipped: bool = False


Tell = Callable[[MirrorEvent], None]


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


class Mirror:
    """One folder that is kept the same as blocks; each round may go through another connection.

    After a round `skipped` has the paths that wait for a person, and `is_unsettled` says whether a file is still
    changing and must be checked again. With `is_dry` it only reports what would be done.
    """

    def __init__(self, root: Path, tell: Tell, *, is_dry: bool = False) -> None:
        self._home: Home
        self._disk = Disk(root)
        self._tell = tell
        self._is_dry = is_dry
        self._seen: dict[str, tuple[Signature | None, float]] = {}  # since when each file has been as it is
        self._refused: dict[str, tuple[Local, int, str]] = {}
        self.skipped: set[str] = set()
        self.is_unsettled = False
        self._states = States(root / OWN / "blocks", is_dry=is_dry)
        for name in self._states.unreadable:
            tell(MirrorEvent(path=f"{OWN}/blocks/{name}", did=Do.FORGET, note="it was damaged and is made again"))

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
        owners = await owners_of(home, names)
        folders = distinct_names(owners)
        await self._take_new_files({folders[name]: owners[name] for name in owners}, await self._look(owners, folders))

    async def _look(self, owners: Mapping[str, str], folders: Mapping[str, str]) -> set[str]:
        """Look at every block of these owners once; the paths where their files belong."""
        blocks: dict[str, Block] = {}
        for name, agent_id in owners.items():
            rows = await self._home.pages("agents", agent_id, "memory")
            # Blocks that it only sees are in their owners' folders.
            blocks |= {row["id"]: _block(name, row) for row in rows if row["agent_id"] == agent_id}
        for known in self._states:
            # What other runs mirror into the same folder is left alone.
            if known.block_id not in blocks and known.path.split("/")[0] in folders.values():
                self._lose(known)
        paths = self._paths(blocks.values(), folders)
        for block in blocks.values():
            await self._keep(block, paths[block.id])
        return set(paths.values()) | {known.path for known in self._states}

    def _is_at_rest(self, path: str, known: Known | None, local: Local) -> bool:
        """Return whether the file has been the same for a moment: one is taken only when it was saved completely."""
        wanted = DOUBTFUL_SETTLE_S if is_doubtful(known, local) else SETTLE_S
        signature, now = self._disk.signature(path), trio.current_time()
        if path not in self._seen or self._seen[path][0] != signature:
            self._seen[path] = (signature, now)
        if now - self._seen[path][1] < wanted:
            self.is_unsettled = True
            return False
        return True

    def _paths(self, blocks: Iterable[Block], folders: Mapping[str, str]) -> dict[str, str]:
        """Return where each block's file belongs: `agent/label.md`, by the block's id. A block keeps the name it
        has.
        """
        labels: dict[str, list[Block]] = {}
        for block in blocks:
            labels.setdefault(folders[block.agent], []).append(block)
        found: dict[str, str] = {}
        for folder, mine in labels.items():
            taken = {block.label: name for block in mine if (name := self._present_name(block, folder)) is not None}
            names = distinct_names((block.label for block in mine), taken)
            found |= {block.id: f"{folder}/{names[block.label]}.{block.form.value}" for block in mine}
        return found

    def _present_name(self, block: Block, folder: str) -> str | None:
        known, name = self._states.get(block.id), file_name(block.label)
        return name if known is not None and known.path == f"{folder}/{name}.{block.form.value}" else None

    def _lose(self, known: Known) -> None:
        """Deal with a block that is gone: its file leaves, or stays under another name if it holds a person's own
        words.
        """
        local = self._disk.read(known.path)
        known = settled(replace(known, sent=None), local)
        action = decide(known, local, None)
        if action.do is Do.ASIDE:
            if self._is_at_rest(known.path, known, local):
                self._set_aside(known.block_id, known.path, action.note)
            return
        self._done(known.path, action.do, action.note)
        if self._is_dry:
            return
        if action.do is Do.RETIRE:
            self._disk.retire(known.path)
        self._states.forget(known.block_id)

    async def _keep(self, block: Block, path: str) -> None:
        """Bring one block and its file together, step by step."""
        if block.damaged is not None:
            self._refuse(path, Local(), f"the block is damaged ({block.damaged}); its file is not changed")
            return
        known = self._states.get(block.id)
        if known is not None and form_at(known.path) is not block.form:
            self._lose(known)  # it became another kind of document: the old file says nothing about it
            if self._states.get(block.id) is not None:
                return
        for _ in range(STEPS_MAX):
            known = self._states.get(block.id)
            at = path if known is None else known.path
            local = self._disk.read(at)
            known = None if known is None else settled(known, local)
            action = decide(known, local, block)
            if action.do is Do.NOTHING:
                self._accept(at)
                self._move(block, path)
                return
            if not _is_untouched(known, local) and not self._is_at_rest(at, known, local):
                return
            next_block = await self._step(block, at, known, local, action)
            if next_block is None:
                return
            block = next_block
        self.is_unsettled = True

    async def _step(self, block: Block, path: str, known: Known | None, local: Local, action: Action) -> Block | None:
        """Carry out one step; return the block to continue with, or None where this round ends for it."""
        if self._is_dry and action.do in (Do.WRITE, Do.PUSH):
            self._done(path, action.do, action.note)
            return None
        match action.do:
            case Do.REMEMBER:
                self._states.put(Known(block_id=block.id, path=path, version=block.version, text=action.text))
                return block
            case Do.WRITE:
                return self._write(block, path, known, local, action.note)
            case Do.PUSH if known is not None:
                return await self._push(block, known, local, action)
            case Do.ASIDE:
                return self._set_aside(block.id, path, action.note, block)
            case Do.ASK if known is not None and known.sent is not None:
                return await self._resolve(block, known, known.sent)
            case Do.ASK:
                return await self._recognise(block, path, local.text or "")
        self._refuse(path, local, action.note, version=block.version)
        return None

    def _write(self, block: Block, path: str, known: Known | None, local: Local, note: str) -> Block | None:
        if known is not None:  # a new file needs no mark: it has no state, and says what the block says
            self._states.put(replace(known, incoming=(block.version, block.text)), is_durable=True)
        if not self._disk.write(path, block.text, expected=local, is_locked=block.locked is not None):
            self.is_unsettled = True
            return None
        self._states.put(Known(block_id=block.id, path=path, version=block.version, text=block.text))
        self._done(path, Do.WRITE, note, block.version)
        return block

    async def _push(self, block: Block, known: Known, local: Local, action: Action) -> Block | None:
        if self._has_refused(known.path, local, version=block.version):
            return None
        sent = Sent(text=action.text, version=block.version, local=action.local)
        self._states.put(replace(known, sent=sent), is_durable=True)
        try:
            body, headers = body_of(block.form, action.text), {"If-Match": f'"{block.version}"'}
            row = await self._home.call("PUT", *_place(block), body=body, headers=headers)
        except ServerFailed as error:
            if is_passing(error):
                raise  # it may have been done, or may be done in a moment: `sent` stays
            self._states.put(replace(known, sent=None))
            if error.status == CHANGED_MEANWHILE:
                return _block(block.agent, await self._home.get(*_place(block)))
            self._refuse(known.path, local, error.message, version=block.version)
            return None
        changed = _block(block.agent, row)
        self._states.put(replace(known, version=changed.version, text=action.local), is_durable=True)
        self._done(known.path, Do.PUSH, action.note, changed.version)
        return changed

    def _set_aside(self, block_id: str, path: str, note: str, block: Block | None = None) -> Block | None:
        if self._is_dry:
            self._skip(path, Do.ASIDE, note)
            return None
        # The state goes first: with it, a file that is missing would count as deleted by a person.
        self._states.forget(block_id)
        kept = self._disk.set_aside(path)
        self._skip(path, Do.ASIDE, f"{note}; what the file said is in {kept}" if kept else note)
        return block

    async def _resolve(self, block: Block, known: Known, sent: Sent) -> Block:
        """Find out whether a text that was on its way when a run died has arrived."""
        version = sent.version + 1
        text = block.text if version == block.version else await self._text_at(block, version)
        self._states.put(resolved(known, text, now_version=block.version), is_durable=True)
        return block

    async def _recognise(self, block: Block, path: str, local: str) -> Block | None:
        """Find out whether a file without a state is an earlier version of its block."""
        for version in range(block.version - 1, max(-1, block.version - 1 - PAST_MAX), -1):
            text = await self._text_at(block, version)
            if text is None:
                break
            if like(local, text) == text:
                self._states.put(Known(block_id=block.id, path=path, version=version, text=text))
                return block
        note = "the file and its block have no common version, so they cannot be merged"
        return self._set_aside(block.id, path, note, block)

    async def _text_at(self, block: Block, version: int) -> str | None:
        """Return the block's text as it was at a version; None if that is not kept."""
        try:
            row = await self._home.get(*_place(block), version=version)
        except ServerFailed as error:
            if error.status >= 500:
                raise
            return None
        return text_of(row) if row["version"] == version else None

    def _move(self, block: Block, path: str) -> None:
        """Let the file have the block's present name, if the agent or the block was renamed."""
        known = self._states.get(block.id)
        if known is None or known.path == path or self._is_dry:
            return
        if not self._disk.move(known.path, path):
            self._refuse(known.path, Local(), f"its name is now {path}, but another file has this name")
            return
        self._states.put(replace(known, path=path))
        self._done(path, Do.REMEMBER, f"was {known.path}")

    async def _take_new_files(self, folders: Mapping[str, str], taken: set[str]) -> None:
        """Create blocks from the Markdown files in these folders of owners (by id), except for the paths in `taken`.

        Raises:
            ServerFailed: the server refused what any client may ask.
            ServerUnreachable: it did not answer; whatever was made is recognised in the next round.
            OSError: the disk failed.
        """
        for path in self._disk.files():
            folder, _, file = path.partition("/")
            if path not in taken and folder in folders and form_at(path) is Form.TEXT:
                await self._take(path, folders[folder], file.removesuffix(f".{Form.TEXT.value}"))

    async def _take(self, path: str, agent_id: str, written: str) -> None:
        local = self._disk.read(path)
        if self._has_refused(path, local) or (local.problem is None and not (local.text or "").strip()):
            return  # an empty file is about to be filled
        try:
            label = check_label(plain_name(written) or written)
        except InvalidInput as error:
            self._refuse(path, local, error.message)
            return
        if local.problem is not None:
            self._refuse(path, local, local.problem)
        elif self._is_dry:
            self._done(path, Do.PUSH, "a new block")
        elif self._is_at_rest(path, None, local):
            await self._create(path, agent_id, label, local)

    async def _create(self, path: str, agent_id: str, label: str, local: Local) -> None:
        text, place = like(local.text or "", "\n"), ("agents", agent_id, "memory")
        try:
            # Refused if the owner sees a block of that label already.
            headers = {"If-None-Match": "*"}
            made = await self._home.call("PUT", *place, label, body=body_of(Form.TEXT, text), headers=headers)
        except ServerFailed as error:
            if is_passing(error):
                raise
            rows = await self._home.pages(*place) if error.status == CHANGED_MEANWHILE else []
            if (agent_id, label) in {(row["agent_id"], row["label"]) for row in rows}:
                self.is_unsettled = True  # it was made a moment ago: the next round sees both
            else:
                self._refuse(path, local, error.message)
            return
        self._states.put(Known(block_id=made["id"], path=path, version=int(made["version"]), text=text))
        self._accept(path)
        self._done(path, Do.PUSH, "a new block", int(made["version"]))

    def _done(self, path: str, did: Do, note: str = "", version: int | None = None) -> None:
        """Report a step that was taken."""
        if did not in (Do.NOTHING, Do.FORGET, Do.ASK) and (did is not Do.REMEMBER or note):
            self._tell(MirrorEvent(path=path, did=did, note=note, version=version))

    def _skip(self, path: str, did: Do, note: str) -> None:
        """Report a step that leaves something for a person to do."""
        self.skipped.add(path)
        self._tell(MirrorEvent(path=path, did=did, note=note, skipped=True))

    def _refuse(self, path: str, local: Local, note: str, *, version: int = 0) -> None:
        """Leave a file as it is and say why, once for each content of it and version of its block."""
        self.skipped.add(path)
        before, self._refused[path] = self._refused.get(path), (local, version, note)
        if before == (local, version, note):
            return
        if not self._is_dry:
            self._disk.explain(path, note)
        self._skip(path, Do.REFUSE, note)

    def _has_refused(self, path: str, local: Local, *, version: int = 0) -> bool:
        """Return whether just this was refused already: asking again would only bring the same answer."""
        if self._refused.get(path, (None, 0))[:2] != (local, version):
            return False
        self.skipped.add(path)
        return True

    def _accept(self, path: str) -> None:
        """Note that a file is as it should be: remove a reason next to it."""
        self._refused.pop(path, None)
        if not self._is_dry:
            self._disk.explain(path, None)


async def owners_of(home: Home, names: Sequence[str]) -> dict[str, str]:
    """Return the ids of the agents with these names or ids, by name; of all active ones, and of the constellation, if
    none are given.
    """
    if names:
        rows = [_ALL if name == EVERYONE else await home.get("agents", name) for name in names]
    else:
        rows = [row for row in await home.pages("agents") if row["status"] != "archived"] + [_ALL]
    return {row["name"]: row["id"] for row in rows}


def _place(block: Block) -> tuple[str, ...]:
    return "agents", block.agent_id, "memory", block.label


def _block(agent: str, row: Json) -> Block:
    form = form_of(row)
    return Block(
        id=row["id"],
        agent_id=row["agent_id"],
        agent=agent,
        label=row["label"],
        form=form,
        version=int(row["version"]),
        text=text_of(row),
        locked=_KEPT_BY_SYSTEM if form is Form.LOG else None,
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
        yield Mirror(root, tell, is_dry=True)
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
        yield Mirror(root, tell)

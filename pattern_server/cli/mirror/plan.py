"""What to do next about one file and its block: a pure decision.

The state is what file and block had in common. `Known.text` is what of the file is in the block: whatever the file
says beyond it are a person's changes, whatever the block says beyond it are others'. Every step leaves a state for
which this is true, so it may be interrupted anywhere. Nothing here destroys words: a file that is deleted or emptied is
written again, a text that cannot be merged is set aside, a block that is gone leaves its file behind in another place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum

from pattern_server.cli.mirror.content import Form, like, merged

SHRINK_CHARS = 200  # losing this much of a text, and more than half of it, is worth a remark


class Do(StrEnum):
    """What can be done with a file and its block."""

    NOTHING = "nothing"
    REMEMBER = "remember"  # both sides say the same: only the state changes
    WRITE = "write"  # the block's text into the file
    PUSH = "push"  # a text into the block
    ASIDE = "aside"  # keep the file's text under another name, then write the block's
    RETIRE = "retire"  # the block is gone: move its file out of sight
    FORGET = "forget"  # neither side has it now
    REFUSE = "refuse"  # the file stays as it is, and the reason is shown
    ASK = "ask"  # the block's past must be read first


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A text on its way into a block that is at `version`: `text` is what it will say, `local` what the file said."""

    text: str
    version: int
    local: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a file and its block had in common: the block's `version` and the text of the file that is in it.

    `sent` and `incoming` are steps that were begun: they are stored before, and removed after.
    """

    block_id: str
    path: str
    version: int
    text: str
    sent: Sent | None = None
    incoming: tuple[int, str] | None = None  # version and text that the file is about to get


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A file as it is: its text, or None if it is missing; `problem` says why it cannot be read."""

    text: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of an agent, or of the constellation, as the server shows it.

    `locked` says why a person's file must not change it, if so; `damaged` what is wrong if it cannot be opened.
    """

    id: str
    agent_id: str
    agent: str  # its name
    label: str
    form: Form
    version: int
    text: str
    locked: str | None = None
    damaged: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step. `text` is what is written, pushed or remembered; `local` the file's text it was decided for."""

    do: Do
    text: str = ""
    local: str = ""
    note: str = ""


NOTHING = Action(do=Do.NOTHING)


def decide(known: Known | None, local: Local, remote: Block | None) -> Action:
    """Return the next step for a file and its block.

    After every step but NOTHING, REFUSE and FORGET, ask again with what is the case then.
    """
    if known is not None and known.sent is not None and remote is not None:
        return Action(do=Do.ASK)
    if remote is None:
        return NOTHING if known is None else _without_block(known, local)
    if known is None or remote.version < known.version:  # the second: the server was restored from a backup
        return _first_meeting(local, remote)
    if local.text is None and local.problem is None:
        return _written(remote, "", "the file was deleted; restored, because the block still exists")
    if local.problem is not None:
        return Action(do=Do.REFUSE, note=local.problem)
    text = like(local.text or "", known.text)
    if not text.strip() and known.text.strip():
        note = "the file was emptied, probably by mistake; restored" if remote.text.strip() else ""
        return _written(remote, local.text or "", note)
    if text == known.text:
        return _without_changes(known, local.text or "", remote)
    return _with_changes(known, local.text or "", text, remote)


def _without_block(known: Known, local: Local) -> Action:
    if local.problem is not None:
        return Action(do=Do.ASIDE, note=f"the block is gone, and {local.problem}")
    if local.text is None:
        return Action(do=Do.FORGET)
    text = like(local.text, known.text)
    if text == known.text or not text.strip():
        return Action(do=Do.RETIRE, local=local.text, note="the block was deleted")
    return Action(do=Do.ASIDE, local=local.text, note="the block was deleted while you edited its file")


def _first_meeting(local: Local, remote: Block) -> Action:
    if local.problem is not None:
        return Action(do=Do.REFUSE, note=local.problem)
    if local.text is None:
        return _written(remote, "", "")
    text = like(local.text, remote.text)
    if text == remote.text:
        return Action(do=Do.REMEMBER, text=text, local=local.text)
    if not text.strip():
        return _written(remote, local.text, "")
    return Action(do=Do.ASK, local=local.text)


def _without_changes(known: Known, local: str, remote: Block) -> Action:
    if remote.text != known.text:
        return _written(remote, local, "")
    return NOTHING if remote.version == known.version else Action(do=Do.REMEMBER, text=known.text, local=local)


def _with_changes(known: Known, local: str, text: str, remote: Block) -> Action:
    if text == remote.text:
        return Action(do=Do.REMEMBER, text=text, local=local)
    if remote.locked is not None:
        return Action(do=Do.ASIDE, local=local, note=remote.locked)
    if remote.text == known.text:
        return Action(do=Do.PUSH, text=text, local=text, note=_shrunk(known.text, text))
    both = merged(remote.form, known.text, text, remote.text)
    if both == remote.text:  # others made the same changes
        return _written(remote, local, "")
    return Action(do=Do.PUSH, text=both, local=text, note="merged with what others changed")


def _written(remote: Block, local: str, note: str) -> Action:
    return Action(do=Do.WRITE, text=remote.text, local=local, note=note)


def _shrunk(before: str, after: str) -> str:
    lost = len(before) - len(after)
    if lost < SHRINK_CHARS or lost * 2 < len(before):
        return ""
    return f"from {len(before):,} to {len(after):,} characters; `pattern memory undo` reverts this"


def is_doubtful(known: Known | None, local: Local) -> bool:
    """Return whether the file looks as if an editor were in the middle of saving it: missing, empty, or far shorter."""
    if known is None or local.problem is not None:
        return False
    return not (local.text or "").strip() or bool(_shrunk(known.text, local.text or ""))


def settled(known: Known, local: Local) -> Known:
    """Return the state without `incoming`: whether the file was written before the program died is seen by its text.

    If the file was edited since, it was written before or not by what it resembles more.
    """
    if known.incoming is None:
        return known
    version, text = known.incoming
    before = replace(known, incoming=None)
    after = replace(before, version=version, text=text)
    if local.text is None or like(local.text, known.text) == known.text:
        return before
    if like(local.text, text) == text:
        return after
    return after if _likeness(local.text, text) > _likeness(local.text, known.text) else before


def resolved(known: Known, next_text: str | None, *, now_version: int) -> Known:
    """Return the state without `sent`. `next_text` is the block's text at the version after the one that it was sent
    for.

    A text is only accepted by a block that is still at that version: it became the very next one, or was refused.
    """
    if known.sent is None:
        return known
    if next_text is None or next_text != known.sent.text or now_version <= known.sent.version:
        return replace(known, sent=None)
    return replace(known, sent=None, incoming=None, version=known.sent.version + 1, text=known.sent.local)


def _likeness(text: str, other: str) -> float:
    return SequenceMatcher(None, text.splitlines(), other.splitlines(), autojunk=False).ratio()

"""What the mirror tells: each thing once, to whoever started it, and beside the file that it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from pattern_server.cli.mirror.disk import OWN, Disk, Signature
from pattern_server.cli.mirror.plan import Do, Known, Local, is_doubtful

SETTLE_S = 0.4  # an editor that saves in several strokes is through by then
DOUBTFUL_SETTLE_S = 2.0  # for a file that is missing, empty or far shorter: it may be in the middle of being saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that the mirror did, or refused: `path` is relative to the folder, `note` words for a person."""

    path: str
    did: Do
    note: str = ""
    version: int | None = None
    is_skipped: bool = False


Tell = Callable[[Event], None]


class Report:
    """The events of a mirror, and the files that were refused as they are.

    Raises (all methods):
        OSError: a reason could not be written beside its file.
    """

    def __init__(self, disk: Disk, tell: Tell, *, is_dry: bool) -> None:
        self._disk = disk
        self._tell = tell
        self._is_dry = is_dry
        self._refused: dict[str, tuple[Local, int, str]] = {}
        self.skipped: set[str] = set()  # in this round

    def done(self, path: str, did: Do, note: str = "", version: int | None = None) -> None:
        """Tell a step that was taken."""
        if did not in (Do.NOTHING, Do.FORGET, Do.ASK) and (did is not Do.REMEMBER or note):
            self._tell(Event(path=path, did=did, note=note, version=version))

    def forgotten(self, name: str) -> None:
        """Tell that a state could not be read; the block's past is asked instead."""
        self._tell(Event(path=f"{OWN}/blocks/{name}", did=Do.FORGET, note="it was damaged and is made anew"))

    def skip(self, path: str, did: Do, note: str) -> None:
        """Tell a step that leaves something for a person to do."""
        self.skipped.add(path)
        self._tell(Event(path=path, did=did, note=note, is_skipped=True))

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
        """Whether just this was refused already: asking again would only bring the same answer."""
        if self._refused.get(path, (None, 0))[:2] != (local, version):
            return False
        self.skipped.add(path)
        return True

    def accept(self, path: str) -> None:
        """A file is as it should be: no reason stands beside it any more."""
        self._refused.pop(path, None)
        if not self._is_dry:
            self._disk.explain(path, None)


class Looks:
    """When each file was last seen to change, so that one is taken only when whoever saves it is through."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._seen: dict[str, tuple[Signature | None, float]] = {}
        self.is_unsettled = False  # in this round: some file was not at rest, and is to be looked at again

    def is_at_rest(self, path: str, known: Known | None, local: Local) -> bool:
        """Whether the file has been the same for a moment."""
        wanted = DOUBTFUL_SETTLE_S if is_doubtful(known, local) else SETTLE_S
        signature, now = self._disk.signature(path), trio.current_time()
        if path not in self._seen or self._seen[path][0] != signature:
            self._seen[path] = (signature, now)
        if now - self._seen[path][1] < wanted:
            self.is_unsettled = True
            return False
        return True

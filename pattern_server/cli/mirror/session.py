"""A mirrored folder from its opening to its closing: one process at a time, one constellation for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pattern_core.errors import Conflict, InvalidInput
from pattern_db.errors import OwnedElsewhere
from pattern_db.ownership import DataDirLock
from pattern_server.cli.mirror.disk import OWN, Disk
from pattern_server.cli.mirror.newcomers import take_new_files
from pattern_server.cli.mirror.remote import Memory
from pattern_server.cli.mirror.report import Looks, Report, Tell
from pattern_server.cli.mirror.rounds import Blocks, Desk, Rules
from pattern_server.cli.mirror.states import States, claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round came to: the paths that wait for a person, and whether to look again in a moment."""

    skipped: Sequence[str]
    is_unsettled: bool


class Mirror:
    """One folder that is kept the same as blocks; each round may go through another connection."""

    def __init__(self, root: Path, rules: Rules, tell: Tell) -> None:
        self._disk = Disk(root)
        self._rules = rules
        self._report = Report(self._disk, tell, is_dry=rules.is_dry)
        self._looks = Looks(self._disk)
        self._states = States(root / OWN / "blocks", is_dry=rules.is_dry)
        for name in self._states.unreadable:
            self._report.forgotten(name)

    async def round(self, memory: Memory, names: Sequence[str]) -> Outcome:
        """Look at both sides once and bring them together, for the agents with these names, or for all.

        Raises:
            ServerFailed: the server refused what any client may ask, or knows no such agent.
            ServerUnreachable: it did not answer; the next round goes on where this one stopped.
            OSError: the disk failed.
        """
        self._report.skipped.clear()
        self._looks.is_unsettled = False
        desk = Desk(
            memory=memory,
            disk=self._disk,
            states=self._states,
            report=self._report,
            looks=self._looks,
            rules=self._rules,
        )
        owners = await memory.owners(names)
        taken = await Blocks(desk).look(owners)
        await take_new_files(desk, owners, taken)
        return Outcome(skipped=sorted(self._report.skipped), is_unsettled=self._looks.is_unsettled)


@contextmanager
def opened(root: Path, constellation: str, rules: Rules, tell: Tell) -> Iterator[Mirror]:
    """The folder, made if it is missing, as the mirror of a constellation (an id); held until the end.

    Raises:
        Conflict: another process mirrors into it, or it mirrors another constellation.
        InvalidInput: it is a file.
        OSError: the disk does not allow it.
    """
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{root} is a file; name a folder")
    if rules.is_dry:
        yield Mirror(root, rules, tell)
        return
    disk = Disk(root)
    own = disk.own()
    try:
        lock = DataDirLock.acquire(own)
    except OwnedElsewhere:
        raise Conflict(f"another `pattern memory sync` keeps {root}; stop that one, or choose another folder") from None
    with lock:
        claim(own / "constellation", constellation)
        disk.own("blocks")
        disk.clean()
        yield Mirror(root, rules, tell)

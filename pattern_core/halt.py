"""The emergency halt: an agent stops its whole constellation, and only a person can resume it.

The halt is stored in the transaction of the tool call, with an entry in the agent's archive and an event. Then every
running turn is cancelled and nothing new is accepted, also after a restart, until a person resumes the constellation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import trio

from pattern_core.archive import entries
from pattern_core.archive.entries import NewEntry, Terms, changed
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.connection import Connection
from pattern_db.tables import meta

Severity = Literal["warning", "critical"]
KEY = "halt"  # key in the table `meta`; empty if nothing is halted
REASON_CHARS_MAX = 2_000
HALTED, RESUMED = "constellation.halted", "constellation.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltRow:
    """A halt: the agent and turn that requested it, when and why."""

    id: str
    agent_id: str
    agent_name: str
    turn_id: str
    at: str
    severity: Severity
    reason: str


class Halted(Conflict):
    """An agent halted the constellation; `details["halt_id"]` and `details["reason"]` say which halt and why."""

    code = "halted"
    remedy = "Read the reason; then let the agents continue with `pattern constellation resume`."

    def __init__(self, halt: HaltRow) -> None:
        super().__init__(
            f"{halt.agent_name} halted this constellation at {halt.at}: {halt.reason.rstrip('.')}. Once that is "
            f"resolved, resume it with: pattern constellation resume NAME",
            halt_id=halt.id,
            reason=halt.reason,
        )


def stored(connection: Connection) -> HaltRow | None:
    """Return the current halt of a file."""
    found = meta.get(connection, KEY)
    return HaltRow(**json.loads(found)) if found else None


class Halt:
    """The halt of a constellation: state, start and end.

    `current` is the current halt, initially the one in the file (`stored`). `run` must be running; it acts on halts.
    `log` is the file for a line about each halt; None: no log.
    """

    def __init__(self, storage: Storage, *, current: HaltRow | None, log: Path | None = None) -> None:
        self.current = current
        self._storage = storage
        self._log = log
        self._cancel_turns: Callable[[], None] = lambda: None
        self._asked = trio.Event()

    def request(
        self, work: UnitOfWork, *, agent_id: str, agent_name: str, turn_id: str, reason: str, severity: Severity
    ) -> HaltRow:
        """Add a halt to the unit of work of the agent's call; it is in effect from that commit on.

        Raises:
            InvalidInput: there is no reason, or it is too long.
        """
        if not reason.strip() or len(reason) > REASON_CHARS_MAX:
            raise InvalidInput(f"`reason` must say in 1 to {REASON_CHARS_MAX} characters why everything must stop")
        halt = HaltRow(
            id=self._storage.ids.new("halt"),
            agent_id=agent_id,
            agent_name=agent_name,
            turn_id=turn_id,
            at=self._storage.now(),
            severity=severity,
            reason=reason.strip(),
        )
        content = f"Emergency halt ({severity}) at {halt.at}, asked for by {agent_name}: {halt.reason}"
        entry = NewEntry(content=content, tags=("emergency_halt",), source={"turn": turn_id, "halt": halt.id})
        entry_id, terms = self._storage.ids.new("arch"), Terms(now=halt.at, force=True)
        work.store(meta.put, KEY, json.dumps(asdict(halt), ensure_ascii=False))
        work.store(entries.store, agent_id, entries.checked(entry), entry_id, terms)
        work.event(HALTED, asdict(halt))
        work.drafts.append(changed(agent_id, entry_id))
        work.when_settled(partial(self._settled, halt))
        return halt

    def _settled(self, halt: HaltRow, committed: bool) -> None:
        if committed:
            self.current = halt
            self._cancel_turns()  # immediately: the turn of the call would call its model again
            self._asked.set()

    async def resume(self, *, by: str) -> HaltRow:
        """Resume the constellation; return the halt that was ended. `by` is who decided.

        Raises:
            Conflict: it is not halted.
        """
        halt = self.current
        if halt is None:
            raise Conflict("this constellation is not halted; there is nothing to resume")
        work = UnitOfWork()
        work.store(meta.put, KEY, "")
        work.event(RESUMED, {"id": halt.id, "by": by})
        await self._storage.commit(work)
        if self.current is halt:
            self.current = None
        return halt

    async def run(self, cancel_turns: Callable[[], None]) -> None:
        """Act on halts until cancelled: cancel every running turn, and write a line to the log. A halt that was stored
        just before a crash is acted on at the next start. `cancel_turns` must not wait or raise.
        """
        self._cancel_turns = cancel_turns
        if self.current is not None:
            cancel_turns()
        while True:
            halt = self.current
            self._asked = trio.Event()
            if halt is not None and self._log is not None:
                await trio.to_thread.run_sync(note, self._log, halt)
            await self._asked.wait()


def note(log: Path, halt: HaltRow) -> None:
    """Add a line of JSON about the halt to the log, once. Blocks: call it on a thread.

    A log that cannot be written is not an obstacle: the halt itself is stored.
    """
    with suppress(OSError), log.open("a+", encoding="utf-8") as file:
        file.seek(0)
        if halt.id not in file.read():
            file.write(f"{json.dumps(asdict(halt), ensure_ascii=False)}\n")

"""The emergency halt: an agent stops its whole constellation, and only a person lets it work again.

The halt is stored in the transaction of the call that asked for it, with an entry in the agent's archive and an event.
Then every turn under way is cancelled and nothing new is accepted, also after a restart, until a person resumes it.
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
KEY = "halt"  # in the table of what a file knows about itself; empty when nothing is halted
REASON_CHARS_MAX = 2_000
HALTED, RESUMED = "constellation.halted", "constellation.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HaltRow:
    """A halt: who asked for it in which turn, when and why."""

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
            f"{halt.agent_name} halted this constellation at {halt.at}: {halt.reason.rstrip('.')}. When that is"
            " settled, a person resumes it: pattern constellation resume NAME",
            halt_id=halt.id,
            reason=halt.reason,
        )


def stored(connection: Connection) -> HaltRow | None:
    """Return the halt that a file is under."""
    found = meta.get(connection, KEY)
    return HaltRow(**json.loads(found)) if found else None


class Halt:
    """Whether a constellation is halted, and the way into and out of it.

    `current` is the halt that holds now, at first what the file says when it is opened (`stored`). `run` must be
    running; it is what acts on a halt. `log` is the file for a line about each halt, None for none.
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
        """Add a halt that an agent asks for to the unit of work of its call; it holds from that commit on.

        Raises:
            InvalidInput: there is no reason, or it is too long.
        """
        if not reason.strip() or len(reason) > REASON_CHARS_MAX:
            raise InvalidInput(f"`reason` says in 1 to {REASON_CHARS_MAX} characters why everything must stop")
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
            self._cancel_turns()  # at once: the turn that asked for it would ask its model again
            self._asked.set()

    async def resume(self, *, by: str) -> HaltRow:
        """Let the constellation work again; return the halt that ends. `by` is who decided.

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
        """Act on halts until cancelled: every turn under way is cancelled, and a line goes to the log. A halt that was
        stored just before the process died is acted on at the next start. `cancel_turns` must not wait or raise.
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
    """Add a line about the halt to the log, once: JSON, of one line each. Blocks: call it on a thread.

    A log that cannot be written holds nothing up: the halt itself is stored.
    """
    with suppress(OSError), log.open("a+", encoding="utf-8") as file:
        file.seek(0)
        if halt.id not in file.read():
            file.write(f"{json.dumps(asdict(halt), ensure_ascii=False)}\n")

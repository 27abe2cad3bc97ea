"""Guidance: short advice on a kind of task in the project of a workspace, which feedback confirms or refutes.

What agents and files say starts as a proposal, and is shown once a person has accepted it. Every verdict is a row: who
gave it, in which turn. Secrets are masked before anything is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.guidance_quality import faults, like_others, to_archive
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import masked
from pattern_db.columns import unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import GuidanceSource, GuidanceState, GuidanceVerdict
from pattern_db.errors import RowNotFound
from pattern_db.tables import guidance
from pattern_db.tables.guidance import GuidanceFeedback, GuidanceRow

CHANGED, RATED = "guidance.changed", "guidance.rated"
SHOWN_MAX, PROJECT_SHOWN_MAX = 5, 3  # for the type of a task, and for each other one
SECTION = "general_strategies"
SECTION_CHARS_MAX, NOTE_CHARS_MAX = 100, 500
DAY_MS, DAY_CHARS = 86_400_000, len("2026-01-31")
LIVING = (GuidanceState.ACTIVE, GuidanceState.PROPOSED)
Advice = GuidanceRow
Feedback = GuidanceFeedback
TASK_TYPE = re.compile(r"\w[\w-]{0,63}")  # it is the name of a file, too


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGuidance:
    """Guidance to add. That of a person is active at once."""

    content: str
    task_type: str
    section: str = SECTION
    source: GuidanceSource = GuidanceSource.LEARNED
    source_task: str | None = None


class Guidance:
    """The guidance of one constellation."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def select(
        self,
        workspace: str | None,
        states: Sequence[GuidanceState] = LIVING,
        *,
        task_types: Sequence[str] | None = None,
        **page: Any,
    ) -> list[GuidanceRow]:
        """Return guidance of a workspace (its id), or of all, in these states, the best first; with `limit` and `after`
        a page of it.
        """
        return await self._storage.database.read(guidance.select, workspace, states, task_types=task_types, **page)

    async def get(self, guidance_id: str) -> tuple[GuidanceRow, list[GuidanceFeedback]]:
        """Return guidance and the feedback on it.

        Raises:
            NotFound: there is none.
        """

        def read(connection: Connection) -> tuple[GuidanceRow, list[GuidanceFeedback]]:
            return guidance.get(connection, guidance_id), guidance.feedback_on(connection, guidance_id)

        try:
            return await self._storage.database.read(read)
        except RowNotFound as error:
            raise NotFound(error.message) from None

    async def queue(self, workspace: str | None) -> list[tuple[GuidanceRow, str]]:
        """Return what a person should decide about, with the reason: proposals, and what should be archived."""
        now_ms = self._storage.clock.now_ms()
        found = []
        for row in await self.select(workspace):
            unused_ms = now_ms - unix_ms(row.last_used_at or row.created_at)
            reason = "it is a proposal" if row.state is GuidanceState.PROPOSED else to_archive(row, unused_ms / DAY_MS)
            if reason is not None:
                found.append((row, reason))
        return found

    async def add(
        self, workspace: str, new: NewGuidance, *, author: str, turn: str = "", profile: str = ""
    ) -> tuple[GuidanceRow, bool]:
        """Add guidance; return it, and whether it is new. If there is one that says the same, that is returned; one
        that says nearly the same also counts as helpful. `profile` is what everyone reads anyway.

        Raises:
            InvalidInput: it is not good guidance, or contradicts another one; `gate` names the reason.
            Conflict: there is too much.
        """
        content, section = masked(new.content).strip(), masked(new.section).strip() or SECTION
        if not TASK_TYPE.fullmatch(new.task_type) or len(section) > SECTION_CHARS_MAX:
            raise InvalidInput("a type of task has 1 to 64 letters, digits, - and _; a section at most 100 characters")
        for fault in faults(content, new.source, profile):
            raise InvalidInput(f"not accepted: {fault.reason}", gate=fault.code)
        others = [(row.id, row.content) for row in await self.select(workspace, task_types=[new.task_type])]
        like = await trio.to_thread.run_sync(partial(like_others, content, others))
        if like is not None and like.code == "contradiction":
            raise InvalidInput(f"not accepted: {like.reason}", gate=like.code)
        if like is not None:
            if like.code == "nearly":
                await self.rate({like.other: GuidanceVerdict.HELPFUL}, author=author, turn=turn)
            return (await self.get(like.other))[0], False
        now = self._storage.now()
        row = GuidanceRow(
            id=self._storage.ids.new("gd"),
            workspace=workspace,
            task_type=new.task_type,
            section=section,
            content=content,
            source=new.source,
            state=GuidanceState.ACTIVE if new.source is GuidanceSource.MANUAL else GuidanceState.PROPOSED,
            created_at=now,
            updated_at=now,
            changed_by=author,
            source_task=new.source_task,
        )
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(guidance.add, [row])
            self._note(work, row, row.state, author)
        return row, True

    async def decide(
        self, guidance_id: str, state: GuidanceState, *, author: str, into: str | None = None
    ) -> GuidanceRow:
        """Accept guidance, archive it, or merge it `into` another one of its workspace.

        Raises:
            NotFound: there is none.
            InvalidInput: it is to be merged, and there is no other one; or `into` is given for another state.
            Conflict: it is merged already, or into itself.
        """
        row, _ = await self.get(guidance_id)
        if (into is None) == (state is GuidanceState.MERGED) or (
            into is not None and (await self.get(into))[0].workspace != row.workspace
        ):
            raise InvalidInput("only guidance that is merged needs `merged_into`: another one of its workspace")
        if row.state is GuidanceState.MERGED:
            raise InvalidInput(f"{guidance_id} was merged into {row.merged_into}; decide about that")
        now = self._storage.now()
        async with given_or_alone(None, self._storage.commit) as work:
            if into is not None:
                work.store(guidance.merge, guidance_id, into, now, author)
            else:
                changes = {"state": state, "updated_at": now, "changed_by": author}
                work.store(guidance.change, guidance_id, changes)
            self._note(work, row, state, author)
        return (await self.get(guidance_id))[0]

    async def delete(self, guidance_id: str, *, author: str) -> None:
        """Delete guidance with the feedback on it, and what was merged into it.

        Raises:
            NotFound: there is none.
        """
        row, _ = await self.get(guidance_id)
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(guidance.delete, guidance_id)
            self._note(work, row, "deleted", author)

    async def rate(
        self, verdicts: Mapping[str, GuidanceVerdict], *, author: str, turn: str = "", note: str | None = None
    ) -> list[GuidanceRow]:
        """Add verdicts by the id of the guidance, each once for an author in a turn; return the guidance that there is.

        Raises:
            InvalidInput: the note is too long.
        """
        if note is not None and len(note) > NOTE_CHARS_MAX:
            raise InvalidInput(f"a note has at most {NOTE_CHARS_MAX} characters")
        known = await self._storage.database.read(_known, [*verdicts])
        rows = [
            feedback(one, verdict, author, turn, self._storage.now(), None if note is None else masked(note))
            for one, verdict in verdicts.items()
            if one in known
        ]
        if rows:
            counts = {verdict.value: sum(row.verdict is verdict for row in rows) for verdict in GuidanceVerdict}
            about = {"workspace_id": known[rows[0].guidance_id].workspace, **counts, "by": author}
            async with given_or_alone(None, self._storage.commit) as work:
                work.store(guidance.rate, rows)
                work.event(RATED, about)
        return [known[row.guidance_id] for row in rows]

    async def take_back(self, guidance_id: str, verdict: GuidanceVerdict, by: str, turn: str, *, author: str) -> None:
        """Remove the verdict that `by` gave in a turn.

        Raises:
            NotFound: there is none.
        """
        row, there = await self.get(guidance_id)
        if (verdict, by, turn) not in [(one.verdict, one.author, one.turn) for one in there]:
            raise NotFound(f"{by} has not called {guidance_id} {verdict} in the turn {turn!r}")
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(guidance.unrate, guidance_id, verdict, by, turn)
            self._note(work, row, row.state, author)

    def _note(self, work: UnitOfWork, row: GuidanceRow, state: str, author: str) -> None:
        work.event(CHANGED, {"guidance_id": row.id, "workspace_id": row.workspace, "state": str(state), "by": author})


def advice(
    connection: Connection, workspace: str, types: Sequence[str], *, author: str | None, turn: str, now: str
) -> list[GuidanceRow]:
    """Return active guidance of a workspace for these types of task, the most for the first. It is noted as used, once
    a day, by the author, if given.
    """
    rows = [
        row
        for kind in dict.fromkeys(types)
        for row in guidance.select(
            connection,
            workspace,
            [GuidanceState.ACTIVE],
            task_types=[kind],
            limit=SHOWN_MAX if kind == types[0] else PROJECT_SHOWN_MAX,
        )
    ]
    if author is not None:
        new = [row.id for row in rows if (row.last_used_at or "")[:DAY_CHARS] < now[:DAY_CHARS]]
        guidance.rate(connection, [feedback(one, GuidanceVerdict.USED, author, turn, now) for one in new])
    return rows


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, GuidanceRow]:
    found = {}
    for one in ids:
        with suppress(RowNotFound):
            found[one] = guidance.get(connection, one)
    return found


def feedback(
    guidance_id: str, verdict: GuidanceVerdict, author: str, turn: str, now: str, note: str | None = None
) -> GuidanceFeedback:
    """Return a verdict as a row. That it was used counts once a day."""
    if verdict is GuidanceVerdict.USED:
        turn, note = now[:DAY_CHARS], note or turn or None
    return GuidanceFeedback(guidance_id, verdict, author, turn, 1, note, now)

"""What a world's file says, as far as it is checked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from pattern_db.connection import Connection

Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's row; `joined` is the key of the turn that its message joined."""

    key: int
    id: str
    agent_id: str
    status: str
    started_at: str | None
    ended_at: str | None
    batch_id: str | None
    joined: int | None


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect's row, with the words that its arguments hold."""

    turn: int
    step: int
    call: int
    call_id: str
    tool: str
    words: str
    key: str
    status: str
    message_id: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Question:
    """What a person was asked about a call, and `agreed`, the words that may be run by the answer; None for a no."""

    kind: str
    status: str
    turn: int
    step: int
    call: int
    agreed: str | None


@dataclass(slots=True)
class State:
    """What the file says."""

    turns: dict[int, Turn]
    effects: list[Effect]
    events: list[Line]
    problems: list[str]
    questions: list[Question]
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def turns_by_id(self) -> dict[str, Turn]:
        """The turns by the id that clients know."""
        return {turn.id: turn for turn in self.turns.values()}


def words_of(arguments: Mapping[str, object]) -> str:
    """The words of a call's arguments."""
    return str(arguments.get("words") or arguments.get("content")).strip()


def asked(connection: Connection) -> list[Question]:
    """The questions about calls, oldest first."""
    found = connection.execute(
        "SELECT kind, status, turn, step, call, coalesce(decision ->> '$.arguments', request ->> '$.arguments')"
        " FROM approval WHERE call IS NOT NULL ORDER BY created_at, id"
    )
    return [
        Question(
            kind, status, turn, step, call, words_of(json.loads(said)) if status in ("approved", "edited") else None
        )
        for kind, status, turn, step, call, said in found
    ]

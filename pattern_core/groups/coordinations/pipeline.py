"""`pipeline`: stages one after another, each with the output of the one before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

from pydantic import Field

from pattern_core.groups.coordination import (
    Answer,
    Asks,
    Context,
    Coordination,
    Member,
    MemberFailed,
    MemberName,
    Question,
    Room,
    also_spelled,
    together,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage: its members (`agents`; empty: the member of the stage's name), whether the first of them, all or the
    fastest one answer, and what to do if none does: end the turn, pass the input on, ask up to `max_attempts` times,
    or ask `fallback_agent`.
    """

    name: str
    agents: Annotated[tuple[MemberName, ...], also_spelled("agents", "agent_ids")] = ()
    mode: Literal["one", "all", "race"] = "one"
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    on_failure: Literal["abort", "skip", "retry", "fallback"] = "abort"
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 2
    fallback_agent: MemberName | None = None
    instructions: str = ""
    when: str | None = None  # the stage is skipped if its input does not contain this text

    def questions(self, room: Room, text: str, attempt: int = 1) -> list[Question]:
        """Return what it asks its members."""
        members = [room.named(name) for name in self.agents or (self.name,)]
        words = f"{self.instructions}\n\n{text}" if self.instructions else text
        why = f"stage {self.name}" + (f", attempt {attempt}" if attempt > 1 else "")
        return [Question(one, words, why, self.timeout_s) for one in (members[:1] if self.mode == "one" else members)]

    async def run(self, room: Room, text: str, answers: Sequence[Answer] | None = None) -> str:
        """Return its output; `answers` are those of its first attempt, if it was made.

        Raises:
            MemberFailed: it has no output, and that ends the turn.
        """
        for attempt in range(1, (self.max_attempts if self.on_failure == "retry" else 1) + 1):
            if answers is None:
                answers = await Asks(self.questions(room, text, attempt), self.mode == "race")
            whole = [answer for answer in answers if answer.is_whole]
            if whole:
                return whole[0].text if len(answers) == 1 else together(whole)
            answers = None
        if self.on_failure == "fallback" and self.fallback_agent is not None:
            return (await room.ask(room.named(self.fallback_agent), text, why=f"stage {self.name}, fallback")).text
        if self.on_failure == "skip":
            return text
        names = ", ".join(self.agents or (self.name,))
        raise MemberFailed(f"the stage {self.name} failed: {names} did not answer; see their turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Run all stages again until the result has the words `until`, at most `max` times."""

    until: str
    max: Annotated[int, Field(ge=1, le=50)] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Coordination):
    """`stages` in order (empty: one for each member); with `parallel_stages` all get the message at the same time."""

    context: Context = "task_only"
    stages: tuple[Stage, ...] = ()
    parallel_stages: bool = False
    loop: Loop | None = None

    async def run(self, room: Room) -> str:
        """Run the stages; the answer is the output of the last one, or of all if they run at the same time."""
        stages = self.stages or tuple(Stage(name=one.name) for one in room.available())
        if self.parallel_stages:
            asked = [stage.questions(room, room.message) for stage in stages]
            answers = iter(await Asks([one for each in asked for one in each]))
            first = [list(islice(answers, len(each))) for each in asked]
            made = [await stage.run(room, room.message, first[place]) for place, stage in enumerate(stages)]
            return "\n\n".join(f"{stage.name}: {text}" for stage, text in zip(stages, made, strict=True))
        text = room.message
        for number in range(1, (self.loop.max if self.loop else 1) + 1):
            for stage in stages:
                if stage.when is None or stage.when.casefold() in text.casefold():
                    room.tell("group.round", {"stage": stage.name, "round": number})
                    text = await stage.run(room, text)
            if self.loop is None or self.loop.until.casefold() in text.casefold():
                break
        return text

    def trouble(self, members: Sequence[Member]) -> list[str]:
        """Return what is missing in stages or contradicts itself."""
        known = {one for member in members for one in (member.id, member.name)}
        return [
            f"`stages.{place}{words}" for place, stage in enumerate(self.stages) for words in self._wrong(stage, known)
        ]

    def _wrong(self, stage: Stage, known: Collection[str]) -> Iterator[str]:
        if not stage.agents and stage.name not in known:
            yield f".agents` names {stage.name!r}, which is not a member of the group; add it first"
        if stage.on_failure == "fallback" and not stage.fallback_agent:
            yield "` has no fallback_agent; name one"
        if stage.mode == "race" and self.parallel_stages:
            yield "` is a race, which cannot be one of `parallel_stages`; use the mode one or all"
        if [one.name for one in self.stages].count(stage.name) > 1:
            yield f".name` {stage.name!r} is used twice; give each stage its own name"

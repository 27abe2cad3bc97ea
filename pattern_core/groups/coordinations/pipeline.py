"""`pipeline`: stages one after another, each with the output of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

from pydantic import Field

from pattern_core.groups.coordination import (
    Answer,
    CommonConfig,
    Coordination,
    Member,
    MemberFailed,
    Question,
    Room,
    check_names,
)
from pattern_core.groups.coordinations.parallel import together

OnFailure = Literal["abort", "skip", "retry", "fallback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage: its members (`agents`, also `agent_ids`; empty: the member of the stage's name), whether the first of
    them, all or the fastest one answer, and what to do if none does: end the turn, pass the input on, ask up to
    `max_attempts` times, or ask `fallback_agent`.
    """

    name: str
    agents: tuple[str, ...] = ()
    agent_ids: tuple[str, ...] = ()
    mode: Literal["one", "all", "race"] = "one"
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    on_failure: OnFailure = "abort"
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 2
    fallback_agent: str | None = None
    instructions: str = ""
    when: str | None = None  # the stage is skipped if its input does not contain this text

    @property
    def names(self) -> tuple[str, ...]:
        """Names or ids of its members."""
        return self.agents or self.agent_ids or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Run all stages again until the result has the words `until`, at most `max` times."""

    until: str
    max: Annotated[int, Field(ge=1, le=50)] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig(CommonConfig):
    """`stages` in order (empty: one for each member); with `parallel_stages` all get the message at the same time."""

    context: Literal["shared", "task_only"] = "task_only"
    stages: tuple[Stage, ...] = ()
    parallel_stages: bool = False
    loop: Loop | None = None


async def run(room: Room, config: PipelineConfig) -> str:
    """Run the stages; the answer is the output of the last one, or of all if they run at the same time."""
    stages = config.stages or tuple(Stage(name=one.name) for one in room.available())
    if config.parallel_stages:
        asked = [questions(room, stage, room.message) for stage in stages]
        answers = iter(await room.ask_once([one for each in asked for one in each], False))
        first = [list(islice(answers, len(each))) for each in asked]
        made = [await run_stage(room, stage, room.message, first[place]) for place, stage in enumerate(stages)]
        return "\n\n".join(f"{stage.name}: {text}" for stage, text in zip(stages, made, strict=True))
    text = room.message
    for number in range(1, (config.loop.max if config.loop else 1) + 1):
        for stage in stages:
            if stage.when is not None and stage.when.casefold() not in text.casefold():
                continue
            room.tell("group.round", {"stage": stage.name, "round": number})
            text = await run_stage(room, stage, text)
        if config.loop is None or config.loop.until.casefold() in text.casefold():
            break
    return text


def questions(room: Room, stage: Stage, text: str, attempt: int = 1) -> list[Question]:
    """Return what a stage asks its members."""
    members = [room.named(name) for name in stage.names]
    words = f"{stage.instructions}\n\n{text}" if stage.instructions else text
    why = f"stage {stage.name}" + (f", attempt {attempt}" if attempt > 1 else "")
    return [Question(one, words, why, stage.timeout_s) for one in (members[:1] if stage.mode == "one" else members)]


async def run_stage(room: Room, stage: Stage, text: str, answers: Sequence[Answer] | None = None) -> str:
    """Return the output of a stage; `answers` are those of its first attempt, if it was made.

    Raises:
        MemberFailed: it has no output, and that ends the turn.
    """
    for attempt in range(1, (stage.max_attempts if stage.on_failure == "retry" else 1) + 1):
        if answers is None:
            asked = questions(room, stage, text, attempt)
            winner = await room.race(asked) if stage.mode == "race" else None
            answers = [winner] if winner else [] if stage.mode == "race" else await room.ask_once(asked, False)
        whole = [answer for answer in answers if answer.is_whole]
        if whole:
            return whole[0].text if len(answers) == 1 else together(whole)
        answers = None
    if stage.on_failure == "fallback" and stage.fallback_agent is not None:
        return (await room.ask(room.named(stage.fallback_agent), text, why=f"stage {stage.name}, fallback")).text
    if stage.on_failure == "skip":
        return text
    raise MemberFailed(f"the stage {stage.name} failed: {', '.join(stage.names)} did not answer; see their turns")


def trouble(config: PipelineConfig, members: Sequence[Member]) -> list[str]:
    """Return what keeps it from running."""
    found: list[str] = []
    names = [stage.name for stage in config.stages]
    for place, stage in enumerate(config.stages):
        found += check_names(stage.names, members, f"stages.{place}.agents")
        if stage.on_failure == "fallback":
            fallback = [stage.fallback_agent] if stage.fallback_agent else []
            found += check_names(fallback, members, f"stages.{place}.fallback_agent")
            if not fallback:
                found.append(f"`stages.{place}` has no fallback_agent; name one")
        if stage.mode == "race" and config.parallel_stages:
            found.append(
                f"`stages.{place}` is a race, which cannot be one of `parallel_stages`; use the mode one or all"
            )
        if names.count(stage.name) > 1:
            found.append(f"`stages.{place}.name` {stage.name!r} is used twice; give each stage its own name")
    return found


COORDINATION = Coordination(PipelineConfig, run, trouble)

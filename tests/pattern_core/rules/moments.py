"""Moments of a turn in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pattern_core.models.model import ToolSpec
from pattern_core.rules.facts import JudgedCall
from pattern_core.rules.rule import Moment, RequestedCall
from pattern_core.rules.ruleset import RuleSet

TOOLS = ("a", "b", "c", "d")


def rules(*entries: Mapping[str, Any]) -> RuleSet:
    """The rules, each written as it is stored."""
    return RuleSet.of(list(entries))


def ran(tool: str, result: str = "fine", *, step: int = 1, **given: Any) -> JudgedCall:
    """A call that succeeded."""
    return JudgedCall(tool=tool, status="done", result=result, step=step, **given)


def call(tool: str, status: str, *, step: int = 1, **given: Any) -> JudgedCall:
    """A call with a status."""
    return JudgedCall(tool=tool, status=status, step=step, **given)


def after(*calls: JudgedCall, tools: Sequence[str] = TOOLS, step: int | None = None, **given: Any) -> Moment:
    """The moment after these calls; of the last one's step unless another is given."""
    newest = max((one.step for one in calls), default=0)
    return Moment(calls=calls, tools=tuple(tools), step=newest if step is None else step, **given)


def under(given: RuleSet, moment: Moment) -> Moment:
    """The moment under these rules."""
    return replace(moment, rules=given.ordered)


def verdict(
    given: RuleSet, moment: Moment, tool: str, arguments: Mapping[str, Any] | None = None, **more: Any
) -> tuple[str, str]:
    """What is said of a call, and the text."""
    found = under(given, moment).check(RequestedCall(tool=tool, arguments=arguments or {}), **more)
    return found.kind, found.text


def spec(name: str, **properties: Any) -> ToolSpec:
    """A tool with these parameters."""
    return ToolSpec(name=name, description=f"The tool {name}.", parameters={"type": "object", "properties": properties})


def specs(*names: str) -> list[ToolSpec]:
    """Tools without parameters."""
    return [spec(name) for name in names]

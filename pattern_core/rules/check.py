"""May this call run now? Asked when a call is about to run, with the calls before it in view. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from pattern_core.rules.exits import ends_after, pending
from pattern_core.rules.narrowing import waiting_starts
from pattern_core.rules.refusals import Asked, refusals
from pattern_core.rules.rule import (
    Child,
    Conditional,
    ExitLoop,
    Parent,
    RequiresConsent,
    RequiresFollowing,
    RequiresPreceding,
    Rule,
    covers,
)
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.state import CallState

SKIPPED = "the turn ended with the call before it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a call runs, is refused (`text` is why, for the model, to stand behind "Not run: "), or a person is asked
    whether it may (`text` is why); an agreement for `scope` (None: for this tool alone) may cover later calls.
    """

    kind: Literal["run", "refuse", "ask"]
    text: str = ""
    scope: str | None = None


RUN = Verdict(kind="run")


def check(
    rules: RuleSet,
    state: CallState,
    asked: Asked,
    *,
    is_approved: bool = False,
    agreed: Collection[str | None] = (),
) -> Verdict:
    """Judge a call. With `is_approved` somebody has agreed to it, and for the scopes `agreed` for longer; all other
    rules still hold.

    The first refusal in the order of judging tells why; nobody is asked about a call that a rule refuses anyway.
    `state.step` is the number of the decision that the call is of.
    """
    if ends_after(rules, state) and not pending(rules, state):
        return Verdict(kind="refuse", text=SKIPPED)
    for rule, text in refusals(rules, state, asked):
        return Verdict(kind="refuse", text=_with_message(text, rule))
    if not is_approved:
        for consent in rules.of_kind(RequiresConsent, asked.tool):
            if consent.scope in agreed:
                continue
            why = f" ({consent.scope})." if consent.scope else "."
            text = _with_message(f"`{asked.tool}` needs a person's consent{why}", consent)
            return Verdict(kind="ask", text=text, scope=consent.scope)
    return RUN


def in_order(rules: RuleSet, state: CallState, tools: Sequence[str]) -> bool:
    """Whether the calls of one decision must run one after another, since for some rule it matters what came before.

    Calls that no such rule is about may run side by side.
    """
    if len(tools) < 2:
        return False
    return bool(waiting_starts(rules, state)) or any(_minds_order(rule, tools) for rule in rules.ordered)


def _minds_order(rule: Rule, tools: Sequence[str]) -> bool:
    is_about = any(rule.covers(tool) for tool in tools)
    match rule:
        case ExitLoop() | Conditional():
            return is_about
        case Child() | Parent():
            return is_about or any(covers(name, tool) for name in rule.children for tool in tools)
        case RequiresPreceding() | RequiresFollowing():
            return is_about and any(covers(name, tool) for name in rule.tools for tool in tools)
    return False


def _with_message(text: str, rule: Rule) -> str:
    return text if rule.message is None else f"{text} {rule.message}"

"""What people and rules have to say about what agents do: nothing happens that they forbid, or did not agree to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.crash.outside import World
from tests.crash.script import PAYMENTS_MAX, SIGNED
from tests.crash.state import Effect, State


def unasked(world: World, state: State) -> Iterator[str]:
    """What needs consent happened at most as often as a person agreed to it; an answer is used once."""
    agreed = Counter(question.agreed for question in state.questions if question.agreed is not None)
    ran = Counter((line.tool, line.words) for line in world.executions())
    for (tool, words), count in ran.items():
        if _needs_consent(tool, words) and count > agreed[words]:
            yield f"unasked: {tool} {words} ran {count} times, and a person agreed {agreed[words]} times"
    about = Counter((question.turn, question.step, question.call) for question in state.questions)
    for place, count in about.items():
        # A call is asked about before it runs, and once more for each time that a crash left it in doubt.
        recoveries = sum((one.turn, one.step, one.call) == place for one in state.questions if one.kind == "recovery")
        if count > 1 + recoveries:
            yield f"unasked: a person was asked {count} times about the call {place}"


def _needs_consent(tool: str, words: str) -> bool:
    return tool == "order" or (tool == "book" and _is_bobs(words))


def _is_bobs(words: str) -> bool:
    """Words name the plan `<…-agent.step.call>`."""
    return words.rsplit("-", 1)[-1].startswith("bob.")


def rules_kept(world: World, state: State) -> Iterator[str]:
    """What bob's rules say held in each of his turns, however often it was cut off."""
    ran = {line.words for line in world.executions()}
    calls: dict[int, list[Effect]] = defaultdict(list)
    for effect in state.effects:
        calls[effect.turn].append(effect)
        if effect.status == "denied" and effect.words in ran and not _had_run(state, effect):
            yield f"unasked: {effect.tool} {effect.words} was refused and ran"
    for key, effects in calls.items():
        turn = state.turns[key]
        if not any(_is_bobs(effect.words) for effect in effects):
            continue
        payments = sum(effect.tool == "pay" and effect.status in ("done", "in_doubt") for effect in effects)
        if payments > PAYMENTS_MAX:
            yield f"unasked: {payments} payments in turn {turn.id}"
        done = [effect.tool for effect in effects if effect.status == "done"]
        if "mail" in done and "look" not in done[: done.index("mail")]:
            yield f"unasked: a mail without a look before it in turn {turn.id}"
        if turn.status == "completed" and "book" in done and SIGNED not in done:
            yield f"unasked: turn {turn.id} booked and ended without a signature"


def _had_run(state: State, effect: Effect) -> bool:
    """Whether another call of the same words ran: the one that was in doubt, of which this is the repetition."""
    return any(other.words == effect.words and other.key != effect.key and other.attempts for other in state.effects)

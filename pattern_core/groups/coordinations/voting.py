"""`voting`: every member casts a ballot with a reason; the result is a pure function of the ballots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from pattern_core.groups.coordination import CommonConfig, Coordination, Member, Question, Room, check_names
from pattern_core.ids import Randomness

DEFAULT_OPTIONS = ("Approve", "Reject")
ABSTAIN = "Abstain"
SCORE_MAX = 10
_VOTE = re.compile(r"^[ \t>*_#-]*vote[ \t*_]*:[ \t*_]*(.+?)[ \t*_.]*$", re.IGNORECASE | re.MULTILINE)
_REASON = re.compile(r"^[ \t>*_#-]*reason[ \t*_]*:[ \t*_]*(.+)$", re.IGNORECASE | re.MULTILINE)

Method = Literal["plurality", "approval", "ranked", "score"]
Tie = Literal["none", "no_decision", "first", "first_vote", "random", "specific_agent", "runoff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingRules:
    """`tie_breaker` decides between equals: `first` by the order of the options, `first_vote` by the earliest ballot,
    `specific_agent` by the ballot of `tie_agent`, `runoff` by another round between them. `weights` are by member
    (1 if not named); with `weight_by_expertise` a member counts double where the message names its domain.
    """

    voting_timeout: Annotated[int, Field(ge=1)] | None = None  # milliseconds
    tie_breaker: Tie = "no_decision"
    tie_agent: str | None = None
    weight_by_expertise: bool = False
    weights: dict[str, Annotated[float, Field(ge=0, le=1_000)]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingConfig(CommonConfig):
    """`options` to vote on (empty: the lines of the message that begin with a dash, else Approve and Reject). Fewer
    than `quorum` ballots that choose something decide nothing.
    """

    on_member_error: Literal["fail", "skip"] = "skip"
    options: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    method: Method = "plurality"
    quorum: Annotated[int, Field(ge=1)] = 1
    voting_rules: VotingRules = field(default_factory=VotingRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """A member's vote: options with their points, best first; none is an abstention. `is_valid` is False for an
    answer that is not a vote.
    """

    voter: str
    choices: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    weight: Fraction = Fraction(1)
    is_valid: bool = True


def options_of(config: VotingConfig, message: str) -> tuple[str, ...]:
    """Return what is voted on."""
    found = config.options or tuple(
        line.strip()[1:].strip() for line in message.splitlines() if re.match(r"\s*[-*]\s+\S", line)
    )
    return tuple(dict.fromkeys(found)) if len(set(found)) > 1 else DEFAULT_OPTIONS


def ballot_of(answer: str, options: Sequence[str], method: Method) -> Ballot:
    """Return the vote in an answer: the line `VOTE: …`, and its reason. Options are matched whole, in any case."""
    said = _VOTE.findall(answer)
    reason = (_REASON.findall(answer) or [""])[-1].strip()
    if not said:
        return Ballot(voter="", is_valid=False)
    by_name = {option.casefold(): option for option in options}
    parts = [
        part.strip(" \"'`.*") for part in (said[-1].split(">") if method == "ranked" else re.split(r"[,;]", said[-1]))
    ]
    if method == "plurality" and said[-1].strip(" \"'`.*").casefold() in by_name:
        parts = [said[-1].strip(" \"'`.*")]
    if [part.casefold() for part in parts] == [ABSTAIN.casefold()]:
        return Ballot(voter="", reason=reason)
    choices: dict[str, int] = {}
    for place, part in enumerate(parts):
        name, points = part, 1
        if method == "score":
            match = re.fullmatch(r"(.+?)\s*=\s*(\d+)", part)
            if match is None or int(match[2]) > SCORE_MAX:
                return Ballot(voter="", is_valid=False)
            name, points = match[1], int(match[2])
        elif method == "ranked":
            points = len(options) - place
        option = by_name.get(name.strip().casefold())
        if option is None or option in choices:
            return Ballot(voter="", is_valid=False)
        choices[option] = points
    if method == "plurality" and len(choices) != 1:
        return Ballot(voter="", is_valid=False)
    return Ballot(voter="", choices=choices, reason=reason)


def tally(ballots: Sequence[Ballot], options: Sequence[str]) -> dict[str, Fraction]:
    """Return the points of each option. The order of the ballots does not matter."""
    points = dict.fromkeys(options, Fraction(0))
    for ballot in ballots:
        for option, given in ballot.choices.items():
            points[option] += given * ballot.weight
    return points


def leaders(points: Mapping[str, Fraction]) -> list[str]:
    """Return the options with the most points, in their order; empty if no option has points."""
    most = max(points.values(), default=Fraction(0))
    return [option for option, value in points.items() if value == most and most > 0]


def broken_tie(tied: Sequence[str], ballots: Sequence[Ballot], rules: VotingRules, chance: Randomness) -> str | None:
    """Return the winner among equals by the rule; None: no decision."""
    match rules.tie_breaker:
        case "first":
            return tied[0]
        case "random":
            return chance.choice(list(tied))
        case "first_vote" | "specific_agent":
            for ballot in ballots:
                if rules.tie_breaker == "first_vote" or ballot.voter == rules.tie_agent:
                    best = [option for option in ballot.choices if option in tied]
                    if best:
                        return max(best, key=lambda option: ballot.choices[option])
    return None


async def run(room: Room, config: VotingConfig) -> str:
    """Collect the ballots and count them."""
    rules, options = config.voting_rules, options_of(config, room.message)
    ballots = await _collect(room, config, options)
    cast = [one for one in ballots if one.choices]
    if len(cast) < config.quorum:
        return f"No decision: {len(cast)} of the {config.quorum} ballots of the quorum were cast."
    points = tally(cast, options)
    best = leaders(points)
    if len(best) > 1 and rules.tie_breaker == "runoff":
        room.tell("group.round", {"runoff": best})
        cast = [one for one in await _collect(room, config, best) if one.choices]
        points = tally(cast, best)
        best = leaders(points)
    winner = best[0] if len(best) == 1 else broken_tie(best, cast, rules, room.random) if best else None
    counts = ", ".join(f"{option} {_number(value)}" for option, value in points.items())
    room.tell("group.tally", {"winner": winner, "points": {name: float(value) for name, value in points.items()}})
    reasons = "\n".join(f"- {one.voter}: {', '.join(one.choices) or ABSTAIN}. {one.reason}".rstrip() for one in ballots)
    head = f"Decision: {winner} ({counts})." if winner else f"No decision: {' and '.join(best)} are equal ({counts})."
    return f"{head}\n{reasons}"


async def _collect(room: Room, config: VotingConfig, options: Sequence[str]) -> list[Ballot]:
    """Ask every member for a ballot, and again if its answer holds none."""
    form = {
        "plurality": "one option",
        "approval": "all options that you approve of, with commas",
        "ranked": "the options, best first, with > between them",
        "score": f"each option with its points from 0 to {SCORE_MAX}, such as {options[0]}={SCORE_MAX}",
    }[config.method]
    names = "\n".join(f"- {option}" for option in (*options, ABSTAIN))
    text = (
        f"Vote on this: {room.message}\n\nThe options:\n{names}\n\nEnd with two lines:\nVOTE: {form}\n"
        "REASON: one sentence"
    )
    voters, limit_ms = room.available(), config.voting_rules.voting_timeout
    timeout_s = None if limit_ms is None else limit_ms / 1000
    answers = await room.ask_each([Question(one, text, "votes", timeout_s) for one in voters])
    ballots = [ballot_of(one.text, options, config.method) for one in answers]
    again = [one.member for one, ballot in zip(answers, ballots, strict=True) if one.is_whole and not ballot.is_valid]
    if again:
        words = f"Your answer held no vote. {text}"
        repeated = await room.ask_each([Question(one, words, "votes again", timeout_s) for one in again])
        second = dict(zip(again, repeated, strict=True))
        ballots = [
            ballot_of(second[voter].text, options, config.method) if voter in second else ballot
            for voter, ballot in zip(voters, ballots, strict=True)
        ]
    found: list[Ballot] = []
    for voter, ballot in zip(voters, ballots, strict=True):
        weight = Fraction(str(config.voting_rules.weights.get(voter.name, 1)))
        if (
            config.voting_rules.weight_by_expertise
            and voter.domain
            and voter.domain.casefold() in room.message.casefold()
        ):
            weight *= 2
        found.append(
            Ballot(
                voter=voter.name, choices=ballot.choices, reason=ballot.reason, weight=weight, is_valid=ballot.is_valid
            )
        )
        room.tell("group.ballot", _told(found[-1]))
    return found


def _told(ballot: Ballot) -> dict[str, Any]:
    return {
        "agent": ballot.voter,
        "choices": dict(ballot.choices),
        "reason": ballot.reason,
        "is_valid": ballot.is_valid,
    }


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"


def trouble(config: VotingConfig, members: Sequence[Member]) -> list[str]:
    """Return what keeps it from running."""
    rules = config.voting_rules
    found = check_names(sorted(rules.weights), members, "voting_rules.weights")
    found += check_names([rules.tie_agent] if rules.tie_agent else [], members, "voting_rules.tie_agent")
    if rules.tie_breaker == "specific_agent" and rules.tie_agent is None:
        found.append("`voting_rules.tie_breaker` is specific_agent; name the tie_agent")
    if config.quorum > len(members):
        found.append(f"`quorum` is {config.quorum} and the group has {len(members)} voters; lower it or add members")
    return found


COORDINATION = Coordination(VotingConfig, run, trouble)

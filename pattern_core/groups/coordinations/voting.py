"""`voting`: every member casts a ballot with a reason; the result is a pure function of the ballots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from pattern_core.groups.coordination import Coordination, Member, MemberName, OnError, Question, Room
from pattern_core.ids import Randomness

DEFAULT_OPTIONS = ("Approve", "Reject")
ABSTAIN = "Abstain"
SCORE_MAX = 10
_VOTE = re.compile(r"^[ \t>*_#-]*vote[ \t*_]*:[ \t*_]*(.+?)[ \t*_.]*$", re.IGNORECASE | re.MULTILINE)
_REASON = re.compile(r"^[ \t>*_#-]*reason[ \t*_]*:[ \t*_]*(.+)$", re.IGNORECASE | re.MULTILINE)

Method = Literal["plurality", "approval", "ranked", "score"]
Tie = Literal["none", "no_decision", "first", "first_vote", "random", "specific_agent", "runoff"]

# What a ballot looks like, and what divides its parts.
_FORMS: Mapping[Method, tuple[str, str]] = {
    "plurality": ("one option", "[,;]"),
    "approval": ("all options that you approve of, with commas", "[,;]"),
    "ranked": ("the options, best first, with > between them", ">"),
    "score": (f"each option with its points from 0 to {SCORE_MAX}, such as {{}}={SCORE_MAX}", "[,;]"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VotingRules:
    """`tie_breaker` decides between equals: `first` by the order of the options, `first_vote` by the earliest ballot,
    `specific_agent` by the ballot of `tie_agent`, `runoff` by another round between them. `weights` are by member
    (1 if not named); with `weight_by_expertise` a member counts double where the message names its domain.
    """

    voting_timeout: Annotated[int, Field(ge=1)] | None = None  # milliseconds
    tie_breaker: Tie = "no_decision"
    tie_agent: MemberName | None = None
    weight_by_expertise: bool = False
    weights: dict[MemberName, Annotated[float, Field(ge=0, le=1_000)]] = field(default_factory=dict)

    def weight(self, voter: Member, message: str) -> Fraction:
        """Return how much a member's ballot counts."""
        is_expert = self.weight_by_expertise and voter.domain and voter.domain.casefold() in message.casefold()
        return Fraction(str(self.weights.get(voter.name, self.weights.get(voter.id, 1)))) * (2 if is_expert else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """A member's vote: options with their points, best first; none is an abstention. `is_valid` is False for an
    answer that is not a vote.
    """

    voter: str = ""
    choices: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    weight: Fraction = Fraction(1)
    is_valid: bool = True


_NO_BALLOT = Ballot(is_valid=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Voting(Coordination):
    """`options` to vote on (empty: the lines of the message that begin with a dash, else Approve and Reject). Fewer
    than `quorum` ballots that choose something decide nothing.
    """

    on_member_error: OnError = "skip"
    options: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    method: Method = "plurality"
    quorum: Annotated[int, Field(ge=1)] = 1
    voting_rules: VotingRules = field(default_factory=VotingRules)

    async def run(self, room: Room) -> str:
        """Collect the ballots and count them."""
        rules, options = self.voting_rules, self._options(room.message)
        ballots = await self._collect(room, options)
        cast = [one for one in ballots if one.choices]
        if len(cast) < self.quorum:
            return f"No decision: {len(cast)} of the {self.quorum} ballots of the quorum were cast."
        points = tally(cast, options)
        best = leaders(points)
        if len(best) > 1 and rules.tie_breaker == "runoff":
            room.tell("group.round", {"runoff": best})
            cast = [one for one in await self._collect(room, best) if one.choices]
            points = tally(cast, best)
            best = leaders(points)
        winner = winner_of(best, cast, rules, room.random)
        room.tell("group.tally", {"winner": winner, "points": {name: float(value) for name, value in points.items()}})
        counts = ", ".join(f"{option} {_number(value)}" for option, value in points.items())
        head = f"Decision: {winner}" if winner else f"No decision: {' and '.join(best)} are equal"
        reasons = [f"- {one.voter}: {', '.join(one.choices) or ABSTAIN}. {one.reason}".rstrip() for one in ballots]
        return "\n".join([f"{head} ({counts}).", *reasons])

    def _options(self, message: str) -> Sequence[str]:
        found = self.options or [
            line.strip()[1:].strip() for line in message.splitlines() if re.match(r"\s*[-*]\s+\S", line)
        ]
        return [*dict.fromkeys(found)] if len(set(found)) > 1 else DEFAULT_OPTIONS

    async def _collect(self, room: Room, options: Sequence[str]) -> list[Ballot]:
        """Ask every member for a ballot, and again if its answer holds none."""
        rules, form = self.voting_rules, _FORMS[self.method][0].format(options[0])
        timeout_s = None if rules.voting_timeout is None else rules.voting_timeout / 1000
        names = "\n".join(f"- {option}" for option in (*options, ABSTAIN))
        text = (
            f"Vote on this: {room.message}\n\nThe options:\n{names}\n\nEnd with two lines:\nVOTE: {form}\n"
            "REASON: one sentence"
        )
        voters = room.available()
        answers = await room.ask_each([Question(one, text, "votes", timeout_s) for one in voters])
        said = dict(zip(voters, answers, strict=True))
        ballots = {voter: ballot_of(one.text, options, self.method) for voter, one in said.items()}
        again = [voter for voter, one in said.items() if one.is_whole and not ballots[voter].is_valid]
        if again:
            words = f"Your answer held no vote. {text}"
            repeated = await room.ask_each([Question(one, words, "votes again", timeout_s) for one in again])
            for voter, answer in zip(again, repeated, strict=True):
                ballots[voter] = ballot_of(answer.text, options, self.method)
        found = [
            replace(ballot, voter=voter.name, weight=rules.weight(voter, room.message))
            for voter, ballot in ballots.items()
        ]
        for ballot in found:
            about = {"choices": dict(ballot.choices), "reason": ballot.reason, "is_valid": ballot.is_valid}
            room.tell("group.ballot", {"agent": ballot.voter, **about})
        return found

    def trouble(self, members: Sequence[Member]) -> list[str]:
        """Return that no member breaks ties, or that a quorum is impossible."""
        found, voters = [], len(members)
        if self.voting_rules.tie_breaker == "specific_agent" and self.voting_rules.tie_agent is None:
            found.append("`voting_rules.tie_breaker` is specific_agent; name the tie_agent")
        if self.quorum > voters:
            found.append(f"`quorum` is {self.quorum} and the group has {voters} voters; lower it or add members")
        return found


def ballot_of(answer: str, options: Sequence[str], method: Method) -> Ballot:
    """Return the vote in an answer: the line `VOTE: …`, and its reason. Options are matched whole, in any case."""
    said = [_bare(vote) for vote in _VOTE.findall(answer)]
    reason = (_REASON.findall(answer) or [""])[-1].strip()
    if not said:
        return _NO_BALLOT
    by_name = {option.casefold(): option for option in options}
    is_whole = method == "plurality" and said[-1].casefold() in by_name  # an option may contain a comma
    parts = said[-1:] if is_whole else [_bare(part) for part in re.split(_FORMS[method][1], said[-1])]
    if [part.casefold() for part in parts] == [ABSTAIN.casefold()]:
        return Ballot(reason=reason)
    choices: dict[str, int] = {}
    for place, part in enumerate(parts):
        name, equals, given = part.rpartition("=") if method == "score" else (part, "=", "1")
        points = int(given) if given.strip().isdecimal() and len(given) < 5 else SCORE_MAX + 1
        option = by_name.get(name.strip().casefold())
        if not equals or points > SCORE_MAX or option is None or option in choices:
            return _NO_BALLOT
        choices[option] = len(options) - place if method == "ranked" else points
    return _NO_BALLOT if method == "plurality" and len(choices) != 1 else Ballot(choices=choices, reason=reason)


def _bare(text: str) -> str:
    return text.strip(" \"'`.*")


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


def winner_of(best: Sequence[str], ballots: Sequence[Ballot], rules: VotingRules, chance: Randomness) -> str | None:
    """Return the only one of the best options, or by the rule one of several equals; None: no decision."""
    if len(best) < 2:
        return next(iter(best), None)
    match rules.tie_breaker:
        case "first":
            return best[0]
        case "random":
            return chance.choice(list(best))
        case "first_vote" | "specific_agent":
            for ballot in ballots:
                if rules.tie_breaker == "first_vote" or ballot.voter == rules.tie_agent:
                    named = [option for option in ballot.choices if option in best]
                    if named:
                        return max(named, key=lambda option: ballot.choices[option])
    return None


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):g}"

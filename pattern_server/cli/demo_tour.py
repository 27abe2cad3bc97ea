"""What the stations of the tour share: where it happens, what an agent says, and claims that are checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pattern_core.errors import PatternError
from pattern_server.cli.child import Child
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.output import Output


class ClaimFailed(PatternError):
    """Something that the tour promised did not hold."""

    code = "claim_failed"


def claim(holds: object, what: str) -> None:
    """Check a promise.

    Raises:
        ClaimFailed: it does not hold.
    """
    if not holds:
        raise ClaimFailed(f"The tour stops, because this did not hold: {what}. Please report it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tour:
    """What the stations of the tour share."""

    folder: Path
    child: Child
    output: Output

    def title(self, text: str) -> None:
        """Begin a station."""
        self.output.say()
        self.output.heading(text)

    def say(self, text: str) -> None:
        """A line of a station, indented."""
        self.output.say(f"   {text}")


async def say(api: Api, agent: str, content: str, *, constellation: str = "home", key: str | None = None) -> Json:
    """Send a message and wait for the turn to complete; the turn.

    Raises:
        ClaimFailed: the turn ended otherwise.
    """
    where = path("constellations", constellation, "agents", agent, "messages")
    headers = {} if key is None else {"Idempotency-Key": key}
    turn: Json = await api.call("POST", where, body={"content": content}, headers=headers)
    claim(turn["status"] == "completed", f"the turn of {content!r} completes (it ended as {turn['status']})")
    return turn


def answer_of(turn: Json) -> str:
    """The agent's words in a turn."""
    return "\n".join(said["content"] for said in turn["messages"] if said["role"] == "assistant" and said["content"])


async def exchange(tour: Tour, api: Api, text: str, *, agent: str = "ada") -> str:
    """Say something to an agent in view of the audience; its answer.

    Raises:
        ClaimFailed: there is none.
    """
    answer = answer_of(await say(api, agent, text))
    tour.say(f"you> {text}")
    tour.say(f"{agent}> " + f"\n   {' ' * (len(agent) + 2)}".join(answer.splitlines()))
    claim(answer.strip(), f"there is an answer to {text!r}")
    return answer

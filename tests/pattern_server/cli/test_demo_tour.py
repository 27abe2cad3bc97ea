"""What the stations share."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from pattern_server.cli.child import Child
from pattern_server.cli.demo_tour import ClaimFailed, Tour, answer_of, claim, exchange, say
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json


def turn(*said: tuple[str, str], status: str = "completed") -> Answer:
    return as_json({"status": status, "messages": [{"role": role, "content": content} for role, content in said]})


def test_claims() -> None:
    claim([1], "something is there")
    with pytest.raises(ClaimFailed, match="nothing is there"):
        claim([], "nothing is there")


def test_an_answer_is_what_the_agent_said() -> None:
    said = [("user", "Hello."), ("assistant", ""), ("tool", "{}"), ("assistant", "Good day."), ("assistant", "Ada.")]
    assert answer_of({"messages": [{"role": role, "content": content} for role, content in said]}) == "Good day.\nAda."


async def test_a_turn_that_does_not_complete_ends_the_tour() -> None:
    with pytest.raises(ClaimFailed, match="failed"):
        await say(api_of(lambda _: turn(status="failed")), "ada", "Hello.")


async def test_the_audience_sees_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tour = Tour(folder=tmp_path, child=Child(tmp_path), output=Output())
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(request)
        return turn(("assistant", "Good day.\nI am Bob."))

    assert await exchange(tour, api_of(answer), "Hello.", agent="bob") == "Good day.\nI am Bob."
    assert capsys.readouterr().out == "   you> Hello.\n   bob> Good day.\n        I am Bob.\n"
    assert "/agents/bob/messages" in str(asked[0].url)
    with pytest.raises(ClaimFailed, match="an answer"):
        await exchange(tour, api_of(lambda _: turn()), "Hello.")

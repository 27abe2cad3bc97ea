"""Simple requests to a useful model: which tool it calls first, and whether it answers in plain words.

The same model is asked through Pattern twice: with the prompt of a new agent, and with two sentences in its place, the
same tools and no memory. What the prompt costs in quality is the difference. Requests by which no wording was chosen
(`held_out`) are reported apart.

All rows take half an hour or more on a processor. With PATTERN_REAL_LLM_ROWS=FILE each is kept when it is there, and a
run that was cut goes on; name a new file when the code or the model is another.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.real_llm.llama import SLOTS, Home, Llama, Turn, home

FILE = tomllib.loads((Path(__file__).parent / "requests.toml").read_text())
REQUESTS: Sequence[Mapping[str, Any]] = FILE["request"]
HELD_OUT: Sequence[Mapping[str, Any]] = FILE["held_out"]
ROWS = os.environ.get("PATTERN_REAL_LLM_ROWS")
RIGHT_TOOL_MIN, PLAIN_MIN = 0.85, 0.9
# What a person would not call words: JSON, code, tags, and the headings of a prompt.
MARKUP = re.compile(
    r"```|^\s*[\[{]|\"(?:name|arguments|success)\"\s*:|</?[a-z_]+[ >]|^#+ (?:Memory|human|persona|Recalled)\b"
    r"|^\(?It is 20\d\d-",
    re.MULTILINE,
)
MINIMAL = "You are a helpful assistant with tools. When you have a tool's result, answer the person in plain words."
NOTHING_MORE = {"show": dict.fromkeys(("guide", "recalled", "activity", "tasks", "time"), False)}

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A request and the turn that answered it."""

    request: Mapping[str, Any]
    turn: Turn

    @property
    def is_answered(self) -> bool:
        """Whether the answer holds what a right one does; True where nothing is asked for."""
        return re.search(self.request.get("answer", ""), self.turn.answer) is not None

    @property
    def has_right_tool(self) -> bool:
        """Whether the first tool is the one that fits. What is in view, or was recalled, may be looked up or not."""
        wanted, called = self.request.get("tool", ""), self.turn.first_tool
        is_looked_up = wanted == "search" or self.request.get("in_memory", False)
        return called == wanted or (is_looked_up and called in ("", "search") and self.is_answered)

    @property
    def is_plain(self) -> bool:
        """Whether the answer is words."""
        return self.turn.status == "completed" and bool(self.turn.answer) and not MARKUP.search(self.turn.answer)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The outcomes of all requests with one prompt."""

    name: str
    outcomes: Sequence[Outcome]

    @property
    def tools(self) -> float:
        return sum(one.has_right_tool for one in self.outcomes) / len(self.outcomes)

    @property
    def plain(self) -> float:
        return sum(one.is_plain for one in self.outcomes) / len(self.outcomes)

    @property
    def _prompt_tokens(self) -> int:
        return min((one.turn.usage["input_tokens"] for one in self.outcomes if one.turn.steps == 1), default=0)

    def report(self) -> str:
        """The shares, and a line for each request that was not answered as it should be."""
        asked = [one for one in self.outcomes if "answer" in one.request]
        head = (
            f"{self.name}, {len(self.outcomes)} requests: right tool {self.tools:.0%}, plain answer {self.plain:.0%},"
            f" right answer {sum(one.is_answered for one in asked)} of {len(asked)}; the shortest prompt has"
            f" {self._prompt_tokens} tokens"
        )
        wrong = [one for one in self.outcomes if not (one.has_right_tool and one.is_plain and one.is_answered)]
        return "\n".join([head, *map(_line, wrong)])


def _line(one: Outcome) -> str:
    verdicts = (one.has_right_tool, "tool"), (one.is_plain, "words"), (one.is_answered, "answer")
    wrong = " and ".join(name for is_right, name in verdicts if not is_right)
    called = one.turn.first_tool or "no tool"
    return f"  {one.request['say'][:60]!r} (wrong: {wrong}; {called}): {(one.turn.answer or one.turn.error)!r:.160}"


async def test_simple_requests(larger: Llama, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with home(larger, tmp_path) as place:
        for name in ("bob", "scout"):  # they have no language model, so that the server is free
            await place.agent(name, model_provider="embedded", model_name="rules-1")
        memory = [{"label": label, "content": text} for label, text in FILE["memory"].items()]
        ours = await _scored(place, "ours", REQUESTS, memory=memory)
        held_out = await _scored(place, "held-out requests", HELD_OUT, memory=memory)
        without = [one for one in REQUESTS if not one.get("in_memory")]
        config = {"context": NOTHING_MORE}
        minimal = await _scored(place, "minimal prompt", without, memory=[], system_prompt=MINIMAL, config=config)
    report = "\n".join(["", larger.model, *[score.report() for score in (ours, held_out, minimal)]])
    with capsys.disabled():
        print(report)
    assert ours.tools >= RIGHT_TOOL_MIN, report
    assert ours.plain >= PLAIN_MIN, report


async def _scored(place: Home, name: str, requests: Sequence[Mapping[str, Any]], **fields: Any) -> Score:
    """Ask a new agent for each request, so that none has a past; do not ask again what the file of rows holds."""
    turns: dict[str, Mapping[str, Any]] = {}  # by the request's words
    if ROWS and Path(ROWS).exists():
        rows = map(json.loads, Path(ROWS).read_text().splitlines())
        turns = {row["say"]: row["turn"] for row in rows if row["prompt"] == name}
    free = trio.CapacityLimiter(SLOTS)

    async def ask(number: int, request: Mapping[str, Any]) -> None:
        agent, words = f"{name.split()[0]}-{number}", request["say"]
        async with free:
            await place.agent(agent, **fields)
            if "archived" in request:
                await place.post(f"/agents/{agent}/archival", {"content": request["archived"]})
            turns[words] = (await place.say(agent, words)).shown
        if ROWS:
            async with await trio.Path(ROWS).open("a") as file:
                await file.write(json.dumps({"prompt": name, "say": words, "turn": turns[words]}) + "\n")

    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            if request["say"] not in turns:
                nursery.start_soon(ask, number, request)
    return Score(name=name, outcomes=[Outcome(request=one, turn=Turn(turns[one["say"]])) for one in requests])

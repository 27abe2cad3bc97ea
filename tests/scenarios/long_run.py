"""What the long run is made of: a talk, a scripted friend who counts what it is shown, and a watch over the file."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import apsw
import trio

from pattern_core.messages import Message, ToolCall, ToolResult
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.errors import ModelServerError, WindowExceeded
from pattern_core.models.model import ModelFacts, ModelReply, ModelRequest, Usage
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Paced, calls, says, together
from tests.scenarios.cancelled import unanswered

PROVIDER, MODEL = "scripted", "script-1"  # of `tests.support`
WINDOW = 4_000
SUMMARY_TOKENS = 150
DAY_TOKENS = 110_000
TOTAL_MICRODOLLARS = 12_000_000
INPUT_PRICE, OUTPUT_PRICE, CACHED_PRICE = 3_000_000, 15_000_000, 300_000  # micro-dollars per million tokens
DIARY = "diary"
LESSON = "Caroline wants to hear of the lighthouse at Cape Farewell, where the keeper counts 41 terns."

_PIECE = re.compile(r"\w+|[^\w\s]+")
_LINE = re.compile(r"^.*\S.*$", re.MULTILINE)


@lru_cache(maxsize=4_096)
def count_text(text: str) -> int:
    """Tokens as this friend's vendor counts them: short words and runs of signs are one, long words several."""
    return sum(1 + (len(piece) - 1) // 7 for piece in _PIECE.findall(text))


def count_request(request: ModelRequest) -> int:
    """Tokens of all that is shown; shares nothing with the product's own estimate."""
    count = sum(count_text(text) for text in (*request.system, *request.memory))
    for tool in request.tools:
        count += 5 + count_text(tool.name + " " + tool.description) + count_text(json.dumps(tool.parameters))
    return count + sum(3 + _count_message(message) for message in request.messages)


def _count_message(message: Message) -> int:
    count = 0
    for part in message.parts:
        match part:
            case ToolCall():
                count += 5 + count_text(part.tool + json.dumps(dict(part.arguments)))
            case ToolResult():
                count += 5 + count_text(part.content)
            case _:
                count += count_text(getattr(part, "text", ""))
    return count


def catalogue() -> Catalogue:
    """The friend's window and prices."""
    facts = ModelFacts(
        provider=PROVIDER,
        model=MODEL,
        window=128_000,
        output_max=8_192,
        input_price=INPUT_PRICE,
        output_price=OUTPUT_PRICE,
        cache_read_price=CACHED_PRICE,
    )
    return Catalogue({PROVIDER: {MODEL: facts}})


def cost(usage: Usage) -> int:
    """Micro-dollars of a call, rounded up, from the prices above."""
    plain = usage.input_tokens - usage.cached_tokens
    total = plain * INPUT_PRICE + usage.cached_tokens * CACHED_PRICE + usage.output_tokens * OUTPUT_PRICE
    return -(-total // 1_000_000)


class Watch:
    """Looks into the file from outside, at every question and after every turn: is any budget passed?"""

    def __init__(self, path: Path, clock: StoppedClock) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        self._clock = clock

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def check(self, *, held: bool) -> None:
        """Fail if what is spent and held is more than allowed, or, with `held`, if nothing is held for the call."""
        day = self._rows("SELECT strftime('%Y-%m-%d', ? / 1000, 'unixepoch')", self._clock.now_ms())[0][0]
        tokens, money = self._rows(
            "SELECT coalesce(sum(input_tokens + output_tokens) FILTER (WHERE at >= ?), 0),"
            " coalesce(sum(cost_microdollars), 0) FROM usage",
            day,
        )[0]
        waiting = self._rows(
            "SELECT count(*), coalesce(sum(tokens), 0), coalesce(sum(microdollars), 0) FROM reservation"
        )
        count, held_tokens, held_money = waiting[0]
        assert count > 0 or not held, "a model is asked, and nothing is held for what it may cost"
        assert held or count == 0, "no turn is under way, and something is held"
        assert tokens + held_tokens <= DAY_TOKENS
        assert money + held_money <= TOTAL_MICRODOLLARS

    def _rows(self, sql: str, *values: object) -> list[tuple[int, ...]]:
        return list(self._connection.execute(sql, values))


@dataclass
class Talk:
    """What two people said in turns: `said[n]` is what the person says, `answers[n]` what the friend says then."""

    said: Sequence[str]
    answers: Sequence[str]

    @classmethod
    def of(cls, texts: Sequence[str], turns: int) -> Talk:
        """The first `turns` pairs of lines; fails if there are fewer."""
        assert len(texts) >= 2 * turns, f"{len(texts)} lines are too few for {turns} turns"
        return cls(said=texts[0 : 2 * turns : 2], answers=texts[1 : 2 * turns : 2])


@dataclass
class Friend:
    """A model that plays its part of a talk, edits its memory, makes mistakes, and writes summaries.

    It falls silent for good where `hold` says, at the next "answer" or the next "summary", and sets `held`. `failing`
    are the numbers of summaries that it fails to write. `density` is how many tokens it counts for each one of ours:
    a friend of 1 is never shown too much, a denser one refuses it as vendors do.
    """

    talk: Talk
    watch: Watch
    failing: Sequence[int] = ()
    density: float = 1.0
    now: int = 0
    steps: int = 0  # answered in the turn under way
    hold: str | None = None
    held: trio.Event = field(default_factory=trio.Event)
    summaries: int = 0
    refused: int = 0  # prompts that were too long
    usages: list[Usage] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)  # what it wrote into its diary
    last: ModelRequest | None = None

    def begin(self, number: int) -> None:
        """Be told the n-th thing, for the first time or again."""
        self.now, self.steps = number, 0

    def answer(self, request: ModelRequest) -> ModelReply | Paced | Exception:
        """The next answer to whatever is asked, after looking at how it was asked."""
        self.watch.check(held=True)
        assert request.messages[0].role == "user"
        assert all(message.parts for message in request.messages)
        assert not list(unanswered(request.messages))
        shown = math.ceil(count_request(request) * self.density)
        fullest = shown + request.max_output_tokens
        if fullest > WINDOW:
            assert self.density > 1.0, f"the prompt of turn {self.now} has {shown} tokens"
            self.refused += 1
            return WindowExceeded(f"{fullest} tokens are too many", provider=PROVIDER, status=400)
        if any("keep the memory of a long conversation" in text for text in request.system):
            self.summaries += 1
            if self.hold == "summary":
                return self._still(says("never said"))
            if self.summaries in self.failing:
                return ModelServerError("the summariser is ill", provider=PROVIDER, status=500)
            return self._counted(shown, says(retold(request.messages[-1].text)))
        self.last = request
        if self.hold == "answer":
            return self._still(says("This is cut off before it"))
        plan = self._plan(self.now)
        self.steps += 1
        return self._counted(shown, plan[min(self.steps, len(plan)) - 1])

    def _plan(self, number: int) -> list[ModelReply]:
        """The steps of a turn: an answer, at times after calls of tools."""
        answer = says(self.talk.answers[number])
        if number == len(self.talk.said) - 1:
            return [calls("search", {"query": "lighthouse keeper terns", "role": "user", "limit": 2}), answer]
        if number % 9 == 4:
            line = f"\nTurn {number}: remembered."
            return [calls("block_edit", {"op": "append", "label": DIARY, "content": line}), answer]
        if number % 14 == 6:
            return [calls("flaky", {"text": f"try {number}"}, text="Let me see."), answer]
        if number % 17 == 8:
            notes = (calls("note", {"text": f"{kind} {number}"}, call_id=f"call_{number}_{kind}") for kind in "ab")
            return [together(*notes, calls("nothing_like_it", {}, call_id=f"call_{number}_c")), answer]
        return [answer]

    def _counted(self, shown: int, reply: ModelReply) -> ModelReply:
        written = sum(_count_message(Message(role="assistant", parts=(part,))) for part in reply.parts)
        usage = Usage(input_tokens=shown, output_tokens=written, cached_tokens=shown // 2)
        self.usages.append(usage)
        edits = [part.arguments for part in reply.parts if isinstance(part, ToolCall) and part.tool == "block_edit"]
        self.noted += [str(one["content"]) for one in edits]
        return ModelReply(parts=reply.parts, finish_reason=reply.finish_reason, usage=usage)

    def _still(self, reply: ModelReply) -> Paced:
        """An answer that never comes."""
        self.held.set()
        return Paced(answer=reply, gate=trio.Event())

    @property
    def cost(self) -> int:
        """What all that was answered cost, in micro-dollars."""
        return sum(map(cost, self.usages))


def retold(record: str) -> str:
    """A summary of a record: the beginning of what is said last, as people do it."""
    lines = _LINE.findall(record)
    return "So far: " + " / ".join(line.partition("] ")[2][:60] for line in lines[-12:-2])


def lines_of(sample: Mapping[str, object]) -> list[str]:
    """All that was said in a conversation of the data set, in order."""
    talk = sample["conversation"]
    assert isinstance(talk, dict)
    numbers = sorted(int(key.split("_")[1]) for key in talk if re.fullmatch(r"session_\d+", key))
    return [f"{turn['speaker']}: {turn['text']}" for number in numbers for turn in talk[f"session_{number}"]]


def made_up(count: int) -> list[str]:
    """So many lines of a talk about nothing, no two the same, 10 to 60 words each."""
    chance = random.Random(7)
    things = ["garden", "river", "letter", "winter", "piano", "bread", "teacher", "harbour", "ticket", "sister"]
    deeds = ["saw", "found", "lost", "painted", "remembered", "sold", "carried", "repaired", "wanted", "counted"]
    return [
        f"Line {number}: "
        + " ".join(
            f"I {chance.choice(deeds)} the {chance.choice(things)} of the {chance.choice(things)}."
            for _ in range(chance.randint(2, 8))
        )
        for number in range(count)
    ]

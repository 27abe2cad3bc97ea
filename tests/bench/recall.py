"""How much of what answers a message its prompt shows by itself, and how much it shows without need.

The conversations and questions of `locomo`: each question is the first message after the import. *Evidence shown* is
the part of a question's evidence turns that stands in the recalled passages, averaged over questions. The messages of
`unrelated.txt`, 20 of each of 10 kinds, have nothing to do with any of the conversations: what is recalled for them is
for nothing.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from pattern_core.agent_settings import ContextSettings
from pattern_core.constellation import Constellation
from pattern_core.prompts.collect import recall
from pattern_core.prompts.parts import Findings
from pattern_db.enums import SearchKind
from tests.bench.locomo import DATA, NO_MODEL, asking, conversations
from tests.bench.report import Figure

UNRELATED = Path(__file__).with_name("unrelated.txt")
NOW = "2026-01-01T00:00:00.000Z"
SHOWN_MIN, TOKENS_MAX, UNRELATED_MAX = 0.70, 280.0, 0.5
SETTINGS = ContextSettings(recall_timeout_ms=10_000)  # the machine may be slow


async def measure() -> list[Figure]:
    """The figures with and without a model; empty where the data is not there."""
    if not DATA.is_file():
        return []
    return [*await _figures("hybrid", "local"), *await _figures(NO_MODEL, "none")]


async def _figures(name: str, provider: str) -> list[Figure]:
    talks = conversations()
    about_other_things = [line for line in UNRELATED.read_text().splitlines() if not line.startswith("#")]
    shown: list[float] = []
    tokens: list[float] = []
    needless: list[int] = []
    async with asking(talks, provider=provider) as asked:
        for talk in talks:
            async with asked.constellation(talk) as constellation:
                for question in talk.questions:
                    found = await _recalled(constellation, question.text)
                    evidence = {asked.turn_of(talk, part.ref) for part in found.parts} & question.turns
                    shown.append(len(evidence) / len(question.turns))
                    tokens.append(sum(part.tokens for part in found.parts))
                needless += [len((await _recalled(constellation, text)).parts) for text in about_other_things]
    is_default = provider == "local"
    return [
        Figure(
            name=f"evidence shown, {name}",
            unit="",
            values=[round(statistics.fmean(shown), 4)],
            least=SHOWN_MIN if is_default else None,
        ),
        Figure(name=f"tokens of what is recalled, {name}", unit="", values=[statistics.fmean(tokens)], most=TOKENS_MAX),
        Figure(
            name=f"passages for an unrelated message, {name}",
            unit="",
            values=[statistics.fmean(needless)],
            most=UNRELATED_MAX,
        ),
    ]


async def _recalled(constellation: Constellation, words: str) -> Findings:
    """What the prompt of a turn that begins with these words would show, if nothing was in view."""
    ada = await constellation.roster.get("ada")
    return await recall(
        constellation.search,
        SETTINGS,
        words,
        agent_id=ada.id,
        kinds=[SearchKind.MESSAGE],
        before="",
        in_view=(),
        now=NOW,
    )

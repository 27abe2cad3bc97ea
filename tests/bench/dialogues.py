"""Long dialogues between a person and an assistant, made up: the second set that search is developed on.

LoCoMo is two friends who chat. Who talks to an assistant tells facts on the way to a request, often in a message that
ends with a question, and gets long answers with lists and code that repeat the words. So a dialogue here is some 40
sessions of three months: small talk about work on code and texts, and between it what is asked about afterwards.

| category | what answers the question |
|---|---|
| fact | a message of the person that says it once, or a short reply to a question of the assistant |
| update | the later of two messages that say different things |
| assistant | a long answer of the assistant that recommends something |
| temporal | a message of the day or the week that the question names |
| sessions | several messages of different sessions, each of which holds a part |

The words are drawn from a seed, so that the set is the same on every machine. Most questions use other words than what
they ask for, as people do after months; so words alone find little.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio

from tests.bench.locomo import Conversation, Question, measure
from tests.bench.report import Figure

DIALOGUES = 6
SESSIONS = 40
BEGIN = datetime(2025, 2, 3, 8, tzinfo=UTC)
FACTS, UPDATED, RECOMMENDED, DATED, GATHERED = 20, 10, 12, 12, 5
SHORT_REPLY = 0.3  # of the facts are a short reply to the assistant's question

# Tables and lists; the comments in the file name the columns.
WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass
class _Dialogue:
    """A dialogue in the making. `planned` are the exchanges of each session: what is said by whom, and whether it is
    evidence of a question's number.
    """

    chance: random.Random
    planned: list[list[list[tuple[str, str, int | None]]]] = field(
        default_factory=lambda: [[] for _ in range(SESSIONS)]
    )
    asked: list[tuple[str, int]] = field(default_factory=list)

    def question(self, text: str, category: int) -> int:
        """Ask it in the end; its number."""
        self.asked.append((text, category))
        return len(self.asked) - 1

    def tell(self, session: int, statement: str, asking: str | None, number: int | None) -> None:
        """Have the person say it, in a message with a request, or as a reply to `asking`."""
        if asking is not None:
            self.planned[session].append(
                [
                    ("user", self.chance.choice(WORDS["chatter"]), None),
                    ("assistant", f"{self.answer()}\n\n{asking}", None),
                    ("user", statement, number),
                    ("assistant", self.answer(short=True), None),
                ]
            )
            return
        said = self.chance.choice(WORDS["openers"]) + statement
        text = f"{said[0].upper()}{said[1:]}. {self.chance.choice(WORDS['requests'])}"
        reply = (
            f"Noted: {statement.replace('my ', 'your ').replace('I ', 'you ').replace('we ', 'you ')}. {self.answer()}"
        )
        self.planned[session].append([("user", text, number), ("assistant", reply, None)])

    def answer(self, *, short: bool = False) -> str:
        """What an assistant says at length."""
        sentences = self.chance.sample(WORDS["sentences"], 2 if short else self.chance.randint(4, 9))
        if short or self.chance.random() < 0.4:
            return " ".join(sentences)
        listed = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(sentences[1:], start=1))
        code = "\n\n" + self.chance.choice(WORDS["code"]) if self.chance.random() < 0.4 else ""
        return f"{sentences[0]}\n\n{listed}{code}"

    def chat(self, session: int) -> None:
        """Add what is only said in passing."""
        for _ in range(self.chance.randint(2, 5)):
            self.planned[session].append(
                [("user", self.chance.choice(WORDS["chatter"]), None), ("assistant", self.answer(), None)]
            )


def conversations() -> list[Conversation]:
    """Return all dialogues with their questions."""
    return [_dialogue(number) for number in range(DIALOGUES)]


def run() -> list[Figure]:
    """Return the figures of `locomo` for these dialogues."""
    return trio.run(measure, conversations())


def _dialogue(number: int) -> Conversation:
    chance = random.Random(f"dialogue {number}")
    made = _Dialogue(chance)
    for statement, asking, question, values in chance.sample(WORDS["facts"], FACTS):
        value, session = chance.choice(values.split()), chance.randrange(SESSIONS)
        is_short = chance.random() < SHORT_REPLY
        said = f"{value}." if is_short else statement.format(value)
        plain = f" {asking}".replace(" you ", " I ").replace(" your ", " my ").strip()
        made.tell(session, said, asking if is_short else None, made.question(chance.choice((question, plain)), 1))
    for first, later, question, values in chance.sample(WORDS["updates"], UPDATED):
        old, new = chance.sample(values.split(), 2)
        made.tell(chance.randrange(SESSIONS // 2), first.format(old), None, None)
        made.tell(chance.randrange(SESSIONS // 2, SESSIONS), later.format(new), None, made.question(question, 2))
    for request, advice, question, values in chance.sample(WORDS["recommended"], RECOMMENDED):
        advised = advice.format(chance.choice(values.split()))
        before, after = made.answer(), made.answer()
        lines = [("user", request, None), ("assistant", f"{before}\n\n{advised} {after}", made.question(question, 3))]
        made.planned[chance.randrange(SESSIONS)].append(lines)
    for event in chance.sample(WORDS["dated"], DATED):
        session = chance.randrange(SESSIONS)
        day = _start(session)
        when = chance.choice((f"on {day:%d %B %Y}", f"in the week of {day:%Y-%m-%d}", f"on {day:%B} {day.day}"))
        made.tell(session, event, None, made.question(f"What happened to me {when}?", 4))
    for statement, question, values in chance.sample(WORDS["gathered"], GATHERED):
        asked = made.question(question, 5)
        several = chance.sample(values.split(), chance.randint(2, 4))
        for session, value in zip(chance.sample(range(SESSIONS), len(several)), several, strict=True):
            made.tell(session, statement.format(value.replace("-", " ")), None, asked)
    for session in range(SESSIONS):
        made.chat(session)
        chance.shuffle(made.planned[session])
    return _conversation(f"dialogue-{number}", made)


def _start(session: int) -> datetime:
    return BEGIN + timedelta(days=2 * session + session // 3, hours=session % 9)


def _conversation(name: str, made: _Dialogue) -> Conversation:
    said: list[dict[str, Any]] = []
    evidence: dict[int, set[str]] = {}
    sessions: dict[int, set[str]] = {}
    for session, exchanges in enumerate(made.planned):
        moment = _start(session)
        for role, content, number in (line for lines in exchanges for line in lines):
            moment += timedelta(seconds=40)
            fields = {"role": role, "content": content, "session_id": f"s{session}", "created_at": moment.isoformat()}
            if number is not None:
                evidence.setdefault(number, set()).add(str(len(said)))
                sessions.setdefault(number, set()).add(f"s{session}")
            said.append(fields)
    questions = [
        Question(text=text, turns=frozenset(evidence[number]), sessions=frozenset(sessions[number]), category=category)
        for number, (text, category) in enumerate(made.asked)
    ]
    turn_ids = [str(number) for number in range(len(said))]
    return Conversation(name=name, messages=said, turn_ids=turn_ids, questions=questions)

"""Answers: set phrases, and what was found, as sentences that share words with the question, as they stand; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pattern_core.models.embedded.blocks import SeenBlock
from pattern_core.models.embedded.intents import Remember, Unknown, parse
from pattern_core.models.text import as_str, json_object

SENTENCES_MAX = 8
SENTENCE_CHARS_MAX = 600
HITS_MAX = 100
ALIKE = 0.55  # of all words of two sentences: then one is taken for a version of the other
NEAR_ENOUGH = 0.6  # of the best sentence's score: two words of three are worth showing, one of two is not

NO_MODEL = (
    "I have no language model configured: I am a set of rules that remembers, finds, corrects and forgets. To give me a"
    " model, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or describe a server of your own in pattern.toml under"
    ' [providers.<name>] with kind = "openai" and its base_url; then set the agent\'s model_provider and model_name.'
)
WHAT_I_AM = (
    "I am not a language model: I answer by rules (provider embedded, model rules-1), from my memory and from what was"
    " said to me."
)
KNOWS_NOTHING_OF_YOU = "I know nothing about you yet. Tell me something, as in: remember that I live in Lisbon."
HISTORY_STAYS = "What was said in our conversations and what is in my archive stays where it is."
SMALL_TALK = {
    "hello": "Hello! Tell me what to remember, or ask me what I know; “help” lists what I can do.",
    "help": (
        "Without a language model I can do this:\n"
        "- remember that … (I keep it in my memory)\n"
        "- what do you know about …? who is …? when did …?\n"
        "- change … to … or: actually …, not …\n"
        "- forget …, forget everything about …\n"
        "- what did we talk about? what did we say about …?\n"
        "- show me your memory\n"
        "- tell NAME that … (a message to another agent)\n"
        f"{NO_MODEL}"
    ),
    "thanks": "You are welcome.",
    "bye": "Goodbye. I keep what you told me.",
    "how_are_you": "I am rules, so always the same, thank you. What shall I remember or find?",
    "never_mind": "All right.",
}

_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(
    r"(?<=[.!?…。！？])(?<!\b[MD]r\.)(?<!\bMrs\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bProf\.)\s+|\n+", re.IGNORECASE
)
_STOP = frozenset(
    re.findall(
        r"\S+",
        """
    a about again all am an and any anything are as at be because been but by can could did do does doing for from get
    got had has have he her hers him his how i if in into is it its know let like me mean mine more much my need no not
    now of on one or our ours out over please really remember remind said say she should so some something tell than
    that the their them then there these they thing things this those to told too us very was we were what when where
    which who whom whose why will with would yes you your yours
        """,
    )
)

_MARKED = re.compile(r'<data from="[^"]*">\n(?P<text>.*)\n</data>', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A piece of text with its origin: a block's label, or the kind, role and time of a search hit."""

    text: str
    kind: str  # "block", "message", "archival" …
    label: str = ""
    role: str = ""
    created_at: str = ""


def telling_words(text: str) -> list[str]:
    """The words that carry meaning, in lower case, each once, in their order: what to search for."""
    words = (word for word in _WORD.findall(text.casefold()) if word not in _STOP)
    return list(dict.fromkeys(word for word in words if len(word) > 1 or word.isdigit()))


def keywords(text: str) -> list[str]:
    """The stems of the telling words, each once: what to compare."""
    return list(dict.fromkeys(map(_stem, telling_words(text))))


def _stem(word: str) -> str:
    """The word without a common English ending, so that "lives" meets "live" and "walnuts" meets "walnut"."""
    if not word.isascii() or len(word) < 4:
        return word
    for ending, rest in (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + rest
            break
    return word.removesuffix("e") if len(word) > 3 else word


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text, without list marks."""
    pieces = (piece.strip().lstrip("-*• ").strip() for piece in _SENTENCE.split(text))
    return [piece[:SENTENCE_CHARS_MAX] for piece in pieces if any(map(str.isalnum, piece))]


def unmarked(content: str) -> str:
    """A tool's result without the mark that says that it is data."""
    found = _MARKED.fullmatch(content)
    return content if found is None else found["text"]


def hits_of(content: str) -> list[Excerpt]:
    """The hits of a search tool's result, a JSON object `{"hits": [{"kind", "content", …}]}`; none if it is no such."""
    hits = json_object(content).get("hits")
    found: list[Excerpt] = []
    for hit in hits[:HITS_MAX] if isinstance(hits, list) else []:
        if not isinstance(hit, dict):
            continue
        text = hit.get("content") or hit.get("snippet")
        if isinstance(text, str):
            found.append(
                Excerpt(
                    text=text,
                    kind=as_str(hit.get("kind")) or "message",
                    label=as_str(hit.get("label")),
                    role=as_str(hit.get("role")),
                    created_at=as_str(hit.get("created_at")),
                )
            )
    return found


def content_of(content: str) -> str | None:
    """The text of a block that a tool loaded, a JSON object `{"content"}`; None if it is no such."""
    text = json_object(content).get("content")
    return text if isinstance(text, str) else None


def lines_of(blocks: Iterable[SeenBlock]) -> list[Excerpt]:
    """The lines of the blocks in view."""
    return [Excerpt(text=line, kind="block", label=block.label) for block in blocks for line in block.lines]


def best_sentences(question: str, found: Sequence[Excerpt], *, spoken: Iterable[str] = ()) -> list[Excerpt]:
    """The sentences that share the most words with the question, best first, each once.

    Memory goes before what was said, and hides what reads like an earlier version of it. Questions and commands are no
    answers, nor is what is in `spoken`, such as the question itself; what the agent said counts only where nobody else
    said anything. A request to remember something counts as what it says.
    """
    wanted = set(keywords(question))
    known = {_same(text) for text in spoken}
    remembered: list[set[str]] = []
    scored: list[tuple[float, int, Excerpt]] = []
    for place, piece in enumerate(sorted(found, key=_bonus, reverse=True)):
        if piece.role == "tool" or _same(piece.text) in known:
            continue
        if piece.role == "assistant" and scored:
            break
        for sentence in _facts(piece):
            words = set(keywords(sentence))
            shared = len(wanted & words)
            if not shared or sentence.endswith(("?", "？")) or _same(sentence) in known:
                continue
            if _is_talk(piece) and any(_alike(words, other) for other in remembered):
                continue
            if not _is_talk(piece):
                remembered.append(words)
            known.add(_same(sentence))
            scored.append((shared + _bonus(piece), place, replace(piece, text=sentence)))
    scored.sort(key=lambda entry: (-entry[0], entry[1]))
    enough = scored[0][0] * NEAR_ENOUGH if scored else 0
    return [piece for score, _, piece in scored if score > enough][:SENTENCES_MAX]


def _facts(piece: Excerpt) -> list[str]:
    if piece.role != "user":
        return sentences(piece.text)
    asked = parse(piece.text)
    if isinstance(asked, Remember):
        return sentences(asked.fact)
    return [sentence for sentence in sentences(piece.text) if isinstance(parse(sentence), Unknown | Remember)]


def _is_talk(piece: Excerpt) -> bool:
    return piece.kind in ("message", "messages")


def _alike(words: set[str], other: set[str]) -> bool:
    return len(words & other) > ALIKE * len(words | other)


def _bonus(piece: Excerpt) -> float:
    if not _is_talk(piece):
        return 0.3
    return 0.0 if piece.role == "assistant" else 0.1


def _same(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def listed(found: Sequence[Excerpt]) -> str:
    """The sentences as a list, each with its origin."""
    return "\n".join(f"- {piece.text} ({_origin(piece)})" for piece in found)


def _origin(piece: Excerpt) -> str:
    day = piece.created_at[:10]
    if piece.kind in ("block", "blocks"):
        return f"memory block {piece.label}" if piece.label else "memory"
    if piece.kind in ("message", "messages"):
        who = {"user": "you said", "assistant": "I said"}.get(piece.role, "from our conversations")
        return f"{who}, {day}" if day else who
    if piece.kind in ("file", "files"):
        return f"file {piece.label}" if piece.label else "a file"
    return f"archive, {day}" if day else "archive"

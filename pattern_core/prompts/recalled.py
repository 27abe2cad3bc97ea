"""Passages from beyond the conversation that a prompt shows: what was said long ago, the archive, files.

They are looked for once per turn and only if there is anything to find. A turn does not wait: what was not found within
the time set is left out and said so. Only what shares words with the message is shown, since a search always finds
something, and never what the prompt shows anyway.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

import trio

from pattern_core.agent_settings import ContextSettings
from pattern_core.errors import PatternError
from pattern_core.prompts.parts import NOTHING_FOUND, Findings, Kind, Part
from pattern_core.search import Hit, SearchRequest, SearchResult
from pattern_core.untrusted import marked, masked
from pattern_db.enums import CONSTELLATION_OWNER, SearchKind

Searching = Callable[[SearchRequest], Awaitable[SearchResult]]

QUERY_CHARS_MAX = 2_000  # of a message, from its beginning: more makes no better question
QUERY_WORDS_MAX = 6  # looked for, the longest: each costs a look into the index, and short words are in every message
TEXT_CHARS_MAX = 1_500  # a longer passage is shown as the excerpt that the search cut out of it
STEM_CHARS = 6  # words that begin with as many same letters count as one
COVERED_MIN = 0.3  # of the message's telling words, a passage holds at least this share …
COVERED_COUNT = 3  # … or so many of them
CANDIDATES = 2  # hits looked at for each one that may be shown

_WORD = re.compile(r"[^\W_]{4,}")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]{2,}")
_SOURCES = {SearchKind.ARCHIVAL: "the archive", SearchKind.FILE: "the file", SearchKind.BLOCK: "the block"}


async def recall(
    searching: Searching,
    settings: ContextSettings,
    words: str,
    *,
    agent_id: str,
    kinds: Sequence[SearchKind],
    before: str,
    in_view: Sequence[str],
    now: str,
) -> Findings:
    """Look for passages in `kinds` that share words with a message; nothing if it has no telling words.

    Messages from the position `before` on are in view (empty: none is); `in_view` are other texts that the prompt
    shows. `now` is a stored time.

    A query that storage has begun is waited for, so the time can be passed by the length of one query.
    """
    wanted = terms(words)
    if not wanted or settings.recall_max == 0:
        return NOTHING_FOUND
    request = SearchRequest(
        query=query_of(words),
        kinds=kinds,
        agents=[agent_id, CONSTELLATION_OWNER],
        before=before or None,
        now=now,
        limit=CANDIDATES * settings.recall_max,
        is_quick=True,
    )
    reason = f"the search took longer than {settings.recall_timeout_ms} ms (context.recall_timeout_ms)"
    with trio.move_on_after(settings.recall_timeout_ms / 1000):
        try:
            return choose((await searching(request)).hits, wanted, in_view, settings)
        except PatternError as error:
            reason = f"the search failed: {error.message}"
    return Findings(left_out=[Part(kind=Kind.RECALLED, reason=reason)])


def choose(hits: Sequence[Hit], wanted: frozenset[str], in_view: Sequence[str], settings: ContextSettings) -> Findings:
    """Return the hits to show, and the best of those that are not. Pure."""
    parts: list[Part] = []
    out: list[Part] = []
    shown_already = "\0".join(in_view)  # one search for each hit, however many texts there are
    for hit in hits:
        text = hit.content if len(hit.content) <= TEXT_CHARS_MAX else hit.snippet
        reason = _unfit(text, wanted, shown_already)
        if reason is None and len(parts) >= settings.recall_max:
            reason = f"{settings.recall_max} passages are shown (context.recall_max)"
        if reason is None:
            shown_already += f"\0{text.strip()}"
            shown = marked(masked(text), source_of(hit))
            found = f"found for the message: {hit.reason or 'its words fit'}"
            parts.append(Part(kind=Kind.RECALLED, text=shown, reason=found, ref=hit.id, name=source_of(hit)))
        elif len(out) < settings.recall_max:
            out.append(Part(kind=Kind.RECALLED, reason=reason, ref=hit.id, name=source_of(hit)))
    return Findings(parts=parts, left_out=out)


def query_of(words: str) -> str:
    """Return what to search for: the message's longest words in their order, runs of CJK characters among them."""
    runs, spaced = _telling(words[:QUERY_CHARS_MAX])
    found = list(dict.fromkeys([*runs, *spaced]))
    kept = set(sorted(found, key=len, reverse=True)[:QUERY_WORDS_MAX])
    return " ".join(word for word in found if word in kept)


def terms(words: str) -> frozenset[str]:
    """Return the telling words of a text, as they are compared: beginnings of words, pairs of CJK characters."""
    runs, spaced = _telling(words[:QUERY_CHARS_MAX].casefold())
    found = {word[:STEM_CHARS] for word in spaced}
    for run in runs:
        found.update(run[at : at + 2] for at in range(len(run) - 1))
    return frozenset(found)


def _telling(text: str) -> tuple[list[str], list[str]]:
    """Return the runs of CJK characters and the words of four letters or more."""
    if text.isascii():
        return [], _WORD.findall(text)
    return _CJK.findall(text), _WORD.findall(_CJK.sub(" ", text))


def source_of(hit: Hit) -> str:
    """Return where the passage comes from, in words with the day."""
    day = hit.created_at[:10]
    if hit.kind is SearchKind.MESSAGE:
        who = "tool" if hit.role is None else hit.role.value
        return f"the conversation of {day}, {who}"
    where = _SOURCES.get(hit.kind, hit.kind.value)
    name = f" {hit.label}" if hit.label else ""
    return f"{where}{name}, {day}"


def _unfit(text: str, wanted: frozenset[str], in_view: str) -> str | None:
    """Return why the passage is not shown; None if it may be."""
    if not text.strip():
        return "it has no words"
    shared = len(wanted & terms(text))
    if shared < COVERED_COUNT and shared < COVERED_MIN * len(wanted):
        return f"it shares {shared} of the {len(wanted)} telling words of the message"
    if text.strip() in in_view:
        return "the prompt shows the same words already"
    return None

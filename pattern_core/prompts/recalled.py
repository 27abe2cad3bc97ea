"""Passages from beyond the conversation that a prompt shows: what was said long ago, the archive, files.

They are looked for once per turn and only if there is anything to find. A turn does not wait: what was not found within
the time set is left out and said so. A search always finds something, so passages are shown only where the best of them
have to do with the message, and never what the prompt shows anyway.
"""

from __future__ import annotations

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
TEXT_CHARS_MAX = 1_500  # a longer passage is shown as the excerpt that the search cut out of it
RELEVANCE_MIN = 0.44  # of what was found; a message that has nothing to do with the past finds something, too
SCORE_MIN = 0.6  # of a passage, where the best has 1.0
CANDIDATES = 2  # hits looked at for each one that may be shown

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
    """Look for passages in `kinds` that speak to a message; nothing if it has no telling words.

    Messages from the position `before` on are in view (empty: none is); `in_view` are other texts that the prompt
    shows. `now` is a stored time.

    A query that storage has begun is waited for, so the time can be passed by the length of one query.
    """
    request = SearchRequest(
        query=words[:QUERY_CHARS_MAX],
        kinds=kinds,
        agents=[agent_id, CONSTELLATION_OWNER],
        before=before or None,
        now=now,
        limit=CANDIDATES * settings.recall_max,
        is_quick=True,
    )
    if settings.recall_max == 0 or all(term.is_filler for term in request.wanted.terms):
        return NOTHING_FOUND
    reason = f"the search took longer than {settings.recall_timeout_ms} ms (context.recall_timeout_ms)"
    with trio.move_on_after(settings.recall_timeout_ms / 1000):
        try:
            return choose(await searching(request), in_view, settings)
        except PatternError as error:
            reason = f"the search failed: {error.message}"
    return Findings(left_out=[Part(kind=Kind.RECALLED, reason=reason)])


def choose(found: SearchResult, in_view: Sequence[str], settings: ContextSettings) -> Findings:
    """Return the hits to show, and the best of those that are not. Pure."""
    parts: list[Part] = []
    out: list[Part] = []
    shown_already = "\0".join(in_view)  # one search for each hit, however many texts there are
    irrelevant = f"nothing that was found speaks to the message ({found.relevance:.2f} of {RELEVANCE_MIN})"
    for hit in found.hits:
        text = hit.content if len(hit.content) <= TEXT_CHARS_MAX else hit.snippet
        reason = irrelevant if found.relevance < RELEVANCE_MIN else None
        if not text.strip():
            reason = "it has no words"
        elif reason is None and hit.score < SCORE_MIN:
            reason = f"it fits the message less than the best does ({hit.score:.2f} of {SCORE_MIN})"
        elif text.strip() in shown_already:
            reason = "the prompt shows the same words already"
        elif reason is None and len(parts) >= settings.recall_max:
            reason = f"{settings.recall_max} passages are shown (context.recall_max)"
        if reason is None:
            shown_already += f"\0{text.strip()}"
            shown = marked(masked(text), source_of(hit))
            why = f"found for the message: {hit.reason or 'its words fit'}"
            parts.append(Part(kind=Kind.RECALLED, text=shown, reason=why, ref=hit.id, name=source_of(hit)))
        elif len(out) < settings.recall_max:
            out.append(Part(kind=Kind.RECALLED, reason=reason, ref=hit.id, name=source_of(hit)))
    return Findings(parts=parts, left_out=out)


def source_of(hit: Hit) -> str:
    """Return where the passage comes from, in words with the day."""
    day = hit.created_at[:10]
    if hit.kind is SearchKind.MESSAGE:
        who = "tool" if hit.role is None else hit.role.value
        return f"the conversation of {day}, {who}"
    where = _SOURCES.get(hit.kind, hit.kind.value)
    name = f" {hit.label}" if hit.label else ""
    return f"{where}{name}, {day}"

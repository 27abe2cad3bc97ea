"""What of a text is embedded: pieces that fit a small model's window, each with the hash by which it is known.

A message is embedded with what was said before it in the same session: an answer like "yes, in May" says nothing by
itself. With the previous turn, recall among ten hits rose from 0.67 to 0.73 in conversations; with the next one too it
did not rise further.

The hash stands for the piece as it is given to the model. Where this module makes other pieces of the same text, they
have other hashes, and `pattern embeddings rebuild` embeds what differs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from pattern_db.enums import SearchKind
from pattern_db.tables.embedding_sources import Source

PIECE_CHARS = 900  # some 200 tokens of English; small models read 256 and silently leave out the rest
PREVIOUS_CHARS = 300
PIECES_MAX = 256  # of a text beyond 200,000 characters only the beginning is embedded; words find the rest
# Where a piece may end, the best place first: a paragraph, a line, a sentence, a word.
_ENDS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"[.!?。！？]\s*"), re.compile(r"\s+"))
_SHORTEST = PIECE_CHARS // 2  # a piece is not ended before, unless there is no better place


@dataclass(frozen=True, slots=True)
class Piece:
    """A text to embed and its hash: 128 bits of BLAKE2b in hex."""

    text: str
    content_hash: str


def pieces_of(source: Source | None) -> list[Piece]:
    """What to embed of a stored text, in order; nothing of one that is gone or blank."""
    if source is None:
        return []
    return [Piece(text, content_hash(text)) for text in text_to_embed(source)]


def text_to_embed(source: Source) -> list[str]:
    """The pieces of a text as a model is given them; empty if there are no words in it."""
    if not source.text.strip():
        return []
    first, *more = split(source.text)
    if source.kind is SearchKind.MESSAGE:
        said = _named(source.speaker, first)
        if source.previous is not None and source.previous.text.strip():
            said = f"{_named(source.previous.speaker, _end_of(source.previous.text))}\n{said}"
        return [said, *(_named(source.speaker, piece) for piece in more)]
    if source.title is None:
        return [first, *more]
    return [f"{source.title}\n{piece}" for piece in (first, *more)]


def content_hash(text: str) -> str:
    """The hash by which a text is known to have a vector already."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def split(text: str) -> list[str]:
    """The text in pieces of at most `PIECE_CHARS` characters, ended where a reader would; blank ones left out."""
    pieces: list[str] = []
    begin = 0
    while begin < len(text) and len(pieces) < PIECES_MAX:
        end = _end(text, begin)
        if piece := text[begin:end].strip():
            pieces.append(piece)
        begin = end
    return pieces


def _end(text: str, begin: int) -> int:
    limit = begin + PIECE_CHARS
    if limit >= len(text):
        return len(text)
    for pattern in _ENDS:
        places = [found.end() for found in pattern.finditer(text, begin + _SHORTEST, limit)]
        if places:
            return places[-1]
    return limit


def _end_of(text: str) -> str:
    """The last words of what was said before: they are what an answer answers."""
    text = text.strip()
    if len(text) <= PREVIOUS_CHARS:
        return text
    end = text[-PREVIOUS_CHARS:]
    return "…" + end[end.find(" ") + 1 :]


def _named(speaker: str | None, text: str) -> str:
    return text if speaker is None else f"{speaker}: {text}"

"""Ids of calls and names of tools in the forms that vendors take; pure.

A conversation may hold what another vendor's model wrote, and a model may call a tool that nobody offered by a name
that its own vendor refuses to read again. What is once in the history stays there, so it is sent as something that
stands for it: the same one for a call, for its result and in every later request.

Sources: Anthropic API reference, `tool_use` (`[a-zA-Z0-9_-]`); OpenAI's refusals ("Expected a string with maximum
length 40", 64 for responses; names `^[a-zA-Z0-9_-]+$`, at most 64 characters); Mistral's ("must be a-z, A-Z, 0-9, with
a length of 9"), which its models' templates repeat.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2s

NAME_CHARS_MAX = 64
NAMES_MAX = 1_024  # names kept at hand: a conversation repeats the same few

_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


@lru_cache(maxsize=NAMES_MAX)
def plain_name(tool: str) -> str:
    """The name of a tool that was called, as every vendor takes it."""
    return _STRANGE.sub("_", tool)[:NAME_CHARS_MAX]


def plain_id(call_id: str, chars_max: int) -> str:
    """The id in letters, digits, `_` and `-`, at most `chars_max` of them."""
    return short_id(_STRANGE.sub("_", call_id), chars_max)


def short_id(call_id: str, chars_max: int) -> str:
    """The id, or a digest that stands for it where it has more than `chars_max` characters."""
    return call_id if len(call_id) <= chars_max else f"call_{_digest(call_id)}"[:chars_max]


def nine_id(call_id: str) -> str:
    """The id, or a digest that stands for it where it is not nine letters and digits."""
    return call_id if _NINE.fullmatch(call_id) else _digest(call_id)[:9]


def _digest(call_id: str) -> str:
    return blake2s(call_id.encode()).hexdigest()

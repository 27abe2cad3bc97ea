"""Three-way merges of texts and of JSON values, for copies that live outside a constellation.

Both sides began with `base`; what either changed is in the result. Texts are merged by the same documents that blocks
are made of, so a merge here and one in a block come to the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, TypeAlias

from pattern_core.memory.document import BlockDocument, UpdateText, same, state_of

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"

_MINE, _THEIRS = 1, 2  # numbers of the two writers; a fork never meets another document
_SIGNS_FROM: Final = 0xF0000  # a private plane of Unicode: one sign for each distinct item of a list
_SIGNS_MAX: Final = 0xFFFD


def merge_texts(base: str, mine: str, theirs: str) -> str:
    """The text with the changes of both; where both changed the same place, both texts stand there."""
    if mine in (base, theirs):
        return theirs
    if theirs == base:
        return mine
    common = BlockDocument(_MINE)
    common.sign({}, [UpdateText(text=base)], "base", {}, now_ms=0)
    other = BlockDocument.load(common.snapshot(), peer=_THEIRS)
    signed = other.sign(state_of(other), [UpdateText(text=theirs)], "side", {}, now_ms=0)
    common.sign(state_of(common), [UpdateText(text=mine)], "side", {}, now_ms=0)
    common.import_update(signed.update)
    return common.text


def merge_values(base: Value, mine: Value, theirs: Value) -> Value:
    """The JSON value with the changes of both: objects by their keys, lists by their items, texts by characters.

    Where both changed a number, a truth value or a type, mine counts. A key that one side took away and the other
    changed stays.
    """
    if same(mine, base) or same(mine, theirs):
        return theirs
    if same(theirs, base):
        return mine
    match base, mine, theirs:
        case dict(), dict(), dict():
            return _merged_objects(base, mine, theirs)
        case list(), list(), list():
            return _merged_lists(base, mine, theirs)
        case str(), str(), str():
            return merge_texts(base, mine, theirs)
    return mine


def _merged_objects(base: dict[str, Value], mine: dict[str, Value], theirs: dict[str, Value]) -> dict[str, Value]:
    merged: dict[str, Value] = {}
    for key in dict.fromkeys([*theirs, *mine]):
        if key in mine and key in theirs:
            merged[key] = merge_values(base.get(key), mine[key], theirs[key])
            continue
        kept = mine[key] if key in mine else theirs[key]
        if key not in base or not same(kept, base[key]):  # added by one, or changed by the one that kept it
            merged[key] = kept
    return merged


def _merged_lists(base: list[Value], mine: list[Value], theirs: list[Value]) -> list[Value]:
    """Each distinct item becomes one sign, so that merging texts merges lists; a changed item is another item."""
    items: dict[str, Value] = {}
    for item in (*base, *mine, *theirs):
        items.setdefault(_key(item), item)
    if len(items) > _SIGNS_MAX:  # no block holds so many; what is new on my side goes to the end then
        there = {_key(item) for item in (*theirs, *base)}
        return [*theirs, *(item for item in mine if _key(item) not in there)]
    signs = {key: chr(_SIGNS_FROM + number) for number, key in enumerate(items)}
    values = list(items.values())

    def text_of(side: Sequence[Value]) -> str:
        return "".join(signs[_key(item)] for item in side)

    merged = merge_texts(text_of(base), text_of(mine), text_of(theirs))
    return [values[ord(sign) - _SIGNS_FROM] for sign in merged]


def _key(item: Value) -> str:
    return json.dumps(item, sort_keys=True)

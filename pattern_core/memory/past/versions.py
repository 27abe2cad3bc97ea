"""Recorded changes and whole states put into documents, by the fewest edits; `commit` comes after, by the caller."""

from __future__ import annotations

from collections.abc import Callable

from pattern_core.memory.delta import starts_of
from pattern_core.memory.document import READER_PEER, Change, Count, Document, Keys, Spliced, State, state_of
from pattern_db.columns import Json, to_json

_BY = "system"  # signs commits of scratch documents, which are never stored


def apply_change(document: Document, change: Change) -> None:
    """Make the change, which must have been made on (or carried to) what the document holds.

    Raises:
        DocumentDamaged: it was not.
    """
    for name, part in change.items():
        match part:
            case Spliced(is_text, splices):
                places = zip(starts_of(part), splices, strict=True)
                for start, one in reversed(list(places)):
                    if is_text:
                        document.splice(start, len(one.removed), str(one.added), name)
                    else:
                        document.splice_items(name, start, len(one.removed), list(one.added))
            case Keys(values):
                for key, (_, value) in values.items():
                    document.put_field(name, key, value)
            case Count(by):
                document.add(name, by)


def write_state(document: Document, state: State) -> None:
    """Make the document hold `state` and nothing else."""
    held = state_of(document)
    for name in {**held, **state}:
        match state.get(name, held.get(name)):
            case str():
                document.set_text(state.get(name, ""), name)
            case list():
                _write_items(document, name, held.get(name, []), state.get(name, []))
            case dict():
                before, after = held.get(name, {}), state.get(name, {})
                for key in {**before, **after}:
                    if to_json(before.get(key)) != to_json(after.get(key)):
                        document.put_field(name, key, after.get(key))
            case int() | float():
                document.add(name, state.get(name, 0) - held.get(name, 0))


def _write_items(document: Document, name: str, before: list[Json], after: list[Json]) -> None:
    """Replace what lies between the common start and the common end; as text, since true is not 1."""
    old, new = [to_json(item) for item in before], [to_json(item) for item in after]
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    document.splice_items(name, start, len(old) - end - start, after[start : len(after) - end])


def _common(left: list[str], right: list[str]) -> int:
    for number, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return number
    return min(len(left), len(right))


def document_of(state: State) -> Document:
    """A document that holds `state` and has no history, for trying something out."""
    document = Document(READER_PEER)
    write_state(document, state)
    document.commit(_BY, {}, now_ms=0)
    return document


def change_by(state: State, write: Callable[[Document], None]) -> Change:
    """What `write` changes in a document that holds `state`; `write` edits and does not commit.

    Raises:
        DocumentDamaged: `write` made an edit that has no recorded form.
    """
    return document_of(state).sign(state, write, _BY, {}, now_ms=0).change or {}


def change_to(before: State, after: State) -> Change:
    """What makes `after` of `before`, by few edits."""
    return change_by(before, lambda document: write_state(document, after))

"""The texts of memory blocks as files, names for these, and merges of what both sides changed.

Text blocks are Markdown, structured ones JSON as a person would indent it, logs one JSON document a line. Two contents
of a file that mean the same (another indentation, a newline that an editor added) read as the same text.
"""

from __future__ import annotations

import json
import re

from pattern_core.errors import InvalidInput
from pattern_core.memory.changes import applied, carried, change_to
from pattern_core.memory.document import TEXT, same
from pattern_db.columns import Json as Value
from pattern_db.columns import strict_json, to_json
from pattern_server.cli.client import Json
from pattern_server.cli.memory_edits import dumped, schema_name, written

NAME_BYTES_MAX = 180  # of 255 that file systems accept: endings such as `.md.yours-2.txt` must fit behind it
_BOM = "\ufeff"
_UNSAFE = re.compile(r'^[.#]|[\x00-\x1f\x7f"*/:<>?\\|%]')  # what some file system or editor gives a meaning


def ending_of(block: Json) -> str:
    """Return the ending of a block's file, by its schema: `"Text"`, or an object with one key such as `Map`."""
    return {"Text": ".md", "Log": ".jsonl"}.get(schema_name(block), ".json")


def text_of(block: Json) -> str:
    """Return the block's content as the text of its file."""
    if ending_of(block) == ".jsonl" and isinstance(block["value"], list):
        return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in block["value"])
    return written(block)


def read_text(raw: bytes, ending: str) -> str:
    """Return the text of a file's bytes, in the one way to write it for structured blocks.

    Raises:
        InvalidInput: it is not UTF-8, or not the JSON that the ending promises.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"it is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    if "\0" in text:
        raise InvalidInput("it contains a zero byte; save it as plain text")
    if ending == ".json" and text.strip():
        try:
            return dumped(strict_json(text.removeprefix(_BOM)))
        except ValueError as error:
            raise InvalidInput(f"it is not JSON: {error}") from None
    return text


def like(text: str, model: str) -> str:
    """`text` without what an editor changes by itself in a copy of `model`: a mark of byte order, carriage returns, the
    newline at the end.
    """
    if not model.startswith(_BOM):
        text = text.removeprefix(_BOM)
    if "\r" not in model:
        text = text.replace("\r\n", "\n")
    if not model.endswith("\n"):
        return text.removesuffix("\n")
    return text + "\n" if text and not text.endswith("\n") else text


def merged(ending: str, base: str, mine: str, theirs: str) -> str:
    """Return the text with what both sides changed since `base`."""
    if ending == ".md":
        return str(merge_values(base, mine, theirs))
    return dumped(merge_values(*(json.loads(text) for text in (base, mine, theirs))))


def merge_values(base: Value, mine: Value, theirs: Value) -> Value:
    """Return the JSON value with what both changed: objects by their keys, lists by their items, texts by characters.

    Where both changed the same place of a text, both texts are kept; where both changed a number, a truth value or a
    type, mine is. A key that one side removed and the other changed is kept. A changed item is another item.
    """
    if same(mine, base) or same(mine, theirs):
        return theirs
    if same(theirs, base):
        return mine
    match base, mine, theirs:
        case dict(), dict(), dict():
            return _merged_objects(base, mine, theirs)
        case list(), list(), list():
            items = {to_json(item): item for item in (*mine, *theirs)}
            keys = [[to_json(item) for item in side] for side in (base, mine, theirs)]
            return [items[key] for key in _merge_texts(*keys)]
        case str(), str(), str():
            return _merge_texts(base, mine, theirs)
    return mine


def _merge_texts(base: Value, mine: Value, theirs: Value) -> Value:
    """Texts, or lists of texts."""
    change, other = (change_to({TEXT: base}, {TEXT: side}) for side in (mine, theirs))
    return applied({TEXT: theirs}, carried(change, other, wins=True)).get(TEXT, base[:0])


def _merged_objects(base: dict[str, Value], mine: dict[str, Value], theirs: dict[str, Value]) -> dict[str, Value]:
    made: dict[str, Value] = {}
    for key in dict.fromkeys([*theirs, *mine]):
        if key in mine and key in theirs:
            made[key] = merge_values(base.get(key), mine[key], theirs[key])
            continue
        kept = mine[key] if key in mine else theirs[key]
        if key not in base or not same(kept, base[key]):  # added by one, or changed by the one that kept it
            made[key] = kept
    return made


def file_name(name: str, otherwise: str) -> str:
    """Return a name as any file system accepts it, such as `a%3Ab` for `a:b`; `otherwise`, if it is too long."""
    made = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)
    return made if len(made.encode()) <= NAME_BYTES_MAX else otherwise

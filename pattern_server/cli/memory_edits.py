"""A block's content as a person edits it, and the requests that write it back."""

from __future__ import annotations

import json
from pathlib import Path

from pattern_core.errors import Conflict, InvalidInput
from pattern_server.cli.client import Api, Json, ServerFailed, json_or_words

CHANGED_MEANWHILE = 412
TEXT_TYPES = ("Text", "Timestamp")  # types of fields that never hold JSON


def schema_name(block: Json) -> str:
    """Return the name of a block's schema: Text, Map, List, Log or Composite."""
    schema = block.get("schema") or "Text"
    return schema if isinstance(schema, str) else str(next(iter(schema), "Text"))


def written(block: Json) -> str:
    """Return a block's content as a person edits it: its text, or indented JSON."""
    if is_text(block):
        return str(block.get("value", block["content"]))
    return dumped(block["value"])


def dumped(value: object) -> str:
    """Return a JSON value as the text of a file."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def is_text(block: Json) -> bool:
    """Return whether its content is text, and not JSON."""
    return schema_name(block) == "Text"


async def replace(kept: Api, label: str, content: str, found: tuple[Json, str] | None, *, keep: bool) -> Json:
    """Write a block of the memory `kept` that was `found` (with its version; None: there was none), and return it.

    The server merges changes that others made since. With `keep`, a text that cannot be stored is written to a file in
    the current folder, and the error names it.

    Raises:
        Conflict: a block of that label was created in the meantime.
        InvalidInput: it is not JSON where the block needs it.
        ServerFailed: the server refuses the text.
    """
    try:
        if found is None:
            # The condition is that the block still does not exist (RFC 9110, section 13.1.2).
            return await kept.call("PUT", label, body={"content": content}, headers={"If-None-Match": "*"})
        body = {**_body(found[0], content), "base_version": found[0]["version"]}
        return await kept.call("PUT", label, body=body)
    except (ServerFailed, InvalidInput) as error:
        saved = f" Your text is in {_saved(label, content)}." if keep else ""
        if isinstance(error, ServerFailed) and error.status == CHANGED_MEANWHILE:
            said = f"The block {label} was created by someone else. Look at it, and edit again.{saved}"
            raise Conflict(said) from error
        if saved:
            raise InvalidInput(f"{error.message}.{saved}") from error
        raise


def _body(block: Json, content: str) -> Json:
    if is_text(block):
        return {"content": content}
    try:
        return {"value": json.loads(content)}
    except ValueError as error:
        kind = schema_name(block).lower()
        raise InvalidInput(
            f"The block {block['label']} is a {kind} block, and this is not valid JSON: {error}"
        ) from None


def _saved(label: str, content: str) -> Path:
    """Write a text into the current folder, under the first free name; return it."""
    number = 1
    while (target := Path(f"{label}.{number}.md")).exists():
        number += 1
    target.write_text(content, encoding="utf-8")
    return target


def with_more(block: Json, *, text: str) -> Json:
    """Return the body that adds a line or an item to a block.

    Raises:
        InvalidInput: nothing can be appended to a block of its schema.
    """
    match schema_name(block):
        case "Text":
            before = written(block)
            line = before if not before or before.endswith("\n") else before + "\n"
            return {"content": f"{line}{text}\n"}
        case "List":
            return {"value": [*block["value"], json_or_words(text)]}
        case "Log":
            raise InvalidInput(f"The block {block['label']} is a log, which only agents and sources write")
    raise InvalidInput(f"The block {block['label']} is not a text or a list. Set its fields with `pattern memory set`")


def with_field(block: Json, *, field: str, value: str) -> Json:
    """Return the body that sets one field of a block.

    Raises:
        InvalidInput: the block has no fields.
    """
    name = schema_name(block)
    if name not in ("Map", "Composite"):
        raise InvalidInput(
            f"The block {block['label']} is a {name.lower()} block and has no fields. Use `pattern memory edit`"
        )
    section, dot, inner = field.partition(".")
    if name == "Map" or not dot:
        return {"value": {**block["value"], field: _typed(block, field, value)}}
    fields = block["value"].get(section)
    if not isinstance(fields, dict):
        raise InvalidInput(f"The section {section!r} of {block['label']} has no fields. Set all of it")
    return {"value": {**block["value"], section: {**fields, inner: _typed(block, field, value)}}}


def _typed(block: Json, field: str, value: str) -> object:
    """Return the value as JSON, unless the field is text in the schema."""
    return value if _field_type(block.get("schema"), field) in TEXT_TYPES else json_or_words(value)


def _field_type(schema: object, field: str) -> str | None:
    """Return the type that a tagged schema gives a field, or a field of a section (`section.field`)."""
    match schema:
        case "Text" | {"Text": _}:
            return "Text"
        case {"Map": {"fields": list(fields)}}:
            return next((str(one.get("field_type")) for one in fields if one.get("name") == field), None)
        case {"Composite": {"sections": list(sections)}}:
            name, _, inner = field.partition(".")
            found = next((one.get("schema") for one in sections if one.get("name") == name), None)
            return _field_type(found, inner)
    return None

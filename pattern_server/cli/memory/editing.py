"""`pattern memory edit|append|set`: what a block says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_server.cli.client import Api, Json, ServerFailed
from pattern_server.cli.command import ExitCode, connected
from pattern_server.cli.memory.place import Place, filled, placed, schema_name
from pattern_server.cli.output import Output

ATTEMPTS_MAX = 5  # somebody else may edit the block between our reading and our writing
CHANGED_MEANWHILE = 412
TEXT_TYPES = ("Text", "Timestamp")  # types of fields whose value is never read as JSON


@click.command("edit")
@click.argument("label")
@click.option("--content", metavar="TEXT", help="The whole new content; without it an editor opens, or a pipe is read.")
@connected
@placed
async def edit(api: Api, output: Output, place: Place, label: str, content: str | None) -> ExitCode:
    """Write the block LABEL anew; it is made if there is none. Structured blocks are shown as JSON.

    What somebody else, the agent for one, changed since it was shown to you is kept, and merged with what you changed.
    """
    where = place.at(label)
    found = await api.find(where)
    before = "" if found is None else written(found[0])
    is_typed = content is None and sys.stdin.isatty()
    typing = partial(_edited, before, ".md" if found is None or _is_text(found[0]) else ".json")
    after = await trio.to_thread.run_sync(typing if is_typed else sys.stdin.read) if content is None else content
    if found and after == before:
        output.data(found[0])
        output.say("Nothing was changed.")
        return None
    block = await replace(api, where, after, found, label=label, keep=is_typed)
    output.data(block)
    done = "Changed" if found else "Created"
    if found and written(block) != after and block["version"] > found[0]["version"] + 1:
        done = "Somebody else had changed it meanwhile; both changes are kept in"
    output.say(f"{done} {label}: {filled(block)} characters, version {block['version']}.")
    return None


def written(block: Json) -> str:
    """A block's content as a person edits it: its text, or indented JSON."""
    if _is_text(block):
        return str(block.get("value", block["content"]))
    return json.dumps(block["value"], ensure_ascii=False, indent=2) + "\n"


def _is_text(block: Json) -> bool:
    return schema_name(block) == "Text"


async def replace(
    api: Api, where: str, content: str, found: tuple[Json, str] | None, *, label: str, keep: bool
) -> Json:
    """Write a block whose content was `found` (a block and its version, or none); the block then.

    Other people's changes since are merged in by the server. With `keep`, a text that cannot be stored is written to a
    file in the current folder, and the error names it.

    Raises:
        Conflict: somebody else made a block of that label meanwhile.
        InvalidInput: it is not JSON where that is wanted.
        ServerFailed: the server refuses the text.
    """
    try:
        if found is None:
            # The condition is that there still is no block (RFC 9110, section 13.1.2).
            made: Json = await api.call("PUT", where, body={"content": content}, headers={"If-None-Match": "*"})
            return made
        body = {**_body(found[0], content), "base_version": found[0]["version"]}
        changed: Json = await api.call("PUT", where, body=body)
        return changed
    except (ServerFailed, InvalidInput) as error:
        kept = f" Your text is in {_kept(label, content)}." if keep else ""
        if isinstance(error, ServerFailed) and error.status == CHANGED_MEANWHILE:
            said = f"somebody else made {label} meanwhile; look at it and edit again.{kept}"
            raise Conflict(said) from error
        if kept:
            raise InvalidInput(f"{error.message}.{kept}") from error
        raise


def _body(block: Json, content: str) -> Json:
    if _is_text(block):
        return {"content": content}
    try:
        return {"value": json.loads(content)}
    except ValueError as error:
        kind = schema_name(block).lower()
        raise InvalidInput(f"{block['label']} is a {kind}, whose content is JSON, and this is not: {error}") from None


def _edited(before: str, extension: str) -> str:
    after = click.edit(before, extension=extension, require_save=True)
    return before if after is None else after


def _kept(label: str, content: str) -> Path:
    """Write what somebody typed where it can be found again: the first free name in the current folder."""
    number = 1
    while (target := Path(f"{label}.{number}.md")).exists():
        number += 1
    target.write_text(content, encoding="utf-8")
    return target


@click.command("append")
@click.argument("label")
@click.argument("text")
@connected
@placed
async def append(api: Api, output: Output, place: Place, label: str, text: str) -> ExitCode:
    """Add TEXT as a line at the end of the block LABEL, or as an item (JSON, or just words) if it is a list."""
    block = await _changed(api, place, label, partial(with_more, text=text))
    output.data(block)
    output.say(f"Added to {label}: {filled(block)} characters, version {block['version']}.")
    return None


def with_more(block: Json, *, text: str) -> Json:
    """The body that adds a line or an item to a block.

    Raises:
        InvalidInput: the block's schema has no end to add something at.
    """
    match schema_name(block):
        case "Text":
            before = written(block)
            line = before if not before or before.endswith("\n") else before + "\n"
            return {"content": f"{line}{text}\n"}
        case "List":
            return {"value": [*block["value"], _json_or_words(text)]}
        case "Log":
            raise InvalidInput(f"{block['label']} is a log, which is kept by the system; agents and sources write it")
    raise InvalidInput(f"{block['label']} is no text and no list; `pattern memory set` changes its fields")


@click.command("set")
@click.argument("label")
@click.argument("field")
@click.argument("value")
@connected
@placed
async def set_field(api: Api, output: Output, place: Place, label: str, field: str, value: str) -> ExitCode:
    """Set one FIELD of the structured block LABEL to VALUE: JSON, or just words.

    In a composite block FIELD is SECTION, or SECTION.FIELD.
    """
    block = await _changed(api, place, label, partial(with_field, field=field, value=value))
    output.data(block)
    output.say(f"Set {field} of {label}; version {block['version']}.")
    return None


def with_field(block: Json, *, field: str, value: str) -> Json:
    """The body that sets one field of a block.

    Raises:
        InvalidInput: the block has no fields.
    """
    name = schema_name(block)
    if name not in ("Map", "Composite"):
        raise InvalidInput(f"{block['label']} is a {name.lower()} block and has no fields; use `pattern memory edit`")
    section, dot, inner = field.partition(".")
    if name == "Map" or not dot:
        return {"value": {**block["value"], field: _typed(block, field, value)}}
    fields = block["value"].get(section)
    if not isinstance(fields, dict):
        raise InvalidInput(f"the section {section!r} of {block['label']} has no fields; set it as a whole")
    return {"value": {**block["value"], section: {**fields, inner: _typed(block, field, value)}}}


def _typed(block: Json, field: str, value: str) -> object:
    """The value as JSON, unless the schema says that the field is words."""
    return value if _field_type(block.get("schema"), field) in TEXT_TYPES else _json_or_words(value)


def _field_type(schema: object, field: str) -> str | None:
    """The type that a tagged schema gives a field, or a field of a section (`section.field`)."""
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


def _json_or_words(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _changed(api: Api, place: Place, label: str, body_of: Callable[[Json], Json]) -> Json:
    """The block after a change that is made of what it says now, tried again if somebody else was first."""
    for _ in range(ATTEMPTS_MAX):
        found = await api.find(place.at(label))
        if found is None:
            raise NotFound(
                f"{place.whose} has no block {label}; `pattern memory edit {label} {place.options}` makes one"
            )
        try:
            body = body_of(found[0])
            block: Json = await api.call("PUT", place.at(label), body=body, headers={"If-Match": found[1]})
        except ServerFailed as error:
            if error.status != CHANGED_MEANWHILE:
                raise
            continue
        return block
    raise Conflict(f"{label} is being changed all the time; try again in a moment")

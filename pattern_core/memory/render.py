"""A block as somebody sees it. Four renderings, kept apart because each has its own reader; all pure.

prompt    the model, between tags that say what it may do
plain     people, search and previews
raw       programs: a JSON value
editing   people in an editor; what they save is read back as the new content
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pattern_core.memory.schema import SchemaKind

# Whatever could pass for one of our tags: with spaces, of any case, opening or closing.
_TAG = re.compile(r"<(?=\s*/?\s*block\s*:)", re.IGNORECASE)
_IN_ATTRIBUTE = str.maketrans({"&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;", "\n": " ", "\r": " "})


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBlock:
    """What the prompt shows of a block. `char_limit` is in code points; `owner` names who lent it, if anyone did."""

    label: str
    permission: str
    content: str
    char_limit: int
    description: str = ""
    owner: str | None = None


def prompt(block: PromptBlock) -> str:
    """The block for the system prompt: an opening tag with attributes, the content, a closing tag.

    Content cannot end the block early or open another one: such a tag within it loses its `<` to `&lt;`.
    """
    attributes = [f'permission="{block.permission}"']
    if block.description:
        attributes.append(f'description="{block.description.translate(_IN_ATTRIBUTE)}"')
    attributes.append(f'chars="{len(block.content)}/{block.char_limit}"')
    if block.owner is not None:
        attributes.append(f'shared_from="{block.owner.translate(_IN_ATTRIBUTE)}"')
    label = block.label.translate(_IN_ATTRIBUTE)
    return f"<block:{label} {' '.join(attributes)}>\n{_TAG.sub('&lt;', block.content)}\n</block:{label}>"


def plain(content: str, kind: SchemaKind = SchemaKind.TEXT) -> str:
    """The content as text for people, search and previews."""
    _only_text(kind)
    return content


def raw(content: str, kind: SchemaKind = SchemaKind.TEXT) -> object:
    """The content as a JSON value: a string for text."""
    _only_text(kind)
    return content


def editing(content: str, kind: SchemaKind = SchemaKind.TEXT) -> str:
    """The content for an editor: for text the text itself, so that saving it unchanged changes nothing."""
    _only_text(kind)
    return content


def _only_text(kind: SchemaKind) -> None:
    if kind is not SchemaKind.TEXT:
        raise AssertionError(f"no rendering for {kind}: the schema should have been refused before")

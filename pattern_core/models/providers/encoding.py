"""What the formats of all vendors share: names, ids, images, schemas, signatures, and lenient reading of JSON; pure.

What models and their servers write may hold halves of characters (lone surrogates), arguments that are not JSON, and
values of another type.

A conversation may hold what another vendor's model wrote, and a model may call a tool that was not offered by a name
that its own vendor refuses to read again. What is once in the history stays there, so a substitute is sent: the
same one for a call, for its result and in every later request.

Sources: Anthropic API reference, `tool_use` (`[a-zA-Z0-9_-]`); OpenAI's refusals ("Expected a string with maximum
length 40", 64 for responses; names `^[a-zA-Z0-9_-]+$`, at most 64 characters); Mistral's ("must be a-z, A-Z, 0-9, with
a length of 9"), which its models' templates repeat.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from hashlib import blake2s

from pattern_core.messages import Image, Message, ToolResult
from pattern_core.models.model import ToolSpec

TOOL_NAME_CHARS_MAX = 64
TOOL_NAMES_MAX = 1_024  # names kept in memory: a conversation repeats the same few
NOTHING = "(no words)"  # for vendors that accept no turn without any
LOST_IMAGE = "(There was an image here; it is no longer available.)"

# The vendor of a signature: proofs of reasoning are replayed only to the vendor that made them, so that an agent
# that moves to another model loses the proofs and nothing else. A stored signature begins with its vendor's mark.
# Anthropic's are bound to a model: its name comes next, followed by a space; those of OpenAI and of servers that
# use its formats to a provider: its name is the field `server` of the JSON object that comes next.
ANTHROPIC = "anthropic:"
OPENAI = "openai:"  # of the responses format
CHAT = "chat:"  # of chat completions, by servers that give calls an `extra_content`
GOOGLE = "google:"
REDACTED = "redacted_thinking:"  # Anthropic's reasoning that only the vendor can read

Encoded = dict[str, object]  # a message, or a part of one, in a vendor's format

_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")
_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_VALUE_KEYWORDS = ("enum", "const", "default", "examples")  # of a schema: what they hold are values, not schemas


@lru_cache(maxsize=TOOL_NAMES_MAX)
def plain_name(tool: str) -> str:
    """Return the name of a tool that was called, as every vendor accepts it."""
    return _STRANGE.sub("_", tool)[:TOOL_NAME_CHARS_MAX]


def plain_id(call_id: str, chars_max: int) -> str:
    """Return the id in letters, digits, `_` and `-`, at most `chars_max` of them."""
    return short_id(_STRANGE.sub("_", call_id), chars_max)


def short_id(call_id: str, chars_max: int) -> str:
    """Return the id, or a digest in its place where it has more than `chars_max` characters."""
    return call_id if len(call_id) <= chars_max else f"call_{_digest(call_id)}"[:chars_max]


def nine_id(call_id: str) -> str:
    """Return the id, or a digest in its place where it is not nine letters and digits."""
    return call_id if _NINE.fullmatch(call_id) else _digest(call_id)[:9]


def _digest(call_id: str) -> str:
    return blake2s(call_id.encode()).hexdigest()


def image_base64(image: Image) -> str | None:
    """Return the image's bytes as base64, None where they are not available."""
    return None if image.data is None else b64encode(image.data).decode("ascii")


def image_url(image: Image) -> str | None:
    """Return an address that holds the image: a `data:` one of its bytes, else its own; None where there is neither."""
    data = image_base64(image)
    return image.url if data is None else f"data:{image.media_type};base64,{data}"


def proof_of(mark: str, signature: str | None) -> str | None:
    """Return the vendor's proof as it came, None if there is none or it does not begin with the vendor's mark."""
    return (signature[len(mark) :] or None) if signature and signature.startswith(mark) else None


def proof_by(server: str, mark: str, signature: str | None) -> JsonObject:
    """Return the JSON object that the provider `server` gave as its proof; an empty one if another did."""
    proof = JsonObject.parse(proof_of(mark, signature))
    return proof if proof.pop("server", None) == server else JsonObject()


def alternating(
    messages: Iterable[Message], assistant: str, result: str, encode: Callable[[Message], list[Encoded]]
) -> list[tuple[str, list[Encoded]]]:
    """Return turns of alternating roles, beginning and ending with "user"; `assistant` is the vendor's other role.

    In each of them results, which have the field `result`, come before words.
    """
    turns: list[tuple[str, list[Encoded]]] = [("user", [])]
    for message in messages:
        role = assistant if message.role == "assistant" else "user"
        blocks = encode(message)
        if role == turns[-1][0]:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, blocks))
    for _, blocks in turns:
        blocks.sort(key=lambda block: result not in block)
    return turns if turns[-1][0] == "user" else [*turns, ("user", [])]


def present(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that have a value; vendors differ in what they make of null."""
    return {name: value for name, value in fields.items() if value is not None}


def function_of(tool: ToolSpec) -> dict[str, object]:
    """Return the tool as both of OpenAI's formats describe a function."""
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def answer_by(schema: Mapping[str, object]) -> dict[str, object]:
    """Return an answer that follows the JSON Schema as both of OpenAI's formats describe it."""
    return {"name": "answer", "schema": dict(schema), "strict": is_strict_schema(schema)}


def result_words(result: ToolResult) -> str:
    """Return a result for OpenAI's formats, which have no mark for errors: its words say that it is one, once."""
    marked = result.is_error and not result.content.startswith("Error")
    return f"Error: {result.content}" if marked else result.content


def system_words(text: str) -> str:
    """Return what the system says later than at the start, marked, for formats that have it only there."""
    return f"<system>\n{text}\n</system>"


def closed_schema(schema: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON Schema with `additionalProperties: false` on each object that says nothing of them."""
    made = deepcopy(dict(schema))
    for one in _objects_in(made):
        one.setdefault("additionalProperties", False)
    return made


def is_strict_schema(schema: Mapping[str, object]) -> bool:
    """Return whether OpenAI's strict mode accepts the JSON Schema: every object is closed and requires all that it
    has.
    """
    for one in _objects_in(dict(schema)):
        required = one.get("required")
        asked = set(required) if isinstance(required, list) else set()
        if one.get("additionalProperties") is not False or JsonObject(one).nested("properties").keys() != asked:
            return False
    return True


def _objects_in(schema: object) -> Iterator[dict[str, object]]:
    """Yield each schema of an object, those within another one first."""
    if isinstance(schema, list):
        for item in schema:
            yield from _objects_in(item)
    elif isinstance(schema, dict):
        for key, item in schema.items():
            if key not in _VALUE_KEYWORDS:
                yield from _objects_in(item)
        # A property may itself be called "type" or "properties": then its value has another form.
        kind = schema.get("type", "object" if isinstance(schema.get("properties"), dict) else None)
        if kind == "object":
            yield schema


def valid_unicode(text: str) -> str:
    """Return the text with surrogate pairs joined into their characters and lone halves replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class JsonObject(dict[str, object]):
    """An object in a foreign format: its optional fields may be missing, null or of another type."""

    @classmethod
    def of(cls, value: object) -> JsonObject:
        """Return the value if it is an object, else an empty one."""
        return cls(value) if isinstance(value, dict) else cls()

    @classmethod
    def parse(cls, text: str | None) -> JsonObject:
        """Return the JSON object that the text is; an empty one where it is none."""
        try:
            return cls.of(json.loads(text or "{}"))
        except (ValueError, RecursionError):
            return cls()

    def text(self, name: str) -> str:
        """Return a field that is a string, else ""."""
        value = self.get(name)
        return value if isinstance(value, str) else ""

    def count(self, name: str) -> int | None:
        """Return a field that is a whole number from 0, else None."""
        value = self.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None

    def nested(self, name: str) -> JsonObject:
        """Return a field that is an object, else an empty one."""
        return JsonObject.of(self.get(name))

    def listed(self, name: str) -> list[JsonObject]:
        """Return the objects of a field that is a list, else none; other items count as empty objects."""
        value = self.get(name)
        return [JsonObject.of(item) for item in value] if isinstance(value, list) else []

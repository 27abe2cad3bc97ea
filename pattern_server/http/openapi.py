"""The description of the API that `/openapi.json` shows, made of the routes and of `data/api.toml`.

FastAPI describes parameters, bodies and successful answers. The rest is derived from what a route declares: problem
documents, the required token, ids, names, events, texts and examples.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from http import HTTPStatus
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from pattern_db.files import shipped
from pattern_server.http.errors import CHAT, OPENAI, STATUS
from pattern_server.http.errors import MEDIA_TYPE as PROBLEM_TYPE
from pattern_server.http.routing import ApiRoute

WORDS: Mapping[str, Any] = tomllib.loads(shipped("data/api.toml").read_text(encoding="utf-8"))
FIELDS, EXAMPLES, SCHEMAS = WORDS["fields"], WORDS["examples"], WORDS["schemas"]
SCHEMA_PLACE = "#/components/schemas/"
TIME = "2026-01-31T12:00:00.000Z"

# Errors that are not problem documents.
_FORMS = {
    "OpenAIError": "An error in OpenAI's form; `code` is that of a problem document.",
    "ChatError": "An error as front ends for chat sessions read it; `code` is that of a problem document.",
}
_GENERIC = re.compile(r"(Page|Items)_(\w+)_")
_GENERIC_NAMES = {"Page": "Page", "Items": "List"}
# Fields that the core knows as objects of any shape, and that always have this one.
_SHAPES = {"error": "TurnError", "usage": "Usage"}


def describe(made: dict[str, Any], routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the whole description; `made` is the framework's description of these routes."""
    schemas = {_name(name): _renamed(schema) for name, schema in made["components"]["schemas"].items()}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas |= {**deepcopy(WORDS["shapes"]), **_event_schemas()}
    errors = {name: schemas.pop(name) for name in _FORMS}
    for name, schema in schemas.items():
        _explain(name, schema)
    for name, schema in schemas.items():
        if "properties" in schema:
            schema["examples"] = [_example(name, schema, schemas)]
    paths = _renamed(made["paths"])
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _complete(paths[route.path_format][method.lower()], method, route)
    content = {PROBLEM_TYPE: {"schema": {"$ref": f"{SCHEMA_PLACE}Problem"}}}
    texts = {**WORDS["problems"], "": "Any other failure."}
    responses = {
        f"Problem{status}": {"description": f"{text} {_codes(status)}", "content": content}
        for status, text in texts.items()
    }
    for name, words in _FORMS.items():
        responses[name] = {"description": words, "content": {"application/json": {"schema": errors[name]}}}
    bearer = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API token or an access token with the scope that the operation requires.",
    }
    components = {
        "schemas": dict(sorted(schemas.items())),
        "responses": responses,
        "securitySchemes": {"bearer": bearer},
    }
    tags = [{"name": name, "description": text} for name, text in WORDS["tags"].items()]
    return {**made, "tags": tags, "paths": paths, "components": components}


def _codes(status: str) -> str:
    """Return a sentence with the error codes of a status; without one, of those that have no text of their own."""
    codes = [
        f"`{code}`"
        for code, own in STATUS.items()
        if str(own) == status or (not status and str(own) not in WORDS["problems"])
    ]
    return f"{'Codes' if codes[1:] else 'Code'}: {', '.join(codes)}."


def _complete(operation: dict[str, Any], method: str, route: APIRoute) -> None:
    """Add to an operation what its route declares."""
    operation["operationId"] = f"{operation['tags'][0]}.{'list' if route.name == 'list_all' else route.name}"
    first, _, rest = operation["description"].partition("\n")
    operation |= {"summary": summary_of(first), "description": rest.strip() or first}
    for parameter in operation.get("parameters", ()):
        parameter["schema"].pop("title", None)
        parameter.setdefault("description", FIELDS.get(parameter["name"]))
        _bound(parameter["name"], parameter["schema"])
    # The framework's 422 has a body that is never sent.
    responses = {status: answer for status, answer in operation["responses"].items() if status != "422"}
    for status, answer in responses.items():
        if answer["description"] == "Successful Response":
            answer["description"] = HTTPStatus(int(status)).phrase
    if isinstance(route, ApiRoute):
        operation["security"] = [] if route.scope is None else [{"bearer": [route.scope]}]
        for status in sorted(_problems(operation, method)):
            responses.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    failure = {"$ref": "#/components/responses/Problem"}
    if (form := "OpenAIError" if route.path.startswith(OPENAI) else CHAT.match(route.path) and "ChatError") is not None:
        responses = {status: answer for status, answer in responses.items() if "$ref" not in answer}
        failure = {"$ref": f"#/components/responses/{form}"}
    operation["responses"] = {**responses, "default": failure}


def summary_of(sentence: str) -> str:
    """Return the first sentence of a description without what follows a semicolon or a colon."""
    return re.split(r"[;:.](?:\s|$)", sentence, maxsplit=1)[0]


def _problems(operation: Mapping[str, Any], method: str) -> Iterator[int]:
    """Yield the statuses of an operation's problem documents."""
    yield from (401, 403, 422, 429, 500, 503)  # 422: an unknown query parameter
    parameters = operation.get("parameters", ())
    if "requestBody" in operation or any(one["in"] == "path" for one in parameters):
        yield 404
    if any(one["name"].startswith("if-") for one in parameters):
        yield 412
    if "101" in operation["responses"]:
        yield 426
    if "requestBody" in operation:
        yield from (400, 413, 415) if "application/json" in operation["requestBody"]["content"] else (413,)
    if method != "GET":
        yield from (409, 507)


def _name(name: str) -> str:
    """Return the name of a schema from the name of its class: `AgentPage` for a page of agents."""
    if generic := _GENERIC.fullmatch(name):
        return _name(generic[2]) + _GENERIC_NAMES[generic[1]]
    return str(WORDS["schema_names"].get(name, name))


def _renamed(made: Any) -> Any:
    """Return a part of the framework's description with our names of schemas."""
    if isinstance(made, list):
        return [_renamed(one) for one in made]
    if not isinstance(made, dict):
        return made
    reference = made.get("$ref")
    if isinstance(reference, str):
        return {**made, "$ref": SCHEMA_PLACE + _name(reference.removeprefix(SCHEMA_PLACE))}
    return {key: _renamed(value) for key, value in made.items()}


def _explain(name: str, schema: dict[str, Any]) -> None:
    """Add descriptions to a schema and its fields, and delete titles that only repeat names."""
    schema.pop("title", None)
    if words := SCHEMAS.get(name):
        schema["description"] = words
    elif name.endswith(("Page", "List")):
        schema.setdefault("description", "A page of a list." if name.endswith("Page") else "A whole list.")
    for field, inner in schema.get("properties", {}).items():
        inner.pop("title", None)
        if words := FIELDS.get(f"{name}.{field}") or FIELDS.get(field):
            inner.setdefault("description", words)
        for choice in (inner, *inner.get("anyOf", ())):
            if field in _SHAPES and choice.get("type") == "object":
                del choice["type"]
                choice.pop("additionalProperties", None)
                choice["$ref"] = SCHEMA_PLACE + _SHAPES[field]
        _bound(f"{name}.{field}", inner)


def _bound(place: str, schema: dict[str, Any]) -> None:
    """Add the constraints of a field or parameter to its schema; null stays allowed."""
    for choice in (schema, *schema.get("anyOf", ())):
        if choice.get("type") == "string":
            choice |= WORDS["bounds"].get(place, {})


def _example(name: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return an example of an object: for each field the example of the table, or one made from its type."""
    return WORDS["requests"].get(name) or {
        field: EXAMPLES[own] if (own := f"{name}.{field}") in EXAMPLES else _typed(field, inner, schemas)
        for field, inner in schema["properties"].items()
    }


def _typed(field: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return a value that is valid for a field's schema: the field's own example if the schema allows it."""
    match schema:
        case {"$ref": str(reference)}:
            name = reference.removeprefix(SCHEMA_PLACE)
            return _example(name, schemas[name], schemas) if "properties" in schemas[name] else schemas[name]["enum"][0]
        case {"const": value} | {"enum": [value, *_]} | {"default": value}:
            return value
        case {"examples": [value]}:
            return value
        case _ if field in EXAMPLES:
            return EXAMPLES[field]
        case {"contentSchema": {"$ref": str(reference)}}:
            return json.dumps(_typed(field, {"$ref": reference}, schemas))
        case {"type": [*_]}:
            return None
        case {"anyOf": [*choices]}:
            return None if {"type": "null"} in choices else _typed(field, choices[0], schemas)
        case {"type": "array", "items": items}:
            return [_typed(field, items, schemas)]
        case {"type": "string"}:
            return TIME if field.endswith("at") else "…"
    return {"integer": 1, "number": 0.5, "boolean": False, "object": {}}.get(schema.get("type", ""))


def _event_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of all events: `Event`, discriminated by `event`, and the JSON data of each."""
    made: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for event, entry in WORDS["events"].items():
        name = event.title().replace(".", "")
        names[event] = f"{SCHEMA_PLACE}{name}Event"
        made[f"{name}Event"] = {
            "type": "object",
            "description": entry["words"],
            "properties": {
                "id": {"type": "string", "description": "The event's `seq`, for `Last-Event-ID`.", "examples": ["4"]},
                "event": {"type": "string", "const": event, "description": "What happened."},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": f"{SCHEMA_PLACE}{name}Data"},
                    "description": "The data, as one line of JSON.",
                },
            },
            "required": ["id", "event", "data"],
        }
        made[f"{name}Data"] = _data_schema(event, entry["data"])
    choices = [{"$ref": place} for place in names.values()]
    made["Event"] = {
        "description": "A server-sent event. A stream resumes after the event that `Last-Event-ID` names.",
        "oneOf": choices,
        "discriminator": {"propertyName": "event", "mapping": names},
    }
    return made


def _data_schema(event: str, fields: str) -> dict[str, Any]:
    """Return the schema of an event's data, from its line in `data/api.toml`."""
    properties: dict[str, Any] = {
        "seq": {"type": "integer"},
        "turn_id": {"type": ["string", "null"]},
        "created_at": {"type": "string"},
    }
    required = [*properties]
    for field in fields.split():
        name, _, kinds = field.removesuffix("?").partition(":")
        kind = kinds.split("|") if "|" in kinds else kinds or "string"
        properties[name] = {"type": kind, **({"items": {"type": "string"}} if kind == "array" else {})}
        if not field.endswith("?"):
            required.append(name)
    return {
        "type": "object",
        "description": f"The data of the event `{event}`.",
        "properties": properties,
        "required": required,
    }

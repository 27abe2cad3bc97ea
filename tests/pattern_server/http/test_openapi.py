"""The description of the API: complete in words and examples, and true of every answer that is recorded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from pattern_core.events import TERMINAL
from pattern_server.http.app import Application
from pattern_server.http.errors import CHAT, STATUS
from pattern_server.http.openapi import EXAMPLES, FIELDS, SCHEMAS, WORDS
from pattern_server.http.routes import health
from tests.recorded.__main__ import recordings
from tests.recorded.script import Step, read
from tests.sources import sources

METHODS = ("get", "put", "post", "delete", "patch")


@cache
def described() -> dict[str, Any]:
    """The description, which needs no server."""
    app = Application()
    app.router.routes.extend(health.router.routes)
    return app.openapi()


def operations() -> list[dict[str, Any]]:
    return [operation for path in described()["paths"].values() for operation in path.values()]


def schemas() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = described()["components"]["schemas"]
    return found


def misfits(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What of a value does not fit a schema of the description."""
    registry = Registry().with_resource("urn:api", DRAFT202012.create_resource(described()))
    absolute = json.loads(json.dumps(schema).replace('"#/', '"urn:api#/'))
    validator = Draft202012Validator(absolute, registry=registry)
    return [f"{error.json_path}: {error.message}"[:300] for error in validator.iter_errors(value)]


def test_every_schema_and_field_has_words() -> None:
    parts = [(name, schema) for name, schema in schemas().items()]
    parts += [(f"{name}.{field}", one) for name, schema in schemas().items() for field, one in fields(schema).items()]
    parts += [(one["operationId"], part) for one in operations() for part in one.get("parameters", ())]
    missing = [name for name, part in parts if not part.get("description")]
    assert not missing, f"describe {missing} in data/api.toml"


def test_no_word_is_left_over() -> None:
    parameters = {part["name"] for one in operations() for part in one.get("parameters", ())}
    used = {name for schema in schemas().values() for name in fields(schema)} | parameters
    places = {f"{name}.{field}" for name, schema in schemas().items() for field in fields(schema)}
    assert not {*FIELDS, *EXAMPLES} - used - places
    assert not {*SCHEMAS, *WORDS["requests"], *WORDS["schema_names"].values()} - schemas().keys()


def fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema.get("properties", {})
    return found


def test_examples_fit() -> None:
    for name, schema in schemas().items():
        assert bool(schema.get("examples")) == ("properties" in schema), name
        for example in schema.get("examples", ()):
            assert not misfits(schema, example), name
            assert "…" not in json.dumps(example, ensure_ascii=False), f"add examples for the fields of {name}"


def test_names_are_plain_and_unique() -> None:
    ids = [one["operationId"] for one in operations()]
    assert {"agents.list", "agents.create", "memory.history", "turns.get"} < {*ids}
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in ids)
    for key in ("operationId", "summary", "description"):
        assert not [value for value, count in Counter(one[key] for one in operations()).items() if count > 1]
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in schemas())
    assert not [name for name in schemas() if name.endswith(("View", "Row", "Response"))]
    assert "HTTPValidationError" not in json.dumps(described())
    bodies = [one["requestBody"] for one in operations() if "requestBody" in one]
    sent = re.findall(r'schemas/(\w+)"', json.dumps(bodies))
    assert sent and all(name.endswith("Request") for name in sent)


def test_every_operation_says_how_it_fails_and_what_token_it_needs() -> None:
    for path, one in ((path, one) for path, found in described()["paths"].items() for one in found.values()):
        form = "OpenAIError" if path.startswith("/v1/") else "ChatError" if CHAT.match(path) else "Problem"
        assert one["responses"]["default"] == {"$ref": f"#/components/responses/{form}"}
        assert ("security" in one) == path.startswith(("/api/", "/mcp/", "/v1/", "/hooks/"))
        assert form != "Problem" or "security" not in one or {"401", "403", "422", "503"} < one["responses"].keys()
    assert described()["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert described()["paths"]["/api/v1/constellations/{c}/agents"]["post"]["security"] == [{"bearer": ["write"]}]


def test_every_body_has_a_schema() -> None:
    for operation in operations():
        for one in (operation.get("requestBody", {}), *operation["responses"].values()):
            bare = [kind for kind, body in one.get("content", {}).items() if "schema" not in body]
            assert not bare, f"{operation['operationId']}: the page /docs cannot show {bare}"


def test_every_group_status_and_code_of_an_error_is_described() -> None:
    assert {tag for one in operations() for tag in one["tags"]} == {tag["name"] for tag in described()["tags"]}
    assert "Successful Response" not in json.dumps(described())
    problems = described()["components"]["responses"]
    for code, status in STATUS.items():
        assert f"`{code}`" in problems.get(f"Problem{status}", problems["Problem"])["description"]


def test_every_event_is_described() -> None:
    assert names_of_events() <= WORDS["events"].keys()
    core = "".join(source.text for source in sources() if source.path.startswith("pattern_core/"))
    assert not [event for event in WORDS["events"].keys() - TERMINAL if f'"{event}"' not in core]
    assert schemas()["Event"]["discriminator"]["mapping"].keys() == WORDS["events"].keys()


def names_of_events() -> set[str]:
    """What the core publishes."""
    published = r'(?:Draft\(|\.event\(|\.publish\(|(?:CHANGED|HALTED|RESUMED)[\w, ]* =)\s*"([a-z]+(?:\.[a-z]+)?)"'
    core = [source.text for source in sources() if source.path.startswith("pattern_core/")]
    found = {name for text in core for name in re.findall(published, text)} | TERMINAL
    assert {"message", "turn.started", "model.retry", "archive.changed", "constellation.halted"} <= found
    return found


def recorded() -> list[tuple[str, Step]]:
    """The recorded requests of the API, each with its operation's path."""
    found = []
    for path in recordings():
        for step in read(path.read_text(encoding="utf-8")):
            where = "/api/v1" + step.path.partition("?")[0]
            if step.recorded and step.method.lower() in METHODS and not step.path.startswith("//"):
                found += [(where, step)]
    return found


def operation_of(where: str, method: str) -> dict[str, Any] | None:
    for path, found in described()["paths"].items():
        pattern = re.sub(r"\\{name\\}$", ".+", re.escape(path)) if path.endswith("/files/{name}") else re.escape(path)
        if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", pattern), where) and method in found:
            operation: dict[str, Any] = found[method]
            return operation
    return None


def response_of(operation: Mapping[str, Any], status: str) -> dict[str, Any]:
    answer: dict[str, Any] = operation["responses"][status]
    if "$ref" in answer:
        answer = described()["components"]["responses"][answer["$ref"].rpartition("/")[2]]
    return answer


def events_of(lines: list[str]) -> Iterator[dict[str, str]]:
    for part in "\n".join(lines).split("\n\n"):
        event = dict(line.split(": ", 1) for line in part.split("\n") if line.startswith(("id: ", "event: ", "data: ")))
        if "data" in event:
            yield event


def test_what_is_recorded_is_as_described() -> None:
    checked: Counter[str] = Counter()
    wrong = []
    for where, step in recorded():
        status, *lines = [line[2:] for line in step.recorded if not line.startswith("|!")]
        operation = operation_of(where, step.method.lower())
        if operation is None:
            assert status in ("404", "405"), step.name
        elif status not in operation["responses"]:
            wrong.append(f"{step.name}: {status}")
        else:
            content = response_of(operation, status).get("content", {})
            kind = next(
                (line.split(": ")[1].split(";")[0] for line in lines if line.startswith("content-type")), "none"
            )
            checked[kind] += 1
            given = next((line.partition(": ")[2] for line in lines if line.startswith("location: ")), None)
            if given is not None and operation_of(unquote(given), "get") is None:
                wrong.append(f"{step.name}: nothing is at {given}")
            wrong += [f"{step.name}: {status} {one}" for one in misfits_of_answer(content, kind, lines)]
    assert not wrong, "\n".join(wrong)
    assert checked["application/json"] > 150 and checked["application/problem+json"] > 100
    assert checked["text/event-stream"] > 10


def misfits_of_answer(content: Mapping[str, Any], kind: str, lines: list[str]) -> Iterator[str]:
    """What of a recorded answer is not as its operation describes it."""
    if kind not in content and f"{kind.split('/')[0]}/*" not in content:
        if content or kind != "none":
            yield f"is {kind}"
    elif kind == "text/event-stream":
        for event in events_of(lines):
            data = json.loads(event["data"])
            own = schemas()[event["event"].title().replace(".", "") + "Data"]
            yield from misfits(content[kind]["schema"], event) + misfits(own, data)
            yield from (f"{event['event']}: {name} has no words" for name in data.keys() - fields(own).keys())
    elif kind.endswith("json"):
        start = next(number for number, line in enumerate(lines) if line.startswith(("{", "[")))
        answer = json.loads("\n".join(lines[start:]).replace("$size", "1"))
        yield from misfits(content[kind]["schema"], answer)

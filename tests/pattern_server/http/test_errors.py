"""The table of codes, and problem documents."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import pattern_core
import pattern_db
import pattern_server
from pattern_core.errors import InvalidInput, Overloaded, PatternError, Unavailable
from pattern_db.errors import DatabaseError, DiskFull
from pattern_server.http.errors import STATUS, for_path, of_error, of_framework, of_validation, problem, status_of

# Errors that no request meets: they stop a start, a migration, a turn or a command line.
NOT_OF_REQUESTS = {
    "internal", "stopped", "database", "invalid_config", "listen_failed", "migration_failed", "unreachable",
    "claim_failed", "copy_damaged", "document_damaged", "in_doubt",
}  # fmt: skip


def codes() -> Iterator[str]:
    """The codes of all error classes of the three packages."""
    for package in (pattern_core, pattern_db, pattern_server):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            for _name, kind in inspect.getmembers(importlib.import_module(found.name), inspect.isclass):
                if issubclass(kind, PatternError | DatabaseError):
                    yield kind.code


def told(answer: Response) -> dict[str, Any]:
    """The problem document."""
    document: dict[str, Any] = json.loads(bytes(answer.body))
    return document


def test_every_code_has_a_status() -> None:
    missing = {code for code in codes() if status_of(code) == 500 and code not in STATUS} - NOT_OF_REQUESTS
    assert not missing, f"add {sorted(missing)} to STATUS in pattern_server/http/errors.py"


@pytest.mark.parametrize(
    ("error", "status", "seconds"),
    [
        (Overloaded("full", retry_after_s=2.2), 429, "3"),
        (Unavailable("ill", retry_after_s=0.01), 503, "1"),
        (Unavailable("ill", retry_after_s=0.0), 503, "1"),
        (Unavailable("ill"), 503, "5"),
        (DiskFull("no space"), 507, None),
    ],
)
def test_when_to_come_back(error: PatternError | DatabaseError, status: int, seconds: str | None) -> None:
    answer = of_error(error)
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == seconds


def test_details_cannot_change_the_document() -> None:
    answer = told(of_error(InvalidInput("no", code="other", status=200, headers={"a": "b"})))
    assert (answer["code"], answer["status"]) == ("invalid_input", 422)


def test_what_is_no_json_or_text_is_still_a_problem() -> None:
    assert told(problem("invalid_input", "half \ud800", {"path": object}))["code"] == "invalid_input"


def test_routing_errors_have_codes() -> None:
    assert told(of_framework(HTTPException(404)))["code"] == "not_found"
    answer = of_framework(HTTPException(405, headers={"Allow": "GET"}))
    assert told(answer)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "GET"
    assert told(of_framework(HTTPException(400, "cannot parse")))["code"] == "malformed_json"


@pytest.mark.parametrize(
    ("code", "status", "kind", "may_repeat"),
    [
        ("unauthorized", 401, "authentication_error", True),
        ("permission_denied", 403, "permission_error", True),
        ("not_found", 404, "invalid_request_error", True),
        ("conflict", 409, "invalid_request_error", False),
        ("invalid_input", 400, "invalid_request_error", True),
        ("overloaded", 429, "rate_limit_error", True),
        ("internal", 500, "server_error", False),
        ("no_answer", 502, "server_error", False),
        ("unavailable", 503, "server_error", True),
        ("disk_full", 507, "server_error", False),
    ],
)
def test_clients_of_openais_read_errors_of_theirs(code: str, status: int, kind: str, may_repeat: bool) -> None:
    misfits = {"errors": [{"field": "body.model", "message": "no"}]} if status == 400 else {}
    answer = for_path("/v1/chat/completions", problem(code, "no", misfits))
    error = {"message": "no", "type": kind, "param": "model" if misfits else None, "code": code}
    assert (answer.status_code, told(answer)) == (status, {"error": error})
    assert answer.headers.get("x-should-retry") == (None if may_repeat else "false")
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert answer.headers["content-type"] == "application/json"


def test_front_ends_of_chats_read_errors_of_their_server() -> None:
    for path in ("/api/chat", "/api/session/x", "/api/stop"):
        answer = for_path(path, problem("overloaded", "later"))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "5")
        assert told(answer) == {"success": False, "error": "later", "code": "overloaded"}
    for path in ("/api/v1/chat", "/v1", "/api/chatter"):
        assert told(for_path(path, problem("overloaded", "later")))["detail"] == "later"


def test_misfits_are_named_and_bounded() -> None:
    misfits = [{"type": "missing", "loc": ("body", f"f{n}"), "msg": "Field required"} for n in range(50)]
    answer = told(of_validation(RequestValidationError(misfits)))
    assert answer["errors"][0] == {"field": "body.f0", "message": "Field required"}
    assert len(answer["errors"]) == 20
    assert "body.f0: Field required" in answer["detail"]

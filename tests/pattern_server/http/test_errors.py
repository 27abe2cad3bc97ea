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
from pattern_server.http.errors import STATUS, of_error, of_framework, of_validation, problem, status_of

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


def test_misfits_are_named_and_bounded() -> None:
    misfits = [{"type": "missing", "loc": ("body", f"f{n}"), "msg": "Field required"} for n in range(50)]
    answer = told(of_validation(RequestValidationError(misfits)))
    assert answer["errors"][0] == {"field": "body.f0", "message": "Field required"}
    assert len(answer["errors"]) == 20
    assert "body.f0: Field required" in answer["detail"]

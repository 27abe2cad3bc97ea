"""The one table from error codes to HTTP status, and problem documents.

Source: RFC 9457, "Problem Details for HTTP APIs"; `code` is our extension member, stable for clients to switch on.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from pattern_core.errors import PatternError
from pattern_db.errors import DatabaseError

MEDIA_TYPE = "application/problem+json"
MISFITS_SHOWN_MAX = 20

STATUS: Mapping[str, int] = {
    "malformed_json": 400,
    "unauthorized": 401,
    "permission_denied": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "similar_entry": 409,
    "halted": 409,
    "no_member": 409,
    "events_pruned": 410,
    "version_mismatch": 412,
    "too_large": 413,
    "upgrade_required": 426,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "invalid_input": 422,
    "idempotency_mismatch": 422,
    "limit_reached": 422,
    "backup_invalid": 422,
    "archive_invalid": 422,
    "invalid_config": 422,
    "overloaded": 429,
    "unavailable": 503,
    "member_failed": 502,
    "turn_failed": 502,
    "embedder_unavailable": 503,
    "busy": 503,
    "internal": 500,
    "document_damaged": 500,
    "history_damaged": 500,
    "storage_failed": 503,
    "io_failed": 503,
    "corrupt": 503,
    "owned_elsewhere": 503,
    "schema_outdated": 503,
    "schema_too_new": 503,
    "migration_edited": 503,
    "disk_full": 507,
    "backup_failed": 507,
}
OPENAI = "/v1"  # paths of clients that speak OpenAI's protocol
CHAT = re.compile(r"/api/(chat|stream|stop|sessions?)(/.*)?")  # paths of front ends for chat sessions
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
RETRY_AFTER_S = 5  # if the error itself has no such value

_OF_STATUS = {404: "not_found", 405: "method_not_allowed", 415: "unsupported_media_type"}


class TooLarge(PatternError):
    """The request's body is longer than the server accepts."""

    code = "too_large"
    remedy = "Send less at once, or raise `body_bytes_max`."


class UnsupportedMediaType(PatternError):
    """The request's body has an unsupported content type."""

    code = "unsupported_media_type"
    remedy = "Send JSON with the header `Content-Type: application/json`."


class UpgradeRequired(PatternError):
    """The address is for WebSocket connections."""

    code = "upgrade_required"
    remedy = "Connect with a WebSocket client, or use the other routes."


class RequestTimeout(PatternError):
    """The request's body did not arrive in time."""

    code = "request_timeout"
    remedy = "Send the request again; check the connection if it is slow."


def status_of(code: str) -> int:
    """Return the HTTP status of an error code; 500 for codes that clients should never see."""
    if code.startswith("model_") or code in ("window_exceeded", "no_answer"):
        return 502
    return STATUS.get(code, 500)


def problem(
    code: str, detail: str, members: Mapping[str, object] | None = None, *, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a problem document. `members` are additional JSON-safe members; `retry_after_s` also becomes
    `Retry-After`.
    """
    status = status_of(code)
    more = dict(members or {})
    sent = dict(headers or {})
    if status in (429, 503):
        seconds = more.get("retry_after_s")
        wait_s = seconds if isinstance(seconds, int | float) else RETRY_AFTER_S
        more["retry_after_s"] = round(wait_s, 3)
        sent["retry-after"] = str(max(1, math.ceil(wait_s)))
    if status == 401:
        sent["www-authenticate"] = 'Bearer realm="pattern"'
    if status == 426:
        sent |= {"upgrade": "websocket", "sec-websocket-version": "13"}
    content = {
        **more,
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    body = json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Response(body, status, sent, MEDIA_TYPE)


def for_path(path: str, response: Response) -> Response:
    """Return a problem document in the form that clients of this path read: below `/v1` in OpenAI's, for chat sessions
    in that of their server.

    A client of OpenAI's repeats a request after a conflict or a failure by itself; where that is wrong it is asked not
    to.
    """
    if CHAT.fullmatch(path):
        problem = json.loads(bytes(response.body))
        sent = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        body = {"success": False, "error": problem["detail"], "code": problem["code"]}
        return JSONResponse(body, response.status_code, sent)
    if not path.startswith(f"{OPENAI}/"):
        return response
    problem, status = json.loads(bytes(response.body)), response.status_code
    status = 400 if status == 422 else status
    wrong = (problem.get("errors") or [{}])[0].get("field", "").removeprefix("body.")
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    content = {"message": problem["detail"], "type": kind, "param": wrong or None, "code": problem["code"]}
    sent = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    if status in (409, 500, 502, 507):
        sent["x-should-retry"] = "false"
    return Response(json.dumps({"error": content}, ensure_ascii=False), status, sent, "application/json")


def of_error(error: PatternError | DatabaseError) -> Response:
    """Return the problem document of an expected failure."""
    details = error.details if isinstance(error, PatternError) else {}
    return problem(error.code, error.message, details)


def of_framework(error: HTTPException) -> Response:
    """Return the problem document of a refusal by routing: unknown path, wrong method, or a body that is not JSON."""
    code = _OF_STATUS.get(error.status_code, "malformed_json" if error.status_code == 400 else "invalid_input")
    detail = {
        "not_found": "unknown endpoint; see /docs",
        "method_not_allowed": "method not allowed for this path; see /docs",
    }.get(code, str(error.detail))
    return problem(code, detail, headers=error.headers)


def of_validation(error: RequestValidationError) -> Response:
    """Return the problem document of an invalid body, path or query: the fields and the reasons."""
    misfits = error.errors()
    if any(misfit["type"] == "json_invalid" for misfit in misfits):
        place = misfits[0].get("ctx", {}).get("error", "it cannot be parsed")
        return problem("malformed_json", f"the body is not valid JSON: {place}")
    shown = [{"field": _field(misfit["loc"]), "message": str(misfit["msg"])} for misfit in misfits[:MISFITS_SHOWN_MAX]]
    detail = "; ".join(f"{misfit['field']}: {misfit['message']}" for misfit in shown)
    return problem("invalid_input", f"invalid request: {detail}", {"errors": shown})


def _field(place: Sequence[int | str]) -> str:
    """Return the path of a field as the client wrote it, without pydantic's names of alternatives."""
    return ".".join(str(part) for part in place if part != "str" and "[" not in str(part))

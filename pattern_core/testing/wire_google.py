"""Google's generated content, spoken by a server on loopback from a script.

Source: Gemini API reference, "models.streamGenerateContent", and its error bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.models.providers.encoding import GOOGLE, proof_of
from pattern_core.testing.wire import Entry, Play, WireRequest, document, events, serve_wire

_FINISH = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "other": "OTHER",
}
_PATH = re.compile(r"/v1beta/models/[^/:]+:streamGenerateContent")


def replies(reply: ModelReply, *, slice_chars: int = 8, usage: bool = True) -> Play:
    """Return the stream that makes a client see `reply`, its texts in pieces of `slice_chars` characters.

    Calls come whole, as they do from the vendor.
    """
    chunks = [chunk(part) for piece in reply.parts for part in _parts(piece, slice_chars)]
    counted = reply.usage
    last = chunk(finish=_FINISH[reply.finish_reason])
    if usage:
        last["usageMetadata"] = {
            "promptTokenCount": counted.input_tokens,
            "cachedContentTokenCount": counted.cached_tokens,
            "candidatesTokenCount": counted.output_tokens - counted.reasoning_tokens,
            "thoughtsTokenCount": counted.reasoning_tokens,
            "totalTokenCount": counted.input_tokens + counted.output_tokens,
        }
    return events(*chunks, last)


def chunk(*parts: Mapping[str, object], finish: str | None = None) -> dict[str, object]:
    """Return one chunk of a stream."""
    candidate: dict[str, object] = {"content": {"parts": [dict(part) for part in parts], "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "scripted", "responseId": "resp-scripted"}


def refuses(status: int, message: str, *, kind: str = "UNKNOWN", details: Iterable[Mapping[str, object]] = ()) -> Play:
    """Return an error body with its status; `details` are the vendor's, such as `{"retryDelay": "7s"}`."""
    error = {"code": status, "message": message, "status": kind, "details": [dict(detail) for detail in details]}
    return document({"error": error}, status=status)


NO_SCRIPT = refuses(400, "the script is over", kind="INVALID_ARGUMENT")


def serve_google(script: Iterable[Entry | ModelReply] = (), otherwise: Entry | ModelReply = NO_SCRIPT) -> serve_wire:
    """Return a server that plays `script`, in which a `ModelReply` stands for the stream that makes it.

    Clients use `base_url` `server.url`.
    """
    return serve_wire((partial(_checked, entry) for entry in script), partial(_checked, otherwise))


def _checked(entry: Entry | ModelReply, request: WireRequest) -> Play:
    """Return the vendor's own refusals of what is malformed, so that a test does not pass by an answer to nonsense."""
    path, _, query = request.path.partition("?")
    if request.method != "POST" or not _PATH.fullmatch(path) or query != "alt=sse":
        return refuses(404, f"there is no {request.method} {request.path}", kind="NOT_FOUND")
    if not request.headers.get("x-goog-api-key"):
        return refuses(403, "no key was given", kind="PERMISSION_DENIED")
    problem = _problem(request.json().get("contents"))
    if problem:
        return refuses(400, problem, kind="INVALID_ARGUMENT")
    if isinstance(entry, ModelReply):
        return replies(entry)
    return entry(request) if callable(entry) else entry


def _problem(contents: object) -> str | None:
    """Return the vendor's rules: roles alternate from the user's, no turn is empty, each call is answered in the next
    turn.
    """
    if not isinstance(contents, list) or not contents:
        return "contents is not specified"
    calls: list[object] = []
    for index, content in enumerate(contents):
        parts = content["parts"]
        if content["role"] != ("model" if index % 2 else "user"):
            return f"contents[{index}]: roles must alternate and begin with the user's"
        if not parts:
            return f"contents[{index}].parts: must not be empty"
        answers = [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]
        if sorted(map(str, answers)) != sorted(map(str, calls)):
            return "the number of function response parts must equal that of the function call parts"
        calls = [part["functionCall"]["id"] for part in parts if "functionCall" in part]
    return "function calls without responses" if calls else None


def _parts(part: Part, size: int) -> list[dict[str, object]]:
    """Return a part as the pieces in which it comes; words that are signed come in one piece, as they are one part."""
    match part:
        case ToolCall():
            call = {"id": part.call_id, "name": part.tool, "args": dict(part.arguments)}
            return [{"functionCall": call, **_signed(part.signature)}]
        case Text() | Reasoning():
            thought = {"thought": True} if isinstance(part, Reasoning) else {}
            if part.signature is not None:
                return [{"text": part.text, **thought, **_signed(part.signature)}]
            texts = [part.text[at : at + size] for at in range(0, len(part.text), size)]
            return [{"text": text, **thought} for text in texts]
        case _:
            raise ValueError(f"a model does not answer with {part}")


def _signed(signature: str | None) -> dict[str, object]:
    proof = proof_of(GOOGLE, signature)
    return {} if proof is None else {"thoughtSignature": proof}

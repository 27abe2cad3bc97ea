"""Google's generated content, spoken by a server on loopback from a script.

Source: Gemini API reference, "models.streamGenerateContent", and its error bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pattern_core.messages import Part, Reasoning, ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.models.providers.encoding import GOOGLE, proof_of
from pattern_core.testing import wire

_FINISH = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "other": "OTHER",
}


def replies(reply: ModelReply) -> wire.Play:
    """Return the stream that makes a client see `reply`; calls come whole, as they do from the vendor."""
    chunks = [chunk(part) for piece in reply.parts for part in _parts(piece)]
    counted = reply.usage
    last = chunk(finish=_FINISH[reply.finish_reason])
    last["usageMetadata"] = {
        "promptTokenCount": counted.input_tokens,
        "cachedContentTokenCount": counted.cached_tokens,
        "candidatesTokenCount": counted.output_tokens - counted.reasoning_tokens,
        "thoughtsTokenCount": counted.reasoning_tokens,
        "totalTokenCount": counted.input_tokens + counted.output_tokens,
    }
    return wire.events(*chunks, last)


def chunk(*parts: Mapping[str, object], finish: str | None = None) -> dict[str, object]:
    """Return one chunk of a stream."""
    candidate: dict[str, object] = {"content": {"parts": [dict(part) for part in parts], "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "scripted", "responseId": "resp-scripted"}


def refuses(
    status: int, message: str, *, kind: str = "UNKNOWN", details: Iterable[Mapping[str, object]] = ()
) -> wire.Play:
    """Return an error body with its status; `details` are the vendor's, such as `{"retryDelay": "7s"}`."""
    error = {"code": status, "message": message, "status": kind, "details": [dict(detail) for detail in details]}
    return wire.document({"error": error}, status=status)


def _problem(request: wire.WireRequest) -> str | None:
    """Return the vendor's rules: those of turns, and none is empty."""
    contents = request.json().get("contents")
    if not isinstance(contents, list) or not contents or not all(content["parts"] for content in contents):
        return "contents, and the parts of each, must not be empty"

    def ids(content: dict[str, Any], field: str) -> list[str]:
        return [part[field]["id"] for part in content["parts"] if field in part]

    turns = [(one["role"], ids(one, "functionResponse"), ids(one, "functionCall")) for one in contents]
    return wire.disorder(turns, "model")


def _parts(part: Part) -> list[dict[str, object]]:
    """Return a part as the pieces in which it comes; words that are signed come in one piece, as they are one part."""
    texts = wire.pieces(part)
    signed = _signed(getattr(part, "signature", None))
    if isinstance(part, ToolCall):
        return [{"functionCall": {"id": part.call_id, "name": part.tool, "args": dict(part.arguments)}, **signed}]
    thought = {"thought": True} if isinstance(part, Reasoning) else {}
    return [{"text": text, **thought, **signed} for text in (["".join(texts)] if signed else texts)]


def _signed(signature: str | None) -> dict[str, object]:
    proof = proof_of(GOOGLE, signature)
    return {} if proof is None else {"thoughtSignature": proof}


# Clients use `base_url` `server.url`.
serve_google = wire.vendor(
    replies,
    refuses,
    _problem,
    path=r"/v1beta/models/[^/:]+:streamGenerateContent\?alt=sse",
    keys=("x-goog-api-key",),
)

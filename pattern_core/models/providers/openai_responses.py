"""OpenAI's responses, asked for without any state on the vendor's side: requests and the events of their streams; pure.

Nothing is stored there (`store: false`), so the reasoning comes along encrypted, is kept as a signature and is sent
again with the conversation: the model continues to think where it stopped instead of at the beginning in each step. The
format has no `stop` and no `seed`.

Source: OpenAI API reference, "Create a model response" and "Streaming events"; guide "Reasoning models".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from pattern_core.messages import Image, Message, Note, Part, Reasoning, Text, ToolCall, ToolResult
from pattern_core.models.model import ANY_TOOL, Delta, FinishReason, ModelRequest, Usage
from pattern_core.models.providers.draft import Decoder, Malformed
from pattern_core.models.providers.encoding import (
    LOST_IMAGE,
    OPENAI,
    Encoded,
    JsonObject,
    answer_by,
    function_of,
    image_url,
    plain_name,
    present,
    proof_by,
    result_words,
    short_id,
)

CALL_ID_CHARS_MAX = 64

# Models that do not reason refuse to be asked for it, and so for its encrypted form; those that do refuse sampling
# parameters, unless they are asked not to reason, which only those from 5.1 on can be. Names may begin with a
# vendor's or, fine-tuned ones, with `ft:`. Source: the vendor's pages of models, and its refusals.
_WITHOUT_REASONING = re.compile(r"(?:^|[/:])(?:gpt-3|gpt-4|chatgpt|gpt-[5-9][\w.]*-chat)")
_WITH_REASONING = re.compile(r"(?:^|[/:])(?:o\d|gpt-[5-9])(?![\w.]*-chat)")
# Models that its chat completions do not accept, or not together with tools while they reason, which they do unasked.
_RESPONSES_ONLY = re.compile(r"(?:^|[/:])(?:gpt-5\.[4-9]|gpt-[6-9]|(?:o\d|gpt-5)[\w.]*-(?:pro|codex))(?![\w.]*-chat)")
_LEAST_EFFORTS = (
    (re.compile(r"(?:^|[/:])(?:gpt-6-astra|gpt-6\.1-sol)"), "low"),
    (re.compile(r"(?:^|[/:])o\d"), "low"),
    (re.compile(r"(?:^|[/:])gpt-5(?!\.)"), "minimal"),
)


def encode_response(request: ModelRequest, server: str) -> dict[str, object]:
    """Return the body of the request; `server` is the provider's name; only its own proofs are sent."""
    items = [item for message in request.messages for item in _encode_message(message, server)]
    if request.memory:
        memory = {"type": "input_text", "text": "\n\n".join(request.memory)}
        items.insert(0, {"type": "message", "role": "system", "content": [memory]})
    body: dict[str, object] = {
        "model": request.model,
        "input": items,
        "stream": True,
        "store": False,
        "max_output_tokens": request.max_output_tokens,
        "instructions": "\n\n".join(request.system) if request.system else None,
        # The vendor's own default for `strict` would ask that every argument be required.
        "tools": [{"type": "function", **function_of(tool), "strict": False} for tool in request.tools] or None,
        **sampling(request),
    }
    if request.tools and request.force_tool is not None:
        named = {"type": "function", "name": request.force_tool}
        body["tool_choice"] = "required" if request.force_tool == ANY_TOOL else named
    if not _WITHOUT_REASONING.search(request.model):
        body["include"] = ["reasoning.encrypted_content"]
        body["reasoning"] = present({"summary": "auto", "effort": effort_of(request)})
    if request.response_schema is not None:
        body["text"] = {"format": {"type": "json_schema", **answer_by(request.response_schema)}}
    return present(body)


def is_reasoning(model: str) -> bool:
    """Return whether it is one of the vendor's models that reason before they answer."""
    return _WITH_REASONING.search(model) is not None


def needs_responses(model: str) -> bool:
    """Return whether the vendor's own server accepts an agent's questions to the model in this format alone."""
    return _RESPONSES_ONLY.search(model) is not None


def effort_of(request: ModelRequest) -> str | None:
    """Return how hard the model is asked to reason, in its own words; None for models that cannot be asked."""
    if _WITHOUT_REASONING.search(request.model):
        return None
    if request.reasoning_effort != "none":
        return request.reasoning_effort
    return next((least for models, least in _LEAST_EFFORTS if models.search(request.model)), "none")


def sampling(request: ModelRequest) -> dict[str, object]:
    """Return the fields that say how to sample, in both of the vendor's formats; none for models that refuse them."""
    if is_reasoning(request.model) and effort_of(request) != "none":
        return {}
    return {"temperature": request.temperature, "top_p": request.top_p}


def _encode_message(message: Message, server: str) -> Iterator[Encoded]:
    match message.role:
        case "tool":
            for result in message.parts:
                if isinstance(result, ToolResult):
                    yield {
                        "type": "function_call_output",
                        "call_id": short_id(result.call_id, CALL_ID_CHARS_MAX),
                        "output": result_words(result),
                    }
        case "assistant":
            yield from _encode_answer(message.parts, server)
        case role:
            content = [item for part in message.parts if (item := _encode_input(part))]
            if content:
                yield {"type": "message", "role": role, "content": content}


def _encode_answer(parts: tuple[Part, ...], server: str) -> Iterator[Encoded]:
    """Items in the model's order. Reasoning goes before what came of it: alone, at the end, it is refused."""
    waiting: list[Encoded] = []
    for part in parts:
        item: Encoded
        match part:
            case Reasoning() if proof := proof_by(server, OPENAI, part.signature):
                summary = [{"type": "summary_text", "text": part.text}] if part.text else []
                kept = {name: proof.text(name) for name in ("id", "encrypted_content")}
                waiting.append({"type": "reasoning", **kept, "summary": summary})
                continue
            case Text() if part.text:
                phase = proof_by(server, OPENAI, part.signature).text("phase") or None
                content = [{"type": "output_text", "text": part.text}]
                item = present({"type": "message", "role": "assistant", "content": content, "phase": phase})
            case ToolCall():
                # Invalid arguments are not replayed; the call's result says what was wrong with them.
                item = {
                    "type": "function_call",
                    "call_id": short_id(part.call_id, CALL_ID_CHARS_MAX),
                    "name": plain_name(part.tool),
                    "arguments": json.dumps(dict(part.arguments), ensure_ascii=False),
                }
            case _:
                continue
        yield from (*waiting, item)
        waiting.clear()


def _encode_input(part: Part) -> Encoded | None:
    match part:
        case Text() | Note():
            return {"type": "input_text", "text": part.text}
        case Image():
            if (url := image_url(part)) is not None:
                return {"type": "input_image", "image_url": url}
            return {"type": "input_text", "text": LOST_IMAGE}
    return None


class ResponseDecoder(Decoder):
    """Events of a response into a reply. Reasoning is signed with the item's id and its encrypted content."""

    FINISHES: ClassVar[Mapping[str, FinishReason]] = {
        "completed": "stop",
        "max_output_tokens": "length",
        "content_filter": "content_filter",
    }

    def __init__(self, request: ModelRequest, provider: str) -> None:
        super().__init__(request, provider)
        self._seen: set[int] = set()  # places of the items that have begun

    def take(self, body: JsonObject, kind: str) -> list[Delta]:
        """Process one event; unknown kinds are skipped."""
        place = body.count("output_index")
        match body.text("type") or kind:
            case "error":
                raise self.failed(body)
            case "response.created":
                self.keep_id(body.nested("response"))
            case "response.output_item.added" if place is not None:
                return self._begin(place, body.nested("item"))
            case "response.output_text.delta" | "response.refusal.delta":
                return self.draft.words(body.text("delta"))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return self.draft.words(body.text("delta"), is_reasoning=True)
            case "response.reasoning_summary_part.added" if body.count("summary_index"):
                return self.draft.words("\n\n", is_reasoning=True)
            case "response.function_call_arguments.delta":
                self.draft.extend(self.calls.get(place), body.text("delta"))
            case "response.output_item.done" if place is not None:
                return self._complete(place, body.nested("item"))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                return self._end(body.nested("response"))
        return []

    def whole(self, body: JsonObject) -> list[Delta]:
        """Process a response that was not streamed."""
        if not isinstance(body.get("output"), list) and not body.get("error"):
            raise Malformed(f"a document without output: {sorted(body)[:10]}")
        return self._end(body)

    def _begin(self, place: int, item: JsonObject) -> list[Delta]:
        self._seen.add(place)
        match item.get("type"):
            case "message":
                self.draft.begin_words(is_reasoning=False, mark=OPENAI)
            case "reasoning":
                self.draft.begin_words(is_reasoning=True, mark=OPENAI)
            case "function_call":
                self.calls[place] = self.draft.begin_call(item.text("call_id"), item.text("name"))
        return []

    def _complete(self, place: int, item: JsonObject) -> list[Delta]:
        """Process the finished item: missing text, and its signature."""
        is_new = place not in self._seen
        deltas = self._begin(place, item) if is_new else []
        match item.get("type"):
            case "message":
                for part in item.listed("content") if is_new else ():
                    deltas += self.draft.words(part.text("text") or part.text("refusal"))
                if phase := item.text("phase"):
                    self._sign(is_reasoning=False, phase=phase)
            case "reasoning":
                texts = [part.text("text") for part in item.listed("summary") if is_new]
                deltas += self.draft.words("\n\n".join(texts), is_reasoning=True)
                if encrypted := item.text("encrypted_content"):
                    self._sign(is_reasoning=True, id=item.text("id"), encrypted_content=encrypted)
            case "function_call" if (call := self.calls.get(place)) is None or not call.arguments:
                self.draft.extend(call, item.text("arguments"))
        return deltas

    def _sign(self, *, is_reasoning: bool, **proof: str) -> None:
        self.draft.sign(json.dumps({"server": self.provider, **proof}), is_reasoning=is_reasoning)

    def _end(self, response: JsonObject) -> list[Delta]:
        self.keep_id(response)
        status = response.text("status")
        if status in ("failed", "cancelled") or response.get("error"):
            raise self.failed({"error": response.nested("error") or {"message": f"the response was {status}"}})
        deltas: list[Delta] = []
        for place, item in enumerate(response.listed("output")):
            if place not in self._seen:
                deltas += self._complete(place, item)
        self.usage = usage_of(response.nested("usage"))
        reason = response.nested("incomplete_details").text("reason")
        self.finish = (reason or "incomplete") if status == "incomplete" or reason else "completed"
        self.is_done = True
        return deltas


def usage_of(data: JsonObject, sent: str = "input", got: str = "output") -> Usage | None:
    """Return the usage as both of the vendor's formats count it: `sent` and `got` begin the names of the fields."""
    input_tokens, output_tokens = data.count(f"{sent}_tokens"), data.count(f"{got}_tokens")
    if input_tokens is None or output_tokens is None:
        return None
    details = data.nested(f"{sent}_tokens_details")
    # OpenAI's place for it, DeepSeek's and Moonshot's.
    places = (details.count("cached_tokens"), data.count("prompt_cache_hit_tokens"), data.count("cached_tokens"))
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=next(filter(None, places), 0),
        cache_write_tokens=details.count("cache_write_tokens") or 0,
        reasoning_tokens=data.nested(f"{got}_tokens_details").count("reasoning_tokens") or 0,
    )

"""What a client asks, in either form of OpenAI's protocol, in the words of the core.

A client sends the whole conversation each time. What comes before its last own messages is what the agent has in its
session already, so only what follows the last answer is new. What has no meaning for an agent is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from pattern_core.agent_settings import settings_of
from pattern_core.errors import InvalidInput
from pattern_core.messages import Image, Message, Text, ToolCall, ToolResult
from pattern_core.models.model import ANY_TOOL, ToolSpec
from pattern_core.turns.admission import TurnOptions
from pattern_server.http.bodies import RequestModel
from pattern_server.http.routes.messages import NO_PARAMETERS, TOOL_NAME, ImagePartRequest, TextPartRequest, parts_of

JSON_ONLY = "Answer with one JSON object and nothing else."
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
# Open WebUI's titles, tags, follow-up questions, searches and completions, but not its questions about documents.
_TASK = re.compile(r"### Task:\n.*(<chat_history>|autocompletion system)", re.DOTALL)
_TITLE = "5-word-or-less title for the conversation"  # LibreChat's


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high"]


def _a_bool(value: object) -> object:
    if value is not None and not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


A_BOOL = BeforeValidator(_a_bool)  # else 1 is true


class AskedRequest(RequestModel):
    """What both forms have in common. A field with one possible value is there because clients send it."""

    model: str
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: Annotated[Literal[True], A_BOOL] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def asked(
        self,
        name: str,
        given: Sequence[Mapping[str, Any]],
        form: Mapping[str, Any] | None,
        effort: str | None,
        **config: Any,
    ) -> Asked:
        """Return the request with what its form names in its own way: what is said (`given`, in the field `name`), the
        format of the answer, the model's effort, and other keys of an agent's `config`.

        Raises:
            InvalidInput: something said, a tool or the format is not one that an agent can have.
        """
        conversation, more = _read(name, given)
        config = {**config, "temperature": self.temperature, "top_p": self.top_p}
        config["reasoning_effort"] = "low" if effort == "minimal" else effort
        match form:
            case None | {"type": "text"}:
                pass
            case {"type": "json_object"}:
                more.append(JSON_ONLY)
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}} | {
                "type": "json_schema",
                "schema": dict(schema),
            }:
                config["response_schema"] = schema
            case _:
                raise InvalidInput("the format of the answer must be text, json_object, or json_schema with a schema")
        config = {name: value for name, value in config.items() if value is not None}
        settings_of(config, is_new=True)  # refused now, not when the turn runs
        tools = [] if self.tool_choice == "none" else [_tool(tool) for tool in self.tools or ()]
        names, force = [tool.name for tool in tools], ""
        match self.tool_choice:
            case "required":
                force = ANY_TOOL
            case {"type": "function", "function": {"name": str(force)}} | {"type": "function", "name": str(force)}:
                pass
            case dict():
                raise InvalidInput("`tool_choice` must be none, auto, required, or name a function")
        if len(names) > len({*names}) or force not in ("", ANY_TOOL, *names):
            raise InvalidInput("`tools`: each function needs a name of its own, and `tool_choice` one of them")
        return Asked(
            conversation=conversation,
            options=TurnOptions(
                instructions="\n\n".join(filter(None, more)),
                config=config,
                tools=tools,
                force_tool=force or None,
            ),
            metadata=self.metadata,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: `conversation` is all that the client sent but instructions, oldest first."""

    conversation: Sequence[Message]
    options: TurnOptions
    metadata: Mapping[str, object] | None = None

    @property
    def answers(self) -> list[int]:
        """The places of earlier answers in the conversation."""
        return [place for place, one in enumerate(self.conversation) if one.role == "assistant"]

    @property
    def new(self) -> Sequence[Message]:
        """The messages behind the last answer."""
        return self.conversation[self.answers[-1] + 1 :] if self.answers else self.conversation

    @property
    def results(self) -> dict[str, str]:
        """The new results of calls, by the calls' ids.

        Raises:
            InvalidInput: a call of the last answer has none, or another message comes with them.
        """
        parts = [part for one in self.new for part in one.parts]
        found = {part.call_id: part.content for part in parts if isinstance(part, ToolResult)}
        called = self.conversation[self.answers[-1]].tool_calls if self.answers else ()
        if missing := [call.call_id for call in called if call.call_id not in found]:
            raise InvalidInput(f"the call {missing[0]} has no result; send one for each call of the last answer")
        if found and len(found) < len(parts):
            raise InvalidInput("send results of calls alone, and other messages when they are answered")
        return found

    @property
    def words(self) -> tuple[Text | Image, ...]:
        """The texts and images of the new messages, as those of one message."""
        parts: list[Text | Image] = []
        for one in self.new:
            said = [part for part in one.parts if isinstance(part, Text | Image)]
            if parts and said and isinstance(said[0], Text):
                said[0] = replace(said[0], text=f"\n\n{said[0].text}")
            parts += said
        return tuple(parts)

    @property
    def is_beside(self) -> bool:
        """Whether a front end asks about a conversation, for a title for instance, and not within it."""
        words = self.new[-1].text if self.new else ""
        return not self.options.tools and (_TASK.match(words) is not None or _TITLE in words)


def parts_in(content: object) -> tuple[Text | Image, ...]:
    """Return the texts and images of a content.

    Raises:
        InvalidInput: it holds something else, or an image is invalid.
    """
    if isinstance(content, str):
        return (Text(text=content),) if content else ()
    found: list[TextPartRequest | ImagePartRequest] = []
    for part in content if isinstance(content, list) else ():
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
                "type": "refusal",
                "refusal": str(text),
            }:
                found.append(TextPartRequest(type="text", text=text))
            case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
                data = _DATA_URL.fullmatch(url)
                if data is None:
                    found.append(ImagePartRequest(type="image", url=url))
                else:
                    found.append(ImagePartRequest(type="image", data=data[2], media_type=data[1] or None))
            case _:
                kind = part.get("type") if isinstance(part, dict) else part
                raise InvalidInput(f"`content`: an agent reads texts and images, and no part of type {kind!r}")
    return parts_of(found)


def text_in(content: object) -> str:
    """Return the texts of a content.

    Raises:
        InvalidInput: as `parts_in`.
    """
    return "".join(part.text for part in parts_in(content) if isinstance(part, Text))


def _read(name: str, given: Sequence[Mapping[str, Any]]) -> tuple[list[Message], list[str]]:
    """Return the conversation and the instructions among messages, calls and results, each in either form."""
    conversation: list[Message] = []
    instructions: list[str] = []
    names: dict[str, str] = {}  # of called functions, by the calls' ids
    for place, item in enumerate(given):
        content = item.get("content")
        match item:
            case {"role": "system" | "developer"}:
                instructions.append(text_in(content))
                continue
            case {"type": "reasoning"}:
                continue  # the agent has it
            case {"role": "user"}:
                said = Message(role="user", parts=parts_in(content))
            case {"role": "assistant"} | {"type": "function_call"}:
                made = item.get("tool_calls", [] if "role" in item else [item])
                calls = [_call(call) for call in made] if isinstance(made, list) else []
                names |= {call.call_id: call.tool for call in calls}
                before = conversation.pop().parts if conversation and conversation[-1].role == "assistant" else ()
                said = Message(role="assistant", parts=(*before, *parts_in(content), *calls))
            case {"role": "tool", "tool_call_id": str(call_id)} | {
                "type": "function_call_output",
                "call_id": str(call_id),
            }:
                tool, answer = names.get(call_id, ""), text_in(item.get("output", content))
                said = Message(role="tool", parts=(ToolResult(call_id=call_id, tool=tool, content=answer),))
            case _:
                raise InvalidInput(
                    f"`{name}[{place}]` must be a message, a call or a result, with all that belongs to it"
                )
        conversation.append(said)
    return conversation, instructions


def _call(call: object) -> ToolCall:
    """Return a call of an earlier answer."""
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}} | {
            "call_id": str(call_id),
            "name": str(name),
            "arguments": str(arguments),
        }:
            with suppress(ValueError, RecursionError):
                if isinstance(parsed := json.loads(arguments or "{}"), dict):
                    return ToolCall(call_id=call_id, tool=name, arguments=parsed)
            return ToolCall(call_id=call_id, tool=name, invalid=arguments)
    raise InvalidInput("`tool_calls`: a call needs an `id`, and a `function` with a name and arguments")


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    match tool:
        case {"type": "function", "function": {"name": str(name), **more}} | {
            "type": "function",
            "name": str(name),
            **more,
        }:
            about, parameters = more.get("description") or "", more.get("parameters") or NO_PARAMETERS
            if re.fullmatch(TOOL_NAME, name) and isinstance(about, str) and isinstance(parameters, dict):
                return ToolSpec(name=name, description=about, parameters=parameters)
    raise InvalidInput(
        "`tools`: a client can offer functions, with a name (letters, digits, _ and -), a description and parameters"
        f" (a JSON Schema); this is something else: {json.dumps(tool)[:200]}"
    )

"""Trying a model: does it answer in words, how fast, and in which form does it call a tool."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import trio

from pattern_core.messages import Reasoning, ToolCall, user
from pattern_core.models.client import ModelClient
from pattern_core.models.model import Delta, FinishReason, ModelFacts, ModelReply, ModelRequest, ToolSpec
from pattern_core.models.routing import ModelChain

ANSWER_TOKENS_MAX = 1_024  # some models think before they answer
QUESTION = "What is a lighthouse? Answer in three sentences."
TOOL_QUESTION = "What is the weather in Lisbon now? Use the tool get_weather."
_WHERE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL = ToolSpec(name="get_weather", description="Return the weather in a city now.", parameters=_WHERE)
_FORMS: tuple[Literal["native", "auto", "text"], ...] = ("native", "auto", "text")

ToolForm = Literal["native", "auto", "text", "none", "refused", "untried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrial:
    """What a model did when it was tried. Times are seconds from the question: to the first word and to the end.

    `thought_chars` is the length of what it thought first. `tool_calls` is the form in which it called a tool: as in
    `ModelFacts`, or `none`, with its words in `tool_answer`; its server `refused` tools; or it was `untried`.
    """

    facts: ModelFacts
    question: str
    answer: str
    finish_reason: FinishReason
    output_tokens: int
    first_word_s: float
    total_s: float
    thought_chars: int
    tool_calls: ToolForm = "untried"
    tool_answer: str = ""


async def try_model(client: ModelClient, provider: str, model: str, *, tools: bool = True) -> ModelTrial:
    """Ask a model for an answer in words and, with `tools`, for a call of a tool.

    Raises:
        ModelError: it could not be asked.
    """
    facts = await client.learn(provider, model)
    reply, first_word_s, total_s = await _asked(client, facts, QUESTION)
    trial = ModelTrial(
        facts=facts,
        question=QUESTION,
        answer=reply.text.strip(),
        finish_reason=reply.finish_reason,
        output_tokens=reply.usage.output_tokens,
        first_word_s=round(first_word_s, 3),
        total_s=round(total_s, 3),
        thought_chars=sum(len(part.text) for part in reply.parts if isinstance(part, Reasoning)),
    )
    if not tools:
        return trial
    form, said = await _try_tools(client, facts)
    return replace(trial, tool_calls=form, tool_answer=said)


async def _try_tools(client: ModelClient, facts: ModelFacts) -> tuple[ToolForm, str]:
    said = ""
    for form in _FORMS:
        if facts.tool_calls not in ("auto", form):
            continue  # the configuration says how
        reply, _first_word_s, _total_s = await _asked(client, facts, TOOL_QUESTION, tools=[_TOOL], tool_calls=form)
        if any(isinstance(part, ToolCall) and part.tool == _TOOL.name for part in reply.parts):
            return form, ""
        if client.facts(facts.provider, facts.model).tool_calls == "none":
            return "refused", ""
        said = reply.text.strip()
    return "none", said


async def _asked(client: ModelClient, facts: ModelFacts, words: str, **more: Any) -> tuple[ModelReply, float, float]:
    """Return what a model answers to some words, and after how many seconds it began and was done."""
    began, first_s = trio.current_time(), math.inf

    async def on_delta(_delta: Delta) -> None:
        nonlocal first_s
        first_s = min(first_s, trio.current_time() - began)

    request = ModelRequest(
        model=facts.model,
        system=["You are a helpful assistant."],
        messages=[user(words)],
        max_output_tokens=min(facts.output_max, ANSWER_TOKENS_MAX),
        **more,
    )
    reply = await client.ask(request, ModelChain.of(facts.provider, facts.model), on_delta)
    total_s = trio.current_time() - began
    return reply, min(first_s, total_s), total_s

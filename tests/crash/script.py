"""What agents are asked to do, the model that does it, the person who is asked, and tools of all five effect classes.

A message is its own plan, so that the model is a function of what it is shown:

    work 17: look pay; mail block_edit (streamed, insists)

is two steps; each word is a tool to call. `streamed` sends every answer in pieces, `insists` asks again for a call
whose outcome is unknown, `refused` refuses the last answer. The words that a call is given, such as `<17.2.1>`, name
the wish: however often the model is asked, the same wish has the same words. What a person says follows from the words,
too.

Bob has tool rules and a window that is too small for his past; ada has neither.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import trio

from pattern_core.approvals import Approval, ApprovalAnswer
from pattern_core.compaction.summariser import OPEN, left_out
from pattern_core.messages import Message, Text, ToolCall, ToolResult
from pattern_core.models.errors import ModelRefused
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta, Provider, TextDelta, Usage, made_up_call_id
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_core.tools.builtin.recall import recall
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import Probe, Tool, ToolContext, tool
from pattern_core.turns.calls import IN_DOUBT
from pattern_db.columns import Json
from pattern_db.enums import ApprovalKind, EffectClass
from tests.crash.outside import World

PROVIDER = "script"
AGENTS = ("ada", "bob")
BLOCK = "notes"
AGAIN = "again"
SUMMARISE = "Now write the summary."  # the end of a request for one
EDITED = "edited "
PERSON = "user:person"
LOCAL_TOOLS = ("block_edit", "recall", "send_message")
OUTER_TOOLS = ("pay", "book", "mail", "order")
SIGNED = "sign"  # bob's turns that booked something do not end without it
PAYMENTS_MAX = 2
Reached = Callable[[str, str], None]
RULES: Mapping[str, Json] = {
    "ada": None,
    "bob": [
        {"tool": "mail", "type": "requires_preceding", "tools": ["look"]},
        {"tool": "pay", "type": "max_calls", "count": PAYMENTS_MAX},
        {"tool": "recall", "type": "exit_loop"},
        {"tool": "book", "type": "requires_consent"},
        {"tool": SIGNED, "type": "required_before_exit_if", "condition": {"tool_called": "book"}},
    ],
}
CONFIGS: Mapping[str, Mapping[str, Json]] = {
    "ada": {},
    "bob": {"on_doubt": "ask_human", "context_window": 2_300, "max_output_tokens": 200},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A message taken apart: its name, the tools of each step, and how it is done."""

    name: str
    steps: Sequence[Sequence[str]]
    is_streamed: bool
    insists: bool
    is_refused: bool


def write_plan(name: str, chance: random.Random) -> str:
    """A message with up to three steps of up to three calls, most of fewer; `name` ends with its agent's."""
    words = ("look", "look", *LOCAL_TOOLS, *OUTER_TOOLS, "mail", "pay")
    steps = [" ".join(chance.choices(words, k=chance.choice((1, 1, 2, 3)))) for _ in range(chance.randint(0, 3))]
    manner = [
        word for word, often in (("streamed", 0.4), ("insists", 0.4), ("refused", 0.05)) if chance.random() < often
    ]
    return f"work {name}: {'; '.join(steps)}" + (f" ({', '.join(manner)})" if manner else "")


def sent(content: str) -> str:
    """What an agent sent, without the line that says who it is."""
    return re.sub(r"\AFrom \S+, who needs no answer:\n\n", "", content)


def read_plan(content: str) -> Plan:
    """The inverse of `write_plan`."""
    found = re.fullmatch(r"work (\S+): (.*?)(?: \((.*)\))?", sent(content))
    assert found is not None, content
    steps = [step.split() for step in found[2].split(";") if step.strip()]
    manner = found[3] or ""
    return Plan(found[1], steps, *(word in manner for word in ("streamed", "insists", "refused")))


def words_of(plan: Plan, step: int, index: int) -> str:
    """What a call is given: no two calls of all plans have the same words, and none is part of another's."""
    return f"<{plan.name}.{step}.{index}>"


class ScriptModel(Provider):
    """The provider: its answer depends on the request alone."""

    name = PROVIDER

    def __init__(self, reached: Reached, asked: Callable[[str], None]) -> None:
        """`asked` is called with the position of the newest message that the model is shown."""
        self._reached = reached
        self._asked = asked

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Answer the last message that a user or another agent sent."""
        await trio.lowlevel.checkpoint()
        if request.messages[-1].text.endswith(SUMMARISE):
            return self._retold(request)
        self._asked(request.messages[-1].position)
        self._reached("model", "before")
        start = max(index for index, message in enumerate(request.messages) if message.role == "user")
        plan = read_plan(request.messages[start].text)
        reply = _decide(plan, request, request.messages[start + 1 :])
        if plan.is_streamed:
            text = "".join(part.text for part in reply.parts if isinstance(part, Text))
            for at in range(0, len(text), 12):
                await on_delta(TextDelta(text=text[at : at + 12]))
        self._reached("model", "after")
        return reply

    def _retold(self, request: ModelRequest) -> ModelReply:
        """A summary, which now and then cannot be had."""
        self._reached("summary", "before")
        if crc32(request.messages[-1].text.encode()) % 4 == 0:
            raise ModelRefused("no summaries today", provider=PROVIDER)
        named = left_out("", request.messages[-1].text.partition(OPEN)[2].splitlines(), 100)
        text = Text(text=f"Some work was asked for, and done. {named}")
        self._reached("summary", "after")
        return ModelReply(parts=(text,), finish_reason="stop", usage=Usage(input_tokens=100, output_tokens=10))


def _decide(plan: Plan, request: ModelRequest, since: Sequence[Message]) -> ModelReply:
    decisions = [message for message in since if message.role == "assistant" and message.text != AGAIN]
    usage = Usage(input_tokens=10, output_tokens=5)
    doubtful = _doubtful(since) if plan.insists else None
    if doubtful is not None:
        call = ToolCall(call_id=made_up_call_id(request, 0), tool=doubtful.tool, arguments=doubtful.arguments)
        return ModelReply(parts=(Text(text=AGAIN), call), finish_reason="tool_calls", usage=usage)
    step = len(decisions) + 1
    if step > len(plan.steps):
        if plan.is_refused:
            raise ModelRefused("not with me", provider=PROVIDER)
        return ModelReply(parts=(Text(text=f"{plan.name} is done, all of it"),), finish_reason="stop", usage=usage)
    calls = [
        ToolCall(call_id=made_up_call_id(request, index), tool=name, arguments=_arguments(plan, name, step, index))
        for index, name in enumerate(plan.steps[step - 1])
    ]
    text = Text(text=f"step {step} of {plan.name} follows")
    return ModelReply(parts=(text, *calls), finish_reason="tool_calls", usage=usage)


def _doubtful(since: Sequence[Message]) -> ToolCall | None:
    """The call of the newest decision whose outcome is unknown, if any."""
    if not since or since[-1].role != "tool":
        return None
    decision = max(index for index, message in enumerate(since) if message.role == "assistant")
    if since[decision].text == AGAIN:
        return None
    unknown = {
        part.call_id
        for message in since[decision + 1 :]
        for part in message.parts
        if isinstance(part, ToolResult) and part.content == IN_DOUBT
    }
    return next((call for call in since[decision].tool_calls if call.call_id in unknown), None)


def _arguments(plan: Plan, name: str, step: int, index: int) -> dict[str, object]:
    words = words_of(plan, step, index)
    match name:
        case "block_edit":
            return {"op": "append", "label": BLOCK, "content": words + "\n"}
        case "recall":
            return {"op": "insert", "content": words}
        case "send_message":
            if step == len(plan.steps):
                return {"content": words}
            other = AGENTS[1] if plan.name.endswith(AGENTS[0]) else AGENTS[0]
            return {"to": other, "content": passed_on(plan, step, index, other), "needs_response": False}
        case _:
            return {"words": words}


def passed_on(plan: Plan, step: int, index: int, other: str) -> str:
    """What `send_message` asks another agent to do."""
    return f"work {plan.name}/{step}.{index}-{other}: look"


def answer_of(approval: Approval) -> ApprovalAnswer:
    """What the person says to a question: always the same to the same one."""
    words = str(approval.request["arguments"]["words"])
    chance = crc32(f"{approval.kind.value} {words}".encode()) % 4
    # Half of the doubtful calls are denied: a model that insists on one must not have it run without a question.
    if chance == 0 or (chance == 1 and approval.kind is ApprovalKind.RECOVERY):
        return ApprovalAnswer(approve=False, by=PERSON, reason="no")
    if chance == 1 and approval.kind is ApprovalKind.TOOL and not words.startswith(EDITED):
        return ApprovalAnswer(approve=True, by=PERSON, arguments={"words": EDITED + words})
    return ApprovalAnswer(approve=True, by=PERSON)


@dataclass(slots=True)
class Stage:
    """Where the tools act: set for each life, since making tools takes longer than a life."""

    world: World
    reached: Reached

    async def act(self, context: ToolContext, name: str, words: str) -> str:
        """Really do something: a line in the world's ledger."""
        await trio.lowlevel.checkpoint()
        self.reached("outside", "before")
        self.world.ledger.append({"tool": name, "key": context.idempotency_key, "words": words})
        self.reached("outside", "after")
        await trio.lowlevel.checkpoint()
        return f"{name} {words}"

    async def was_booked(self, key: str) -> Probe:
        """Ask the world whether a booking under this key was made."""
        return "done" if any(line.key == key for line in self.world.executions()) else "absent"


def tools_of(stage: Stage) -> list[Tool]:
    """The tools, of all five classes; the local ones are the product's own."""
    act = stage.act

    @tool(effect=EffectClass.PURE)
    async def look(context: ToolContext, words: Annotated[str, "Where to look."]) -> str:
        """Look at something."""
        return await act(context, "look", words)

    @tool(effect=EffectClass.IDEMPOTENT)
    async def pay(context: ToolContext, words: Annotated[str, "What to pay."]) -> str:
        """Pay something; who is paid knows the key."""
        return await act(context, "pay", words)

    @tool(effect=EffectClass.VERIFIABLE, probe=stage.was_booked)
    async def book(context: ToolContext, words: Annotated[str, "What to book."]) -> str:
        """Book something; one can ask whether it was."""
        return await act(context, "book", words)

    @tool(effect=EffectClass.UNSAFE)
    async def mail(context: ToolContext, words: Annotated[str, "What to mail."]) -> str:
        """Mail something; it cannot be taken back."""
        return await act(context, "mail", words)

    @tool(effect=EffectClass.UNSAFE, consent=lambda _arguments: "orders are binding")
    async def order(context: ToolContext, words: Annotated[str, "What to order."]) -> str:
        """Order something; a person must agree."""
        return await act(context, "order", words)

    @tool(effect=EffectClass.LOCAL)
    async def sign(context: ToolContext) -> str:
        """Sign that the work is done."""
        context.work.event("signed", {})
        return "signed"

    return [look, pay, book, mail, order, sign, block_edit, recall, send_message]

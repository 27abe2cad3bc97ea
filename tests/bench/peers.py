# mypy: ignore-errors
"""The two-step turn of `turns.py` in other frameworks: a script for the Python that has them, named by `turns.PEERS`.

A scripted model answers at once and whole: a call of one local tool, then words. Each turn is a conversation of its
own, without history, which ours is not. Speaks as `turns.serve` does: a number of turns per line,
answered with the CPU ms of each. Types are not checked: the libraries are in another environment, or nowhere.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

TEXT = "as many characters as in our own turn, " * 10
CALL, ARGUMENTS = "call_1", {"text": "tea with milk, no sugar"}

Turn = Callable[[], Awaitable[str]]


def note(text: str) -> str:
    """Note something."""
    return f"noted: {text}"


def prebuilt(saver):
    """LangGraph's own agent with a scripted chat model, and the class of people's messages."""
    warnings.simplefilter("ignore")  # its successor is in another, larger package
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool
    from langgraph.prebuilt import create_react_agent

    class Scripted(BaseChatModel):
        """The model."""

        _llm_type = "scripted"

        def bind_tools(self, _tools, **_rest):
            return self

        def _generate(self, messages, stop=None, run_manager=None, **_rest):
            if isinstance(messages[-1], HumanMessage):
                answer = AIMessage(content="", tool_calls=[{"name": "note", "args": ARGUMENTS, "id": CALL}])
            else:
                answer = AIMessage(content=TEXT)
            return ChatResult(generations=[ChatGeneration(message=answer)])

        async def _agenerate(self, messages, stop=None, run_manager=None, **_rest):
            return self._generate(messages)

    return create_react_agent(Scripted(), [tool(note)], prompt=TEXT, checkpointer=saver), HumanMessage


@asynccontextmanager
async def langgraph(path: Path) -> AsyncIterator[Turn]:
    """With AsyncSqliteSaver; every checkpoint is written before the next step."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        graph, message = prebuilt(saver)

        async def turn() -> str:
            config = {"configurable": {"thread_id": uuid.uuid4().hex}}
            state = await graph.ainvoke({"messages": [message(TEXT)]}, config, durability="sync")
            return state["messages"][-1].content

        yield turn


@asynccontextmanager
async def agent_framework(_path: Path) -> AsyncIterator[Turn]:
    """Microsoft Agent Framework; nothing is stored."""
    from agent_framework import (
        Agent,
        BaseChatClient,
        ChatMiddlewareLayer,
        ChatResponse,
        Content,
        FunctionInvocationLayer,
        Message,
        tool,
    )

    class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
        """The model."""

        def _inner_get_response(self, *, messages, stream, options, **_rest):
            async def answer():
                if messages[-1].role == "user":
                    call = Content.from_function_call(call_id=CALL, name="note", arguments=json.dumps(ARGUMENTS))
                    return ChatResponse(messages=[Message(role="assistant", contents=[call])])
                return ChatResponse(messages=[Message(role="assistant", contents=[TEXT])])

            return answer()

    agent = Agent(Scripted(), instructions=TEXT, tools=[tool(note, approval_mode="never_require")])

    async def turn() -> str:
        return (await agent.run(TEXT)).text

    yield turn


async def serve(name: str) -> None:
    """Answer on standard output what is asked on standard input."""
    frameworks = {"langgraph": langgraph, "agent_framework": agent_framework}
    with tempfile.TemporaryDirectory(prefix="pattern-bench-") as folder:
        try:
            async with frameworks[name](Path(folder) / "peer.db") as turn:
                assert await turn() == TEXT, "the turn did not end with the answer"
                print(json.dumps("ready"), flush=True)
                for line in sys.stdin:
                    print(json.dumps({"CPU": [await measured(turn) for _ in range(int(line))]}), flush=True)
        except ImportError as error:
            print(json.dumps(str(error)), flush=True)


async def measured(turn: Turn) -> float:
    """CPU ms of all threads."""
    before = time.process_time()
    await turn()
    return (time.process_time() - before) * 1_000


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

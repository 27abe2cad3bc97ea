"""Tools: annotated async functions that an agent may call, with the effect class that recovery needs to know.

    @tool(effect=EffectClass.LOCAL)
    async def remember(context: ToolContext, text: Annotated[str, "What to remember, one fact."]) -> str:
        \"\"\"Remember a fact for later.\"\"\"

The name is the function's, the description its docstring, the JSON Schema comes from the annotations; the model
reads all three.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import trio

from pattern_core.clock import Clock
from pattern_core.ids import Ids
from pattern_core.models.model import ToolSpec
from pattern_core.tools.schema import Arguments, arguments_of
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database
from pattern_db.enums import EffectClass

if TYPE_CHECKING:
    from pattern_core.memory.past.revising import Revisions
    from pattern_core.memory.sharing import Sharing
    from pattern_core.memory.store import MemoryStore
    from pattern_core.search import SearchRequest, SearchResult
    from pattern_core.tools.toolbox import Toolbox, ToolSettings

_log = logging.getLogger(__name__)

Probe = Literal["done", "absent", "unknown"]


class Deliver(Protocol):
    """Accepts a message for another agent of the constellation, within the unit of work of the call."""

    async def __call__(self, work: UnitOfWork, *, target: str, content: str) -> str:
        """Add the delivery to `work`; return the id of the turn that it will start.

        Raises:
            NotFound: there is no such agent.
            LimitReached: the request was passed on too often already.
            Overloaded: the agent's inbox is full.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The services that a tool may use, and who calls it.

    A *local* tool changes state only through `work`, which commits with its result. `idempotency_key` is the same
    when an idempotent or verifiable call is run again after a crash.
    """

    agent_id: str
    agent_name: str
    turn_id: str
    batch_id: str
    call_id: str
    idempotency_key: str
    work: UnitOfWork
    memory: MemoryStore
    sharing: Sharing
    revisions: Revisions
    search: Callable[[SearchRequest], Awaitable[SearchResult]]
    database: Database
    clock: Clock
    ids: Ids
    deliver: Deliver
    toolbox: Toolbox


ToolFunction = Callable[..., Awaitable[object]]
ProbeFunction = Callable[[str], Awaitable[Probe | tuple[Probe, str]]]
ConsentFunction = Callable[[Mapping[str, object]], str | None]
"""Return why a person must approve a call with these arguments, or None if no approval is needed. Pure."""
ConfigureFunction = Callable[["Tool", "ToolSettings"], "Tool"]
"""Return the tool as the operator's settings leave it; raise `Unavailable`, with the reason, if they switch it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool, with everything that the rest of the program must know about it. Every default is the safe value.

    `run` is called with the context and the checked arguments by name. `probe`, for verifiable tools, returns for an
    idempotency key whether an earlier start happened: "done" (with the result's text), "absent" or "unknown".
    """

    name: str
    description: str
    effect: EffectClass
    arguments: Arguments
    run: ToolFunction
    probe: ProbeFunction | None = None
    timeout_s: float | None = None  # None: the limit `tool_timeout_s`
    consent: ConsentFunction | None = None
    configure: ConfigureFunction | None = None
    # Results are marked as untrusted text in prompts, unless every word of them is ours or the agent's own.
    returns_untrusted_text: bool = True
    enabled_by_default: bool = False  # for a new agent that names no tools
    reads_results: bool = False  # reads long results that were stored; its own are not stored again

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.arguments.schema)

    async def call(self, context: ToolContext, arguments: Mapping[str, object]) -> object:
        """Check the arguments and run.

        Raises:
            InvalidInput: the arguments do not fit the schema; the message names each misfit.
            PatternError: what the tool itself refuses, also from a task of its own.
        """
        checked = self.arguments.check(arguments)
        try:
            return await self.run(context, **checked)
        except BaseExceptionGroup as group:
            raise _what_counts(group) from None  # else who follows causes would go in circles: the group holds it


def _what_counts(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a tool with tasks of its own came to: being cancelled, else its only error, else all of them.

    A task that fails while it is cancelled must not hide that: the call's time is over, or its turn's.
    """
    cancelled, rest = group.split(trio.Cancelled)
    if cancelled is not None and (rest is None or isinstance(rest, ExceptionGroup)):
        if rest is not None:
            _log.error("a tool failed while it was cancelled", exc_info=rest)
        return cancelled
    only: BaseException = group
    while isinstance(only, BaseExceptionGroup) and len(only.exceptions) == 1:
        only = only.exceptions[0]
    return only


def tool(
    *,
    effect: EffectClass = EffectClass.UNSAFE,
    probe: ProbeFunction | None = None,
    timeout_s: float | None = None,
    name: str | None = None,
    consent: ConsentFunction | None = None,
    configure: ConfigureFunction | None = None,
    returns_untrusted_text: bool = True,
    enabled_by_default: bool = False,
    reads_results: bool = False,
) -> Callable[[ToolFunction], Tool]:
    """Make a `Tool` of an async function. A tool that declares nothing is unsafe, untrusted and off.

    Raises:
        ValueError: there is no docstring, or a verifiable tool has no probe.
    """

    def make(fn: ToolFunction) -> Tool:
        tool_name = name or str(getattr(fn, "__name__", ""))
        description = inspect.getdoc(fn)
        if not description:
            raise ValueError(f"the tool {tool_name} needs a docstring: the model reads it")
        if (effect is EffectClass.VERIFIABLE) != (probe is not None):
            raise ValueError(f"the tool {tool_name} must be verifiable and have a probe, or neither")
        return Tool(
            name=tool_name,
            description=description,
            effect=effect,
            arguments=arguments_of(fn),
            run=fn,
            probe=probe,
            timeout_s=timeout_s,
            consent=consent,
            configure=configure,
            returns_untrusted_text=returns_untrusted_text,
            enabled_by_default=enabled_by_default,
            reads_results=reads_results,
        )

    return make

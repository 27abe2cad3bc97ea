"""Tools: annotated async functions that an agent may call, with the effect class that recovery needs to know.

    @tool(effect=EffectClass.LOCAL)
    async def remember(context: ToolContext, text: Annotated[str, "What to remember, one fact."]) -> str:
        \"\"\"Remember a fact for later.\"\"\"

The name is the function's, the description its docstring, the JSON Schema comes from the annotations; the model
reads all three. Vendors differ in what they accept, so the schema is kept plain: no `$ref`, no titles, no defaults, and
an argument that may be left out is simply not required. An argument that its name and the tool's description explain
has no description of its own: all tools of a new agent cost at most 1,300 tokens of every prompt.

Source: JSON Schema draft 2020-12, as pydantic 2 generates it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import trio

from pattern_core.models.model import ToolSpec
from pattern_core.tools.arguments import CheckFunction, InvalidArguments, ToolFunction, arguments_of
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.enums import BatchType, EffectClass, TrustLevel

if TYPE_CHECKING:
    from pattern_core.assignments import Assignments
    from pattern_core.calendars import Calendar
    from pattern_core.halt import Halt
    from pattern_core.handoffs import Handoffs
    from pattern_core.memory.block import Attribution
    from pattern_core.memory.revisions import Revisions
    from pattern_core.memory.sharing import Sharing
    from pattern_core.memory.store import MemoryStore
    from pattern_core.search import SearchRequest, SearchResult
    from pattern_core.shared_state import SharedState
    from pattern_core.shell.policy import ShellSettings
    from pattern_core.shell.shell import Shell
    from pattern_core.tasks import Tasks
    from pattern_core.web.policy import WebSettings
    from pattern_core.web.web import Web
    from pattern_db.tables.overview import NotableRow

T = TypeVar("T")
_log = logging.getLogger(__name__)

Probe = Literal["done", "absent", "unknown"]
Deliver = Callable[..., Awaitable[str]]
"""Add a message for another agent, by its name, to the unit of work of a call, `(work, to, content, needs_response=…)`;
return the id of the turn that it will start.

Raises `NotFound`, `LimitReached` if the request was passed on too often, `InvalidInput` if it goes in a circle.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """What the operator allows the tools of all constellations; None where there is none of that kind.

    `halts_log` is the file that gets a line for each emergency halt.
    """

    shell: ShellSettings | None = None
    web: WebSettings | None = None
    halts_log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The services of one constellation that tools use, the same for every call.

    `web` and `shell` are None where the operator's configuration has none of that kind.
    """

    storage: Storage
    memory: MemoryStore
    sharing: Sharing
    revisions: Revisions
    tasks: Tasks
    calendar: Calendar
    search: Callable[[SearchRequest], Awaitable[SearchResult]]
    halt: Halt
    state: SharedState
    handoffs: Handoffs
    assignments: Assignments
    record: Callable[..., Awaitable[NotableRow]]
    web: Web | None = None
    shell: Shell | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Who calls a tool, and what it may use.

    A *local* tool changes state only through `work`, which commits with its result. `by` is the author of its changes:
    the agent, with the turn's first message, the turn and the call as the cause. Messages that a tool sends as the
    agent belong to the batch `batch_id` with `batch_type`, and to the turn's session, and have its `trust`.
    `idempotency_key` is the same when an idempotent or verifiable call is run again after a crash.
    """

    agent_id: str
    agent_name: str
    turn_id: str
    batch_id: str
    batch_type: BatchType
    session_id: str | None
    call_id: str
    by: Attribution
    idempotency_key: str
    work: UnitOfWork
    deliver: Deliver
    toolbox: Toolbox
    trust: TrustLevel = TrustLevel.SOURCE

    @property
    def storage(self) -> Storage:
        """The constellation's database, clock and ids."""
        return self.toolbox.storage

    @property
    def sees_only(self) -> str | None:
        """The session without which it finds nothing; None: it finds all. Who may only chat must not be shown what
        others said.
        """
        return None if self.trust.sees_all else self.session_id

    async def search(self, request: SearchRequest) -> SearchResult:
        """Search what the turn may find, as `Toolbox.search`."""
        only = self.sees_only
        return await self.toolbox.search(request if only is None else replace(request, sessions=[only]))


ProbeFunction = Callable[[str], Awaitable[Probe | tuple[Probe, str]]]
ConsentFunction = Callable[[Mapping[str, object]], str | None]
"""Return why a person must approve a call with these arguments, or None if no approval is needed. Pure."""
ConfigureFunction = Callable[["Tool", "ToolSettings"], "Tool"]
"""Return the tool as the operator's settings leave it; raise `Unavailable`, with the reason, if they switch it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAttributes:
    """What a tool declares in addition to its function. Every default is the safe value: unsafe, untrusted and off.

    `probe`, for verifiable tools, returns for an idempotency key whether an earlier start happened: "done" (with the
    result's text), "absent" or "unknown".
    """

    effect: EffectClass = EffectClass.UNSAFE
    probe: ProbeFunction | None = None
    timeout_s: float | None = None  # None: the limit `tool_timeout_s`
    consent: ConsentFunction | None = None
    configure: ConfigureFunction | None = None
    # Results are marked as untrusted text in prompts, unless every word of them is ours or the agent's own.
    returns_untrusted_text: bool = True
    enabled_by_default: bool = False  # for an agent that names no tools: in the profile `full`
    # In the profile `small`, in which the model reads these words ("": the description) and the needed arguments alone.
    brief: str | None = None
    needs_others: bool = False  # not offered to the only agent of a constellation
    reads_results: bool = False  # reads long results that were stored; its own are not stored again
    # Strangers may lead to its calls: it shows and changes nothing that was said or planned in other conversations.
    for_strangers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(ToolAttributes):
    """A tool, with everything that the rest of the program must know about it.

    `parameters` is a JSON Schema object for the model. `run` is called with the context and, by name, what `check`
    makes of the arguments: typed, with defaults filled in; it raises `InvalidInput` with a message that names each
    error.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: ToolFunction
    check: CheckFunction

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    @property
    def profiles(self) -> frozenset[str]:
        """The profiles that it is in; `auto` may be either."""
        is_in = {"small": self.brief is not None, "full": self.enabled_by_default}
        return frozenset(["auto", *(name for name in is_in if is_in[name])] if any(is_in.values()) else ())

    @property
    def brief_spec(self) -> ToolSpec:
        """The tool as a small model sees it."""
        known, needed = self.parameters["properties"], self.parameters["required"]
        shown = {"type": "object", "properties": {name: {"type": known[name]["type"]} for name in needed}}
        words = self.brief or self.description
        return ToolSpec(name=self.name, description=words, parameters={**shown, "required": needed})

    async def call(self, context: ToolContext, arguments: Mapping[str, object]) -> object:
        """Check the arguments and run.

        Raises:
            InvalidArguments: the arguments do not match the schema; the message names each error. PatternError: a
            refusal by the tool itself, also from one of its tasks.
        """
        checked = self.check(arguments)
        try:
            return await self.run(context, **checked)
        except BaseExceptionGroup as group:
            raise _what_counts(group) from None  # else the chain of causes would be a cycle: the group holds it


def _what_counts(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return how a tool with tasks of its own ended: being cancelled, else its only error, else all of them.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class tool(ToolAttributes):  # noqa: N801 - used as the function that it would be, were its parameters not attributes
    """Make a `Tool` of an async function, by default under the function's name.

    Raises:
        ValueError: there is no docstring, or a verifiable tool has no probe.
    """

    name: str | None = None

    def __call__(self, fn: ToolFunction) -> Tool:
        """Return the tool that runs `fn`."""
        name = self.name or str(getattr(fn, "__name__", ""))
        description = inspect.getdoc(fn)
        if not description:
            raise ValueError(f"the tool {name} needs a docstring: the model reads it")
        if (self.effect is EffectClass.VERIFIABLE) != (self.probe is not None):
            raise ValueError(f"the tool {name} must be verifiable and have a probe, or neither")
        attributes = {field.name: getattr(self, field.name) for field in fields(ToolAttributes)}
        parameters, check = arguments_of(fn)
        return Tool(**attributes, name=name, description=description, parameters=parameters, run=fn, check=check)


# What the builtin tools share


def needed(value: T | None, name: str, op: str) -> T:
    """Return `value`, an argument that this operation cannot do without; it may be empty text.

    Raises:
        InvalidArguments: it was left out.
    """
    if value is None:
        raise InvalidArguments(f"the operation {op} needs `{name}`")
    return value


def done(message: str, **data: object) -> dict[str, object]:
    """Return a tool's answer: `{"success": true, "message": words, "data"?: …}`."""
    return {"success": True, "message": message, **({"data": data} if data else {})}

"""The tools of a constellation, found by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, get_args

from pattern_core.errors import NotFound, Unavailable
from pattern_core.messages import ToolCall
from pattern_core.models.model import ModelFacts, ToolProfile, ToolSpec
from pattern_core.tools.arguments import coerced, object_in, operations_in
from pattern_core.tools.tool import Tool, ToolSettings

AUTO = "auto"  # as an enabled name: the profile that suits the model
PROFILES: tuple[ToolProfile, ...] = get_args(ToolProfile)
SMALL_BELOW = 16_000  # tokens of a window
FOREIGN = "__"  # between an MCP server's name and its tool's
ENABLED_KNOWN_MAX = 1_000  # sets of names with their specifications in memory
_PREFIX = re.compile(r".*[./:]", re.DOTALL)  # as in `functions.search`


class Suited(NamedTuple):
    """The enabled names with a profile instead of `auto`; that profile, None if all tools are named; and the reason."""

    enabled: tuple[str, ...]
    profile: ToolProfile | None
    why: str


def suited(enabled: Collection[str], facts: ModelFacts, window: int) -> Suited:
    """Return the profile for a model with prompts of at most `window` tokens."""
    if AUTO not in enabled:
        named: ToolProfile | None = "small" if "small" in enabled else "full" if "full" in enabled else None
        return Suited(tuple(enabled), named, f"enabled_tools names {'the tools' if named is None else 'it'}")
    profile, why = facts.tool_profile, "it is set for the model"
    if profile is None:
        profile = "small" if window < SMALL_BELOW else "full"
        why = f"the window has {'fewer than' if profile == 'small' else 'at least'} {SMALL_BELOW:,} tokens"
    return Suited(tuple(profile if name == AUTO else name for name in enabled), profile, why)


class ToolRegistry:
    """All tools, in the order in which models see them. An agent sees those that are enabled for it, by name or by a
    profile: `small` has few and short tools for small models, `full` all that need no configuration by the operator,
    `auto` chooses one of them for the model. With `auto` the tools of both run: the history may show calls of either.

    In addition to the tools of the constellation there are those of MCP servers, which can change: `replace` sets all
    that a server offers. Their names begin with the server's (`server__tool`), and an agent may have all of them
    enabled as `server__*`. `off` maps tools that `settings` switch off to the reason.

    Raises:
        ValueError: two tools have one name.
    """

    def __init__(self, tools: Iterable[Tool], settings: ToolSettings | None = None) -> None:
        self._own: dict[str, Tool] = {}
        self._foreign: dict[str, dict[str, Tool]] = {}  # by server, in the order of their names
        self.off: dict[str, str] = {}
        for tool in tools:
            if tool.name in self._own or tool.name in self.off:
                raise ValueError(f"there are two tools named {tool.name}")
            try:
                configured = tool if settings is None or tool.configure is None else tool.configure(tool, settings)
                self._own[tool.name] = configured
            except Unavailable as error:
                self.off[tool.name] = error.message
        self._made()

    def _made(self) -> None:
        servers = [self._foreign[server] for server in sorted(self._foreign)]
        self._tools = {name: tool for tools in (self._own, *servers) for name, tool in tools.items()}
        # Made once: a specification carries the digest that every prompt's hash needs.
        self._specs = {name: tool.spec for name, tool in self._tools.items()}
        self._brief = {name: tool.brief_spec for name, tool in self._tools.items() if tool.brief is not None}
        self._enabled = lru_cache(ENABLED_KNOWN_MAX)(self._specs_of)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools, in order."""
        return tuple(self._tools)

    def named(self, enabled: Collection[str]) -> tuple[str, ...]:
        """Return the enabled names, with those of its tools in the place of a profile."""
        tools = [name for name in self._tools if self._is_enabled(name, enabled)]
        return (*tools, *(name for name in enabled if name not in (*tools, AUTO, *PROFILES)))

    def reader(self, enabled: Collection[str]) -> str | None:
        """Return the enabled tool that reads stored results, if there is one."""
        tools = self._tools.items()
        return next((name for name, tool in tools if tool.reads_results and self._is_enabled(name, enabled)), None)

    def replace(self, server: str, tools: Iterable[Tool]) -> None:
        """Set the tools of an MCP server; none while they are unknown.

        Raises:
            ValueError: two of them have one name, or a name does not begin with the server's.
        """
        offered: dict[str, Tool] = {}
        for tool in sorted(tools, key=lambda tool: tool.name):
            if tool.name in offered or not tool.name.startswith(server + FOREIGN):
                raise ValueError(f"{tool.name} cannot be a tool of the server {server}")
            offered[tool.name] = tool
        self._foreign[server] = offered
        self._made()

    def accepts(self, name: str) -> bool:
        """Return whether an agent may have this name enabled: there is such a tool or profile, or a server that may
        come to offer it.
        """
        server, mark, tool = name.partition(FOREIGN)
        return name in self._tools or name in (AUTO, *PROFILES) or bool(mark and tool and server in self._foreign)

    def get(self, name: str, enabled: Collection[str], *, offered: Collection[str] = ()) -> Tool:
        """Return the tool `name`, if it is among the `enabled` names.

        Raises:
            NotFound: there is no such tool, or not for this agent; the message lists those `offered`, or what there is.
        """
        tool = self._tools.get(name)
        if tool is None or not self._is_enabled(name, enabled):
            there = ", ".join(other for other in self._tools if self._is_enabled(other, offered or enabled)) or "none"
            raise NotFound(f"there is no tool {name!r}; your tools: {there}")
        return tool

    def meant(self, call: ToolCall, offered: Collection[str], *, is_whole: bool) -> ToolCall:
        """Return the call with the name and the arguments that its model meant, where only one of the `offered` tools
        and one value can be meant; its answer `is_whole` if it was not cut.

        A model may write a name with a prefix or in another case, or call a tool by one of its operations.
        """
        arguments = dict(call.arguments) if call.invalid is None else object_in(call.invalid, is_whole=is_whole)
        if arguments is None:
            return call
        name = call.tool
        if name not in self._tools:
            last = _folded(_PREFIX.sub("", name))
            tools = [tool for tool in map(self._tools.get, offered) if tool is not None]
            same = [tool for tool in tools if _folded(tool.name) in (_folded(name), last)]
            if not same and "op" not in arguments:
                same = [tool for tool in tools if last in operations_in(tool.parameters)]
                arguments = {"op": last, **arguments}
            if len(same) != 1:
                return call
            name = same[0].name
        arguments = coerced(arguments, self._tools[name].parameters)
        if call.invalid is None and (name, arguments) == (call.tool, call.arguments):
            return call
        return replace(call, tool=name, arguments=arguments, invalid=None)

    def is_untrusted(self, name: str) -> bool:
        """Return whether results of this tool may hold text from elsewhere; those of an unknown tool may."""
        tool = self._tools.get(name)
        return tool is None or tool.returns_untrusted_text

    def for_strangers(self, specs: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return those that turns may call which strangers led to."""
        return tuple(spec for spec in specs if self._tools[spec.name].for_strangers)

    def specs(self, enabled: Collection[str], *, is_alone: bool = False) -> tuple[ToolSpec, ...]:
        """Return the enabled tools as the model sees them, without those that need other agents if it `is_alone`.

        Names of tools that do not exist are ignored.
        """
        return self._enabled(tuple(enabled), is_alone)

    def _specs_of(self, enabled: tuple[str, ...], is_alone: bool) -> tuple[ToolSpec, ...]:
        brief = self._brief if "small" in enabled else {}
        return tuple(
            spec if name in enabled else brief.get(name, spec)
            for name, spec in self._specs.items()
            if self._is_enabled(name, enabled) and not (is_alone and self._tools[name].needs_others)
        )

    def _is_enabled(self, name: str, enabled: Collection[str]) -> bool:
        tool = self._tools.get(name)
        if name in enabled or (tool is not None and not tool.profiles.isdisjoint(enabled)):
            return True
        server, mark, _tool = name.partition(FOREIGN)
        return bool(mark) and server in self._foreign and f"{server}{FOREIGN}*" in enabled


def _folded(name: str) -> str:
    return re.sub(r"[\s-]", "_", name.strip()).casefold()

"""What each kind of rule is called and takes, in our own format and under the names that others give it.

Sources of the other names: `agents.tool_rules` of the Rust Pattern (a list of `{tool_name, rule_type: {type, value},
conditions, priority}` with PascalCase types, the same from its TOML, and a map `{tool: [{type, …}]}` from its command
line), and Letta (`{tool_name, type, …}` with its `type` values or class names such as `TerminalToolRule`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pattern_core.rules.rule import (
    AllowedOperations,
    Child,
    Conditional,
    ContinueLoop,
    Cooldown,
    ExclusiveGroups,
    ExitLoop,
    MaxCalls,
    Needed,
    Parent,
    Periodic,
    RequiredBeforeExit,
    RequiresConsent,
    RequiresFollowing,
    RequiresPreceding,
    Rule,
    StartConstraint,
)

What = Literal[
    "name", "names", "text", "texts", "args", "child_args", "outputs", "groups", "count", "seconds", "yes_no"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a rule: what its value is, whether it must be there, whether names in it may be patterns, and what
    others call it, the names tried in order.
    """

    what: What | Literal["condition"]
    is_required: bool = False
    takes_patterns: bool = False
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of rule: its class, its fields by name, whether its tool may be a pattern, and what others call it (in
    snake case). `is_about_all` means that the tool may be left out and is `*` then.
    """

    make: type[Rule]
    fields: Mapping[str, Field]
    takes_patterns: bool = True
    is_about_all: bool = False
    aliases: tuple[str, ...] = ()


_TOOLS = Field(what="names", is_required=True, takes_patterns=True, aliases=("conditions", "value"))
_CHILDREN = Field(what="names", is_required=True, takes_patterns=True)
_SECONDS = Field(what="seconds", is_required=True, aliases=("value", "duration", "params", "param"))

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "continue_loop": Kind(make=ContinueLoop, fields={}, aliases=("continue",)),
        "exit_loop": Kind(make=ExitLoop, fields={}, aliases=("terminal",)),
        "start_constraint": Kind(
            make=StartConstraint,
            fields={"args": Field(what="args"), "alternatives": Field(what="names")},
            takes_patterns=False,
            aliases=("run_first", "init"),
        ),
        "required_before_exit": Kind(make=RequiredBeforeExit, fields={}, takes_patterns=False),
        "required_before_exit_if": Kind(
            make=RequiredBeforeExit,
            fields={"condition": Field(what="condition", is_required=True, aliases=("value", "conditions"))},
            takes_patterns=False,
        ),
        "requires_preceding": Kind(
            make=RequiresPreceding, fields={"tools": _TOOLS}, aliases=("requires_preceding_tools",)
        ),
        "requires_following": Kind(
            make=RequiresFollowing, fields={"tools": _TOOLS}, aliases=("requires_following_tools",)
        ),
        "child": Kind(
            make=Child,
            fields={"children": _CHILDREN, "args": Field(what="child_args", aliases=("child_arg_nodes",))},
            aliases=("constrain_child_tools",),
        ),
        "parent": Kind(make=Parent, fields={"children": _CHILDREN}, aliases=("parent_last_tool",)),
        "conditional": Kind(
            make=Conditional,
            fields={
                "outputs": Field(what="outputs", is_required=True, aliases=("child_output_mapping",)),
                "default": Field(what="name", aliases=("default_child",)),
                "strict": Field(what="yes_no", aliases=("require_output_mapping",)),
            },
        ),
        "exclusive_groups": Kind(
            make=ExclusiveGroups,
            fields={"groups": Field(what="groups", is_required=True, takes_patterns=True, aliases=("value",))},
            is_about_all=True,
        ),
        "max_calls": Kind(
            make=MaxCalls,
            fields={
                "count": Field(
                    what="count",
                    is_required=True,
                    aliases=("value", "max_count_limit", "max_count", "max", "params", "param"),
                )
            },
            aliases=("max_count_per_step",),
        ),
        "cooldown": Kind(make=Cooldown, fields={"seconds": _SECONDS}),
        "periodic": Kind(make=Periodic, fields={"seconds": _SECONDS}, takes_patterns=False),
        "requires_consent": Kind(
            make=RequiresConsent,
            fields={"scope": Field(what="text", aliases=("value",))},
            aliases=("requires_approval",),
        ),
        "allowed_operations": Kind(
            make=AllowedOperations,
            fields={
                "operations": Field(what="texts", is_required=True, aliases=("value", "conditions")),
                "parameter": Field(what="text"),
            },
        ),
        "needed": Kind(make=Needed, fields={}, takes_patterns=False),
    }
)

OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {alias: name for name, kind in KINDS.items() for alias in (name, *kind.aliases)}
)

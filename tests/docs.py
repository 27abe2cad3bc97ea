"""Write the parts of the users' pages that follow from the code, or compare them.

    python -m tests.docs [--write]

A page of `data/docs` is prose with generated parts between `<!-- generated: NAME ARGUMENT -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import inspect
import io
import pkgutil
import re
import sys
import textwrap
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

import pattern_core
import pattern_db
import pattern_server
from pattern_core.agent_settings import AgentSettings
from pattern_core.errors import PatternError
from pattern_core.rules.kinds import KINDS as KINDS_OF_RULES
from pattern_core.tools.builtin import BUILTIN
from pattern_db.errors import DatabaseError
from pattern_server.cli import COMMANDS, cli
from pattern_server.config import Config
from pattern_server.http.app import api_routes
from pattern_server.http.errors import STATUS
from pattern_server.http.openapi import WORDS, summary_of
from pattern_server.http.routing import API
from pattern_server.http.toolsets import SERVED
from pattern_server.metrics import Metrics
from tests.sources import ROOT

PAGES = ROOT / "data" / "docs"
LINE = 120
COLUMNS = 100  # of help texts
GENERATED = re.compile(r"(<!-- generated: (\w+) ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL)
# Explained once, at the head of the page of commands, unless a command has its own words for them.
COMMON = {"config_file", "data_dir", "is_json", "constellation", "yes", "server", "token_file"}
# The cause and the remedy of codes without a class, or with one that says something else.
OTHER_ERRORS = {
    "internal": ("The server made a mistake.", "Look for the error in the server's log, and report it."),
    "malformed_json": ("The body is not valid JSON.", "Correct the body at the place that the message names."),
    "method_not_allowed": ("The path has no such method.", "Look at the API's description at `/docs`."),
    "model_error": ("The model failed in an unknown way.", "Test the model with `pattern model test`."),
}
INTERNAL = {"claim_failed", "stopped", "database"}  # no user meets them


def pages() -> list[Path]:
    """All pages, by name."""
    return sorted(PAGES.glob("*.md"))


def generated(text: str) -> str:
    """The page with its generated parts made again."""
    return GENERATED.sub(lambda found: f"{found[1]}\n{_made(found[2], found[3]).strip()}\n\n{found[4]}", text)


def _made(name: str, argument: str) -> str:
    lines = MAKERS[name](argument) if argument else MAKERS[name]()
    return "\n".join(lines)


def _item(name: str, facts: str, words: str) -> list[str]:
    """An item of a list: a name of ours, facts in brackets, and what it means."""
    return _wrapped(f"- **`{name}`**{f' ({facts})' if facts else ''}: {words}", "  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    """The lines of a text; code is not divided."""
    whole = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


# Settings


def sections(shape: Any = None, place: str = "") -> dict[str, Any]:
    """The class of every section of the configuration and of an agent's config, by its place."""
    if shape is None:
        return sections(Config) | sections(AgentSettings, "agent")
    found = {place: shape}
    for name, annotation in get_type_hints(shape).items():
        if name in _defaults(shape) and (inner := _section(annotation)):
            below = f"{name}.*" if dict in _origins(annotation) else name
            found |= sections(inner, f"{place}.{below}".removeprefix("."))
    return found


def settings(place: str = "") -> Iterator[str]:
    """The keys of a section; those that are sections themselves have places of their own."""
    shape = sections()[place]
    words, hints = _words(shape), get_type_hints(shape, include_extras=True)
    for name, default in _defaults(shape).items():
        if not _section(hints[name]):
            shown = _shown(default)
            yield from _item(name, _kind(hints[name]) + (f"; default {shown}" if shown else ""), words.get(name, ""))


def _defaults(shape: Any) -> dict[str, Any]:
    if issubclass(shape, BaseModel):
        fields = shape.model_fields.items()
        return {name: one.default_factory or one.default for name, one in fields}
    return {
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory
        for one in dataclasses.fields(shape)
    }


def _words(shape: Any) -> dict[str, str]:
    """What the keys mean: their `description`, or the comment behind them or above them."""
    words: dict[str, str] = {}
    for owner in reversed(shape.__mro__):
        if owner.__module__.startswith("pattern_"):
            words |= _comments(inspect.getsource(owner))
    if issubclass(shape, BaseModel):
        words |= {name: one.description for name, one in shape.model_fields.items() if one.description}
    return words


def _comments(source: str) -> Iterator[tuple[str, str]]:
    above: list[str] = []
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.removeprefix("# ")
            if token.line.lstrip().startswith("#"):
                above.append(words)
            elif name:
                yield name, words
        elif token.type == tokenize.NAME and not token.line[: token.start[1]].strip():
            name = token.string
            if above and re.match(r"\s*\w+:", token.line):
                yield name, " ".join(above)
            above = []


def _origins(annotation: Any) -> list[Any]:
    """The annotation's own type and those of which it is made, without `Annotated` and `None`."""
    if get_origin(annotation) is Annotated:
        return _origins(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [origin for one in get_args(annotation) if one is not type(None) for origin in _origins(one)]
    return [get_origin(annotation) or annotation]


def _inner(annotation: Any) -> Iterator[Any]:
    yield annotation
    for one in get_args(annotation):
        yield from _inner(one)


def _section(annotation: Any) -> Any:
    """The class of the section (or sections, by their names) that a key holds; all keys of one have defaults."""
    classes = () if tuple in _origins(annotation) else filter(inspect.isclass, _inner(annotation))
    shaped = (one for one in classes if dataclasses.is_dataclass(one) or issubclass(one, BaseModel))
    return next((one for one in shaped if dataclasses.MISSING not in _defaults(one).values()), None)


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{one.value if isinstance(one, Enum) else one}`" for one in get_args(annotation))
    origin = _origins(annotation)[0]
    if origin in KINDS:
        return KINDS[origin]
    if inspect.isclass(origin) and issubclass(origin, Path):
        return "path"
    if any(one in (list, tuple) for one in _origins(annotation)) or "Sequence" in str(origin):
        return "list"
    if get_origin(annotation) in (Union, UnionType):
        return _kind(get_args(annotation)[0])
    return "table"


KINDS = {
    int: "integer", float: "number", Decimal: "number", bool: "`true`, `false`", str: "text", SecretStr: "secret",
}  # fmt: skip


def _shown(default: Any) -> str:
    if callable(default) and inspect.isclass(default):
        default = default()
    if callable(default):
        return "depends on the system"
    if default is PydanticUndefined or default in (None, "", (), {}):
        return ""
    if isinstance(default, bool | Enum):
        return f"`{str(default.value if isinstance(default, Enum) else default).lower()}`"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    if isinstance(default, tuple):
        default = list(default)
    return f"`{default}`"


# Commands


def every_command() -> dict[str, click.Command]:
    """All commands and subcommands that do something, by their full names."""
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{name} {inner_name}": one for inner_name, one in inner.items()} or {name: command}
    return found


def commands() -> Iterator[str]:
    """Every command with its own arguments and options, as its `--help` shows them."""
    helps = Counter(_option(one) for command in every_command().values() for one in command.params)
    shared = {max((one for one in helps if one[0] == name), key=helps.__getitem__, default=("", "")) for name in COMMON}
    group = ""
    for name, command in every_command().items():
        if group != name.split()[0]:
            group = name.split()[0]
            yield from ("", f"## pattern {group}", "", COMMANDS[group].help)
        shown = copy.copy(command)
        shown.params = [one for one in command.params if _option(one) not in shared]
        shown.add_help_option = False
        context = click.Context(shown, info_name=f"pattern {name}", terminal_width=COLUMNS, max_content_width=COLUMNS)
        lines = [line.rstrip() for line in shown.get_help(context).rstrip().splitlines()]
        yield from ("", *([f"### pattern {name}", ""] if " " in name else []), "```text", *lines, "```")


def _option(one: click.Parameter) -> tuple[str, str]:
    return one.name or "", getattr(one, "help", None) or ""


# The API


def routes() -> Iterator[str]:
    """Every route, by resource."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for route in api_routes():
        for method in sorted(route.methods or ()):
            words = summary_of(route.description or "")
            found[str(route.tags[0])].append((f"`{method} {route.path_format.removeprefix(API)}`", f"{words}."))
    for resource, rows in found.items():
        yield from ("", f"### {resource}", "", "| method and path | does |", "|---|---|")
        yield from (f"| {call} | {words} |" for call, words in rows)


def events() -> Iterator[str]:
    """Every event with the fields of its data; `?` stands behind those that may be missing."""
    for name, event in WORDS["events"].items():
        fields = ", ".join(f"`{field.partition(':')[0]}{'?' * field.endswith('?')}`" for field in event["data"].split())
        yield from _item(name, fields.replace("??", "?"), event["words"])


def tools() -> Iterator[str]:
    """Every built-in tool with its effect class, its profiles, and the beginning of what the model reads."""
    for one in BUILTIN:
        profiles = ", ".join(f"`{name}`" for name in sorted(one.profiles - {"auto"})) or "no profile"
        yield from _item(one.name, f"{one.effect.value}; {profiles}", _sentence(one.description))


def toolsets() -> Iterator[str]:
    """Every tool for MCP clients with the scope that its caller needs, and what it does."""
    for name, (scope, one) in SERVED.items():
        yield from _item(name, scope, one.description)


def rules() -> Iterator[str]:
    """Every kind of tool rules: its fields beside those that all have, and what it means."""
    for name, kind in KINDS_OF_RULES.items():
        own = [field for field in dataclasses.fields(kind) if field.name not in ("tool", "priority", "message")]
        is_needed = {one.name: one.default is one.default_factory for one in own}
        fields = ", ".join(f"`{field}`{'' if needed else ' optional'}" for field, needed in is_needed.items())
        yield from _item(name, fields, " ".join((inspect.getdoc(kind) or "").split()))


def metrics() -> Iterator[str]:
    """Every family of `/metrics` that is ours."""
    for family in Metrics().collect():
        name = family.name + "_total" * (family.type == "counter")
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        yield from _item(name, "; by ".join(filter(None, (family.type, labels))), family.documentation)


# Errors


def errors() -> dict[str, tuple[str, str]]:
    """The cause and the remedy of every error code that a user can meet, from its class."""
    found = dict(OTHER_ERRORS)
    for package in (pattern_db, pattern_core, pattern_server):  # the word of an outer one counts
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and ".testing" not in module.name:
                for _name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                    # A class that inherits its code is a case of its parent.
                    if kind.__module__ != module.name:
                        continue
                    if issubclass(kind, PatternError | DatabaseError) and "code" in vars(kind):
                        cause = re.sub(r'details\["(\w+)"\]', r"\1", _sentence(inspect.getdoc(kind) or ""))
                        found |= (
                            {kind.code: (cause, vars(kind).get("remedy", ""))} if kind.code not in OTHER_ERRORS else {}
                        )
    return {code: found[code] for code in sorted(found) if code not in INTERNAL}


def troubleshooting() -> Iterator[str]:
    """Every error code with its HTTP status, its cause and its remedy."""
    for code, (cause, remedy) in errors().items():
        status = STATUS.get(code)
        yield from ("", f"## {code}", "", *_wrapped(f"**Cause:** {cause}"), "", *_wrapped(f"**What to do:** {remedy}"))
        yield from ("", f"HTTP status {status} {HTTPStatus(status).phrase}.") if status else ()


def _sentence(words: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=[.!?])\s", " ".join(words.split()), maxsplit=1)[0]


MAKERS: Mapping[str, Callable[..., Iterator[str]]] = {
    one.__name__: one for one in (settings, commands, routes, events, tools, toolsets, rules, metrics, troubleshooting)
}


def main(arguments: list[str]) -> int:
    """Read the command line; 1 if a page differs and is not written."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write the pages")
    options = parser.parse_args(arguments)
    stale = {path: text for path in pages() if (text := generated(path.read_text("utf-8"))) != path.read_text("utf-8")}
    for path, text in stale.items():
        if options.write:
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'written' if options.write else 'differs'}\n")
    return 1 if stale and not options.write else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

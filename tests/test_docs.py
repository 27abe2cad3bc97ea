"""What exists is documented, and what is documented exists: commands, routes, settings, make's targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import fields
from importlib import import_module

import click
import pytest
from fastapi.routing import APIRoute

from pattern_core.agent_settings import KEYS, CompactionSettings, ContextSettings
from pattern_core.budgets.budget import TurnBudget
from pattern_core.embeddings.providers import EMBEDDERS
from pattern_core.events import TERMINAL
from pattern_core.models.errors import ModelError
from pattern_core.models.providers import PROVIDERS
from pattern_core.rules.detectors import DetectorSettings
from pattern_core.rules.kinds import KINDS
from pattern_core.tools.builtin import BUILTIN
from pattern_server.cli import COMMANDS, cli
from pattern_server.config import Config
from pattern_server.http.errors import STATUS
from pattern_server.http.openapi import WORDS
from pattern_server.http.routing import API
from tests.sources import ROOT, sources

README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "REFERENCE.md").read_text(encoding="utf-8")


def command_of(name: str) -> click.Command:
    """The click command of a name in COMMANDS."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def inner_commands(command: click.Command) -> dict[str, click.Command]:
    """The commands of a group by name; none of a command."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    return {name: one for name in command.list_commands(context) if (one := command.get_command(context, name))}


def rows(name: str) -> str:
    """The rows of README's table of commands that are about a command."""
    return "\n".join(line for line in README.splitlines() if line.startswith("|") and f"`pattern {name}" in line)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_readme(name: str) -> None:
    assert rows(name), f"add a row for `pattern {name}` to the table in README.md"
    command = command_of(name)
    for inner in inner_commands(command):
        assert re.search(rf"\b{inner}\b", rows(name)), f"add `{inner}` to the row of `pattern {name}` in README.md"


def every_command() -> list[tuple[str, click.Command]]:
    """All commands and subcommands that do something, with their full names."""
    found = []
    for name in COMMANDS:
        command = command_of(name)
        inner = inner_commands(command).items()
        found += [(f"{name} {inner_name}", one) for inner_name, one in inner] or [(name, command)]
    return found


@pytest.mark.parametrize(("name", "command"), every_command(), ids=lambda value: str(value))
def test_every_command_explains_itself_and_takes_a_data_directory(name: str, command: click.Command) -> None:
    assert command.help, f"`pattern {name}` needs a docstring"
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--data-dir" in options, f"`pattern {name}` must take --data-dir"
    if name != "demo":
        assert "--config" in options, f"`pattern {name}` must take --config"
    if name not in ("serve", "demo"):
        assert "--json" in options, f"`pattern {name}` must take --json"


def shown_commands() -> list[str]:
    """The lines of README's shell examples that call our program."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("pattern ")]


@pytest.mark.parametrize("line", shown_commands())
def test_the_commands_of_the_readme_exist(line: str) -> None:
    arguments = shlex.split(line)[1:]
    name, rest = arguments[0], arguments[1:]
    command = command_of(name)
    while isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), rest[0])
        assert inner is not None, f"there is no `pattern {name} {rest[0]}`"
        command, rest = inner, rest[1:]
    command.make_context(name, rest)  # parses, and raises for what the command does not take


def test_the_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z]+)\b(?! it| of)", README + (ROOT / "CONTRIBUTING.md").read_text())
    assert targets, "no target was found; are they written in another way?"
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"there is no `make {target}`"


def routes() -> list[str]:
    """`METHOD /path` of every route, without the common prefix."""
    modules = [source.name for source in sources() if source.path.startswith("pattern_server/http/routes/")]
    routers = [router for name in modules if (router := getattr(import_module(name), "router", None))]
    found = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    return sorted(f"{method} {route.path.removeprefix(API)}" for route in found for method in route.methods or ())


def keys_of_config() -> Iterable[str]:
    """The keys of an agent's config, and those within them."""
    shapes = (CompactionSettings, ContextSettings, DetectorSettings, TurnBudget)
    return {*KEYS, *(field.name for shape in shapes for field in fields(shape))}


def codes_of_errors() -> Iterable[str]:
    """The codes that a client may be answered with, and those that a turn may fail with."""
    errors: list[type[ModelError]] = [ModelError, *ModelError.__subclasses__()]
    return {*STATUS, *(one.code for one in errors)}


def names_of_events() -> Iterable[str]:
    """What the core publishes."""
    published = r'(?:Draft\(|\.event\(|\.publish\(|(?:CHANGED|HALTED|RESUMED)[\w, ]* =)\s*"([a-z]+(?:\.[a-z]+)?)"'
    core = [source.text for source in sources() if source.path.startswith("pattern_core/")]
    found = {name for text in core for name in re.findall(published, text)} | TERMINAL
    assert {"message", "turn.started", "model.retry", "archive.changed", "constellation.halted"} <= found
    return found


@pytest.mark.parametrize(
    ("names", "row"),
    [
        ([tool.name for tool in BUILTIN], r"^\| (?:`\w+`¹?²?, )*`%s`¹?²?[ ,]"),
        (KINDS, r'^\| `.*"type": "%s"'),
        (PROVIDERS, r"^\| `providers.<name>` .*`%s`"),
        (EMBEDDERS, r"^\| `provider` \|.*\b%s\b"),
        (routes(), "`%s`"),
        (Config.model_fields, "`%s"),
        (keys_of_config(), '[`"]%s[`"]'),
        (codes_of_errors(), "`%s`"),
        (WORDS["events"], "`%s`"),
    ],
    ids=["tool", "rule", "provider", "embedder", "route", "setting", "key of a config", "error", "event"],
)
def test_what_exists_is_in_the_reference(names: Iterable[str], row: str) -> None:
    assert names, "nothing was found; has the way of declaring it changed?"
    missing = [name for name in names if not re.search(row.replace("%s", re.escape(name)), REFERENCE, re.MULTILINE)]
    assert not missing, f"add these to REFERENCE.md: {', '.join(missing)}"

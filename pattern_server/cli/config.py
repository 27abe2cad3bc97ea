"""`pattern config …`: what is configured, by what, and whether it is valid."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from functools import reduce
from pathlib import Path

import click

from pattern_core.models.providers import PROVIDERS
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, PlainGroup, local
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import (
    DEFAULT,
    Config,
    check_exposure,
    known_variables,
    origin_of,
    unknown_variables,
    variable,
)

config = PlainGroup("config", help="The configuration: check, show.")


@config.add("check", runs=local)
def check(settings: Config, output: Output) -> ExitCode:
    """Check the configuration: every mistake, with its line and what may have been meant."""
    check_exposure(settings)  # all others are errors of every command, before this one is called
    found = {name: get_close_matches(name, known_variables(), 1) for name in unknown_variables()}
    for name, meant in found.items():
        hint = f"did you mean {meant[0]}?" if meant else "no setting has this name"
        output.note(f"The environment variable {name} has no effect: {hint}")
    path = settings.place
    file = str(path) if path.is_file() else None
    words = f"{file or 'No file, so the defaults'}: valid."
    output.result({"file": file, "unknown_variables": list(found)}, words)
    return FAILED if found else DONE


@config.add("show", "--all", runs=local)
@click.option("--all", "everything", is_flag=True, help="Also the defaults.")
def show(settings: Config, output: Output, everything: bool) -> None:
    """Show the settings that differ from the defaults, and what sets each. Secrets are not shown."""
    rows = [row for row in rows_of(settings) if everything or row["set_by"] != DEFAULT]
    output.table(("setting", "value*", "set by=set_by"), rows, empty="Nothing is configured: the defaults apply.")


def rows_of(settings: Config) -> Iterator[Json]:
    """Yield each setting with its value and what sets it."""
    path = settings.place
    file = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for place, value in _leaves(settings.model_dump(mode="json"), ()):
        section: Json = reduce(lambda found, name: found.get(name, {}), place[:-1], file)
        in_file = f"{path.name}, {origin_of(place, path)}" if {place[-1], f"{place[-1]}_env"} & {*section} else ""
        yield {"setting": ".".join(place), "value": value, "set_by": _variable(settings, place) or in_file or DEFAULT}


def _variable(settings: Config, place: tuple[str, ...]) -> str:
    """Return the variable or the option that sets a setting; empty if none does."""
    if place == ("data_dir",):
        return settings.data_dir_source
    if found := origin_of(place, Path()):  # of no file
        return found
    kind = PROVIDERS.get(place[1]) if place[0] == "providers" else None
    name = f"{kind.variables}_{place[-1].upper()}" if kind is not None and kind.variables else ""
    return name if name and place[-1] in ("api_key", "base_url") and variable(name) else ""


def _leaves(value: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves(below, (*place, str(name)))
    else:
        yield place, value

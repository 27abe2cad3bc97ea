"""What every command shares: `--config`, `--data-dir`, `--json`, trio, and errors as a sentence and an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeAlias

import click
import httpx2
import trio

from pattern_core.errors import PatternError, leaves
from pattern_db.errors import DatabaseError
from pattern_server.cli.client import Api, Json, ServerFailed, open_api, path, remote
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import Config, load

# What a command gives back: nothing for done, or one of output's exit codes.
ExitCode: TypeAlias = int | None

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all files.  [default: PATTERN_DATA_DIR, else the named file's data_dir, else your data folder]",
)
config_option = click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration.  [default: PATTERN_CONFIG, else ./pattern.toml, else the data folder's]",
)
_SERVER = click.option(
    "--server", metavar="URL", envvar="PATTERN_SERVER", help="A server on another machine.  [default: PATTERN_SERVER]"
)
_TOKEN_FILE = click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the token for --server.  [default: the token in PATTERN_TOKEN]",
)
_JSON = click.option("--json", "is_json", is_flag=True, help="Print data as JSON.")

constellation_option = click.option(
    "-c", "--constellation", required=True, metavar="NAME", help="The constellation, by name or id."
)


agent_option = click.option("-a", "--agent", required=True, metavar="NAME", help="The agent, by name or id.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


class PlainGroup(click.Group):
    """A group that shows of each command the first paragraph of its docstring, uncut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help text. Called by click."""
        helps = {name: (command.help or "").partition("\n\n")[0] for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(words.split())) for name, words in helps.items()])


@dataclass(frozen=True, slots=True)
class Home:
    """One constellation through the API: its name or id as it was typed, and what lies below it, part by part.

    Raises (all methods): as those of `Api`.
    """

    api: Api
    name: str

    def at(self, *below: str) -> str:
        """Return the path of what lies below it."""
        return path("constellations", self.name, *below)

    async def get(self, *below: str, **params: object) -> Json:
        """Return the thing at a path."""
        return await self.api.get(self.at(*below), **params)

    async def pages(self, *below: str, most: int | None = None, **params: object) -> list[Json]:
        """Return all rows of a list, or the first `most`."""
        return await self.api.pages(self.at(*below), most=most, **params)

    async def call(
        self, method: str, *below: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Json:
        """Send a request; the answer's JSON, which is empty where it has no body."""
        return await self.api.call(method, self.at(*below), body=body, headers=headers)

    async def agent_names(self) -> dict[str, str]:
        """Return the names of the agents, by id."""
        return {agent["id"]: agent["name"] for agent in await self.pages("agents")}


def json_of(option: str, text: str) -> object:
    """Return what an option was given as JSON, or as the name of a file with JSON.

    Raises:
        click.UsageError: there is no such file, or it is no JSON.
    """
    is_json = text.lstrip().startswith(("[", "{"))
    try:
        return json.loads(text if is_json else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{option} takes JSON or a file with it; {text}: {error.strerror or error}.") from None
    except ValueError as error:
        raise click.UsageError(f"{option}: {'what was given' if is_json else text} is not JSON: {error}.") from None


async def piped(instead: str) -> str:
    """Return what is piped in; `instead` says what a person does who has nothing to pipe.

    Raises:
        click.UsageError: nothing was piped in, or white space alone: a pipe that broke must not empty anything.
    """
    text: str = await trio.to_thread.run_sync(sys.stdin.read)
    if not text.strip():
        raise click.UsageError(f"nothing was piped in, so nothing is changed; {instead}")
    return text


def local(function: Callable[..., ExitCode]) -> Callable[..., None]:
    """Return a command that works on the files itself: called with the `Config`, its `Output`, and click's
    parameters.
    """

    @config_option
    @data_dir_option
    @_JSON
    @wraps(function)
    def command(config_file: Path | None, data_dir: Path | None, is_json: bool, **given: Any) -> None:
        output = Output(is_json=is_json)
        code = reported(output, lambda: function(load(config_file, data_dir=data_dir), output, **given))
        click.get_current_context().exit(code)

    return command


def connected(function: Callable[..., Awaitable[ExitCode]], *, creates: bool = False) -> Callable[..., None]:
    """Return a command that speaks to the API: called in trio with the `Api`, its `Output`, and click's parameters.

    One that `creates` makes the data directory if there is none; the others refuse.
    """

    @_SERVER
    @_TOKEN_FILE
    @local
    @wraps(function)
    def command(config: Config, output: Output, server: str | None, token_file: Path | None, **given: Any) -> ExitCode:
        http = None if server is None else remote(server, token_file)
        return trio.run(_with_api, config, creates, http, lambda api: function(api, output, **given))

    return command


creating = partial(connected, creates=True)


def in_constellation(function: Callable[..., Awaitable[ExitCode]]) -> Callable[..., None]:
    """Return a command about one constellation: called with its `Home`, the `Output`, and click's other parameters."""

    @constellation_option
    @connected
    @wraps(function)
    async def command(api: Api, output: Output, constellation: str, **given: Any) -> ExitCode:
        return await function(Home(api, constellation), output, **given)

    return command


@contextmanager
def unwrapped() -> Iterator[None]:
    """Let the only error of the block out as it is: nurseries within would wrap it in groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list(leaves(group))
        if len(errors) == 1:
            raise errors[0] from errors[0].__cause__
        raise


async def _with_api(
    config: Config,
    creates: bool,
    server: httpx2.AsyncClient | None,
    call: Callable[[Api], Awaitable[ExitCode]],
) -> ExitCode:
    with unwrapped():
        async with open_api(config, creates=creates, server=server) as api:
            return await call(api)


def reported(output: Output, call: Callable[[], ExitCode]) -> int:
    """Run a command; what may go wrong becomes a sentence and the exit code 1, bugs stay what they are."""
    code: ExitCode = DONE
    failed: list[BaseException] = []
    try:
        code = call()
    except* (PatternError, DatabaseError, OSError, KeyboardInterrupt) as group:
        failed = list(leaves(group))
    if not failed:
        return code or DONE
    for error in failed:
        match error:
            case BrokenPipeError():
                raise error  # the reader has left, as in `pattern search … | head`: there is nothing to report
            case ServerFailed():
                output.error(error.message, code=error.problem_code)
            case PatternError() | DatabaseError():
                output.error(error.message, code=error.code)
            case OSError():
                output.error(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
            case _:
                output.note("Stopped.")
    return FAILED

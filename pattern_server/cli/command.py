"""What every command shares: `--config`, `--data-dir`, `--json`, trio, and errors as a sentence and an exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click
import httpx2
import trio

from pattern_core.errors import InvalidInput, PatternError, leaves
from pattern_db.errors import DatabaseError
from pattern_server.cli.child import FIRST_AGENT, HOME, ensure_hosted, first_agent
from pattern_server.cli.client import Api, ServerFailed, open_api, remote
from pattern_server.cli.names import ONLY_AGENT, ONLY_CONSTELLATION, fill, people, suggestion
from pattern_server.cli.output import DONE, FAILED, USAGE, Output
from pattern_server.config import Config, load

# What a command gives back: nothing for done, or one of output's exit codes.
ExitCode: TypeAlias = int | None
# Starts a server if a command needs one; returns whether the data directory is empty.
Hosts: TypeAlias = Callable[[Config, Output], Awaitable[bool]]

F = TypeVar("F", bound=Callable[..., Any])

ABSENT = 404
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
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
server_option = click.option(
    "--server", metavar="URL", envvar="PATTERN_SERVER", help="A server on another machine.  [default: PATTERN_SERVER]"
)
_TOKEN_FILE = click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the token for --server.  [default: PATTERN_TOKEN, else the one of `pattern login`]",
)
_JSON = click.option("--json", "is_json", is_flag=True, help="Print data as JSON.")

constellation_option = click.option(
    *("-c", "--constellation"), metavar="NAME", envvar="PATTERN_CONSTELLATION", type=ONLY_CONSTELLATION,
    help="The constellation.  [default: PATTERN_CONSTELLATION, default_constellation, or the only one]",
)  # fmt: skip
agent_option = click.option(
    "-a", "--agent", metavar="NAME", type=ONLY_AGENT, help="The agent.  [default: the only one]"
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def options(*given: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options, in this order."""
    return lambda function: reduce(lambda made, option: option(made), reversed(given), function)


class Duration(click.ParamType[float]):
    """A time such as `90s`, `30m`, `2h` or `7d`; seconds without a unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the time in seconds."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a time; write 90s, 30m, 2h or 7d", param, ctx)
        return float(found[1]) * _UNITS_S[found[2] or "s"]


class Home(Api):
    """One constellation through the API: its name or id as it was typed, and what lies below it."""

    def __init__(self, api: Api, name: str, *below: str) -> None:
        base = api.at("constellations", name, *below)
        super().__init__(api.http, streams=api.streams, data_dir=api.data_dir, base=base)
        self.api = api
        self.name = name

    async def name_people(self, output: Output) -> None:
        """Let the output show agents and people by their names."""
        output.names = {} if output.is_json else await people(self.api, self.name)


def json_of(option: str, text: str) -> object:
    """Return the value of an option that accepts JSON, or the name of a file with JSON.

    Raises:
        click.UsageError: there is no such file, or it is not JSON.
    """
    is_json = text.lstrip().startswith(("[", "{"))
    try:
        return json.loads(text if is_json else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(
            f"{option} cannot read {text}: {error.strerror or error}. Give JSON, or the name of a file with JSON."
        ) from None
    except ValueError as error:
        raise click.UsageError(f"{option}: {'the value' if is_json else text} is not valid JSON: {error}.") from None


async def piped(instead: str) -> str:
    """Return the standard input; `instead` says what to do without a pipe.

    Raises:
        click.UsageError: it is empty or white space: a broken pipe must not empty anything.
    """
    text: str = await trio.to_thread.run_sync(sys.stdin.read)
    if not text.strip():
        raise click.UsageError(f"Nothing was piped in, so nothing is changed; {instead}")
    return text


def local(function: Callable[..., ExitCode]) -> Callable[..., None]:
    """Return a command that works on the files: called with the `Config`, its `Output`, and click's parameters."""

    @config_option
    @data_dir_option
    @_JSON
    @wraps(function)
    def command(config_file: Path | None, data_dir: Path | None, is_json: bool, **given: Any) -> None:
        output = Output(is_json=is_json)
        code = reported(output, lambda: function(load(config_file, data_dir=data_dir), output, **given))
        click.get_current_context().exit(code)

    return command


def connected(
    function: Callable[..., Awaitable[ExitCode]], *, creates: bool = False, hosts: Hosts | None = None
) -> Callable[..., None]:
    """Return a command that uses the API: called in trio with the `Api`, its `Output`, and click's parameters.

    One that `creates` creates the data directory if there is none; the others refuse. `hosts` may start a
    server in the background; in an empty data directory the command then creates a first agent.
    """

    @server_option
    @_TOKEN_FILE
    @local
    @wraps(function)
    def command(config: Config, output: Output, server: str | None, token_file: Path | None, **given: Any) -> ExitCode:
        http = None if server is None else remote(server, token_file)

        async def call(api: Api) -> ExitCode:
            await fill(api, config, given)
            try:
                return await function(api, output, **given)
            except ServerFailed as error:
                if error.status == ABSENT and (meant := await suggestion(api, given)):
                    error.message = f"{error.message}. Did you mean {meant!r}?"
                elif error.status != ABSENT and "_0" in error.message and (name := given.get("constellation")):
                    output.names = await people(api, name)  # of the agent or person that it perhaps has the id of
                raise

        host = None if hosts is None or http is not None else partial(hosts, config, output)
        return trio.run(with_api, config, creates, http, call, host, output)

    return command


creating = partial(connected, creates=True)


def in_constellation(
    function: Callable[..., Awaitable[ExitCode]], *, hosts: Hosts | None = None
) -> Callable[..., None]:
    """Return a command about one constellation: called with its `Home`, the `Output`, and click's other parameters."""

    @constellation_option
    @partial(connected, hosts=hosts)
    @wraps(function)
    async def command(api: Api, output: Output, constellation: str, **given: Any) -> ExitCode:
        return await function(Home(api, constellation), output, **given)

    return command


hosting = partial(in_constellation, hosts=ensure_hosted)
always_hosting = partial(in_constellation, hosts=partial(ensure_hosted, is_needed=True))


def unless_named(command: Callable[..., None]) -> Callable[..., None]:
    """Return what a group does without one of its commands."""

    @wraps(command)
    def called(**given: Any) -> None:
        if click.get_current_context().invoked_subcommand is None:
            command(**given)

    return called


class PlainGroup(click.Group):
    """A group of commands, each with an example; its help and completion have the first paragraph of each
    docstring, uncut.
    """

    def add(
        self, name: str, example: str = "", *, runs: Callable[..., Callable[..., None]] = in_constellation, **more: str
    ) -> Callable[[Callable[..., Awaitable[ExitCode] | ExitCode]], click.Command]:
        """Return a decorator that adds a command: `example` is what follows its name in the example, `runs` what calls
        it.
        """
        epilog = " ".join(filter(None, ("Example: pattern", self.name, name, example)))

        def added(function: Callable[..., Awaitable[ExitCode] | ExitCode]) -> click.Command:
            command = self.command(name, epilog=epilog, **more)(function)
            command.short_help = " ".join((command.help or "").partition("\n\n")[0].split())  # click would cut it
            shared = click.command()(runs(function))
            command.params += shared.params  # behind its own ones
            command.callback = shared.callback
            return command

        return added

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of their definition."""
        return list(self.commands)


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


async def with_api(
    config: Config,
    creates: bool,
    server: httpx2.AsyncClient | None,
    call: Callable[[Api], Awaitable[ExitCode]],
    host: Callable[[], Awaitable[bool]] | None,
    output: Output,
) -> ExitCode:
    """Call with the API of `server`, or of the data directory, where `host` may start one."""
    with unwrapped():
        is_empty = host is not None and await host()
        async with open_api(config, creates=creates, server=server) as api:
            if is_empty and await first_agent(api):
                output.note(f"Created the constellation {HOME} with the agent {FIRST_AGENT}.")
            return await call(api)


def reported(output: Output, call: Callable[[], ExitCode]) -> int:
    """Run a command; expected errors become sentences and the exit code 1, or 2 for values that do not fit."""
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
    codes = {getattr(error, "problem_code", getattr(error, "code", "")) for error in failed}
    return USAGE if codes == {InvalidInput.code} else FAILED

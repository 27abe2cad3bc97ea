"""What every command shares: `--data-dir`, `--json`, trio, and errors that are a sentence and an exit code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import click
import trio

from pattern_core.errors import PatternError
from pattern_db.errors import DatabaseError
from pattern_server.cli.client import Api, ServerFailed, open_api
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import Config, load

# What a command gives back: nothing for done, or one of output's exit codes.
ExitCode: TypeAlias = int | None

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of all files.  [default: PATTERN_DATA_DIR, else pattern.toml's data_dir, else ./data]",
)
_JSON = click.option("--json", "is_json", is_flag=True, help="Print data as JSON.")

constellation_option = click.option(
    "-c", "--constellation", required=True, metavar="NAME", help="The constellation, by name or id."
)


def local(function: Callable[..., ExitCode]) -> Callable[..., None]:
    """A command that works on the files itself: called with the `Config`, its `Output`, and click's parameters."""

    @data_dir_option
    @_JSON
    @wraps(function)
    def command(data_dir: Path | None, is_json: bool, **given: Any) -> None:
        output = Output(is_json=is_json)
        code = reported(output, lambda: function(load(data_dir=data_dir), output, **given))
        click.get_current_context().exit(code)

    return command


def connected(function: Callable[..., Awaitable[ExitCode]]) -> Callable[..., None]:
    """A command that speaks to the API: called in trio with the `Api`, its `Output`, and click's parameters."""

    @local
    @wraps(function)
    def command(config: Config, output: Output, **given: Any) -> ExitCode:
        return trio.run(_with_api, config, lambda api: function(api, output, **given))

    return command


async def _with_api(config: Config, call: Callable[[Api], Awaitable[ExitCode]]) -> ExitCode:
    failed: Exception | None = None
    code: ExitCode = DONE
    async with open_api(config) as api:
        # Carried out of the context by hand: nurseries inside it would wrap it in a group.
        try:
            code = await call(api)
        except (PatternError, DatabaseError, click.ClickException, click.Abort) as error:
            failed = error
    if failed is not None:
        raise failed
    return code


def reported(output: Output, call: Callable[[], ExitCode]) -> int:
    """Run a command; what may go wrong becomes a sentence and the exit code 1, bugs stay what they are."""
    code: ExitCode = DONE
    failed: list[BaseException] = []
    try:
        code = call()
    except* (PatternError, DatabaseError, OSError, KeyboardInterrupt) as group:
        failed = list(_leaves(group))
    if not failed:
        return code or DONE
    for error in failed:
        match error:
            case BrokenPipeError():
                raise error  # the reader has left, as in `pattern search … | head`: nothing to say, and nobody to hear
            case ServerFailed():
                output.error(error.message, code=error.problem_code)
            case PatternError() | DatabaseError():
                output.error(error.message, code=error.code)
            case OSError():
                output.error(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
            case _:
                output.note("Stopped.")
    return FAILED


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error

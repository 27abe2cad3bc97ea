"""`pattern serve`: the server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from pattern_server.cli.command import config_option, data_dir_option, reported
from pattern_server.cli.output import Output
from pattern_server.config import load, require_data
from pattern_server.serve import FIRST_TOKEN_FILE, Ready
from pattern_server.serve import serve as serve_until_stopped


@click.command(epilog="Example: pattern serve --port 8471")
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1, this machine alone]")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0 takes a free one.  [default: 8470]")
@click.option("--exposed", is_flag=True, default=None, help="Serve other machines without TLS, in a trusted network.")
@click.option("--open-loopback", is_flag=True, default=None, help="Front ends for chat sessions need no token here.")
@config_option
@data_dir_option
def serve(config_file: Path | None, data_dir: Path | None, **flags: Any) -> None:
    """Run the server until it is stopped: Ctrl-C or SIGTERM lets running work end, a second one stops at once.

    The first start makes the user admin and an API token, in the file admin.token; a terminal shows it too.
    """
    output = Output()

    def run() -> None:
        config = load(config_file, data_dir=data_dir, **flags)
        require_data(config, creates=True)
        trio.run(partial(serve_until_stopped, config, on_ready=partial(welcome, output)))

    click.get_current_context().exit(reported(output, run))


def welcome(output: Output, ready: Ready) -> None:
    """Say where the server is, and show the first token if this start made it."""
    output.say(f"Pattern is ready at {ready.url}   (files in {ready.data_dir}; Ctrl-C stops it)")
    if ready.token is not None:
        output.say()
        output.say(f"Your API token, for programs, is in {ready.data_dir / FIRST_TOKEN_FILE}, for you alone to read:")
        output.secret(f"  {ready.token}")
        output.say("The commands of this program on this machine need none. Another one: pattern token create")

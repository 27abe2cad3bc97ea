"""`pattern upgrade check`: whether this version can work with the files of another one, before it changes them."""

from __future__ import annotations

import click

from pattern_server.cli.command import ExitCode, PlainGroup, local
from pattern_server.cli.db import targets, tried
from pattern_server.cli.output import DONE, FAILED, Output
from pattern_server.config import Config

upgrade = PlainGroup("upgrade", help="Upgrades: try this version on copies of the files.")


@upgrade.add("check", "--sample 10", runs=local)
@click.option("--sample", metavar="N", type=click.IntRange(1), help="Try only N files.  [default: all]")
def check(config: Config, output: Output, sample: int | None) -> ExitCode:
    """Read the configuration, and migrate and check a copy of each file. The files themselves stay as they are.

    A server of another version may run at the same time. Copies are in the system's temporary folder, one at a time.
    """
    rows = tried(targets(config), sample, output)
    output.data(rows)
    failed = sum(bool(row["problems"]) for row in rows)
    output.say(f"Files that work with this version: {len(rows) - failed} of {len(rows)}.")
    return FAILED if failed else DONE

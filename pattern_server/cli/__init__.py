"""The command line, `pattern`: one module per noun, loaded when its command is called.

`pattern --help` imports none of them, so that it answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from pattern_server.cli.output import DONE, FAILED, Output


class Entry(NamedTuple):
    """One command: the module with the click command of its name, and its line in `pattern --help`."""

    module: str
    help: str


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "serve": Entry("pattern_server.cli.serve", "Run the server."),
        "demo": Entry("pattern_server.cli.demo", "A guided tour that really runs, in a temporary folder."),
        "constellation": Entry("pattern_server.cli.constellations", "Sets of agents: create, list …"),
        "agent": Entry("pattern_server.cli.agents", "Agents: create, list, show, edit, compact …"),
        "group": Entry("pattern_server.cli.groups", "Groups of agents: create, list, show, edit, delete."),
        "schedule": Entry("pattern_server.cli.schedules", "What agents do by themselves: create, list, run …"),
        "rule": Entry("pattern_server.cli.rules", "What an agent may call when: add, list, remove."),
        "chat": Entry("pattern_server.cli.chat", "Talk to an agent."),
        "turn": Entry("pattern_server.cli.turns", "One turn: show, cancel."),
        "why": Entry("pattern_server.cli.turns", "What a turn's model was shown, and why."),
        "memory": Entry("pattern_server.cli.memory", "What an agent keeps in mind: list, show, edit …"),
        "folder": Entry("pattern_server.cli.folders", "Files that agents may read: create, add, attach …"),
        "approvals": Entry("pattern_server.cli.approvals", "What agents ask people's consent for."),
        "tool": Entry("pattern_server.cli.tools", "The tools that agents may have: list."),
        "mcp": Entry("pattern_server.cli.tools", "MCP servers, whose tools agents may have: list, test …"),
        "archive": Entry("pattern_server.cli.archive", "What an agent keeps for good: add, list …"),
        "history": Entry("pattern_server.cli.history", "What was said, and past messages from elsewhere."),
        "search": Entry("pattern_server.cli.search", "Find words in memory, archive and messages."),
        "embeddings": Entry("pattern_server.cli.embeddings", "Search by meaning: status, switch …"),
        "usage": Entry("pattern_server.cli.usage", "What model calls took: tokens and money."),
        "budget": Entry("pattern_server.cli.usage", "What they may take: set, list, remove."),
        "token": Entry("pattern_server.cli.tokens", "API tokens: create, list, revoke."),
        "backup": Entry("pattern_server.cli.backup", "Copy a constellation into a file, while it works."),
        "restore": Entry("pattern_server.cli.backup", "Make a constellation from such a file."),
        "db": Entry("pattern_server.cli.db", "The database files: status, migrate, check, vacuum."),
        "doctor": Entry("pattern_server.cli.doctor", "What is wrong here, and what to do about it."),
    }
)


class LazyGroup(click.Group):
    """A group that knows its commands by a table and imports one only when it is called."""

    def __init__(self, *args: Any, table: Mapping[str, Entry], **given: Any) -> None:
        super().__init__(*args, **given)
        self._table = table
        self.commands = dict.fromkeys(table)  # type: ignore[assignment]  # names to suggest for a mistyped one

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command; None for an unknown name."""
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry.module), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help text, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._table.items()])


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="pattern-server", prog_name="pattern")
def cli() -> None:
    """Pattern: a server for long-lived AI agents that never lose a word.

    \b
    Begin with:   pattern demo
    Then:         pattern serve            (in one terminal)
                  pattern constellation create home
                  pattern agent create ada -c home
                  pattern chat -c home
    """


def run(arguments: list[str]) -> int:
    """Run one command line (without the program's name) and return its exit code: 0, 1, 2 or 3 as documented."""
    try:
        result = cli.main(arguments, prog_name="pattern", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        Output().note("Stopped.")
        return FAILED
    except BrokenPipeError:
        # Python would complain once more when it closes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return result if isinstance(result, int) else DONE


def main() -> None:
    """The program `pattern`."""
    # What modules make stays: with the usual threshold of 700, looking for garbage in it takes an eighth of the start.
    gc.set_threshold(50_000)
    code = run(sys.argv[1:])
    gc.freeze()  # nor is there anything to find when all of it ends
    sys.exit(code)

"""The command line, `pattern`: one module per noun, loaded when its command is called.

`pattern --help` imports none of them, so that it answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from keyword import iskeyword
from types import MappingProxyType
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from pattern_server.cli.output import DONE, FAILED, Output

SWITCH_S = 0.001  # after which a thread leaves the interpreter to another one; with Python's 5 ms turns take longer


class Entry(NamedTuple):
    """One command: the module with the click command of its name, and its line in `pattern --help`."""

    module: str
    help: str


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "up": Entry("pattern_server.cli.up", "Find a model, start the server, create a first agent."),
        "down": Entry("pattern_server.cli.up", "Stop the server."),
        "status": Entry("pattern_server.cli.up", "Show whether the server runs, and its model."),
        "logs": Entry("pattern_server.cli.logs", "Show the log of a server in the background."),
        "model": Entry("pattern_server.cli.models", "Models: list, test, set."),
        "serve": Entry("pattern_server.cli.serve", "Run the server."),
        "service": Entry("pattern_server.cli.service", "Start at boot: install, uninstall, status."),
        "demo": Entry("pattern_server.cli.demo", "A guided tour in a temporary folder."),
        "constellation": Entry(
            "pattern_server.cli.constellations", "Sets of agents, each in its own database: create, list …"
        ),
        "agent": Entry("pattern_server.cli.agents", "Agents: create, list, show, edit, compact …"),
        "group": Entry("pattern_server.cli.groups", "Groups of agents: create, list, show, edit, delete."),
        "schedule": Entry("pattern_server.cli.schedules", "Schedules of agents and groups: create, list, run, pause …"),
        "state": Entry("pattern_server.cli.shared_state", "Values that agents and people share: list, get, set …"),
        "task": Entry("pattern_server.cli.tasks", "Tasks of agents and of all: add, list, show, edit, done, delete."),
        "calendar": Entry("pattern_server.cli.calendars", "Events and reminders: list, add, move, import, export …"),
        "handoff": Entry("pattern_server.cli.handoffs", "Notes for agents: list, add, delete."),
        "assignment": Entry("pattern_server.cli.assignments", "Work that agents claim from one list: list, add, set."),
        "overview": Entry("pattern_server.cli.overview", "What agents did and decided, by agent, day and week."),
        "rule": Entry("pattern_server.cli.rules", "Rules that limit or order tool calls: add, list, remove."),
        "chat": Entry("pattern_server.cli.chat", "Talk to an agent."),
        "workspace": Entry("pattern_server.cli.workspaces", "Projects that rows belong to: list, show, add-root …"),
        "decisions": Entry("pattern_server.cli.decisions", "Decisions of projects: list, add, edit, sync …"),
        "guidance": Entry("pattern_server.cli.guidance", "Advice on work in a project: list, add, review, validate …"),
        "context": Entry("pattern_server.cli.workspaces", "Print what is remembered of a project, for other agents."),
        "session": Entry("pattern_server.cli.sessions", "Other conversations with an agent: create, list, fork …"),
        "turn": Entry("pattern_server.cli.turns", "Turns of agents: list, show, cancel."),
        "inbox": Entry("pattern_server.cli.inbox", "Messages that could not be delivered: list, retry, discard."),
        "webhook": Entry("pattern_server.cli.webhooks", "Webhooks, which are sent events: add, list, test …"),
        "source": Entry("pattern_server.cli.sources", "Where data comes from by itself: add, list, test, pause …"),
        "channel": Entry("pattern_server.cli.sources", "People in their chat applications: add, approve, people …"),
        "why": Entry("pattern_server.cli.turns", "Show the prompt of a turn, part by part."),
        "memory": Entry("pattern_server.cli.memory", "Memory blocks: list, show, edit, history, undo …"),
        "folder": Entry("pattern_server.cli.folders", "Files that agents may read: create, add, attach …"),
        "approvals": Entry("pattern_server.cli.approvals", "Requests that wait for a person: list, approve, deny …"),
        "tool": Entry("pattern_server.cli.tools", "Tools for agents: list."),
        "mcp": Entry("pattern_server.cli.tools", "MCP servers, which provide tools: list, test …"),
        "acp": Entry("pattern_server.cli.acp", "Serve an agent to an editor that speaks the Agent Client Protocol."),
        "archive": Entry("pattern_server.cli.archive", "Long-term entries outside the prompt: add, list, search …"),
        "history": Entry("pattern_server.cli.history", "Messages of an agent: show, import, summaries."),
        "search": Entry("pattern_server.cli.search", "Search messages, memory, archive, files and tasks."),
        "embeddings": Entry("pattern_server.cli.embeddings", "Vectors for search by meaning: status, switch, rebuild."),
        "usage": Entry("pattern_server.cli.usage", "Token usage and cost."),
        "budget": Entry("pattern_server.cli.usage", "Token and cost budgets: set, list, remove."),
        "user": Entry("pattern_server.cli.users", "Users: add, list, show, passwd, disable, enable, delete …"),
        "audit": Entry("pattern_server.cli.audit", "The audit log: list, verify."),
        "login": Entry("pattern_server.cli.identities", "Sign in: later commands act for this user."),
        "logout": Entry("pattern_server.cli.identities", "Sign out."),
        "identity": Entry("pattern_server.cli.identities", "Identities elsewhere to sign in with: link, list, unlink."),
        "token": Entry("pattern_server.cli.tokens", "API tokens: create, list, revoke."),
        "backup": Entry("pattern_server.cli.backup", "Copy a constellation into a file; the server may run."),
        "restore": Entry("pattern_server.cli.backup", "Create a constellation from a backup."),
        "export": Entry("pattern_server.cli.portable", "Write an archive of a constellation, agent or group."),
        "import": Entry("pattern_server.cli.portable", "Create a constellation from an archive."),
        "car": Entry("pattern_server.cli.portable", "Archive files: show, verify, diff."),
        "db": Entry("pattern_server.cli.db", "The database files: status, migrate, check, vacuum …"),
        "upgrade": Entry("pattern_server.cli.upgrade", "Try this version on copies of the database files: check."),
        "config": Entry("pattern_server.cli.config", "The configuration: check, show."),
        "doctor": Entry("pattern_server.cli.doctor", "Check this installation, and say how to fix problems."),
        "completion": Entry("pattern_server.cli.completion", "Tab completion for bash, zsh and fish."),
    }
)


class LazyGroup(click.Group):
    """A group that knows its commands from a table and imports a command only when it is called."""

    def __init__(self, *args: Any, table: Mapping[str, Entry], **given: Any) -> None:
        super().__init__(*args, **given)
        self._table = table
        self.commands = dict.fromkeys(table)  # type: ignore[assignment]  # names to suggest

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command; None for an unknown name."""
        entry = self._table.get(cmd_name)
        if entry is None:
            return None
        own = cmd_name + "_" * iskeyword(cmd_name)
        command: click.Command = getattr(import_module(entry.module), own)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin so, and options. Called by click, for the shell."""
        begun = ((name, entry.help) for name, entry in self._table.items() if name.startswith(incomplete))
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=words) for name, words in begun), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands into the help text, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._table.items()])


def _without_color(context: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    if given:
        context.color = False


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--no-color", envvar="NO_COLOR", hidden=True, expose_value=False, callback=_without_color)
@click.version_option(package_name="pattern-server", prog_name="pattern")
def cli() -> None:
    """Pattern: a server for long-lived AI agents with memory.

    \b
    Begin with:   pattern up       (finds a model and starts the server)
    Then:         pattern chat
    A tour:       pattern demo
    """


def run(arguments: list[str]) -> int:
    """Run one command line (without the program's name) and return its exit code: 0, 1, 2 or 3 as documented."""
    try:
        result = cli.main(arguments, prog_name="pattern", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _misuse(error)
    except click.Abort:
        Output().note("Stopped.")
        return FAILED
    except BrokenPipeError:
        # Python would report it again when it closes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return result if isinstance(result, int) else DONE


def _misuse(error: click.ClickException) -> int:
    """Print an error in the arguments as all errors are printed, and where to find help; return its exit code."""
    context = getattr(error, "ctx", None)
    output = Output(is_json=context is not None and bool(context.params.get("is_json")))
    output.error(error.format_message(), code="usage")
    if context is not None and not output.is_json:
        output.note(f"Help: {context.command_path} --help")
    return error.exit_code


def main() -> None:
    """Run the program `pattern`."""
    # Modules stay in memory: with the default threshold of 700, garbage collection uses an eighth of the start.
    gc.set_threshold(50_000)
    # While other tasks run, a thread of a database waits this long for the interpreter, several times in a transaction.
    sys.setswitchinterval(SWITCH_S)
    code = run(sys.argv[1:])
    gc.freeze()  # skips a last collection at exit
    sys.exit(code)

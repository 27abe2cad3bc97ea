"""The group of commands."""

from __future__ import annotations

import click

from pattern_server.cli.memory import MEMORY, memory


def test_every_command_of_memory_is_there() -> None:
    wanted = "list show create settings pin unpin delete edit append set history diff blame undo redo rollback repair"
    context = click.Context(memory)
    assert set(memory.list_commands(context)) == {*wanted.split(), "share", "unshare", "sync"}
    for name, entry in MEMORY.items():
        command = memory.get_command(context, name)
        assert command is not None and command.name == name
        assert (command.help or "").startswith(entry.help)

"""The group of commands."""

from __future__ import annotations

from pattern_server.cli.memory import memory


def test_every_command_of_memory_is_there() -> None:
    wanted = "list show create settings pin unpin delete edit append set history diff blame undo redo rollback"
    assert set(memory.commands) == {*wanted.split(), "share", "unshare", "sync"}

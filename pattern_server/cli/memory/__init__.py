"""`pattern memory …`: the blocks that agents keep in mind, one module per thing to do with them."""

from __future__ import annotations

import click

from pattern_server.cli.memory import blocks, editing, past, sharing, sync


@click.group()
def memory() -> None:
    """Memory: the labelled blocks that an agent keeps in mind and edits itself."""


for _command in (
    blocks.list_all,
    blocks.show,
    blocks.create,
    blocks.settings,
    blocks.pin,
    blocks.unpin,
    blocks.delete,
    editing.edit,
    editing.append,
    editing.set_field,
    past.history,
    past.diff,
    past.blame,
    past.undo,
    past.redo,
    past.rollback,
    past.repair,
    sharing.share,
    sharing.unshare,
    sync.sync,
):
    memory.add_command(_command)

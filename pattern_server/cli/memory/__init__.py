"""`pattern memory …`: the blocks that agents keep in mind, one module per thing to do with them.

Loaded when called: only `sync` needs what merges documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import click

from pattern_server.cli import Entry, LazyGroup

MEMORY: Mapping[str, Entry] = MappingProxyType(
    {
        "list": Entry(
            "pattern_server.cli.memory.blocks",
            "list_all",
            "List the blocks that an agent sees, or with --everyone those that all see.",
        ),
        "show": Entry(
            "pattern_server.cli.memory.blocks",
            "show",
            "Show the block LABEL: its content, and nothing else unless --json is given.",
        ),
        "create": Entry(
            "pattern_server.cli.memory.blocks", "create", "Make the block LABEL; refused if there is one already."
        ),
        "edit": Entry(
            "pattern_server.cli.memory.editing",
            "edit",
            "Write the block LABEL anew; it is made if there is none. Structured blocks are shown as JSON.",
        ),
        "append": Entry(
            "pattern_server.cli.memory.editing",
            "append",
            "Add TEXT as a line at the end of the block LABEL, or as an item (JSON, or just words) if it is a list.",
        ),
        "set": Entry(
            "pattern_server.cli.memory.editing",
            "set_field",
            "Set one FIELD of the structured block LABEL to VALUE: JSON, or just words.",
        ),
        "settings": Entry(
            "pattern_server.cli.memory.blocks", "settings", "Change how the block LABEL is kept; its content stays."
        ),
        "pin": Entry(
            "pattern_server.cli.memory.blocks", "pin", "Show the working block LABEL to the agent all the time."
        ),
        "unpin": Entry(
            "pattern_server.cli.memory.blocks",
            "unpin",
            "Let the working block LABEL be looked up only when it is needed.",
        ),
        "delete": Entry("pattern_server.cli.memory.blocks", "delete", "Take the block LABEL out of the agent's mind."),
        "history": Entry(
            "pattern_server.cli.memory.past", "history", "Show who changed the block LABEL, when and why, newest first."
        ),
        "diff": Entry(
            "pattern_server.cli.memory.past", "diff", "Show what changed in the block LABEL between two versions."
        ),
        "blame": Entry(
            "pattern_server.cli.memory.past", "blame", "Show for each line of the block LABEL who wrote it, and when."
        ),
        "undo": Entry(
            "pattern_server.cli.memory.past",
            "undo",
            "Take back the last change that somebody made to the block LABEL; what others changed since stays.",
        ),
        "redo": Entry(
            "pattern_server.cli.memory.past", "redo", "Make the last change that `undo` took back once more."
        ),
        "rollback": Entry(
            "pattern_server.cli.memory.past",
            "rollback",
            "Let the block LABEL say again what it said at VERSION. It is a new change: `undo` takes it back.",
        ),
        "repair": Entry(
            "pattern_server.cli.memory.past",
            "repair",
            "Bring back the block LABEL, whose stored bytes are damaged, from what is known of it.",
        ),
        "share": Entry(
            "pattern_server.cli.memory.sharing",
            "share",
            "Let AGENT see the block LABEL as its own; without AGENT, show who sees it.",
        ),
        "unshare": Entry(
            "pattern_server.cli.memory.sharing",
            "unshare",
            "Take the block LABEL out of AGENT's mind again; its owner keeps it.",
        ),
        "sync": Entry(
            "pattern_server.cli.memory.sync",
            "sync",
            "Keep the memory of a constellation in DIR as files: Markdown for texts, JSON for the rest.",
        ),
    }
)


@click.group(cls=LazyGroup, table=MEMORY)
def memory() -> None:
    """Memory: the labelled blocks that an agent keeps in mind and edits itself."""

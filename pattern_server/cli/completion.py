"""`pattern completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pattern_server.cli.command import local
from pattern_server.cli.output import Output
from pattern_server.config import Config

LOADED_BY = {
    "bash": 'eval "$(pattern completion bash)"',
    "zsh": 'eval "$(pattern completion zsh)"',
    "fish": "pattern completion fish | source",
}


@click.command(epilog="Example: pattern completion bash")
@click.argument("shell", type=click.Choice(list(LOADED_BY)))
@local
def completion(config: Config, output: Output, shell: str) -> None:
    """Print the script that completes commands, options and names in a shell.

    Add this to ~/.bashrc (or ~/.zshrc, with zsh): eval "$(pattern completion bash)". For fish, add this to
    ~/.config/fish/config.fish: pattern completion fish | source
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root()
    script = found(root.command, {}, "pattern", "_PATTERN_COMPLETE").source()
    output.result({"shell": shell, "script": script}, f"# {LOADED_BY[shell]}", script)

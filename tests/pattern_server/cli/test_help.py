"""The help of every command: an example that works, a text for each option, and nothing cut."""

from __future__ import annotations

import shlex

import click
import pytest

from pattern_server.cli import COMMANDS, cli, run

EXAMPLE = "Example: pattern "
EXAMPLE_CHARS_MAX = 98  # of a line of help, which is not wrapped then


def every(command: click.Command, context: click.Context) -> list[click.Context]:
    """The contexts of a command and of all below it."""
    found = [context]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found += every(inner, click.Context(inner, parent=context, info_name=name))
    return found


# With the settings of `cli`, since a command keeps the help option of its first context.
ROOT = click.Context(cli, info_name="pattern", **cli.context_settings)
ALL = [context for context in every(cli, ROOT) if context.parent is not None]
GROUPS = [context for context in ALL if isinstance(context.command, click.Group)]
LEAVES = [context for context in ALL if not isinstance(context.command, click.Group)]


def path_of(context: click.Context) -> str:
    return context.command_path


@pytest.mark.parametrize("context", LEAVES, ids=path_of)
def test_every_command_has_one_example_that_is_accepted(
    context: click.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = context.command.epilog or ""
    assert text.startswith(f"{EXAMPLE}{context.command_path.removeprefix('pattern ')}"), "add an epilog with an example"
    assert len(text) <= EXAMPLE_CHARS_MAX
    arguments = shlex.split(text)[len(context.command_path.split()) + 1 :]
    # Files of an example need not exist.
    for param in context.command.params:
        if isinstance(param.type, click.Path) and param.type.exists:
            monkeypatch.setattr(param.type, "exists", False)
    context.command.make_context(context.info_name, arguments, parent=context.parent)


@pytest.mark.parametrize("context", LEAVES, ids=path_of)
def test_every_option_has_a_text(context: click.Context) -> None:
    bare = [param.opts for param in context.command.params if isinstance(param, click.Option) and not param.help]
    assert not bare


@pytest.mark.parametrize("context", GROUPS, ids=path_of)
def test_the_help_of_a_group_is_whole(context: click.Context) -> None:
    shown = " ".join(context.get_help().split())
    assert isinstance(context.command, click.Group)
    for command in context.command.commands.values():
        first = (command.help or "").partition("\n\n")[0]
        assert first and " ".join(first.split()) in shown


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("agnt", "agent"),
        ("memory shwo", "show"),
        ("turn list --limt 3", "--limit"),
        ("usage --by dya", "'day'"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_meant(
    line: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: ") and meant in error
    assert error.splitlines()[-1].startswith("Help: pattern") and error.splitlines()[-1].endswith("--help")


def test_every_command_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} {entry.help}" in shown for name, entry in COMMANDS.items())

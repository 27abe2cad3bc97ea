"""`pattern` itself: its help, its speed, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pattern_server.cli import COMMANDS, run

HEAVY = {"fastapi", "starlette", "h11", "openai", "anthropic", "loro", "pydantic", "apsw", "trio", "httpx2"}


def python(code: str, *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, input=stdin)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pattern_server.cli import run; code = run(['--help']);"
        "print(sorted({name.split('.')[0] for name in sys.modules} & " + repr(HEAVY) + ")); sys.exit(code)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    *text, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert all(any(line.split()[:1] == [name] for line in text) for name in COMMANDS)


def test_what_help_a_command_and_a_start_import() -> None:
    """A count, because a time is another one on each machine; raise a number only for what the start really needs."""

    def imported(code: str) -> tuple[int, int, set[str]]:
        done = python(f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))")
        assert done.returncode == 0, done.stderr
        modules = json.loads(done.stdout.splitlines()[-1])
        ours = [name for name in modules if name.startswith(("pattern_core.", "pattern_db.", "pattern_server."))]
        return len(modules), len(ours), {name.split(".")[0] for name in modules}

    late = {"openai", "anthropic", "mcp", "pint", "loro", "pypdf", "docx", "bs4", "watchfiles", "rich"}
    modules, ours, _names = imported("from pattern_server.cli import run; run(['--help'])")
    assert modules <= 240 and ours <= 4
    modules, ours, names = imported(
        "import pattern_server.cli.agents, pattern_server.cli.chat, pattern_server.cli.search"
    )
    assert ours <= 120 and not names & ((late | {"fastapi", "h11"}) - {"rich"})
    modules, ours, names = imported("import pattern_server.serve")
    assert modules <= 700 and ours <= 105 and not names & (late | {"structlog", "httpx2"})


def test_no_command_imports_a_vendors_library() -> None:
    code = (
        "import sys; from importlib import import_module; from pattern_server.cli import COMMANDS;"
        "[import_module(entry.module) for entry in COMMANDS.values()];"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'openai', 'anthropic'}))"
    )
    assert python(code).stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["sing"], ["chat"], ["agent", "create"], ["search", "-c", "x", "--nope", "q"]])
def test_wrong_usage_is_told_and_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "--help" in capsys.readouterr().err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    shown = capsys.readouterr()
    assert "Commands:" in shown.out + shown.err


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys, os; from pattern_server.cli import cli, run; import click\n"
        "@cli.command('noise')\n"
        "def noise():\n"
        "    from pattern_server.cli.output import Output\n"
        "    os.close(1); r, w = os.pipe(); os.close(r); os.dup2(w, 1)\n"
        "    Output().say('x' * 100000)\n"
        "from pattern_server import cli as module\n"
        "noise.callback and None\n"
        "code = module.cli.commands['noise']\n"
        "cli.get_command = lambda ctx, name: code\n"
        "sys.exit(run(['noise']))"
    )
    done = python(code)
    assert done.returncode == 1
    assert done.stderr == ""

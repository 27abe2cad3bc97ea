"""`pattern` itself and what every command shares: help, speed, exit codes, errors as sentences, and what is written."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pattern_core.errors import InvalidInput
from pattern_db.errors import RowNotFound
from pattern_server.cli import run
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.command import ExitCode, reported
from pattern_server.cli.constellations import halt_lines
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Pattern, Terminal


def raising(error: BaseException) -> ExitCode:
    raise error


MISUSE = ServerFailed("It is too long.", status=422, problem_code="invalid_input")


@pytest.mark.parametrize(
    ("error", "sentence", "code", "exits"),
    [
        (InvalidInput("Say more."), "Say more.", "invalid_input", 2),
        (RowNotFound("There is no such row."), "There is no such row.", "not_found", 1),
        (ServerFailed("It is taken.", status=409, problem_code="conflict"), "It is taken.", "conflict", 1),
        (MISUSE, "It is too long.", "invalid_input", 2),
        (FileNotFoundError(2, "No such file or directory", "x.db"), "No such file or directory: x.db", "failed", 1),
        (ExceptionGroup("", [ExceptionGroup("", [InvalidInput("Say more.")])]), "Say more.", "invalid_input", 2),
    ],
)
def test_what_may_go_wrong_is_a_sentence(
    error: Exception, sentence: str, code: str, exits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reported(Output(), lambda: raising(error)) == exits
    assert capsys.readouterr().err == f"Error: {sentence.removesuffix('.')}\n"
    assert reported(Output(is_json=True), lambda: raising(error)) == exits
    assert json.loads(capsys.readouterr().err) == {"error": {"code": code, "message": sentence}}


def test_stopping_a_command_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(Output(), lambda: raising(BaseExceptionGroup("", [KeyboardInterrupt()]))) == 1
    assert capsys.readouterr().err == "Stopped.\n"


def test_a_bug_stays_a_bug() -> None:
    with pytest.raises(ZeroDivisionError):
        reported(Output(), lambda: raising(ZeroDivisionError()))


def test_a_misspelt_setting_is_named_before_anything_is_opened(
    pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATTERN_PORT", "many")
    ran = pattern("constellation", "list")
    assert ran.code == 1
    assert "port" in ran.err


FILLED = (
    "memory edit human", "archive add", "archive supersede arc_1", "history import -", "chat",
    "memory edit new_one",
)  # fmt: skip


@pytest.mark.parametrize("line", FILLED)
@pytest.mark.parametrize("nothing", ["", " \n"])
def test_a_pipe_that_brings_nothing_changes_nothing(home: Pattern, line: str, nothing: str) -> None:
    assert home("memory", "append", "human", "Likes tea.", "-c", "home", "-a", "ada").code == 0
    ran = home(*line.split(), "-c", "home", "-a", "ada", stdin=nothing)
    assert (ran.code, "Nothing was piped in" in ran.err) == (2, True)
    assert home("memory", "show", "human", "-c", "home", "-a", "ada").out == "Likes tea.\n"


def test_what_is_empty_on_purpose_is_said(home: Pattern, tmp_path: Path) -> None:
    at = ("-c", "home", "-a", "ada")
    assert home("memory", "append", "human", "Likes tea.", *at).code == 0
    assert "--content ''" in home("memory", "edit", "human", *at).err
    assert home("memory", "edit", "human", "--content", "", *at).code == 0
    assert home("memory", "show", "human", *at).out == "\n"
    refused = home("memory", "append", "human", " ", *at)
    assert (refused.code, "nothing to add" in refused.err) == (2, True)
    (tmp_path / "empty.md").write_text("\n")
    refused = home("agent", "edit", "ada", "-c", "home", "--instructions-file", str(tmp_path / "empty.md"))
    assert (refused.code, "--instructions ''" in refused.err) == (2, True)


READING = (
    "constellation list", "agent list -c home", "search -c home tea", "memory show human -c home -a ada",
    "memory edit human -c home -a ada --content tea", "backup --all -o copies", "db status", "db check", "doctor",
    "mcp list -c home", "usage -c home", "model list",
)  # fmt: skip


@pytest.mark.parametrize("line", READING)
def test_only_what_creates_a_constellation_creates_a_data_directory(
    pattern: Pattern, data_dir: Path, line: str
) -> None:
    ran = pattern(*line.split())
    assert f"no data directory yet at {data_dir}" in ran.out + ran.err
    assert ran.code == (0 if line == "doctor" else 1)
    assert list(data_dir.parent.iterdir()) == []


def test_where_a_command_is_called_does_not_matter(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["constellation", "create", "home"]) == 0
    (data_dir.parent / "elsewhere").mkdir()
    monkeypatch.chdir(data_dir.parent / "elsewhere")
    assert run(["constellation", "list"]) == 0
    assert "home" in capsys.readouterr().out.splitlines()[-1]
    file = data_dir.parent / "named.toml"
    file.write_text('data_dir = "other"')
    assert run(["constellation", "list", "--config", str(file)]) == 1
    assert f"no data directory yet at {data_dir.parent / 'other'}" in capsys.readouterr().err
    assert list(Path.cwd().iterdir()) == []


HEAVY = {"fastapi", "starlette", "h11", "openai", "anthropic", "loro", "pydantic", "apsw", "trio", "httpx2"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_what_help_a_command_and_a_start_import() -> None:
    """A count, because a time is another one on each machine; raise a number only for what the start really needs."""

    def imported(code: str) -> tuple[int, int, set[str]]:
        done = python(f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))")
        assert done.returncode == 0, done.stderr
        modules = json.loads(done.stdout.splitlines()[-1])
        ours = [name for name in modules if name.startswith(("pattern_core.", "pattern_db.", "pattern_server."))]
        return len(modules), len(ours), {name.split(".")[0] for name in modules}

    late = {"openai", "anthropic", "mcp", "pint", "loro", "pypdf", "docx", "bs4", "rich"}
    modules, ours, names = imported("from pattern_server.cli import run; run(['--help'])")
    assert modules <= 240 and ours <= 5 and not names & HEAVY
    modules, ours, names = imported(
        "import pattern_server.cli.agents, pattern_server.cli.chat, pattern_server.cli.search"
    )
    assert ours <= 120 and not names & ((late | {"fastapi", "h11"}) - {"rich"})
    modules, ours, names = imported("import pattern_server.serve")
    assert modules <= 715 and ours <= 112 and not names & (late | {"structlog", "httpx2"})


def test_no_command_imports_a_vendors_library() -> None:
    code = (
        "import sys; from importlib import import_module; from pattern_server.cli import COMMANDS;"
        "[import_module(entry.module) for entry in COMMANDS.values()];"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'openai', 'anthropic'}))"
    )
    assert python(code).stdout.strip() == "[]"


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    shown = capsys.readouterr()
    assert "Commands:" in shown.out + shown.err


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys, os; from pattern_server.cli import cli, run\n"
        "@cli.command('noise')\n"
        "def noise():\n"
        "    from pattern_server.cli.output import Output\n"
        "    os.close(1); r, w = os.pipe(); os.close(r); os.dup2(w, 1)\n"
        "    Output().say('x' * 100000)\n"
        "cli.get_command = lambda ctx, name: noise\n"
        "sys.exit(run(['noise']))"
    )
    done = python(code)
    assert done.returncode == 1
    assert done.stderr == ""


ROWS = [{"name": "ada", "pinned": True, "tools": ["recall", "search"], "note": None, "extra": 1}]


def test_a_table_shows_the_columns_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name", "pinned", "tools", "note"), ROWS, empty="none")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["name", "pinned", "tools", "note"], ["ada", "yes", "recall,", "search", "-"]]
    Output().record({"mood": {"now": "よい"}})
    assert capsys.readouterr().out == 'mood  {"now": "よい"}\n'


def test_a_pipe_gets_long_lines_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 200
    Output().table(("text",), [{"text": long.strip()}], empty="")
    assert long.strip() in capsys.readouterr().out


def test_json_is_one_document_with_everything_and_no_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(is_json=True)
    output.say("for people")
    output.heading("for people")
    output.words("for people")
    output.table(("name",), ROWS, empty="none")
    assert json.loads(capsys.readouterr().out) == ROWS


def test_a_record_is_a_line_per_field(capsys: pytest.CaptureFixture[str]) -> None:
    Output().record({"name": "ada", "model_name": "rules-1", "config": {}, "system_prompt": "one\ntwo"})
    assert capsys.readouterr().out == (
        "name           ada\nmodel name     rules-1\nconfig         {}\nsystem prompt\n    one\n    two\n"
    )


def test_what_agents_wrote_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J[bold]hello[/bold]\x07\x9b1m\u202e"
    output = Output()
    output.say(evil)
    output.table(("text",), [{"text": evil}], empty="")
    output.note(evil)
    output.error(evil)
    shown, errors = capsys.readouterr()
    programs = Output(is_json=True)
    programs.data({"text": evil})
    programs.error(evil)
    data, error = capsys.readouterr()
    for text in (shown, errors, data, error):
        assert not any((ord(sign) < 32 and sign != "\n") or 127 <= ord(sign) < 160 for sign in text)
        assert "\u202e" not in text
    assert shown.count("␛[2J[bold]hello[/bold]␇") == 2
    assert (json.loads(data)["text"], json.loads(error)["error"]["message"]) == (evil, evil)


def test_a_pipe_sees_no_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress("Copying", 2) as advance:
        advance()
        advance()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Output().progress("Copying", 2) as advance:
        advance()
    with Output().progress("Loading"):
        pass
    shown = terminal.getvalue()
    assert "Copying" in shown and "1/2" in shown
    assert "Loading" in shown and "/" not in shown.partition("Loading")[2]  # how much there is to do is not known


@pytest.mark.parametrize(("answer", "goes_on"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch, answer: str, goes_on: bool) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    if goes_on:
        Output().confirm("Delete it?", yes=False)
    else:
        with pytest.raises(click.Abort):
            Output().confirm("Delete it?", yes=False)


def test_a_line_that_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\r\n\n"))
    output = Output()
    assert [output.ask("> "), output.ask("> "), output.ask("> ")] == ["hello", "", None]


def test_a_halt_is_shown_with_the_way_out() -> None:
    assert halt_lines("home", {"halted": False}) == []
    halt = {"halted": True, "agent_name": "ada", "at": "2026-11-22T06:00:00.000Z", "reason": "Out of control."}
    told = " ".join(halt_lines("home", halt))
    assert "ada" in told
    assert "Out of control." in told
    assert "pattern constellation resume home" in told

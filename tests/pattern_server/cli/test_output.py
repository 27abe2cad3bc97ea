"""What commands write, for people, for programs and for pipes."""

from __future__ import annotations

import io
import json
import sys

import click
import pytest

from pattern_server.cli.output import Output, plain

ROWS = [{"name": "ada", "pinned": True, "tools": ["recall", "search"], "note": None, "extra": 1}]


def test_a_table_shows_the_columns_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name", "pinned", "tools", "note"), ROWS, empty="none")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["name", "pinned", "tools", "note"], ["ada", "yes", "recall,", "search", "-"]]


def test_an_empty_table_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name",), [], empty="There is none.")
    assert capsys.readouterr().out == "There is none.\n"


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
    evil = "\x1b[2J[bold]hello[/bold]\x07\x9b1m"
    output = Output()
    output.say(evil)
    output.table(("text",), [{"text": evil}], empty="")
    shown = capsys.readouterr().out
    assert not any((ord(sign) < 32 and sign != "\n") or 127 <= ord(sign) < 160 for sign in shown)
    assert shown.count("␛[2J[bold]hello[/bold]␇") == 2
    assert plain("tab\tand\nline") == "tab\tand\nline"


def test_errors_go_to_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Output().error("It broke; mend it.")
    Output(is_json=True).error("It broke; mend it.", code="broken")
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first == "Error: It broke; mend it."
    assert json.loads(second) == {"error": {"code": "broken", "message": "It broke; mend it."}}


def test_a_pipe_sees_no_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress("Copying", 2) as advance:
        advance()
        advance()
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    """A stream that says that a person looks at it."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Output().progress("Copying", 2) as advance:
        advance()
    assert "Copying" in terminal.getvalue()


def test_without_a_terminal_only_the_flag_is_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(click.UsageError, match="--yes"):
        Output().confirm("Delete it?", yes=False)


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

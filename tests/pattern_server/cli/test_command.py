"""What every command shares: which errors become a sentence and the exit code 1, and which stay bugs."""

from __future__ import annotations

import json

import pytest

from pattern_core.errors import InvalidInput
from pattern_db.errors import NotFound
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.command import ExitCode, reported
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Pattern


def raising(error: BaseException) -> ExitCode:
    raise error


@pytest.mark.parametrize(
    ("error", "sentence", "code"),
    [
        (InvalidInput("Say more."), "Say more.", "invalid_input"),
        (NotFound("There is no such row."), "There is no such row.", "not_found"),
        (ServerFailed("It is taken.", status=409, problem_code="conflict"), "It is taken.", "conflict"),
        (FileNotFoundError(2, "No such file or directory", "x.db"), "No such file or directory: x.db", "failed"),
        (ExceptionGroup("", [ExceptionGroup("", [InvalidInput("Say more.")])]), "Say more.", "invalid_input"),
    ],
)
def test_what_may_go_wrong_is_a_sentence(
    error: Exception, sentence: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reported(Output(), lambda: raising(error)) == 1
    assert capsys.readouterr().err == f"Error: {sentence}\n"
    assert reported(Output(is_json=True), lambda: raising(error)) == 1
    assert json.loads(capsys.readouterr().err) == {"error": {"code": code, "message": sentence}}


def test_stopping_a_command_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(Output(), lambda: raising(BaseExceptionGroup("", [KeyboardInterrupt()]))) == 1
    assert capsys.readouterr().err == "Stopped.\n"


def test_a_bug_stays_a_bug() -> None:
    with pytest.raises(ZeroDivisionError):
        reported(Output(), lambda: raising(ZeroDivisionError()))


def test_codes_are_passed_on() -> None:
    assert reported(Output(), lambda: None) == 0
    assert reported(Output(), lambda: 3) == 3


def test_a_misspelt_setting_is_told_before_anything_is_opened(
    pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATTERN_PORT", "many")
    ran = pattern("constellation", "list")
    assert ran.code == 1
    assert "port" in ran.err

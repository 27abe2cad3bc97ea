"""Logs: one line per event, no secrets in tracebacks."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from pattern_server import logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Other tests find the handlers that they had."""
    root = logging.getLogger()
    before = (root.handlers, root.level)
    yield
    root.handlers, level = before
    root.setLevel(level)


def fail() -> None:
    hidden = "the key sk-123"  # noqa: F841  # a local that a traceback must not show
    raise ValueError("it broke")


@pytest.mark.parametrize("form", ["json", "text"])
def test_tracebacks_show_no_values(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", form)  # type: ignore[arg-type]  # the parametrised literal
    try:
        fail()
    except ValueError as error:
        logging.getLogger("pattern.ours").error("bug", {"place": "here"}, exc_info=error)
        logging.getLogger("theirs").exception("bug of a library")
    written = capsys.readouterr().err
    assert written.count("it broke") >= 2
    assert "here" in written
    assert "sk-123" not in written.replace('hidden = "the key sk-123"', "")


def test_lines_are_json_and_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "json")
    logging.getLogger("pattern.ours").info("unheard")
    logging.getLogger("pattern.ours").warning("heard", {"number": 3})
    logging.getLogger("theirs").warning("also %s", "heard")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["number"], ours["level"]) == ("heard", 3, "warning")
    assert ours["time"].endswith("Z")
    assert (theirs["event"], theirs["logger"]) == ("also heard", "theirs")


def test_a_standard_error_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logs.configure("info", "json")
    broken = io.StringIO()
    broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    logging.getLogger("pattern.ours").error("unheard")
    logging.getLogger("theirs").error("unheard")

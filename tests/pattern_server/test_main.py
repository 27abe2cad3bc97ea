"""`python -m pattern_server` is the program `pattern`."""

from __future__ import annotations

import runpy
import sys

import pytest


def test_the_module_is_the_program(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pattern", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("pattern_server", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("pattern, version ")

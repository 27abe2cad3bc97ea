"""The command that says whether a change is good says what is wrong with its own arguments."""

from __future__ import annotations

import tomllib

import pytest

from tests import check
from tests.sources import ROOT


def test_an_unknown_check_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["format", "speling"]) == 2
    assert "no check speling" in capsys.readouterr().err


def test_every_tool_comes_with_the_developers_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = " ".join(project["optional-dependencies"]["dev"])
    used = {command[0] for one in check.CHECKS.values() for command in one.commands}
    assert all(tool in wanted for tool in used)

from __future__ import annotations

import pytest

from pattern_core.shell.danger import Danger
from pattern_core.shell.policy import verdict
from pattern_core.shell.settings import ShellSettings

DEFAULT = ShellSettings()


@pytest.mark.parametrize(
    ("command", "action"),
    [
        ("ls | wc", "run"),
        ("rm a", "ask"),
        ("ls; rm a", "ask"),
        ("curl a", "refuse"),
        ("rm -rf ~", "refuse"),
        ("$x", "refuse"),
    ],
)
def test_by_default(command: str, action: str) -> None:
    assert verdict(command, DEFAULT).action == action


def test_what_is_allowed_runs_without_a_question() -> None:
    settings = ShellSettings(allow=["git commit", "make", ">"])
    for command in ("git commit -m x", "make test && git status", "ls > a"):
        assert verdict(command, settings).action == "run", command
    for command in ("git push", "git checkout a", "make; rm a", "./make"):
        assert verdict(command, settings).action != "run", command


def test_nothing_allows_what_is_dangerous() -> None:
    for allow in (["sudo"], ["rm"], ["eval"], [""]):
        settings = ShellSettings(allow=allow, network=True)
        for command in ("sudo ls", "rm -rf /", "eval ls", "curl a | sh"):
            assert verdict(command, settings).action == "refuse", (allow, command)


def test_what_is_denied_never_runs() -> None:
    settings = ShellSettings(deny=["git push", "ls"], allow=["ls"], network=True)
    assert verdict("cat a; ls", settings).reason == "This server does not run `ls`."
    assert verdict("git push", settings).action == "refuse"
    assert verdict("git fetch", settings).action == "ask"


def test_the_network_is_asked_for_where_there_is_one() -> None:
    assert verdict("curl a", ShellSettings(network=True)).action == "ask"
    refused = verdict("curl a; rm b", DEFAULT)
    assert (refused.danger, refused.reason.endswith("have no network.")) == (Danger.NETWORK, True)

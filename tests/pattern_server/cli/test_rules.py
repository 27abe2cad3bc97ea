"""`pattern rule …`."""

from __future__ import annotations

import json
from typing import Any

import click
import httpx2
import pytest

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.rules.ruleset import warnings_of
from pattern_server.cli import rules
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json

THREE = {"tool": "web", "type": "max_calls", "count": 3}
LAST = {"tool": "web", "type": "exit_loop", "priority": 9, "message": "Bye."}
THEIRS = {"tool_name": "web", "rule_type": {"type": "MaxCalls", "value": 3}}


async def call(
    command: click.Command,
    stored: Any,
    *,
    is_json: bool = False,
    enabled: tuple[str, ...] = ("web",),
    meanwhile: Any = None,
    **given: Any,
) -> list[Any]:
    """Run a command on an agent with these rules, which somebody makes `meanwhile` before the first change comes;
    returns the bodies of its PATCH requests that were taken."""
    sent: list[Any] = []
    rules = stored

    def answer(request: httpx2.Request) -> Answer:
        nonlocal rules
        assert request.url.path == "/api/v1/constellations/home/agents/ada"
        if request.method == "PATCH" and meanwhile is not None and rules == stored:
            rules = meanwhile
        if request.method == "PATCH":
            if request.headers["if-match"] != tag_of(rules):
                return as_json({"detail": "read it again", "code": "version_mismatch"}, 412)
            sent.append(json.loads(request.content))
            rules = sent[-1]["tool_rules"]
        warnings = list(warnings_of(rules, enabled))
        told = {"name": "ada", "tool_rules": rules, "rule_warnings": warnings}
        return as_json(told, etag=tag_of(rules))

    inner: Any = command.callback
    while "api" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    await inner(api_of(answer), Output(is_json=is_json), constellation="home", agent="ada", **given)
    return sent


def tag_of(rules: object) -> str:
    return f'"{json.dumps(rules).encode().hex()}"'


def adding(tool: str, kind: str, *fields: str, **given: Any) -> dict[str, Any]:
    """What `rule add` is called with."""
    return {"tool": tool, "type_": kind, "fields": fields, "priority": None, "message": None, **given}


async def test_rules_are_listed_with_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    await call(rules.list_all, [THEIRS, LAST], enabled=("mail",))
    shown, notes = capsys.readouterr()
    assert "at most 3 times" in shown and "count=3" in shown and "priority=9" in shown
    assert "about `web`, which is not enabled" in notes
    await call(rules.list_all, None)
    assert "pattern rule add" in capsys.readouterr().out
    await call(rules.list_all, [THEIRS, LAST], is_json=True)
    assert json.loads(capsys.readouterr().out) == [THREE, LAST]


async def test_a_rule_is_added_behind_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    sent = await call(rules.add, [THEIRS], **adding("web", "exit-loop".replace("-", "_"), priority=9, message="Bye."))
    assert sent == [{"tool_rules": [THREE, LAST]}]
    assert "Added rule 2 of ada: After `web` succeeded" in capsys.readouterr().out
    sent = await call(rules.add, None, is_json=True, **adding("web", "requires_preceding", "tools=recall, search"))
    assert sent == [{"tool_rules": [{"tool": "web", "type": "requires_preceding", "tools": ["recall", "search"]}]}]
    assert json.loads(capsys.readouterr().out)["tools"] == ["recall", "search"]


async def test_what_somebody_else_does_meanwhile_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    sent = await call(rules.add, [THREE], meanwhile=[LAST], **adding("web", "needed"))
    assert sent == [{"tool_rules": [LAST, {"tool": "web", "type": "needed"}]}]
    assert await call(rules.remove, [THREE], meanwhile=[THREE, LAST], number=1) == [{"tool_rules": [LAST]}]
    assert "1 left" in capsys.readouterr().out
    with pytest.raises(Conflict, match="somebody changed the rules"):  # its number means another rule now
        await call(rules.remove, [THREE], meanwhile=[LAST, THREE], number=1)


async def test_what_will_not_do_is_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidInput, match=r"`max_calls.count` is missing"):
        await call(rules.add, None, **adding("web", "max_calls"))
    with pytest.raises(InvalidInput, match="there is no type"):
        await call(rules.add, None, **adding("web", "jump", "high=yes"))
    with pytest.raises(click.UsageError, match="FIELD=VALUE"):
        await call(rules.add, None, **adding("web", "max_calls", "3"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("max_calls", "count=3", 3),
        ("requires_consent", "scope=3", "3"),
        ("child", 'children=["a","b"]', ["a", "b"]),
        ("parent", "children=a", ["a"]),
        ("conditional", "strict=true", True),
        ("start_constraint", 'args={"q": "a=b"}', {"q": "a=b"}),
        ("allowed_operations", "operations=read,append", ["read", "append"]),
        ("jump", "high=very", "very"),
    ],
)
def test_fields_as_they_are_typed(kind: str, text: str, value: object) -> None:
    assert list(rules.field_values(kind, (text,)).values()) == [value]


async def test_a_rule_is_removed_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert await call(rules.remove, [THEIRS, LAST], number=1) == [{"tool_rules": [LAST]}]
    assert await call(rules.remove, [LAST], number=1) == [{"tool_rules": None}]
    assert "Removed the rule exit_loop about web; 0 left." in capsys.readouterr().out
    with pytest.raises(click.UsageError, match="no rule 2"):
        await call(rules.remove, [LAST], number=2)

"""Agents on the command line, their config as KEY=VALUE, their models and their tool rules."""

from __future__ import annotations

import json
from typing import Any

import click
import httpx2
import pytest

from pattern_core.errors import Conflict
from pattern_core.rules.ruleset import warnings_of
from pattern_server.cli import rules
from pattern_server.cli.agents import changed_config, changed_tools, model_lines, settings_in, trouble
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json, below

FACTS: dict[str, Any] = {
    "provider": "own", "model": "m", "window": 32_000, "prompt_window": 32_000, "trained_window": None,
    "output_max": 8_000, "input_price": None, "output_price": None, "cache_read_price": None, "cache_write_price": None,
    "images": False, "tools": False, "reasoning": False, "source": "", "as_of": "", "is_known": True,
    "window_source": "server", "is_configured": True, "tool_profile": None,
}  # fmt: skip


def test_a_provider_that_is_not_configured_is_refused_unless_forced(home: Pattern) -> None:
    fallback = ("--set", 'routing.fallback_models=["openai/x-1"]')
    for line in (
        ("create", "bob", "--provider", "openai", "--model", "x-1"),
        ("create", "bob", *fallback),
        ("edit", "ada", "--provider", "openai"),
        ("edit", "ada", *fallback),
    ):
        refused = home("agent", *line, "-c", "home")
        assert (refused.code, refused.err) == (
            2,
            "Error: The model provider 'openai' is not configured\nSet OPENAI_API_KEY and restart the server, or"
            " api_key under [providers.openai] in pattern.toml and run `pattern up`. Configured: embedded. To use it"
            " before it is configured, set `force` (--force)\n",
        )
        forced = home("agent", *line, "-c", "home", "--force")
        assert forced.code == 0, forced.err
        if line[0] == "create":
            assert home("agent", "delete", "bob", "-c", "home", "--yes").code == 0
    assert home("agent", "edit", "ada", "-c", "home", "--force").code == 2


def test_the_status_of_an_agent_is_set(home: Pattern) -> None:
    for status, code in (("archived", 1), ("active", 0), ("hibernated", 0)):
        assert home("agent", "edit", "ada", "--status", status).out == "Changed ada: status.\n"
        assert home("agent", "show", "ada", "--json").json["status"] == status
        assert home("chat", "-a", "ada", "Hello").code == code
    assert home("agent", "edit", "ada", "--status", "asleep").code == 2


def test_a_profile_without_one_of_its_tools_becomes_the_names_of_the_others() -> None:
    tools = [
        {"name": "recall", "enabled_by_default": True, "brief": None},
        {"name": "search", "enabled_by_default": True, "brief": "Find."},
        {"name": "tell", "enabled_by_default": False, "brief": ""},
        {"name": "shell", "enabled_by_default": False, "brief": None},
    ]
    assert changed_tools(["auto"], ["shell"], [], ()) == ["auto", "shell"]
    assert changed_tools(["auto", "web"], [], ["search"], tools) == ["recall", "web"]
    assert changed_tools(["small"], [], ["search"], tools) == ["tell"]
    assert changed_tools(["auto", "search"], ["small"], ["auto"], tools) == ["search", "small"]
    with pytest.raises(click.UsageError, match=r"the agent has no shell\. It has recall, search"):
        changed_tools(["auto"], [], ["shell"], tools)


def test_settings_go_where_their_dots_say() -> None:
    config = {"limits": {"steps": 5, "tokens": 9}, "temperature": 0.5}
    changed = changed_config(config, ("limits.steps=20", "message_policy=steer", 'stop=["END"]', "temperature="))
    assert changed == {"limits": {"steps": 20, "tokens": 9}, "message_policy": "steer", "stop": ["END"]}
    assert config["temperature"] == 0.5
    assert changed_config(changed, ("limits.steps=", "limits.tokens=", "stop=", "compaction.type=")) == {
        "message_policy": "steer"
    }


@pytest.mark.parametrize("setting", ["limits.steps", "=3", "limits..steps=3", "nosuch=1", "temperature.high=1"])
def test_what_is_no_setting_is_refused(setting: str) -> None:
    with pytest.raises(click.UsageError, match="--set"):
        changed_config({"temperature": 0.5}, (setting,))


def test_settings_are_shown_as_they_are_written() -> None:
    written = ("limits.steps=20", "message_policy=steer", 'stop=["END"]', 'response_schema={"type": "object"}')
    config = changed_config({}, written)
    assert tuple(settings_in(config)) == written


def test_what_is_known_of_a_model_is_said() -> None:
    assert list(model_lines(FACTS)) == [
        "window 32,000 tokens (server); answers up to 8,000",
        "price unknown; usage is counted in tokens only",
        "supports only text",
    ]
    rich = {
        **FACTS, "tool_profile": "small", "tool_profile_reason": "so", "offered_tools": ["remember", "search"],
        "prompt_window": 4_000, "input_price": 3_000_000, "cache_read_price": 300_000,
        "output_price": 15_000_000, "as_of": "2026-11-01", "tools": True, "images": True,
    }  # fmt: skip
    assert "price unknown; usage is counted in tokens only" in model_lines({**rich, "output_price": None})
    assert list(model_lines(rich)) == [
        "window 32,000 tokens (server), of which this agent uses 4,000; answers up to 8,000",
        "tool profile small (so): remember, search",
        "price $3.00 in ($0.30 cached), $15.00 out per million tokens, as of 2026-11-01",
        "supports tools, images",
    ]


def test_what_is_missing_is_said_with_what_to_do() -> None:
    assert list(trouble(FACTS)) == []
    (unknown,) = trouble({**FACTS, "window": 8_192, "is_known": False})
    assert "8,192 tokens is assumed" in unknown
    assert '[providers.own.models."m"]' in unknown
    (open_model,) = trouble({**FACTS, "window": 8_192, "trained_window": 40_960, "window_source": "assumed"})
    assert "40,960" in open_model
    assert list(trouble({**FACTS, "window": 8_192, "trained_window": 40_960, "window_source": "pattern.toml"})) == []
    (too_small,) = trouble({**FACTS, "window_trouble": "the window of 1,024 tokens is too small for a conversation"})
    assert too_small == "The agent cannot answer: the window of 1,024 tokens is too small for a conversation."
    (keyless,) = trouble({**FACTS, "is_configured": False})
    assert "[providers.own]" in keyless


THREE = {"tool": "web", "type": "max_calls", "count": 3}
LAST = {"tool": "web", "type": "exit_loop", "priority": 9, "message": "Bye."}


async def call(
    command: click.Command,
    stored: Any,
    *,
    meanwhile: Any = None,
    **given: Any,
) -> list[Any]:
    """Run a command on an agent with these rules, which become `meanwhile` before the first change comes;
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
        warnings = list(warnings_of(rules, ("web",)))
        told = {"name": "ada", "tool_rules": rules, "rule_warnings": warnings}
        return as_json(told, etag=tag_of(rules))

    await below(command)(api_of(answer), Output(), constellation="home", agent="ada", **given)
    return sent


def tag_of(rules: object) -> str:
    return f'"{json.dumps(rules).encode().hex()}"'


def adding(tool: str, kind: str, *fields: str, **given: Any) -> dict[str, Any]:
    """What `rule add` is called with."""
    return {"tool": tool, "type_": kind, "fields": fields, "priority": None, "message": None, **given}


async def test_a_change_of_rules_meanwhile_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    sent = await call(rules.add, [THREE], meanwhile=[LAST], **adding("web", "needed"))
    assert sent == [{"tool_rules": [LAST, {"tool": "web", "type": "needed"}]}]
    assert await call(rules.remove, [THREE], meanwhile=[THREE, LAST], number=1) == [{"tool_rules": [LAST]}]
    assert "1 left" in capsys.readouterr().out
    assert await call(rules.remove, [LAST], number=1) == [{"tool_rules": None}]
    with pytest.raises(Conflict, match="the rules were changed by someone else"):  # its number means another rule now
        await call(rules.remove, [THREE], meanwhile=[LAST, THREE], number=1)


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


def test_an_agent_without_room_in_its_window_is_made_with_a_warning(home: Pattern) -> None:
    long = ("--instructions", "Be kind. " * 400)
    made = home("agent", "create", "tiny", "-c", "home", "--set", "context_window=1000", *long)
    assert (made.code, "Created the agent tiny" in made.out) == (0, True)
    assert "The agent cannot answer: the window of 1,000 tokens is too small for a conversation" in made.err
    assert "1,000 tokens is too small for a conversation" in home("agent", "show", "tiny", "-c", "home").out
    widened = home("agent", "edit", "tiny", "-c", "home", "--set", "context_window=")
    assert "cannot answer" not in widened.err

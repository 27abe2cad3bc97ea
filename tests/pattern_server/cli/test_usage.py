"""`pattern usage` and `pattern budget …`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pattern_server.cli.output import Output
from pattern_server.cli.usage import usage
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json

LINE = {
    "key": "2026-11-21",
    "name": None,
    "calls": 1200,
    "unpriced_calls": 0,
    "estimated_calls": 0,
    "input_tokens": 1_000_000,
    "output_tokens": 10,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "cost_microdollars": 1_500_042,
}
UNPRICED = {**LINE, "key": "agt_1", "name": "ada", "calls": 2, "unpriced_calls": 2, "estimated_calls": 1}


async def shown(capsys: pytest.CaptureFixture[str], *lines: dict[str, Any], **given: Any) -> tuple[str, str]:
    asked: dict[str, str] = {}
    total = {**LINE, "unpriced_calls": sum(line["unpriced_calls"] for line in lines), "estimated_calls": 1}

    def answer(request: Any) -> Answer:
        asked.update(request.url.params)
        return as_json({"total": total, "items": list(lines), "next_cursor": "more"})

    inner: Any = usage.callback
    while "api" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    values = {"by": "day", "agent": None, "turn": None, "since": None, "until": None, "limit": 100, **given}
    await inner(api_of(answer), Output(), constellation="home", **values)
    assert asked == {name: str(value) for name, value in values.items() if value is not None}
    out, err = capsys.readouterr()
    return out, err


async def test_usage_is_shown_with_exact_money(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = await shown(capsys, LINE, since="2026-11-01")
    assert "1,200" in out
    assert "$1.500042" in out
    assert out.splitlines()[-1].startswith("all")
    assert "There are more lines" in err


async def test_unknown_prices_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = await shown(capsys, UNPRICED, {**UNPRICED, "unpriced_calls": 1}, by="agent")
    first, second = out.splitlines()[1:3]
    assert first.split()[0] == "ada"
    assert first.split()[-1] == "unknown"
    assert "$1.500042 + unknown" in second
    assert "price of 3 calls is not known" in err
    assert "The tokens of 1 calls are estimated" in err


def test_usage_of_a_real_turn(home: Pattern) -> None:
    assert home("usage", "-c", "home").out == "No model was asked.\n"
    assert home("chat", "-c", "home", "--agent", "ada", "Hello").code == 0
    by_agent = home("usage", "-c", "home", "--by", "agent", "--json").json
    [line] = by_agent["items"]
    assert (line["name"], line["calls"], line["estimated_calls"]) == ("ada", 1, 1)
    assert home("usage", "-c", "home", "--agent", "nobody").code == 1


def test_budgets_are_set_listed_and_removed(home: Pattern) -> None:
    made = home("budget", "set", "-c", "home", "--dollars", "2.50", "--per", "day")
    assert made.out == "Set constellation.day.microdollars to $2.50; $2.50 are left.\n"
    assert home("budget", "set", "-c", "home", "--tokens", "5000", "--agent", "ada").code == 0
    assert (
        home("budget", "set", "-c", "home", "--tokens", "10", "--turn").out == "Set turn.total.tokens to 10 tokens.\n"
    )
    listed = home("budget", "list", "-c", "home").out
    for words in ("agent ada", "5,000 tokens", "each turn", "$2.50"):
        assert words in listed
    rows = home("budget", "list", "-c", "home", "--json").json
    assert [row["scope"] for row in rows] == ["agent", "constellation", "turn"]
    gone = ("budget", "remove", "constellation.day.microdollars", "-c", "home", "--json")
    assert home(*gone).code == 0
    again = home(*gone)
    assert (again.code, json.loads(again.err)["error"]["code"]) == (1, "not_found")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 2),
        (("--dollars", "1", "--tokens", "1"), 2),
        (("--tokens", "1", "--turn", "--agent", "ada"), 2),
        (("--dollars", "much"), 1),
    ],
)
def test_what_makes_no_sense_is_refused(pattern: Pattern, arguments: tuple[str, ...], code: int) -> None:
    assert pattern("budget", "set", "-c", "home", *arguments).code == code

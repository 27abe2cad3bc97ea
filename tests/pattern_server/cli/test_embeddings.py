"""`pattern embeddings`; the deterministic embedder is configured."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx2
import pytest
import trio

from pattern_server.cli.embeddings import status
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json


def test_how_far_it_is(home: Pattern) -> None:
    before = home("embeddings", "status", "-c", "home")
    assert before.code == 0, before.err
    assert "home" in before.out
    home("chat", "-c", "home", "Remember that Ruth is allergic to walnuts.")
    assert home("embeddings", "rebuild", "-c", "home").code == 1  # each command is a short life: nothing has begun
    assert home("embeddings", "status", "-c", "home", "--wait").code == 0
    assert home("embeddings", "rebuild", "-c", "home", "--wait").code == 0
    told = home("embeddings", "status", "-c", "home", "--json").json
    assert told["constellation"] == "home"
    assert 0 <= told["done"] <= told["total"]
    assert [row["constellation"] for row in home("embeddings", "status", "--json").json] == ["home"]


def test_a_switch_to_another_length(home: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    home("chat", "-c", "home", "Remember that Ruth is allergic to walnuts.")
    told = home("embeddings", "status", "-c", "home", "--wait", "--json").json
    assert (told["state"], told["done"]) == ("idle", told["total"])
    monkeypatch.setenv("PATTERN_EMBEDDINGS__DIMENSIONS", "128")
    assert "pattern embeddings switch -c home" in home("embeddings", "status", "-c", "home").err
    ran = home("embeddings", "switch", "-c", "home", "--wait")
    assert ran.code == 0, ran.err
    told = home("embeddings", "status", "-c", "home", "--json").json
    assert (told["active"]["dimension"], told["building"], told["done"]) == (128, None, told["total"])
    again = home("embeddings", "switch", "--all", "--json")
    assert again.code == 1
    assert "already" in again.json[0]["error"]
    assert home("embeddings", "switch", "-c", "home", "--cancel").code == 1


def test_every_state_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    old = {"provider": "local", "model": "small", "dimension": 384, "fingerprint": "f"}
    new = {**old, "model": "large", "dimension": 1024}
    idle: dict[str, Any] = {
        "state": "idle", "reason": None, "done": 9, "total": 9, "skipped": 0, "refusals": [], "model": "small",
        "switch_needed": False, "configured": old, "active": old, "building": None,
    }  # fmt: skip
    states = {
        "fine": idle,
        "empty": {**idle, "done": 0, "total": 0, "active": None},
        "other": {**idle, "switch_needed": True, "configured": new},
        "between": {**idle, "state": "working", "done": 4, "building": new, "configured": new},
        "broken": {**idle, "state": "unavailable", "reason": "Install it.", "active": None, "done": 0},
        "picky": {**idle, "skipped": 1, "refusals": [{"kind": "message", "ref": "msg_1", "reason": "Too odd."}]},
    }

    def answer(request: httpx2.Request) -> Answer:
        name = request.url.path.split("/")[-2]
        if name != "v1":
            return as_json(states[name])
        return as_json({"items": [{"name": name} for name in states], "next_cursor": None})

    inner: Any = status.callback
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    trio.run(partial(inner, api_of(answer), Output(), constellation=None, wait=False))
    told = capsys.readouterr()
    lines = {line.split()[0]: " ".join(line.split()) for line in told.out.splitlines()}
    assert lines["fine"] == "fine up to date 9 of 9 small (384) -"
    assert lines["empty"] == "empty no text yet 0 of 0 - -"
    assert lines["between"] == "between embedding 4 of 9 small (384) large (1024)"
    assert lines["broken"] == "broken stopped 0 of 9 - -"
    assert "other: large (1024) is configured now, and search still answers from small (384);" in told.err
    assert "`pattern embeddings switch -c other` goes over" in told.err
    assert "between: search answers from small (384) until large (1024) has every text" in told.err
    assert "broken: Install it." in told.err
    assert "picky: the model refused 1 of the texts, which only words find" in told.err
    assert "message msg_1: Too odd." in told.err
    assert "fine:" not in told.err


def test_refusals(home: Pattern) -> None:
    assert home("embeddings", "switch").code == 2
    assert home("embeddings", "switch", "-c", "home", "--all").code == 2
    assert home("embeddings", "status", "-c", "nowhere").code == 1

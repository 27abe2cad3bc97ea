"""`pattern history …`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pattern_core.errors import InvalidInput
from pattern_server.cli import history
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json

AT = ("-c", "home", "-a", "ada")


def lines(*messages: object) -> str:
    return "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in messages)


def past(number: int, **fields: Any) -> dict[str, Any]:
    when = f"2023-05-08T{number // 60 % 24:02d}:{number % 60:02d}:00Z"
    return {"role": "user", "content": f"word {number}", "created_at": when, **fields}


def test_a_file_is_imported_once(home: Pattern, tmp_path: Path) -> None:
    file = tmp_path / "past.jsonl"
    file.write_text(lines(past(1), "", past(0, name="Ruth")), encoding="utf-8-sig")
    done = home("history", "import", str(file), *AT)
    assert done.code == 0, done.err
    assert done.out == "Imported 2 messages into the conversation of ada.\n"
    again = home("history", "import", str(file), *AT, "--json").json
    assert (again["imported"], again["skipped"]) == (2, 0)
    found = home("search", "word", *AT, "--kind", "message", "--json").json["hits"]
    assert sorted(hit["id"] for hit in found) == sorted(again["ids"])
    piped = home("history", "import", "-", *AT, stdin=lines(past(7)))
    assert "Imported 1 messages" in piped.out


def test_what_was_said(home: Pattern) -> None:
    assert "nothing yet: pattern chat -c home -a ada" in home("history", "show", *AT).out
    assert home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.").code == 0
    shown = home("history", "show", *AT).out.splitlines()
    assert shown[0].endswith("  user: Remember that Ruth lives in Lisbon.")
    assert any("· block_edit {" in line for line in shown)
    assert any("  tool block_edit: " in line for line in shown)
    newest = home("history", "show", *AT, "--limit", "2", "--json").json
    assert [message["position"] for message in newest] == sorted(message["position"] for message in newest)
    assert len(newest) == 2
    assert newest[-1]["role"] == "assistant"


def test_messages_in_lines() -> None:
    message = {"role": "user", "content": "One\ntwo", "parts": None, "created_at": "2026-01-02T03:04:05.678Z"}
    assert history.said(message) == "2026-01-02 03:04  user: One\n    two"
    image = {"type": "image", "digest": "ab12"}
    both = {**message, "content": "See", "parts": [image, {"type": "text", "text": "See"}]}
    assert history.said(both) == "2026-01-02 03:04  user: See\n    [an image: ab12]"
    assert history.said({**message, "content": "", "role": "assistant"}) == "2026-01-02 03:04  assistant: (nothing)"
    long = history.said({**message, "role": "tool", "tool_name": "file", "content": "x" * 5_000})
    assert long.startswith("2026-01-02 03:04  tool file: xxx")
    assert len(long) < 400 and long.endswith("…")


def test_lines_that_are_no_messages(home: Pattern, tmp_path: Path) -> None:
    file = tmp_path / "past.jsonl"
    text = lines("{", [1], past(0, role="robot"), past(1, content=" "), past(2))
    file.write_bytes(text.encode() + b'{"role": "user", "content": "\xff"}\n')
    refused = home("history", "import", str(file), *AT)
    assert refused.code == 1
    for words in ("line 1 is not JSON", "line 2 is not a JSON object", "line 3 has no role", "line 4 has no words"):
        assert words in refused.err
    assert "line 6 is not UTF-8" in refused.err
    skipped = home("history", "import", str(file), *AT, "--skip")
    assert skipped.code == 3, skipped.err
    assert "Imported 1 messages" in skipped.out
    assert "Left out: line 1" in skipped.err
    file.write_text("\n")
    assert "no message" in home("history", "import", str(file), *AT).err
    assert home("history", "import", str(tmp_path / "none.jsonl"), *AT).code == 2


def test_what_the_server_refuses_is_told(home: Pattern, tmp_path: Path) -> None:
    file = tmp_path / "past.jsonl"
    file.write_text(lines(past(0), past(1, created_at="yesterday")))
    refused = home("history", "import", str(file), *AT)
    assert refused.code == 1
    assert "nothing was imported" in refused.err
    assert "messages[1]" in refused.err


async def test_many_messages_go_in_batches_each_under_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BATCH_MESSAGES", 3)
    monkeypatch.setattr(history, "BATCH_CHARS", 600)
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append(request)
        sent = json.loads(request.content)["messages"]
        if any(one["content"] == "bad" for one in sent):
            return as_json({"code": "invalid_input", "detail": "messages[0]: bad"}, 422)
        if any(one["content"] == "late" for one in sent):
            return as_json({"code": "unavailable", "detail": "later"}, 503)
        return as_json({"ids": [one["content"] for one in sent]}, 201)

    api = api_of(answer)
    messages = [past(number) for number in range(7)] + [past(7, content="x" * 500), past(8)]
    ids = await history.send(Home(api, "home"), Output(), "ada", messages)
    assert ids == [one["content"] for one in messages]
    assert [len(json.loads(request.content)["messages"]) for request in asked] == [3, 3, 1, 1, 1]
    keys = [request.headers["idempotency-key"] for request in asked]
    assert len(set(keys)) == 5
    asked.clear()
    with pytest.raises(InvalidInput, match="the first 6 messages are stored"):
        await history.send(Home(api, "home"), Output(), "ada", [*messages[:6], past(6, content="bad")])
    assert [request.headers["idempotency-key"] for request in asked][:2] == keys[:2]  # mended, they are not added again
    with pytest.raises(ServerFailed, match="later"):
        await history.send(Home(api, "home"), Output(), "ada", [past(6, content="late")])


def test_what_left_the_prompt_is_listed(home: Pattern, tmp_path: Path) -> None:
    assert "Nothing of the conversation of ada was archived yet." in home("history", "summaries", *AT).out
    nothing = home("agent", "compact", "ada", "-c", "home")
    assert nothing.code == 0, nothing.err
    assert "nothing in the conversation of ada that could leave" in nothing.out
    file = tmp_path / "past.jsonl"
    file.write_text(lines(*(past(number) for number in range(60))))
    assert home("history", "import", str(file), *AT).code == 0
    done = home("agent", "compact", "ada", "-c", "home")
    assert done.code == 0, done.err
    assert "Archived" in done.out
    (row,) = home("history", "summaries", *AT, "--json").json
    assert row["message_count"] > 0
    shown = home("history", "summaries", *AT)
    assert "2023-05-08 00:00" in shown.out
    (hit,) = home("search", '"word 0"', *AT, "--kind", "message", "--json").json["hits"]
    assert hit["content"] == "word 0"

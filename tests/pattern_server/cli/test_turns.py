"""Turns and the conversation on the command line: shown, cancelled, explained, imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest

from pattern_core.errors import InvalidInput
from pattern_server.cli import history
from pattern_server.cli.client import ServerFailed
from pattern_server.cli.command import Home
from pattern_server.cli.output import Output
from pattern_server.cli.turns import _usage, conversation, drawn, drawn_tree, headline, list_all, part_row, why
from tests.pattern_server.cli.conftest import Answer, Pattern, api_of, as_json, below, on_terminal


def test_the_usage_of_a_turn() -> None:
    usage = {"input_tokens": 1_234, "output_tokens": 5, "cost_microdollars": 1_500_000, "is_estimate": False}
    assert _usage(usage) == "1,234 tokens in, 5 out; $1.50"
    unknown = {**usage, "cost_microdollars": None, "is_estimate": True}
    assert _usage(unknown) == "1,234 tokens in, 5 out (estimated); price unknown"


def test_a_groups_turn_is_drawn_with_its_times() -> None:
    at = "2026-01-01T00:00:{:04.1f}00Z".format

    def branch(name: str, parent: str, began: float | None, ended: float | None, reason: str | None = None) -> Any:
        times = {"started_at": began and at(began), "ended_at": ended and at(ended)}
        status = "queued" if began is None else "running" if ended is None else "completed"
        return {"turn_id": f"turn_{name}", "parent_id": f"turn_{parent}", "name": name, "status": status} | {
            "reason": reason,
            **times,
        }

    tree = [
        branch("ada", "desk", 1, 3.5, "leads"),
        branch("zoe", "ada", 2, None),
        branch("yan", "zoe", None, None),
        branch("bob", "desk", 4, 5, "a task"),
    ]
    assert drawn_tree({"turn_id": "turn_desk", "created_at": at(0.5), "tree": tree}) == [
        "├─ ada: leads (turn_ada), completed, from 0.5 s for 2.5 s",
        "│  └─ zoe (turn_zoe), running, from 1.5 s",
        "│     └─ yan (turn_yan), queued",
        "└─ bob: a task (turn_bob), completed, from 3.5 s for 1.0 s",
    ]
    assert drawn_tree({"turn_id": "turn_a", "created_at": at(0), "tree": []}) == []


async def test_turns_are_listed_within_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = {"id": "agent_01kdvdnbyg1sxdjpxfs3sa9mkv", "name": "adalbert the gardener"}
    usage = {"input_tokens": 1, "output_tokens": 1, "cost_microdollars": 12_345_678, "is_estimate": False}
    turn: Any = {"turn_id": "turn_01kdvdncxrhd99fdtgj8yepfzx", "agent_id": agent["id"], "status": "interrupted"}
    turn |= {"usage": usage, "created_at": "2026-01-31T12:00:00.000Z"}
    turns = [turn, {**turn, "usage": {**usage, "cost_microdollars": 42}}]

    def answer(request: httpx2.Request) -> Answer:
        if request.url.path.endswith("/me"):
            return as_json({"user_id": "user_1", "username": "admin", "is_admin": False})
        is_turns = request.url.path.endswith("/turns")
        return as_json({"items": turns if is_turns else [agent], "next_cursor": None})

    async def listed(columns: int) -> list[str]:
        screen = on_terminal(monkeypatch, columns)
        await below(list_all)(api_of(answer), Output(), agent=None, status=None, limit=20, constellation="home")
        return click.unstyle(screen.getvalue()).splitlines()

    assert len((await listed(80))[0].split()) == 4  # the cost is left out before a name is cut short
    head, row, cheap = await listed(85)
    assert head.split() == ["id", "status", "for", "accepted", "cost"]
    assert row.split(maxsplit=2)[:2] == [turn["turn_id"], "interrupted"]
    assert " adalbert the" in row and " 31 Jan " in row and row.endswith("$12.3457") and cheap.endswith(" <$0.0001")
    narrow = await listed(60)
    assert [line.split()[0] for line in narrow[1:]] == [turn["turn_id"]] * 2 and narrow[0].split() == head.split()[:3]
    assert max(map(len, (head, row, cheap))) <= 85 and max(map(len, narrow)) <= 60


CORE = {
    "kind": "core",
    "place": "system",
    "name": "human",
    "ref": "mem_1",
    "version": 3,
    "tokens": 40,
    "reason": "a core block, the agent's own",
    "text": "Likes\ntea. " + "x" * 100,
    "note": None,
}
STEP = {
    "step": 1,
    "attempt": 1,
    "status": "done",
    "provider": "anthropic",
    "model": "m-1",
    "started_at": "2026-01-01T00:00:00.000Z",
    "window": 200_000,
    "tokens": 3_210,
    "is_estimate": False,
    "cached_tokens": 3_000,
    "tools": {"count": 7, "tokens": 900},
    "history": {"first": "1", "last": "9", "count": 12, "tokens": 1_500},
    "parts": [CORE],
    "left_out": [{**CORE, "kind": "pinned", "name": "plan", "reason": "no room", "text": None}],
    "notes": ["the core blocks take much"],
    "is_known": True,
}


async def shown(*steps: Any) -> None:
    """What `pattern why` shows of a turn with these steps."""
    told = {"turn_id": "turn_1", "agent_id": "agent_1", "session_id": None, "steps": steps}
    await below(why)(api_of(lambda _: as_json(told)), Output(), turn_id="turn_1", constellation="home", agent=None)


async def test_a_step_is_shown_part_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    await shown(STEP)
    out = capsys.readouterr().out
    assert "3,210 tokens of a window of 200,000, counted by the provider, 3,000 of them cached" in out
    assert "Messages of the conversation: 12 (about 1,500 tokens); tools: 7 (about 900)." in out
    assert "Note: the core blocks take much." in out
    assert "core human v3" in out
    assert "a core block, the agent's own" in out
    assert "Left out:" in out
    assert "pinned plan v3" in out


async def test_a_terminal_is_drawn_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_terminal(monkeypatch, 80)
    await shown({**STEP, "left_out": [{**CORE, "tokens": 77}]})
    bars, *legend = [line.strip() for line in screen.getvalue().splitlines()[1:4]]
    assert bars.startswith("████") and 58 <= len(bars) <= 62
    assert legend[0].startswith("█ conversation 1,500   ▓ tools 900") and "left out 77" in " ".join(legend)


def test_a_long_legend_is_drawn_in_lines() -> None:
    kinds = [{"kind": f"kind-{number}", "tokens": 1_000 - number} for number in range(6)]
    bars, *legend = drawn({**STEP, "parts": [*kinds, {"kind": "none", "tokens": None}]})
    assert len(legend) == 3 and all(0 < len(line) <= 64 for line in legend)
    assert "   ".join(line.strip() for line in legend).split("   ") == [
        "█ conversation 1,500", "▓ kind-0 1,000", "▒ kind-1 999", "░ kind-2 998", "▚ kind-3 997", "▞ kind-4 996",
        "▤ kind-5 995", "▥ tools 900", "free 191,615", "left out 40",
    ]  # fmt: skip
    assert (len(bars), bars.count("█"), bars.count("▥")) == (59, 11, 6)


async def test_the_same_parts_are_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    await shown(STEP, {**STEP, "step": 2, "attempt": 2}, {**STEP, "step": 3, "parts": []})
    out = capsys.readouterr().out
    assert out.count("core human v3") == 1
    assert "Step 2, attempt 2" in out
    assert "The other parts are the same as in the step before." in out
    assert "Nothing besides the conversation." in out


async def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    await shown()
    assert "has not called a model yet" in capsys.readouterr().out
    await shown({**STEP, "is_known": False, "is_estimate": True, "cached_tokens": 0, "window": 0})
    out = capsys.readouterr().out
    assert "was not recorded" in out
    assert "3,210 tokens, estimated\n" in out


def test_lines() -> None:
    assert headline({**STEP, "attempt": 2}).startswith("Step 1, attempt 2 (done): anthropic/m-1, 3,210 tokens")
    assert conversation({**STEP, "tools": {"count": 0, "tokens": 0}}).endswith("; no tools.")
    line = part_row(CORE)
    assert (line["part"], line["tokens"]) == ("core human v3", 40)
    assert line["text"].startswith("Likes tea. x")
    assert len(line["text"]) == 60
    assert part_row({**CORE, "text": None, "note": "is not there any more"})["text"] == "(is not there any more)"
    assert part_row({**CORE, "text": None, "version": None, "name": ""})["part"] == "core"


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
    assert done.out == "Imported into the conversation of ada (messages: 2).\n"
    again = home("history", "import", str(file), *AT, "--json").json
    assert (again["imported"], again["skipped"]) == (2, 0)
    found = home("search", "word", *AT, "--kind", "message", "--json").json["hits"]
    assert sorted(hit["id"] for hit in found) == sorted(again["ids"])
    piped = home("history", "import", "-", *AT, stdin=lines(past(7)))
    assert "(messages: 1)" in piped.out


def test_messages_in_lines() -> None:
    message = {"role": "user", "content": "One\ntwo", "parts": None, "created_at": "2026-01-02T03:04:05.678Z"}
    assert history.said(message) == "2026-01-02T03:04:05.678Z  user: One\n    two"
    image = {"type": "image", "digest": "ab12"}
    both = {**message, "content": "See", "parts": [image, {"type": "text", "text": "See"}]}
    assert history.said(both) == "2026-01-02T03:04:05.678Z  user: See\n    [an image: ab12]"
    assert (
        history.said({**message, "content": "", "role": "assistant"})
        == "2026-01-02T03:04:05.678Z  assistant: (nothing)"
    )
    partial = {**message, "role": "assistant", "finish_reason": "cancelled"}
    assert history.said(partial) == (
        "2026-01-02T03:04:05.678Z  assistant: One\n    two\n    [not complete: its turn ended as cancelled]"
    )
    cut = history.said({**partial, "finish_reason": "length"})
    assert cut.endswith("[not complete: it was cut at max_output_tokens]")
    long = history.said({**message, "role": "tool", "tool_name": "file", "content": "x" * 5_000})
    assert long.startswith("2026-01-02T03:04:05.678Z  tool file: xxx")
    assert len(long) < 400 and long.endswith("…")


def test_lines_that_are_no_messages(home: Pattern, tmp_path: Path) -> None:
    file = tmp_path / "past.jsonl"
    text = lines("{", [1], past(0, role="robot"), past(1, content=" "), past(2))
    file.write_bytes(text.encode() + b'{"role": "user", "content": "\xff"}\n')
    refused = home("history", "import", str(file), *AT)
    assert refused.code == 2
    for words in ("line 1 is not JSON", "line 2 is not a JSON object", "line 3 has no role", "line 4 has no text"):
        assert words in refused.err
    assert "line 6 is not UTF-8" in refused.err
    skipped = home("history", "import", str(file), *AT, "--skip")
    assert skipped.code == 3, skipped.err
    assert "(messages: 1)" in skipped.out
    assert "Skipped: line 1" in skipped.err
    file.write_text("\n")
    assert "has no messages" in home("history", "import", str(file), *AT).err
    assert home("history", "import", str(tmp_path / "none.jsonl"), *AT).code == 2


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
    with pytest.raises(InvalidInput, match="messages that are stored: 6"):
        await history.send(Home(api, "home"), Output(), "ada", [*messages[:6], past(6, content="bad")])
    assert [request.headers["idempotency-key"] for request in asked][:2] == keys[
        :2
    ]  # sent again, they are not added twice
    with pytest.raises(InvalidInput, match="nothing was imported"):
        await history.send(Home(api, "home"), Output(), "ada", [past(6, content="bad")])
    with pytest.raises(ServerFailed, match="later"):
        await history.send(Home(api, "home"), Output(), "ada", [past(6, content="late")])

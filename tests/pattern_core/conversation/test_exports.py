"""Export files of ChatGPT and Claude: of each conversation the branch that was shown last; nothing else is guessed."""

from __future__ import annotations

import json
import random
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from pattern_core.conversation.exports import TEXT_CHARS_MAX, UNREADABLE, Chat, read_exported
from pattern_core.errors import InvalidInput

T0 = 1_700_000_000.25  # 2023-11-14T22:13:20.250Z
ROOT = "00000000-0000-4000-8000-000000000000"


def node(name: str, parent: str | None, role: str = "user", text: Any = None, at: float = 0.0, **more: Any) -> Any:
    content = {"content_type": "text", "parts": [f"{name}!" if text is None else text]}
    message = {"id": name, "author": {"role": role}, "create_time": T0 + at, "content": content, **more}
    return {name: {"id": name, "parent": parent, "children": [], "message": message}}


def chatgpt(*nodes: Any, **more: Any) -> dict[str, Any]:
    root: dict[str, Any] = {"root": {"id": "root", "parent": None, "message": None}}
    for one in nodes:
        root |= one
    return {"id": "c-1", "title": "Boats", "create_time": T0, "mapping": root, **more}


def claude(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"uuid": "u-1", "name": "Tea", "created_at": "2025-01-02T03:04:05.678901Z", "chat_messages": [*rows], **more}


def row(name: str, sender: str = "human", **more: Any) -> dict[str, Any]:
    return {"uuid": name, "sender": sender, "text": f"{name}!", "created_at": "2025-01-02T03:05:00+00:00", **more}


def read(folder: Path, content: Any) -> tuple[list[Chat], Counter[str]]:
    file = folder / "conversations.json"
    file.write_text(json.dumps(content))
    found = read_exported(file)
    assert found is not None
    return found


def said(chats: tuple[list[Chat], Counter[str]]) -> list[list[tuple[str, str]]]:
    return [[(one["role"], one["content"]) for one in messages] for _session, messages in chats[0]]


def test_the_branch_that_chatgpt_showed_last(tmp_path: Path) -> None:
    talk = chatgpt(
        node("q", "root"),
        node("a", "q", "assistant", at=1),
        node("b", "q", "assistant", at=2),
        node("q2", "b", at=3),
        node("x", "a", at=9),
        current_node="q2",
    )
    found = read(tmp_path, [talk])
    assert said(found) == [[("user", "q!"), ("assistant", "b!"), ("user", "q2!")]]
    [(session, messages)] = found[0]
    assert session == {
        "id": "c-1", "title": "Boats", "origin": "chatgpt", "created_at": "2023-11-14T22:13:20.250Z"
    }  # fmt: skip
    assert [(one["metadata"]["id"], one["created_at"][-10:]) for one in messages] == [
        ("q", "13:20.250Z"[-10:]), ("b", "13:22.250Z"), ("q2", "13:23.250Z")
    ]  # fmt: skip
    del talk["current_node"]
    assert said(read(tmp_path, talk))[0][-1] == ("user", "x!"), "the last one, if the file does not say"


def test_what_chatgpt_did_not_show_is_left_out_and_counted(tmp_path: Path) -> None:
    parts = ["See", {"content_type": "image_asset_pointer"}, {"content_type": "audio_transcription", "text": "heard"}]
    found = read(
        tmp_path,
        [
            chatgpt(
                node("s", "root", "system", ""),
                node("hidden", "s", metadata={"is_visually_hidden_from_conversation": True}),
                node("q", "hidden", content={"content_type": "multimodal_text", "parts": parts}),
                node("t", "q", "assistant", content={"content_type": "thoughts", "thoughts": []}),
                node("call", "t", "assistant", recipient="python"),
                node("r", "call", "tool", "42"),
                node("code", "r", "assistant", content={"content_type": "code", "text": "print()"}, recipient="all"),
                current_node="code",
            )
        ],
    )
    assert said(found) == [[("user", "See\n\nheard"), ("assistant", "print()")]]
    left_out = {what: count for what, count in found[1].items() if count}
    assert left_out == {"attachments": 1, "thoughts, tools and what was hidden": 3, "messages of the role tool": 1}


@pytest.mark.parametrize("leaf", [{}, {"current_leaf_message_uuid": "b"}])
def test_claudes_messages_with_and_without_branches(tmp_path: Path, leaf: dict[str, str]) -> None:
    old = claude(row("q"), row("a", "assistant"), row("q2"))
    branches = claude(
        row("q", parent_message_uuid=ROOT),
        row("a", "assistant", parent_message_uuid="q"),
        row("b", "assistant", parent_message_uuid="q"),
        uuid="u-2",
        **leaf,
    )
    assert said(read(tmp_path, [old, branches])) == [
        [("user", "q!"), ("assistant", "a!"), ("user", "q2!")],
        [("user", "q!"), ("assistant", "b!")],
    ]


def test_claudes_blocks_and_attachments(tmp_path: Path) -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Here."}, {"type": "tool_use"}]
    found = read(
        tmp_path,
        [
            claude(
                row("q", attachments=[{"file_name": "a.txt", "extracted_content": "walnuts"}], files=[{}]),
                row("a", "assistant", content=blocks),
            )
        ],
    )
    assert said(found) == [[("user", "q!\n\na.txt:\n\nwalnuts"), ("assistant", "Here.")]]
    assert found[1] == {"thoughts, tools and what was hidden": 2, "attachments": 1}
    assert found[0][0][0]["created_at"] == "2025-01-02T03:04:05.678Z"


def test_a_long_message_becomes_several_and_times_do_not_go_back(tmp_path: Path) -> None:
    text = "x" * TEXT_CHARS_MAX + "\0y\ud800"
    found = read(tmp_path, [chatgpt(node("q", "root", text=text, at=5), node("a", "q", "assistant", at=1))])
    [(_, messages)] = found[0]
    assert [(one["content"][-2:], one["metadata"]["id"]) for one in messages] == [
        ("xx", "q"), ("y?", f"q/{TEXT_CHARS_MAX}"), ("a!", "a")
    ]  # fmt: skip
    assert len({one["created_at"] for one in messages}) == 1


def test_a_zip_file_with_several(tmp_path: Path) -> None:
    file = tmp_path / "export.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for no in (0, 1):
            packed.writestr(f"conversations-00{no}.json", json.dumps([chatgpt(node(f"q{no}", "root"), id=f"c{no}")]))
        packed.writestr("user.json", "{}")
    found = read_exported(file)
    assert found is not None and [session["id"] for session, _ in found[0]] == ["c0", "c1"]
    data = bytearray(file.read_bytes())
    data[60] ^= 255
    file.write_bytes(data)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_exported(file)
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("user.json", "{}")
    assert read_exported(file) is None


@pytest.mark.parametrize(
    "text", ['{"role": "user", "content": "a"}\n{}', '{"role": "user"}', "[1]", "", "[" * 100_000, "[{}]"]
)
def test_other_files_are_left_to_others(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    assert read_exported(file) is None


def test_a_loop_and_empty_conversations(tmp_path: Path) -> None:
    loop = chatgpt(node("a", "b"), node("b", "a", "assistant"), current_node="a")
    found = read(tmp_path, [chatgpt(), claude(), loop])
    assert said(found) == [[("assistant", "b!"), ("user", "a!")]]


def test_damaged_conversations_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    rng, whole = (
        random.Random(5),
        json.dumps([chatgpt(node("q", "root"), node("a", "q", "assistant")), claude(row("h"))]),
    )
    odd = [None, 7, -1e300, "", [], {}, "x", True, [None], {"a": 1}]
    for _ in range(settings().max_examples * 4):
        content = json.loads(whole)
        places: list[tuple[Any, Any]] = []

        def walk(value: Any) -> None:
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                places.append((value, key))  # noqa: B023 - of this round
                if isinstance(value[key], dict | list):
                    walk(value[key])

        walk(content)
        where, key = rng.choice(places)
        where[key] = rng.choice(odd)
        (tmp_path / "odd.json").write_text(json.dumps(content))
        found = read_exported(tmp_path / "odd.json")
        if found is not None:
            assert len(found[0]) + found[1][UNREADABLE] <= 2
            for session, messages in found[0]:
                assert isinstance(session["id"], str)
                assert all(isinstance(one["content"], str) and one["content"] for one in messages)

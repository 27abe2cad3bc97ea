"""Conversations in the files that ChatGPT and Claude export, as past messages with their sessions.

Both are called `conversations.json`, or `conversations-000.json` and so on, alone or in the ZIP file that the vendor
sends. A message that was edited or answered again begins a branch; only the one that was shown last is read. Neither
vendor documents its format: these are the fields of files from 2023 to 2026.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeAlias

from pattern_core.errors import InvalidInput
from pattern_db.columns import canonical, iso

TEXT_CHARS_MAX = 100_000  # of a message; a longer one becomes several
UNREADABLE = "conversations that cannot be read"
_ROLES = {"user": "user", "human": "user", "assistant": "assistant"}

Chat: TypeAlias = tuple[dict[str, Any], list[dict[str, Any]]]  # a session and its messages, as an import has them


def read_exported(file: Path) -> tuple[list[Chat], Counter[str]] | None:
    """Return the conversations in a file, and what is left out of them; None if it is neither vendor's.

    Raises:
        InvalidInput: it is a ZIP file that cannot be read.
        OSError: it cannot be read.
    """
    parts: list[Any] = [file]
    chats, left_out = list[Chat](), Counter[str]()
    try:
        if zipfile.is_zipfile(file):
            parts = [one for one in zipfile.Path(file).iterdir() if fnmatch(one.name, "conversations*.json")]
        texts = [part.read_bytes().decode("utf-8-sig", "replace") for part in parts]
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}; download it again") from None
    for text in texts:
        found: Any = None
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
        for one in found if isinstance(found, list) else [found]:
            if not isinstance(one, dict) or not {"mapping", "chat_messages"} & one.keys():
                return None
            try:
                chats += filter(lambda chat: chat[1], [_chat(one, left_out)])
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                left_out[UNREADABLE] += 1
    return (chats, left_out) if texts else None


def _chat(one: Mapping[str, Any], left_out: Counter[str]) -> Chat:
    if "mapping" in one:
        origin, title, leaf, shown = "chatgpt", one.get("title"), one.get("current_node"), _shown_by_chatgpt
        said = {name: (node.get("parent"), node.get("message")) for name, node in one["mapping"].items()}
    else:
        origin, title, leaf, shown = "claude", one.get("name"), one.get("current_leaf_message_uuid"), _shown_by_claude
        befores = [None, *(row["uuid"] for row in one["chat_messages"])]  # older files have no parents, and no branches
        linked = zip(one["chat_messages"], befores, strict=False)
        said = {row["uuid"]: (row.get("parent_message_uuid") or before, row) for row, before in linked}
    branch, messages = list[Any](), list[dict[str, Any]]()
    leaf = leaf if leaf in said else next(reversed(said), None)
    while leaf in said:
        leaf, message = said.pop(leaf)
        branch.append(message)
    time = began = _time(one)
    for message in filter(None, reversed(branch)):
        role, text = message.get("sender") or message["author"]["role"], shown(message, left_out)
        text = text.replace("\0", "").encode(errors="replace").decode().strip()
        if role not in _ROLES:
            left_out[f"messages of the role {role}"] += bool(text)
            continue
        time = max(time, _time(message))
        for start in range(0, len(text), TEXT_CHARS_MAX):
            row = {"role": _ROLES[role], "content": text[start : start + TEXT_CHARS_MAX], "created_at": time}
            own_id = f"{message.get('id') or message['uuid']}{f'/{start}' if start else ''}"
            messages.append({**row, "metadata": {"id": own_id}})
    chat_id = str(one.get("id") or one.get("conversation_id") or one["uuid"])
    return {"id": chat_id, "origin": origin, "created_at": began, "title": title and str(title)}, messages


def _shown_by_chatgpt(message: Mapping[str, Any], left_out: Counter[str]) -> str:
    content, about = message["content"], message.get("metadata") or {}
    is_shown = content.get("content_type") in ("text", "multimodal_text", "code")
    if not is_shown or message.get("recipient", "all") != "all" or about.get("is_visually_hidden_from_conversation"):
        left_out["thoughts, tools and what was hidden"] += 1
        return ""
    parts = content.get("parts") or [content.get("text", "")]
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    left_out["attachments"] += texts.count(None)
    return "\n\n".join(filter(None, texts))


def _shown_by_claude(message: Mapping[str, Any], left_out: Counter[str]) -> str:
    parts = message.get("content") or [{"type": "text", "text": message.get("text")}]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    left_out["thoughts, tools and what was hidden"] += len(parts) - len(texts)
    left_out["attachments"] += len(message.get("files") or ())
    texts += [f"{one.get('file_name')}:\n\n{one.get('extracted_content')}" for one in message.get("attachments") or ()]
    return "\n\n".join(filter(None, texts))


def _time(one: Mapping[str, Any]) -> str:
    """Return when a conversation or a message began, as it is stored; the files have seconds, or ISO 8601."""
    return canonical(one["created_at"]) if one.get("created_at") else iso(int((one.get("create_time") or 0) * 1000))

"""`pattern history …`: messages of an agent, imported ones, and summaries of archived ones."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio

from pattern_core.answers import why_cut
from pattern_core.conversation.exports import UNREADABLE, Chat, read_exported
from pattern_core.errors import InvalidInput
from pattern_server.cli.client import Json, ServerFailed
from pattern_server.cli.command import ExitCode, Home, PlainGroup, agent_option, piped
from pattern_server.cli.names import SESSION
from pattern_server.cli.output import DONE, SKIPPED, Output, cut, when

BATCH_MESSAGES = 1_000  # sent at once …
BATCH_CHARS = 4_000_000  # … unless they are longer than this
UNREADABLE_SHOWN_MAX = 10
TOOL_CHARS_MAX = 300  # shown of a call's arguments or result; --json has all
SUMMARY_COLUMNS = ("from=started_at?", "to=ended_at", "messages=message_count?", "depth?", "summary*")
ROLES = ("user", "assistant", "system", "tool")


history = PlainGroup(
    "history", help="Messages of an agent, imports from elsewhere, and summaries of archived messages."
)


@history.add("show", "-a ada --limit 5")
@agent_option
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest messages.")
@click.option("--session", metavar="ID", type=SESSION, help="Only messages of this session.")
async def show(home: Home, output: Output, agent: str, limit: int, session: str | None) -> None:
    """Show the newest messages of an agent, oldest first, including those that left its prompt."""
    rows = (await home.pages("agents", agent, "messages", most=limit, session=session))[::-1]
    empty = f"{agent} has no messages yet. Talk to it: pattern chat -c {home.name} -a {agent}"
    output.result(rows, *(map(said, rows) if rows else [empty]))


def said(message: Json) -> str:
    """Return a message for people: when, who and what; tool calls with arguments, results shortened."""
    parts = message["parts"] if isinstance(message["parts"], list) else []
    texts = [message["content"] or ""] + [_part(part) for part in parts if part.get("type") in ("tool_call", "image")]
    who = message["role"]
    if who == "tool":
        who, texts = f"tool {message['tool_name']}", [cut(message["content"] or "", TOOL_CHARS_MAX)]
    if why := message.get("finish_reason"):
        texts.append(not_whole(why))
    lines = "\n".join(filter(None, texts)).splitlines() or ["(nothing)"]
    return f"{when(message['created_at'])}  {who}: " + "\n    ".join(lines)


def not_whole(finish_reason: str) -> str:
    """Return the remark on an incomplete answer."""
    return f"[not complete: {why_cut(finish_reason)}]"


def _part(part: Json) -> str:
    if part["type"] == "image":
        return f"[an image: {part.get('url') or part.get('digest')}]"
    arguments = json.dumps(part["arguments"], ensure_ascii=False)
    return f"· {part['tool']} {cut(arguments, TOOL_CHARS_MAX)}"


@history.add("import", "- -a ada")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@agent_option
@click.option("--skip", is_flag=True, help="Skip lines that are not messages; the exit code is then 3.")
async def import_file(home: Home, output: Output, file: Path, agent: str, skip: bool) -> ExitCode:
    """Add past messages from FILE (- for the standard input) to an agent's conversation. No turn runs.

    FILE has one JSON object per line: role (user, assistant, system or tool) and content; optional are created_at (such
    as 2023-05-08T13:56:00Z), session_id, name, metadata, workspace. Or it is what ChatGPT or Claude exports, a ZIP file
    or its conversations.json: each conversation becomes a session. Importing a file again adds nothing.
    """
    exported = None if str(file) == "-" else await trio.to_thread.run_sync(read_exported, file)
    if exported is not None:
        return await _import_chats(home, output, agent, *exported)
    read = partial(file.read_text, encoding="utf-8-sig", errors="surrogateescape")
    text = await piped("give a file") if str(file) == "-" else await trio.to_thread.run_sync(read)
    messages, unreadable = _messages(text)
    if unreadable and not skip:
        raise InvalidInput(f"nothing was imported: {_listed(unreadable)}. `--skip` skips such lines")
    if not messages:
        raise InvalidInput(f"{file} has no messages")
    ids = await send(home, output, agent, messages)
    data = {"imported": len(ids), "skipped": len(unreadable), "ids": ids}
    output.result(data, f"Imported into the conversation of {agent} (messages: {len(ids)}).")
    if unreadable:
        output.note(f"Skipped: {_listed(unreadable)}.")
    return SKIPPED if unreadable else DONE


async def _import_chats(home: Home, output: Output, agent: str, chats: list[Chat], left_out: Counter[str]) -> ExitCode:
    added = present = 0
    with output.progress("Importing", total=len(chats)) as advance:
        for session, messages in chats:
            for batch in _batches(messages):
                body = {"session": session, "messages": batch}
                done = await home.call("POST", "agents", agent, "history", body=body)
                added, present = added + done["added"], present + len(batch) - done["added"]
            advance()
    left = dict(+left_out)
    data = {"sessions": len(chats), "imported": added, "present": present, "left_out": left}
    counts = f"sessions: {len(chats)}, new messages: {added}, there already: {present}"
    output.result(data, f"Imported for {agent} ({counts}).", *(f"  Left out: {one}: {left[one]}." for one in left))
    return SKIPPED if left_out[UNREADABLE] else DONE


@history.add("summaries", "-a ada")
@agent_option
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest.")
async def summaries(home: Home, output: Output, agent: str, limit: int) -> None:
    """List the summaries of messages that left an agent's prompt, newest first. Search finds the messages."""
    rows = await home.pages("agents", agent, "summaries", most=limit)
    empty = f"No messages of {agent} have left its prompt yet."
    output.table(SUMMARY_COLUMNS, rows, empty=empty)


async def send(home: Home, output: Output, agent: str, messages: list[Json]) -> list[str]:
    """Send the messages in batches, each under a key of its content, so that sending them again adds nothing.

    Raises:
        InvalidInput: the server refused one; the error names its place, and how many were stored before.
    """
    ids: list[str] = []
    batches = list(_batches(messages))
    with output.progress("Importing", total=len(batches)) as advance:
        for number, batch in enumerate(batches):
            digest = hashlib.sha256(json.dumps(batch).encode()).hexdigest()[:40]
            key = {"Idempotency-Key": f"import-{number}-{digest}"}
            try:
                answer = await home.call("POST", "agents", agent, "history", body={"messages": batch}, headers=key)
            except ServerFailed as error:
                if error.problem_code != "invalid_input":
                    raise
                stored = f"messages that are stored: {len(ids)}" if ids else "nothing was imported"
                raise InvalidInput(
                    f"{stored}, then: {error.message} (counted from 0 after those). Fix the file and import it again:"
                    " stored messages are not added twice"
                ) from None
            ids += answer["ids"]
            advance()
    return ids


def _messages(text: str) -> tuple[list[Json], list[str]]:
    """Return the messages of the lines, and what is wrong with the other lines."""
    messages: list[Json] = []
    unreadable: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            message = _message(line)
        except ValueError as error:
            unreadable.append(f"line {number} {error}")
        else:
            messages.append(message)
    return messages, unreadable


def _message(line: str) -> Json:
    try:
        line.encode()
        message: Any = json.loads(line)
    except UnicodeError:
        raise ValueError("is not UTF-8") from None
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if not isinstance(message, dict):
        raise ValueError("is not a JSON object")
    if message.get("role") not in ROLES:
        raise ValueError(f"has no role of {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str) or not message["content"].strip():
        raise ValueError("has no text as content")
    return message


def _batches(messages: Iterable[Json]) -> Iterator[list[Json]]:
    batch: list[Json] = []
    chars = 0
    for message in messages:
        size = len(json.dumps(message))
        if batch and (len(batch) == BATCH_MESSAGES or chars + size > BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(message)
        chars += size
    if batch:
        yield batch


def _listed(unreadable: list[str]) -> str:
    left = len(unreadable) - UNREADABLE_SHOWN_MAX
    return "; ".join(unreadable[:UNREADABLE_SHOWN_MAX]) + (f"; and {left} more" if left > 0 else "")

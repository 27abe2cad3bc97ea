"""Chat sessions as messages in OpenAI's form, and as rows of Codepilot's files, in and out.

An import is one transaction, and a session keeps its id. What was imported before is known by that: if the rows are the
same nothing happens, if they differ it is listed, and nothing is overwritten. Cells that ours do not give back as they
came, such as numbers and other spellings of JSON, are kept with their message, so that an export has them again. What
the program wrote wrongly is repaired: `null` for a text that is missing, and `running` for what a crash cut off.

Source: rows of Codepilot (2025-12), as the project's seed 004 and the program's own files have them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pattern_core.conversation.history import IMPORTED, to_row
from pattern_core.conversation.imports import TITLE_CHARS_MAX, create_session, free_positions, reserve
from pattern_core.delta_files import FileImport
from pattern_core.errors import InvalidInput
from pattern_core.events import Event, append, ended
from pattern_core.ids import message_id
from pattern_core.messages import Message, Part, Text, ToolCall, ToolResult
from pattern_core.sessions import Chat, Session
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import ERROR, plain
from pattern_db.columns import Json, iso, time_in, to_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import Role, TurnStatus
from pattern_db.errors import RowNotFound
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn
from pattern_db.tables import external_refs, imports, messages, sessions
from pattern_db.tables.external_refs import ExternalRef
from pattern_db.tables.messages import MessageRow

SYSTEM, _KIND = "codepilot", "session"  # the first is the `origin` of sessions, too
TOKENS_MAX = 2**53
_ALL = 10**9
_STATUSES: Mapping[str, TurnStatus] = {
    "completed": TurnStatus.COMPLETED,
    "failed": TurnStatus.FAILED,
    "running": TurnStatus.INTERRUPTED,
}
_CUT_OFF = {"code": "interrupted", "message": "it ran when its file was copied; continue the session with a message"}
_FAILED = {"code": "failed", "message": "it failed before it was imported"}

ROLES = ("user", "assistant", "system", "tool")
Row = Mapping[str, Any]


# Messages in OpenAI's form


def message_of(row: MessageRow) -> dict[str, Any]:
    """Return a message in the form of OpenAI's chat completions. A result that is JSON is indented by two spaces."""
    made: dict[str, Any] = {"role": row.role.value, "content": row.content}
    if row.role is Role.TOOL:
        found, text = result_of(row.content), row.content or ""
        shown = text if isinstance(found, str) else json.dumps(found, ensure_ascii=False, indent=2)
        if isinstance(row.tool_result, dict) and row.tool_result.get("is_error"):
            shown = ERROR + text.removeprefix(ERROR)
        return {**made, "content": shown, "tool_call_id": row.tool_call_id}
    parts = row.parts if isinstance(row.parts, list) else []
    calls = [part for part in parts if isinstance(part, dict) and part.get("type") == "tool_call"]
    return {**made, "content": row.content or None, "tool_calls": [_call(call) for call in calls]} if calls else made


def _call(part: Mapping[str, Any]) -> dict[str, object]:
    text = part.get("invalid") or json.dumps(part["arguments"], ensure_ascii=False, separators=(",", ":"))
    return {"id": part["call_id"], "type": "function", "function": {"name": part["tool"], "arguments": text}}


def result_of(content: str | None) -> object:
    """Return a tool's result as the original has it: an object or a list if it is one, else the text."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(content or ""), dict | list):
            return found
    return content or ""


# Rows in


@dataclass(frozen=True, slots=True, kw_only=True)
class _Coming:
    """A session of a file: its row, with the status that it has from now on, its messages, and a digest of both."""

    row: Row
    said: Sequence[Row]
    digest: bytes
    times: Sequence[int]  # of the messages in Unix ms, none before the one above it


async def import_chats(
    storage: Storage,
    agent_id: str,
    tables: Mapping[str, Sequence[Row]],
    *,
    source: str,
    author: str,
    is_dry: bool = False,
) -> FileImport:
    """Add the sessions of a file to an agent's, with their messages; `source` is the name of the file.

    Raises:
        InvalidInput: it has tables that Codepilot has not, or there would be too many sessions. Nothing is imported.
    """
    if unknown := {*tables} - {"sessions", "messages"}:
        raise InvalidInput(f"Codepilot has no table {min(unknown)!r}; send sessions, messages")
    done, now = FileImport(), storage.now()
    known = {ref.local_id: ref for ref in await storage.database.read(external_refs.of_workspace, SYSTEM, "")}
    said: dict[str, list[Row]] = defaultdict(list)
    for row in tables.get("messages", ()):
        said[str(row.get("session_id"))].append(row)
    coming: dict[str, _Coming] = {}
    for row in tables.get("sessions", ()):
        name = row.get("id")
        own = said.pop(str(name), [])
        digest = blake2b(to_json([dict(row), *map(dict, own)]).encode(), digest_size=16).digest()
        if not isinstance(name, str) or not name:
            done.skipped.append("sessions: a row has no id")
        elif name in known:
            if known[name].content_hash == digest:
                done.present.update(sessions=1, messages=len(own))
            else:
                done.conflicts.append(f"session {name} differs from what was imported before")
        elif name in coming or await storage.database.read(_is_taken, name):
            done.conflicts.append(f"session {name} is here already, and was not imported from such a file")
        else:
            coming[name] = _coming(row, own, digest, now, done)
    done.skipped.extend(f"messages of a session {name!r} that the file has not: {len(said[name])}" for name in said)
    if coming and not is_dry:
        await _store(storage, agent_id, [*coming.values()], done, source=source, author=author, after=len(known))
    return done


def _is_taken(connection: Connection, session_id: str) -> bool:
    with suppress(RowNotFound):
        return bool(sessions.chat(connection, session_id))
    return False


def _coming(row: Row, given: Sequence[Row], digest: bytes, now: str, done: FileImport) -> _Coming:
    times, said = list[int](), list[Row]()
    for one in given:
        if (role := one.get("role")) not in ROLES:
            done.skipped.append(f"message {one.get('id')} of session {row['id']}: the role {role!r} is unknown")
            continue
        said.append(one)
        earliest = times[-1] if times else unix_ms(time_in(row.get("created_at")) or now)
        times.append(min(max(unix_ms(time_in(one.get("created_at")) or iso(earliest)), earliest), unix_ms(now)))
    done.added.update(sessions=1, messages=len(said))
    return _Coming(row=row, said=said, digest=digest, times=times)


async def _store(
    storage: Storage,
    agent_id: str,
    coming: Sequence[_Coming],
    done: FileImport,
    *,
    source: str,
    author: str,
    after: int,
) -> None:
    """Store the sessions in one transaction; their messages get positions in the order of their times."""
    order = sorted((time, at, no) for at, chat in enumerate(coming) for no, time in enumerate(chat.times))
    ids, times = storage.ids, [time for time, _at, _no in order]
    floor = reserve(ids, times) if times else 0
    last: list[str] = []
    now, turn_ids = storage.now(), [ids.new("turn") for _chat in coming]

    def store(connection: Connection) -> list[Event]:
        free = free_positions(connection, agent_id, times, floor) if times else []
        places = {(at, no): position for (_time, at, no), position in zip(order, free, strict=True)}
        last.extend(free[-1:])
        events: list[Event] = []
        for at, chat in enumerate(coming):
            row = chat.row
            created = time_in(row.get("created_at")) or now
            updated = max(created, time_in(row.get("updated_at")) or created)
            title = plain(str(row.get("title") or ""))[:TITLE_CHARS_MAX] or None
            place = str(row.get("working_dir") or "") or None
            new = Session(row["id"], created, updated, title=title, origin=SYSTEM, working_dir=place)
            create_session(connection, agent_id, new)
            sessions.change(connection, new.id, {"updated_at": updated})
            messages.append(connection, _rows(agent_id, chat, [places[at, no] for no in range(len(chat.said))]))
            turn = NewTurn(agent_id, turn_ids[at], author, 0, created, session_id=new.id)
            events += _ended(connection, turn, _STATUSES.get(str(row.get("status"))), updated)
            # What was used elsewhere is not counted by budgets here.
            used = row.get("total_tokens")
            tokens = min(max(used, 0), TOKENS_MAX) if isinstance(used, int) else 0
            then = {**_session_row(sessions.chat(connection, new.id)), "total_tokens": tokens}
            repaired = {"status": then["status"]} if row.get("status") == "running" else {}
            raw: Json = {"source": source, "row": {**row, **repaired}, "then": then, "tokens": tokens}
            ref = ExternalRef(SYSTEM, _KIND, "", after + at + 1, new.id, chat.digest, raw)
            external_refs.add(connection, ref)
        imports.add(connection, done.audit(storage, source, owners=[agent_id], system=SYSTEM))
        return events

    work = UnitOfWork()
    work.store_and_tell(store)
    work.event("codepilot.imported", {"agent_id": agent_id, "count": len(coming), "by": author})
    await storage.commit(work)
    for position in last:
        ids.pass_by(int(position))


def _rows(agent_id: str, chat: _Coming, positions: Sequence[str]) -> list[MessageRow]:
    """Return the rows of a session's messages."""
    made: list[MessageRow] = []
    tools: dict[str, str] = {}
    for row, position, time in zip(chat.said, positions, chat.times, strict=True):
        role, content, call_id = row["role"], row.get("content"), str(row.get("tool_call_id") or "")
        calls = _calls(row.get("tool_calls")) if role == "assistant" else []
        tools |= {call.call_id: call.tool for call in calls}
        text = str(content or "")
        parts: tuple[Part, ...] = (Text(text=text),)
        if role == "tool":
            tool = tools.get(call_id, "")
            parts = (ToolResult(call_id=call_id, tool=tool, content=text, is_error=text.startswith(ERROR)),)
        elif calls:
            parts = *([Text(text=text)] if text not in ("", "null") else []), *calls
        message = Message(role=role, parts=parts, id=message_id(position), position=position, created_at=iso(time))
        new = to_row(
            message,
            agent_id=agent_id,
            batch_id=position,
            sequence=0,
            session_id=chat.row["id"],
            source=SYSTEM if role == "tool" else IMPORTED,  # results are marked as such
        )._replace(batch_id=None, sequence_in_batch=None)
        cells = _message_row(new)
        kept = {name: row.get(name) for name in cells if row.get(name) != cells[name]}
        if calls and content == "null":
            del kept["content"]
        if row.get("created_at") is None:  # a time is needed
            kept.pop("created_at", None)
        made.append(new._replace(source_metadata={SYSTEM: {"id": row.get("id"), **kept}}))
    return made


def _calls(text: object) -> list[ToolCall]:
    """Return the calls in a cell; what is none is left out, and stays in what is kept of the cell."""
    made = []
    found = result_of(text) if isinstance(text, str) else []
    for one in found if isinstance(found, list) else []:
        match one:
            case {"id": str(call_id), "function": {"name": str(tool), "arguments": str(arguments)}}:
                parsed = result_of(arguments)
                is_valid = isinstance(parsed, dict)
                invalid = None if is_valid else arguments
                given = parsed if isinstance(parsed, dict) else {}
                made.append(ToolCall(call_id=call_id, tool=tool, arguments=given, invalid=invalid))
    return made


def _ended(connection: Connection, turn: NewTurn, status: TurnStatus | None, at: str) -> list[Event]:
    """Store the turn by which a session has a status; return its end."""
    if status is None:
        return []
    key = turns.insert(connection, turn)
    error = {TurnStatus.INTERRUPTED: _CUT_OFF, TurnStatus.FAILED: _FAILED}.get(status)
    rest = turns.end(connection, key, status=status, ended_at=at, error=error)
    return append(connection, (key, turn.id), [ended(status, error, rest)], created_at=at)


# Rows out


async def export_chats(storage: Storage) -> dict[str, list[Row]]:
    """Return the sessions of all agents as rows of Codepilot, without archived ones."""
    read = storage.database.read
    refs = {ref.local_id: ref for ref in await read(external_refs.of_workspace, SYSTEM, "")}
    chats, _total = await read(sessions.chats, _ALL, 0)
    rows, said = list[Row](), list[tuple[int | None, dict[str, Any]]]()
    taken: Counter[int] = Counter()
    for chat in sorted(chats, key=lambda one: (one.created_at, one.id)):
        now = {**_session_row(chat), "current_plan": None}
        if (ref := refs.get(chat.id)) is not None and ref.raw is not None:
            came, then = ref.raw["row"], {"current_plan": None, **ref.raw["then"]}
            now |= {name: came[name] for name in now if now[name] == then[name] and came.get(name) is not None}
        rows.append(now)
        for one in reversed(await read(messages.recent, chat.agent_id, _ALL, session_id=chat.id)):
            kept = one.source_metadata.get(SYSTEM) if isinstance(one.source_metadata, dict) else None
            if kept is None and one.role is Role.SYSTEM:
                continue
            cells = {**_message_row(one), "session_id": chat.id, **(kept or {})}
            number = kept["id"] if kept and isinstance(kept["id"], int) and not taken[kept["id"]] else None
            taken[number or 0] += 1
            said.append((number, cells))
    free = max(taken, default=0)
    numbered = []
    for number, cells in said:
        free += number is None
        numbered.append({**cells, "id": free if number is None else number})
    return {"sessions": rows, "messages": sorted(numbered, key=lambda row: int(row["id"]))}


def _session_row(chat: Chat) -> dict[str, Any]:
    status = {None: "idle", TurnStatus.COMPLETED: "completed"}.get(chat.status, "failed")  # what runs is cut off there
    return {
        "id": chat.id,
        "status": status,
        "working_dir": chat.working_dir or "",
        "total_tokens": chat.tokens,
        "created_at": chat.created_at,
        "updated_at": chat.updated_at,
        "title": chat.title,
    }


def _message_row(row: MessageRow) -> dict[str, Any]:
    made = message_of(row)
    calls = made.get("tool_calls")
    cells = {name: made.get(name) for name in ("role", "content", "tool_call_id")}
    return {**cells, "tool_calls": None if calls is None else to_json(calls), "created_at": row.created_at}

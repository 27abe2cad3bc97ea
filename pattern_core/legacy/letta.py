"""Reads agent files of Letta as records for `convert`: the form with lists of entities, and the older one of one agent.

Files of many versions and programs are about, so nothing of their form is certain: what is missing, null or of another
type is treated as absent. What has no counterpart here becomes a decision, so that nothing is dropped silently.
Source: the fields are those of Letta 0.6 to 0.16, as its exports have them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pattern_core.agent_settings import KEYS
from pattern_core.car import ArchiveInvalid, raw_cid, text_of
from pattern_core.errors import InvalidInput
from pattern_core.legacy.archive import Old, Record
from pattern_core.rules.ruleset import RuleSet
from pattern_core.tools.builtin import BUILTIN
from pattern_db.columns import JSON_DEPTH_MAX, time_in
from pattern_db.enums import CONSTELLATION_OWNER

FILE_BYTES_MAX = 64 * 1024 * 1024
NAMES_SHOWN_MAX = 50
NO_ID = "unknown"  # of a call without one
# Their tools for what agents do here with another one, or without any.
COUNTERPARTS: Mapping[str, str] = {
    "send_message": "an answer",
    "conversation_search": "search",
    "archival_memory_search": "recall",
    "archival_memory_insert": "remember",
    **dict.fromkeys(("core_memory_append", "core_memory_replace", "memory_insert", "memory_replace"), "block_edit"),
    **dict.fromkeys(("memory", "memory_rethink", "memory_apply_patch", "rethink_memory"), "block_edit"),
    "memory_finish_edits": "an answer",
    **dict.fromkeys(("web_search", "fetch_webpage"), "web"),
    **dict.fromkeys(("open_files", "grep_files", "semantic_search_files"), "file"),
    **dict.fromkeys(("send_message_to_agent_and_wait_for_reply", "send_message_to_agent_async"), "tell"),
}
_MANAGERS = {"voice_sleeptime": "sleeptime"}
# Fields of agents that are read, or say nothing about the agent itself.
_READ = frozenset(
    [
        *("id", "name", "system", "description", "core_memory", "memory_blocks", "block_ids", "tools", "tool_ids"),
        *("tool_rules", "messages", "llm_config", "model", "in_context_message_ids", "in_context_message_indices"),
        *("context_window_limit", "max_tokens", "created_at", "updated_at", "version", "files_agents", "source_ids"),
        *("folder_ids", "group_ids", "multi_agent_group", "agent_type", "embedding_config", "embedding"),
        *("include_base_tools", "include_multi_agent_tools", "include_base_tool_rules", "include_default_source"),
    ]
)
_OF_FILE = ("agents", "groups", "blocks", "files", "sources", "tools", "metadata", "created_at")


def is_letta(start: bytes) -> bool:
    """Return whether a file with these first bytes is JSON and not an archive of blocks."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and start[1:2] != b"\xa2"  # an archive's header is a map of two


def root_of(data: bytes) -> str:
    """Return the CID of a file as text: what identifies it, as its root does an archive."""
    return text_of(raw_cid(hashlib.sha256(data).digest()))


def read_letta(source: Path) -> Old:
    """Return what an agent file holds.

    Raises:
        ArchiveInvalid: it is not JSON, is too large, or has no agents.
    """
    if source.stat().st_size > FILE_BYTES_MAX:
        raise ArchiveInvalid(f"the agent file is larger than {FILE_BYTES_MAX} bytes")
    data = source.read_bytes()
    try:
        whole = _clean(json.loads(data.decode("utf-8-sig"), parse_constant=lambda _name: None))
    except (ValueError, RecursionError) as error:
        raise ArchiveInvalid(f"the agent file is not JSON that can be read: {error}") from error
    old = Old(version=None, root=root_of(data), kind="constellation", exported_at=_text(whole.get("created_at")))
    if isinstance(whole.get("agents"), list | dict):
        _Reader(old, whole).read()
    elif "agent_type" in whole or "core_memory" in whole or "system" in whole:
        group = _record(whole.get("multi_agent_group"))
        inner = {"agents": [{"id": "agent", **whole}], "groups": [group] if group else []}
        _Reader(old, inner | {"created_at": whole.get("updated_at") or whole.get("created_at")}).read()
    if not old.agents:
        raise ArchiveInvalid("the file is not an agent file: it has no agents")
    old.kind = "agent" if len(old.agents) == 1 and not old.groups else "constellation"
    old.name = str((old.groups or old.agents)[0]["name"])
    return old


class _Reader:
    """One file. `owners` are the first agent of each block, by its id."""

    def __init__(self, old: Old, whole: Record) -> None:
        self.old = old
        self.whole = whole
        self.tools = {_text(one.get("id")): _text(one.get("name")) for one in _records(whole.get("tools"))}
        self.owners: dict[str, str] = {}

    def read(self) -> None:
        """Read all of it."""
        blocks = dict(self._with_ids("block", self.whole.get("blocks")))
        for agent_id, agent in self._with_ids("agent", self.whole.get("agents")):
            self._agent(agent_id, agent)
            self._blocks(agent_id, agent, blocks)
            self._messages(agent_id, agent)
        for block_id, block in blocks.items():
            if block_id not in self.owners:
                self._block(block_id, CONSTELLATION_OWNER, block)
        for group_id, group in self._with_ids("group", self.whole.get("groups")):
            self._group(group_id, group, blocks)
        self._files()
        rest = [key for key, value in self.whole.items() if value and key not in _OF_FILE]
        self._left_out("file", self.old.root, "parts", rest)

    def _with_ids(self, kind: str, found: Any) -> Iterator[tuple[str, Record]]:
        """Yield records with an id of their own each; references mean the first one with an id."""
        known: set[str] = set()
        for number, record in enumerate(_records(found)):
            own = _text(record.get("id")) or f"{kind}:{number}"
            if own in known:
                self._decide(kind, own, "another one has its id, and references mean that; both were kept")
                own = f"{own}:{number}"
            known.add(own)
            yield own, record

    def _agent(self, agent_id: str, agent: Record) -> None:
        name = _text(agent.get("name")) or "agent"
        model = _record(agent.get("llm_config"))
        handle = _text(model.get("handle")) or _text(agent.get("model"))
        vendor, slash, named = handle.partition("/")
        window = agent.get("context_window_limit") or model.get("context_window")
        config = {
            "temperature": model.get("temperature"),
            "max_output_tokens": agent.get("max_tokens") or model.get("max_tokens"),
            "context_window": window,
            "reasoning_effort": model.get("reasoning_effort"),
        }
        self.old.agents.append(
            {
                "id": agent_id,
                "name": name,
                "description": _text(agent.get("description")) or None,
                "system_prompt": _text(agent.get("system")),
                "model_provider": (vendor if slash else _text(model.get("model_endpoint_type"))).lower() or None,
                "model_name": (_text(model.get("model")) or named or handle) or None,
                "config": {key: value for key, value in config.items() if value is not None and key in KEYS},
                "tool_rules": self._rules(name, agent.get("tool_rules")),
                "enabled_tools": self._tools(name, agent),
                "created_at": agent.get("created_at"),
                "updated_at": agent.get("updated_at"),
            }
        )
        rest = [key for key, value in agent.items() if value and key not in _READ]
        self._left_out("agent", name, "settings", rest)

    def _rules(self, name: str, found: Any) -> list[Any]:
        kept: list[Any] = []
        for rule in found if isinstance(found, list) else []:
            try:
                RuleSet.of([*kept, rule])
                kept.append(rule)
            except InvalidInput as error:
                self._decide("agent", name, f"a tool rule was left out: {error.message}")
        return kept

    def _tools(self, name: str, agent: Record) -> list[str]:
        """Return the tools that are not here; say which have counterparts."""
        names = [self.tools.get(one, one) for one in map(_text, _list(agent.get("tool_ids")))]
        names += [_text(one.get("name")) for one in _records(agent.get("tools"))]
        own = {tool.name for tool in BUILTIN}
        if there := sorted({f"{one} ({COUNTERPARTS[one]})" for one in names if one in COUNTERPARTS}):
            self._decide("agent", name, f"for these tools others are here: {', '.join(there)}")
        return sorted({one for one in names if one and one not in own and one not in COUNTERPARTS})

    def _blocks(self, agent_id: str, agent: Record, blocks: Mapping[str, Record]) -> None:
        """Read an agent's blocks: its own ones, and those of the file, which the first agent owns and lends."""
        inline = [*_records(agent.get("core_memory")), *_records(agent.get("memory_blocks"))]
        for number, block in enumerate(inline):
            self._block(f"{agent_id}:{number}", agent_id, block)
        for block_id in dict.fromkeys(map(_text, _list(agent.get("block_ids")))):
            if block_id not in blocks:
                self._decide("memory block", block_id, "it is not in the file; it was left out")
            elif block_id in self.owners:
                self._lend(block_id, agent_id, blocks[block_id])
            else:
                self._block(block_id, agent_id, blocks[block_id])

    def _block(self, block_id: str, owner: str, block: Record) -> None:
        self.owners[block_id] = owner
        label = _text(block.get("label")) or "block"
        self.old.blocks.append(
            {
                **{key: block.get(key) for key in ("created_at", "updated_at")},
                "id": block_id,
                "agent_id": owner,
                "label": label,
                "description": _text(block.get("description")),
                "block_type": "core",
                "char_limit": limit if isinstance(limit := block.get("limit"), int) and 0 < limit < 2**31 else None,
                "permission": _permission(block),
                "content_preview": _text(block.get("value")),
            }
        )
        more = _record(block.get("metadata") or block.get("metadata_"))
        self._left_out("memory block", label, "metadata", more)

    def _lend(self, block_id: str, agent_id: str, block: Record) -> None:
        share = {"block_id": block_id, "agent_id": agent_id, "attached_at": None}
        if self.owners[block_id] != agent_id and not any(
            (one["block_id"], one["agent_id"]) == (block_id, agent_id) for one in self.old.shares
        ):
            self.old.shares.append({**share, "permission": _permission(block)})

    def _messages(self, agent_id: str, agent: Record) -> None:
        """Read the messages in the order of the file; those out of the agent's context are archived."""
        found = list(self._with_ids("message", agent.get("messages")))
        context = {*map(_text, _list(agent.get("in_context_message_ids")))}
        places = [at for at in _list(agent.get("in_context_message_indices")) if isinstance(at, int)]
        context |= {found[at][0] for at in places if 0 <= at < len(found)}
        system, name = _text(agent.get("system")).strip(), _text(agent.get("name")) or "agent"
        dropped: Counter[str] = Counter()
        open_calls: dict[str, str] = {}
        last = ""
        for message_id, message in found:
            role = _text(message.get("role")).lower()
            parts = [*_parts(message)]
            calls = [*_calls(message)]
            returns = [*_returns(message, parts)] if role == "tool" else []
            if role == "system" and system and _said(parts).strip().startswith(system):
                dropped["that show the system prompt, which is made again here"] += 1
                continue
            dropped["of reasoning that only its vendor can read"] += sum(
                part.get("type") == "redacted_reasoning" for part in _records(message.get("content"))
            )
            if not (returns or calls or parts):
                is_answer = message.get("approve") is not None or message.get("approvals")
                dropped["that answer a question for approval" if is_answer else "without anything in them"] += 1
                continue
            open_calls |= {call["ToolUse"]["id"]: call["ToolUse"]["name"] for call in calls}
            for one in returns:
                if open_calls.pop(one["ToolResult"]["tool_use_id"], None) is None:
                    self._decide("message", message_id, "it is the return of a tool call that is not in the file")
            last = max(last, time_in(message.get("created_at")) or last)
            said = {key: message[key] for key in ("name", "sender_id", "model") if _text(message.get(key))}
            self.old.messages.append(
                {
                    "id": f"{agent_id}/{message_id}",
                    "agent_id": agent_id,
                    "role": {"approval": "assistant", "summary": "system"}.get(role, role),
                    "content_json": {"Blocks": returns or [*parts, *calls]},
                    "source_metadata": said or None,
                    "is_archived": bool(context) and message_id not in context,
                    "created_at": last or None,
                }
            )
        for call, tool in open_calls.items():
            self._decide("message", call, f"the call of {tool} has no return in the file")
        for why, count in (+dropped).items():
            self._decide("message", f"{count} of {name}", f"left out: those {why}")

    def _group(self, group_id: str, group: Record, blocks: Mapping[str, Record]) -> None:
        config = _record(group.get("manager_config"))
        kind = _text(config.get("manager_type") or group.get("manager_type")) or "round_robin"
        name = _text(group.get("name")) or _text(group.get("description"))[:40] or group_id
        manager = _text(config.get("manager_agent_id") or group.get("manager_agent_id"))
        members = dict.fromkeys([*([manager] if manager else []), *map(_text, _list(group.get("agent_ids")))])
        settings = {"leader": manager} if kind == "supervisor" and manager else {}
        if kind == "sleeptime" and manager:
            settings = {"intervention_agent": manager}
        self.old.groups.append(
            {
                **{key: group.get(key) for key in ("created_at", "updated_at")},
                "id": group_id,
                "name": name,
                "description": _text(group.get("description")) or None,
                "pattern_type": _MANAGERS.get(kind, kind),
                "pattern_config": settings,
                "absent": [],
                "members": [
                    {"agent_id": one, "role": {"type": "supervisor"} if one == manager else None} for one in members
                ],
            }
        )
        for block_id in map(_text, _list(group.get("shared_block_ids"))):
            for one in members:
                if block_id in blocks:
                    self._lend(block_id, one, blocks[block_id])
        config_left = [key for key, value in config.items() if value is not None and "manager" not in key]
        self._left_out("group", name, "settings", config_left)

    def _files(self) -> None:
        """Read files with their text into folders, one for each source; each agent may read those of its sources."""
        sources = {_text(one.get("id")): one for one in _records(self.whole.get("sources"))}
        folders: dict[str, Record] = {}
        for number, file in enumerate(_records(self.whole.get("files"))):
            name = _text(file.get("file_name")) or _text(file.get("original_file_name")) or f"file-{number}"
            content = file.get("content")
            if not isinstance(content, str):
                self._decide("file", name, "its text is not in the file; it was left out")
                continue
            source = _text(file.get("source_id"))
            about = sources.get(source, {})
            folder = folders.setdefault(
                source,
                {
                    "id": source or "folder",
                    "name": _text(about.get("name")) or source or "files",
                    "description": _text(about.get("description")) or None,
                    "created_at": about.get("created_at"),
                    "agents": [],
                    "files": [],
                },
            )
            folder["files"].append({"name": name, "content": content, "created_at": file.get("created_at")})
        agents = zip(self.old.agents, _records(self.whole["agents"]), strict=True)
        for agent_id, agent in ((made["id"], agent) for made, agent in agents):
            own = [*_list(agent.get("source_ids")), *_list(agent.get("folder_ids"))]
            own += [link.get("source_id") for link in _records(agent.get("files_agents"))]
            for source in dict.fromkeys(map(_text, own)):
                if source in folders:
                    folders[source]["agents"].append(agent_id)
        self.old.folders += folders.values()

    def _left_out(self, kind: str, name: str, what: str, names: Iterable[str]) -> None:
        listed = sorted(names)
        if listed:
            more = f" and {len(listed) - NAMES_SHOWN_MAX} more" if len(listed) > NAMES_SHOWN_MAX else ""
            shown = ", ".join(listed[:NAMES_SHOWN_MAX]) + more
            self._decide(kind, name, f"{what} were left out: {shown}")

    def _decide(self, kind: str, name: str, decision: str) -> None:
        self.old.decisions.append({"kind": kind, "name": name, "decision": decision})


def _parts(message: Record) -> Iterator[Record]:
    """Yield a message's parts but calls and returns, as those of the original's archives."""
    content = message.get("content")
    if content is None:
        content = message.get("text")
    for part in [content] if isinstance(content, str) else _list(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str) or kind == "text":
            if text := part if isinstance(part, str) else _text(part.get("text")):
                yield {"Text": text}
        elif kind in ("reasoning", "thinking", "summarized_reasoning"):
            yield {"Thinking": {"text": _text(part.get("reasoning") or part.get("thinking") or part.get("summary"))}}
        elif kind == "image" and isinstance(source := part.get("source"), dict):
            where = {"Url": source["url"]} if source.get("url") else {"Base64": source.get("data")}
            yield {"Image": {"content_type": source.get("media_type"), "source": where}}
        elif kind not in ("tool_call", "tool_return", "redacted_reasoning", "omitted_reasoning"):
            yield {"Unknown": part}


def _calls(message: Record) -> Iterator[Record]:
    """Yield the calls of tools."""
    for part in _records(message.get("content")):
        if part.get("type") == "tool_call":
            name = _text(part.get("name")) or "unknown"
            yield {"ToolUse": {"id": _text(part.get("id")) or NO_ID, "name": name, "input": part.get("input")}}
    for call in _records(message.get("tool_calls")):
        function = _record(call.get("function"))
        given = function.get("arguments")
        if isinstance(given, str):
            try:
                parsed = _clean(json.loads(given, parse_constant=lambda _name: None))
                given = parsed if isinstance(parsed, dict) else given
            except (ValueError, RecursionError):
                pass  # the text that the model wrote
        name = _text(function.get("name")) or "unknown"
        yield {"ToolUse": {"id": _text(call.get("id")) or NO_ID, "name": name, "input": given}}


def _returns(message: Record, parts: Sequence[Record]) -> Iterator[Record]:
    """Yield what tools returned, each for its call."""
    found = [*_records(message.get("tool_returns"))]
    found += [part for part in _records(message.get("content")) if part.get("type") == "tool_return"]
    if not found or not any(_text(one.get("tool_call_id")) for one in found):
        said = _said(parts)
        failed = '"status": "Failed"' in said or '"status": "error"' in said
        found = [{"tool_call_id": message.get("tool_call_id"), "content": said, "status": "error" if failed else None}]
    for one in found:
        content = one.get("content")
        if content is None:
            content = one.get("func_response") or _said(parts)
        failed = one.get("status") in ("error", "Failed") or one.get("is_error") is True
        call_id = _text(one.get("tool_call_id")) or NO_ID
        yield {"ToolResult": {"tool_use_id": call_id, "content": content, "is_error": failed}}


def _said(parts: Iterable[Record]) -> str:
    return "\n".join(part["Text"] for part in parts if "Text" in part)


def _permission(block: Record) -> str:
    return "read_only" if block.get("read_only") is True else "read_write"


def _text(value: Any) -> str:
    """Return a text, or a number as one; "" for anything else."""
    return value if isinstance(value, str) else str(value) if type(value) in (int, float) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _record(value: Any) -> Record:
    return value if isinstance(value, dict) else {}


def _records(value: Any) -> list[Record]:
    """Return the objects of a list; the values of an object if there is one in its place."""
    return [one for one in (value.values() if isinstance(value, dict) else _list(value)) if isinstance(one, dict)]


def _clean(value: Any, depth: int = 0) -> Any:
    """Return JSON with text that can be stored.

    Raises:
        ValueError: it is nested too deeply.
    """
    if depth > JSON_DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        return {_clean(key): _clean(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_clean(one, depth + 1) for one in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value

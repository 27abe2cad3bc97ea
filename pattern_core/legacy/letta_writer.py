"""Writes agent files of Letta, which its own program imports: what they have a place for. The rest is counted.

Ids are a prefix and a number, and every reference is to something in the file, as its schema wants. Each agent has the
tools of theirs that do what ours do.
Source: the fields are those of Letta 0.16, as its exports have them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pattern_core.legacy.archive import Record
from pattern_core.messages import Image, Reasoning, Text, ToolCall, parts_from_json
from pattern_db import portable
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER

TOOLS = (
    *("conversation_search", "archival_memory_insert", "archival_memory_search"),
    *("core_memory_append", "core_memory_replace"),
)
# Their name of each kind of rule that they have, and of its fields; a rule with other fields is left out.
_RULES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "continue_loop": ("continue_loop", {}),
    "exit_loop": ("exit_loop", {}),
    "start_constraint": ("run_first", {"args": "args"}),
    "required_before_exit": ("required_before_exit", {}),
    "child": ("constrain_child_tools", {"children": "children", "args": "child_arg_nodes"}),
    "parent": ("parent_last_tool", {"children": "children"}),
    "conditional": (
        "conditional",
        {"outputs": "child_output_mapping", "default": "default_child", "strict": "require_output_mapping"},
    ),
    "max_calls": ("max_count_per_step", {"count": "max_count_limit"}),
    "requires_consent": ("requires_approval", {}),
}
_LEADERS = {"supervisor": "leader", "sleeptime": "intervention_agent"}  # where each kind of group names its manager
_FIELDS = {
    "agents": "id name description model_provider model_name system_prompt config tool_rules",
    "agent_groups": "id name description pattern_type pattern_config",
    "group_members": "agent_id role",
    "memory_blocks": "id agent_id label description char_limit permission content_preview",
    "shared_block_agents": "block_id agent_id",
    "messages": "id role content parts tool_call_id tool_result is_archived created_at",
    "folders": "id name description",
    "folder_attachments": "folder_id agent_id",
    "folder_files": "folder_id name content_type size_bytes content",
}
_DERIVED = ("file_index", "file_passages")  # from the text of files
_EMBEDDING = {
    "embedding_endpoint_type": "openai",
    "embedding_model": "text-embedding-3-small",
    "embedding_dim": 1536,
    "embedding_chunk_size": 300,
}
_WINDOW = 128_000


class LettaWriter:
    """One export of a reduced copy. After `made`, `rows` count what was written, `left_out` the rest."""

    def __init__(self, connection: Connection) -> None:
        self.rows: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._connection = connection
        self._ids: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def made(self, exported_at: str) -> bytes:
        """Return the file."""
        found = list(self._records("agents"))
        for agent in found:
            self._id("agent", agent["id"])
        groups = list(self._records("agent_groups"))
        blocks = [self._block(row) for row in self._records("memory_blocks", is_active=1)]
        sources, files = self._sources()
        kept = [made for group in groups if (made := self._group(group)) is not None]
        whole = {
            "agents": [self._agent(agent, kept) for agent in found],
            "groups": kept,
            "blocks": [block for _owner, block in blocks],
            "files": files,
            "sources": sources,
            "tools": [self._tool(name) for name in TOOLS],
            "mcp_servers": [],
            "skills": [],
            "metadata": {},
            "created_at": exported_at,
        }
        for some in portable.tables(self._connection):
            there = sum(1 for _ in some.rows)
            if there > self.rows[some.table] and some.table not in _DERIVED:
                self.left_out[some.table] += there - self.rows[some.table]
        return json.dumps(whole, ensure_ascii=False, indent=1).encode("utf-8", "replace")

    def _records(self, table: str, order: str = "", **equal: Any) -> Iterator[Record]:
        for row in portable.records(self._connection, table, _FIELDS[table].split(), order=order, **equal):
            self.rows[table] += 1
            yield row

    def _id(self, kind: str, own: str) -> str:
        """Return the id in the file of what has this one here."""
        if own not in self._ids:
            self._ids[own] = f"{kind}-{self._numbers[kind]}"
            self._numbers[kind] += 1
        return self._ids[own]

    def _agent(self, agent: Record, groups: Sequence[Record]) -> Record:
        config, own, agent_id = agent["config"] or {}, {"agent_id": agent["id"]}, self._ids[agent["id"]]
        blocks = [row["id"] for row in self._of("memory_blocks", is_active=1, **own)]
        blocks += [row["block_id"] for row in self._records("shared_block_agents", **own)]
        blocks += [row["id"] for row in self._of("memory_blocks", is_active=1, agent_id=CONSTELLATION_OWNER)]
        folders = [self._ids[row["folder_id"]] for row in self._records("folder_attachments", **own)]
        messages = list(self._messages(agent))
        return {
            "id": agent_id,
            "name": agent["name"],
            "agent_type": "letta_v1_agent",
            "description": agent["description"],
            "system": agent["system_prompt"],
            "block_ids": [self._ids[block] for block in dict.fromkeys(blocks) if block in self._ids],
            "tool_ids": [self._ids[name] if name in self._ids else self._id("tool", name) for name in TOOLS],
            "source_ids": folders,
            "folder_ids": None,
            "identity_ids": None,
            "tool_rules": list(self._rules(agent["tool_rules"] or [])),
            "tags": [],
            "memory_blocks": [],
            "tools": [],
            "files_agents": [],
            "include_base_tools": False,
            "llm_config": {
                "model": agent["model_name"],
                "model_endpoint_type": agent["model_provider"],
                "context_window": config.get("context_window") or _WINDOW,
                "handle": f"{agent['model_provider']}/{agent['model_name']}",
                "temperature": config.get("temperature"),
                "max_tokens": config.get("max_output_tokens"),
                "reasoning_effort": config.get("reasoning_effort"),
            },
            "embedding_config": _EMBEDDING,
            "tool_exec_environment_variables": {},
            "message_buffer_autoclear": False,
            "enable_sleeptime": False,
            "timezone": "UTC",
            "in_context_message_ids": [one["id"] for one in messages if one.pop("is_near")],
            "messages": messages,
            "group_ids": [group["id"] for group in groups if agent_id in group["agent_ids"]],
        }

    def _of(self, table: str, **equal: Any) -> Iterator[Record]:
        """Yield rows that are counted elsewhere."""
        return portable.records(self._connection, table, _FIELDS[table].split(), **equal)

    def _rules(self, rules: Sequence[Record]) -> Iterator[Record]:
        for rule in rules:
            kind, fields = _RULES.get(rule["type"], ("", {}))
            if not kind or not rule.keys() <= {"tool", "type", *fields} or "*" in rule["tool"]:
                self.left_out[f"tool_rules.{rule['type']}"] += 1
                continue
            made = {theirs: rule[ours] for ours, theirs in fields.items() if ours in rule}
            if "child_arg_nodes" in made:
                made["child_arg_nodes"] = [{"name": name, "args": args} for name, args in rule["args"].items()]
            yield {"tool_name": rule["tool"], "type": kind, "prompt_template": None, **made}

    def _block(self, row: Record) -> tuple[str, Record]:
        value = row["content_preview"] or ""
        return row["agent_id"], {
            "id": self._id("block", row["id"]),
            "label": row["label"],
            "value": value,
            "limit": max(row["char_limit"], len(value)),
            "description": row["description"] or None,
            "read_only": row["permission"] == "read_only",
            "is_template": False,
            "preserve_on_migration": False,
            "metadata": {},
        }

    def _group(self, group: Record) -> Record | None:
        """Return a group of a kind that they have, or None."""
        members = list(self._records("group_members", "ordinal", group_id=group["id"]))
        kind, config = group["pattern_type"], group["pattern_config"] or {}
        manager: Record = {"manager_type": kind}
        if kind in _LEADERS and members:
            named = config.get(_LEADERS[kind])
            leads = [row["agent_id"] for row in members if row["role"] == "supervisor"]
            chosen = named if named in self._ids else [*leads, members[0]["agent_id"]][0]
            manager["manager_agent_id"] = self._ids[chosen]
        elif kind != "round_robin":
            self.rows["agent_groups"] -= 1
            self.rows["group_members"] -= len(members)
            return None
        agents = [self._ids[row["agent_id"]] for row in members]
        blocks = [self._id("block", row["id"]) for row in self._of("memory_blocks", agent_id=group["id"], is_active=1)]
        return {
            "id": self._id("group", group["id"]),
            "agent_ids": [one for one in agents if one != manager.get("manager_agent_id")],
            "description": group["description"] or group["name"],
            "shared_block_ids": blocks,
            "manager_config": manager,
            "project_id": None,
        }

    def _messages(self, agent: Record) -> Iterator[Record]:
        """Yield the main conversation, oldest first, behind the system prompt, which theirs begins with."""
        agent_id = self._ids[agent["id"]]
        first = {"role": "system", "content": [_text(agent["system_prompt"])]}
        yield self._message(f"{agent['id']}:system", agent_id, "1970-01-01T00:00:00.000Z", first, is_near=True)
        for row in self._records("messages", "position", agent_id=agent["id"], session_id=None, is_deleted=0):
            said = self._returned(row) if row["role"] == "tool" else self._said(row)
            yield self._message(row["id"], agent_id, row["created_at"], said, is_near=not row["is_archived"])

    def _message(self, own: str, agent_id: str, at: str, said: Record, *, is_near: bool) -> Record:
        empty = dict.fromkeys(("tool_calls", "tool_call_id", "group_id", "otid", "sender_id", "name", "model"))
        about = {"type": "message", "id": self._id("message", own), "agent_id": agent_id, "created_at": at}
        return {**empty, "tool_returns": [], **about, **said, "is_near": is_near}

    def _said(self, row: Record) -> Record:
        parts = parts_from_json(row["parts"]) if row["parts"] else [Text(text=row["content"] or "")]
        content: list[Record] = []
        calls: list[Record] = []
        for part in parts:
            match part:
                case Text():
                    content.append(_text(part.text))
                case Reasoning():
                    content.append({"type": "reasoning", "is_native": True, "reasoning": part.text, "signature": None})
                case ToolCall():
                    given = part.invalid if part.invalid is not None else json.dumps(dict(part.arguments))
                    function = {"name": part.tool, "arguments": given}
                    calls.append({"id": part.call_id, "type": "function", "function": function})
                case Image(url=url) if url is not None:
                    content.append({"type": "image", "source": {"type": "url", "url": url}})
                case _:
                    self.left_out["messages.images"] += 1
        return {"role": row["role"], "content": content, "tool_calls": calls or None}

    def _returned(self, row: Record) -> Record:
        failed = bool((row["tool_result"] or {}).get("is_error"))
        about = {"status": "Failed" if failed else "OK", "message": row["content"], "time": row["created_at"]}
        result = {"tool_call_id": row["tool_call_id"], "status": "error" if failed else "success"}
        return {
            "role": "tool",
            "content": [_text(json.dumps(about, ensure_ascii=False))],
            "tool_call_id": row["tool_call_id"],
            "tool_returns": [{**result, "func_response": row["content"] or "", "stdout": None, "stderr": None}],
        }

    def _sources(self) -> tuple[list[Record], list[Record]]:
        """Return folders and those of their files that are text."""
        sources = [
            {"id": self._id("source", row["id"]), "name": row["name"], "description": row["description"]}
            | {"embedding_config": _EMBEDDING, "metadata": None}
            for row in self._records("folders")
        ]
        files: list[Record] = []
        for row in self._records("folder_files"):
            try:
                content = (row["content"] or b"").decode()
            except UnicodeDecodeError:
                content = None
            if not content:
                self.rows["folder_files"] -= 1
                continue
            about = {"file_name": row["name"], "original_file_name": row["name"], "file_type": row["content_type"]}
            about |= {"file_size": row["size_bytes"], "processing_status": "completed", "content": content}
            source = self._ids[row["folder_id"]]
            files.append({"id": f"file-{len(files)}", "source_id": source, **about})
        return sources, files

    def _tool(self, name: str) -> Record:
        tags = {"source_type": "python", "source_code": None, "tags": ["letta_core"], "return_char_limit": 50_000}
        schema = {"json_schema": {"name": name}, "pip_requirements": None, "npm_requirements": None, "metadata_": {}}
        return {"id": self._id("tool", name), "name": name, "tool_type": "letta_core", **tags, **schema}


def _text(text: str) -> Record:
    return {"type": "text", "text": text, "signature": None}

"""The events as the API's description shows them: a union by name, and the data of each.

An event's data is JSON within the text of a server-sent event, which OpenAPI writes as `contentSchema`. Imported only
when the description is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA_PLACE = "#/components/schemas/"

# The events: what happened, and the event's own data as `field:type`, a text where no type is named. `?` stands behind
# what may be missing; what an event only refers to is missing once its agent was deleted.
EVENTS: Mapping[str, tuple[str, str]] = {
    "turn.queued": ("A message was accepted.", "agent_id? sender?"),
    "turn.started": ("The agent started to work on the message.", "agent_id? message_id?"),
    "turn.waiting": ("The turn waits for people.", "approvals:array"),
    "turn.resumed": ("The turn continues.", ""),
    "step.started": ("A model is called.", "step:integer attempt:integer"),
    "step.superseded": ("The deltas of this attempt are void; another one follows.", "step:integer attempt:integer"),
    "text.delta": ("A piece of the answer.", "step:integer attempt:integer text"),
    "reasoning.delta": ("A piece of what the model thinks.", "step:integer attempt:integer text"),
    "model.retry": ("The model failed and is called again.", "step:integer attempt:integer code wait_s:number"),
    "model.fallback": ("The next model is called.", "step:integer attempt:integer from to why message"),
    "message": ("A whole message of the agent.", "message_id role channel? content:string|null?"),
    "message.joined": ("A message joined the running turn.", "message_id content:string|null?"),
    "tool.call": ("The model calls a tool.", "step:integer call:integer call_id? tool? arguments:object?"),
    "tool.result": (
        "A tool call ended.",
        "step:integer call:integer call_id? tool? status? message_id:string|null? content:string|null?",
    ),
    "approval.requested": (
        "A person is asked.",
        "approval_id kind audience:string|null request:object expires_at:string|null",
    ),
    "approval.decided": ("A question was answered, expired or was withdrawn.", "approval_id status by"),
    "consent.granted": ("A standing answer was given.", "id agent_id subject expires_at:string|null by"),
    "consent.revoked": ("A standing answer was revoked.", "id by"),
    "memory.changed": (
        "A block changed.",
        "block_id label agent_id version:integer by deleted:boolean? repaired:boolean?",
    ),
    "memory.shared": (
        "A block was shared, or no longer is (`permission` null).",
        "block_id label agent_id with by permission:string|null",
    ),
    "archive.changed": ("An archive changed.", "agent_id entry_id supersedes? is_deleted:boolean?"),
    "history.imported": ("Past messages were imported.", "agent_id count:integer"),
    "history.compacted": (
        "Older messages left the prompt.",
        "agent_id messages:integer from to tokens_before:integer tokens_after:integer strategy summary_id"
        " is_stub:boolean",
    ),
    "images.removed": ("Images that no message shows were removed.", "images:integer bytes:integer"),
    "agent.created": ("An agent was created.", "agent_id name"),
    "agent.changed": ("An agent was updated.", "agent_id fields:array"),
    "agent.deleted": ("An agent was deleted.", "agent_id name"),
    "constellation.halted": ("An agent halted all work.", "id agent_id agent_name severity reason at"),
    "constellation.resumed": ("A person resumed the work.", "id by"),
    "turn.completed": ("The turn ended: it is done.", "status? joined?"),
    "turn.failed": ("The turn ended: it failed.", "status? error:object?"),
    "turn.cancelled": ("The turn ended: it was cancelled.", "status? error:object?"),
    "turn.interrupted": ("The turn ended: it was cut off too often or for too long.", "status? error:object?"),
    "turn.limit": ("The turn ended: it reached one of its limits.", "status? error:object?"),
    "turn.parked": ("Reserved: no turn ends like this at present.", "status? error:object?"),
}


def event_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas of all events: `Event`, by its `event`, and for each the data that is JSON within its text."""
    made: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for event, (words, fields) in EVENTS.items():
        name = event.title().replace(".", "")
        names[event] = f"{SCHEMA_PLACE}{name}Event"
        made[f"{name}Event"] = {
            "type": "object",
            "description": words,
            "properties": {
                "id": {"type": "string", "description": "The event's `seq`, for `Last-Event-ID`.", "examples": ["4"]},
                "event": {"type": "string", "const": event, "description": "What happened."},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": f"{SCHEMA_PLACE}{name}Data"},
                    "description": "The data, as one line of JSON.",
                },
            },
            "required": ["id", "event", "data"],
        }
        made[f"{name}Data"] = _data_schema(event, fields)
    choices = [{"$ref": place} for place in names.values()]
    made["Event"] = {
        "description": "A server-sent event.",
        "oneOf": choices,
        "discriminator": {"propertyName": "event", "mapping": names},
    }
    return made


def _data_schema(event: str, fields: str) -> dict[str, Any]:
    """Return the schema of an event's data, from its line in `EVENTS`."""
    properties: dict[str, Any] = {
        "seq": {"type": "integer"},
        "turn_id": {"type": ["string", "null"]},
        "created_at": {"type": "string"},
    }
    required = [*properties]
    for field in fields.split():
        name, _, kinds = field.removesuffix("?").partition(":")
        kind = kinds.split("|") if "|" in kinds else kinds or "string"
        properties[name] = {"type": kind, **({"items": {"type": "string"}} if kind == "array" else {})}
        if not field.endswith("?"):
            required.append(name)
    return {
        "type": "object",
        "description": f"The data of the event `{event}`.",
        "properties": properties,
        "required": required,
    }

"""Codepilot's files as rows: imports of their sessions, and exports. `pattern import codepilot` reads the files."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pattern_core.chat_files import export_chats, import_chats
from pattern_core.delta_files import LISTED_MAX
from pattern_server.http.bodies import RequestModel
from pattern_server.http.routes.chat import agent_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/codepilot", tags=["chat"])

Rows = list[dict[str, Any]]


class CodepilotImportRequest(RequestModel):
    """The rows of a file, by table, and its name. The sessions become those of the agent, by default of the oldest."""

    source: str
    tables: dict[str, Rows]
    agent: str | None = None


class CodepilotImported(BaseModel):
    """What an import did, by table. A conflict was imported before and differs now: nothing was overwritten."""

    agent: str
    added: dict[str, int]
    present: dict[str, int]
    conflicts: list[str]
    skipped: list[str]


class CodepilotTables(BaseModel):
    """The sessions of all agents and their messages as Codepilot has them, by table."""

    tables: dict[str, Rows]


@router.post("/import", response_model=CodepilotImported)
async def import_rows(body: CodepilotImportRequest, home: ToWrite) -> object:
    """Import the rows of a file of Codepilot: all of them in one transaction, each session once and under its id."""
    agent = await agent_of(home.constellation, body.agent)
    storage, author = home.constellation.storage, home.caller.author
    done = await import_chats(storage, agent.id, body.tables, source=body.source, author=author)
    return {
        "agent": agent.name,
        "added": done.added,
        "present": done.present,
        "conflicts": done.conflicts[:LISTED_MAX],
        "skipped": done.skipped[:LISTED_MAX],
    }


@router.get("/export", response_model=CodepilotTables)
async def export_rows(home: ToRead) -> object:
    """Export the sessions of all agents as rows of Codepilot's tables."""
    return {"tables": await export_chats(home.constellation.storage)}

"""The toolset of pi-lodestone, for programs that know its four tools. It is served alone, with texts as results. The
address names the workspace, by id, name or folder: `/mcp/home?toolset=lodestone&workspace=/srv/shop`.

Source: names, parameters, defaults and texts of pi-lodestone 0.2. Ids and decisions of other workspaces are found, too.
"""

from __future__ import annotations

from typing import Annotated

from pattern_core.decisions import Decision, NewDecision, cut
from pattern_core.errors import InvalidInput
from pattern_core.tools.tool import tool
from pattern_core.untrusted import masked
from pattern_server.http.toolsets.toolset import ServedCall, Toolset

LIMIT_DEFAULT, LIMIT_MAX = 5, 50
SNIPPET_UNITS = 220  # of UTF-16
IDS_MAX = 20
GET_DEFAULT, GET_MIN, GET_MAX = 10_000, 500, 50_000
CONTEXT_DEFAULT, CONTEXT_MIN, CONTEXT_MAX = 1_200, 500, 5_000
CUT = "\n… [cut]"


@tool(name="memory-search")
async def search(
    call: ServedCall,
    query: str,
    limit: Annotated[int, f"From 1 to {LIMIT_MAX}."] = LIMIT_DEFAULT,
    projectOnly: Annotated[bool, "Only decisions of this project."] = False,  # noqa: N803 - the parameter's name
) -> object:
    """Search decisions, preferences and workflows that were remembered."""
    _in_range("limit", limit, 1, LIMIT_MAX)
    workspace = await call.project()
    decisions = call.constellation.decisions
    found = await decisions.search(query, workspace, is_alone=projectOnly, cwd=_folder(call))
    texts = [
        f"{number}. {_heading(row)}\n   {_date(row)} · {row.project} · {row.source.value} · score {points}"
        f"\n   {cut(' '.join(row.text.split()), SNIPPET_UNITS, '…')}"
        for number, (points, row) in enumerate(found[:limit], start=1)
    ]
    return masked("\n\n".join(texts)) or "No matching memories."


@tool(name="memory-get")
async def get(
    call: ServedCall,
    ids: Annotated[list[str], f"At most {IDS_MAX}."],
    maxChars: Annotated[int, f"From {GET_MIN} to {GET_MAX}."] = GET_DEFAULT,  # noqa: N803 - the parameter's name
) -> object:
    """Show whole decisions, by the ids that a search found."""
    _in_range("maxChars", maxChars, GET_MIN, GET_MAX)
    _in_range("the number of ids", len(ids), 0, IDS_MAX)
    known = {row.id: _whole(row) for row in await call.constellation.decisions.some(ids)}
    found = [known[one] for one in ids if one in known]
    return cut(masked("\n---\n".join(found)), maxChars, CUT) or "No matching memory IDs."


@tool(name="memory-add")
async def add(
    call: ServedCall, title: str, text: str, tags: list[str] | None = None, important: bool = False
) -> object:
    """Remember a decision, a preference or a workflow of this project."""
    workspace = await call.project(is_written=True)
    new = NewDecision(title=title, text=text, tags=tags or (), important=important, cwd=_folder(call) or "")
    row, other = await call.constellation.decisions.add(workspace, new, author=call.caller.author)
    warning = "" if other is None else f"\nIt is similar to {_heading(other)}"
    return f"Remembered [{row.id}] {row.title}{warning}"


@tool(name="memory-project-context")
async def project_context(
    call: ServedCall,
    maxChars: Annotated[int, f"From {CONTEXT_MIN} to {CONTEXT_MAX}."] = CONTEXT_DEFAULT,  # noqa: N803 - as above
) -> object:
    """Show what is always worth knowing about this project."""
    _in_range("maxChars", maxChars, CONTEXT_MIN, CONTEXT_MAX)
    workspace = await call.project()
    if not workspace:
        return "No project is known here yet."
    found = await call.constellation.workspaces.find(workspace)
    rows = await call.constellation.decisions.known(workspace, archived=False)
    current = [row for row in reversed(rows) if row.superseded_by is None]
    lines = [f"# {found.name}", *(f"- {root}" for root in found.roots)]
    for heading, is_important in (("Pinned decisions", True), ("Newest decisions", False)):
        listed = [row for row in current if row.important is is_important]
        lines += [f"\n## {heading}"] * bool(listed)
        for row in listed:
            warning = f" (in conflict with {', '.join(row.conflicts_with)})" if row.conflicts_with else ""
            lines.append(f"- {_heading(row)} — {_date(row)}{warning}")
    return cut(masked("\n".join(lines)), maxChars, CUT)


def _folder(call: ServedCall) -> str | None:
    return call.workspace if call.workspace.startswith("/") else None


def _in_range(name: str, given: int, least: int, most: int) -> None:
    if not least <= given <= most:
        raise InvalidInput(f"{name} is a whole number from {least} to {most}, not {given}")


def _heading(row: Decision) -> str:
    return f"[{row.id}] {'★ ' * row.important}{row.title}"


def _date(row: Decision) -> str:
    return (row.created_at or "no date")[:10]


def _whole(row: Decision) -> str:
    place = [row.created_at or "no date", row.project, row.cwd, row.source.value, *["archived"] * row.archived]
    said = {
        "Tags": ", ".join(row.tags),
        "KB": row.kb_path,
        "Superseded by": row.superseded_by,
        "Supersedes": ", ".join(row.supersedes),
        "Conflicts with": ", ".join(row.conflicts_with),
    }
    lines = [f"{name}: {one}" for name, one in said.items() if one]
    return "\n".join([_heading(row), " · ".join(place), *lines, row.text])


TOOLS: Toolset = {"read": (search, get, project_context), "write": (add,)}

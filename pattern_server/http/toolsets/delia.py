"""The toolset of Delia, for programs that know its six tools. It is served alone, with objects as results. The address
names the workspace, by id, name or folder: `/mcp/home?toolset=delia&workspace=/srv/shop`.

Source: names, parameters and results of Delia (2025-12-27). It learns when a person has accepted what it was given.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Literal

import trio

from pattern_core.delia import CORE, Delia
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.guidance import DAY_MS, LIVING, SECTION, Advice, NewGuidance, advice
from pattern_core.guidance_quality import PROJECT, band, detect, likeness
from pattern_core.tools.tool import tool
from pattern_core.untrusted import masked
from pattern_db.columns import unix_ms
from pattern_db.enums import GuidanceState, GuidanceVerdict
from pattern_server.http.toolsets.toolset import ServedCall, Toolset

HALF_LIFE_DAYS = 30
KEYWORDS_SHOWN_MAX = 10
LIMIT_MAX = 50
SNAPSHOT = "memories/task_snapshot.md"
SUFFIXES = {"python": (".py",), "typescript": (".ts", ".tsx"), "javascript": (".js", ".jsx"), "rust": (".rs",)}
Ids = Annotated[str, 'Ids of bullets: `["gd_…"]`, or with commas between.']
Lines = Annotated[str | None, "A list, one a line."]


@tool()
async def auto_context(
    call: ServedCall,
    message: Annotated[str, "What is to be done."],
    prior_context: Annotated[str | None, "What was said before."] = None,
    working_files: Annotated[str | None, "Paths of files, with commas between."] = None,
    code_snippet: str | None = None,
) -> object:
    """Find what helped before with this type of task in this project: bullets of playbooks, and profiles."""
    delia = await _opened(call)
    words, storage = "\n".join(text for text in (message, prior_context) if text), call.constellation.storage
    task, files = detect(words), re.split(r"[\s,]+", working_files or "")
    is_noted = "write" in call.caller.scopes
    rows = await (storage.database.write if is_noted else storage.database.read)(
        advice,
        delia.workspace,
        [task.primary, *task.secondary, PROJECT],
        author=delia.author if is_noted else None,
        turn=_run(call, message),
        now=storage.now(),
    )
    languages = [name for name, ends in SUFFIXES.items() if any(file.endswith(ends) for file in files)]
    known = {*re.findall(r"\w+", f"{words} {code_snippet or ''}".casefold()), *languages, task.primary}
    texts = await _documents(delia, "profiles")
    shown = [name for name in texts if name == "core.md" or name.removesuffix(".md").casefold() in known]
    now_ms = call.server.runtime.clock.now_ms()
    return {
        "system_time": storage.now(),
        "detected_context": {
            "primary_task": task.primary,
            "secondary_tasks": task.secondary,
            "confidence": task.confidence,
            "matched_keywords": [word for hits in task.matched.values() for word in hits][:KEYWORDS_SHOWN_MAX],
            "detected_language": next(iter(languages), None),
        },
        "bullets": [_scored(row, words, now_ms, is_primary=row.task_type == task.primary) for row in rows],
        "bullet_ids": [row.id for row in rows],
        "profiles": [{"name": name, "content": texts[name]} for name in shown],
        "other_available_profiles": [name for name in texts if name not in shown],
    }


@tool()
async def complete_task(
    call: ServedCall,
    success: bool,
    bullets_applied: Ids,
    task_summary: Annotated[str | None, "What was done."] = None,
    failure_reason: str | None = None,
    new_insight: Annotated[str | None, "Advice for the next time; a person has to accept it."] = None,
    bullets_harmful: Annotated[str, "Ids of those that did harm."] = "",
) -> object:
    """Say how a task ended, and which bullets were applied. One task counts once."""
    delia = await _opened(call, is_written=True)
    applied, harmful = _ids(bullets_applied), _ids(bullets_harmful)
    said = GuidanceVerdict.HELPFUL if success else GuidanceVerdict.USED
    verdicts = {**dict.fromkeys(applied, said), **dict.fromkeys(harmful, GuidanceVerdict.HARMFUL)}
    run, note = _run(call, task_summary or ""), failure_reason or task_summary
    rated = await delia.constellation.guidance.rate(
        verdicts, author=delia.author, turn=run, note=None if note is None else note[:500]
    )
    done: dict[str, object] = {
        "system_time": call.constellation.storage.now(),
        "status": "completed",
        "success": success,
        "feedback_recorded": [
            {"bullet_id": row.id, "task_type": row.task_type, "marked": verdicts[row.id].value} for row in rated
        ],
        "bullets_updated": len(rated),
        "unknown_bullets": [one for one in verdicts if one not in {row.id for row in rated}],
    }
    if not new_insight:
        return done
    kind = rated[0].task_type if rated else detect(f"{task_summary or ''} {new_insight}").primary
    try:
        new = NewGuidance(content=new_insight, task_type=kind, section="learned_strategies", source_task=kind)
        row, is_new = await _added(delia, new, run)
    except InvalidInput as error:
        return {**done, "new_bullet_added": False, "rejection_reason": error.message}
    return {**done, "new_bullet_added": is_new, "bullet_id": row.id, "similar_bullet_exists": not is_new}


@tool()
async def playbook(
    call: ServedCall,
    action: Literal["add", "delete", "prune", "list", "stats", "search"],
    task_type: Annotated[str | None, "Such as coding, testing, git or project."] = None,
    content: Annotated[str | None, "Of action add: 10 to 500 characters."] = None,
    section: str | None = None,
    bullet_id: Annotated[str | None, "Of action delete, which archives it."] = None,
    query: Annotated[str | None, "Of action search."] = None,
    limit: Annotated[int, f"From 1 to {LIMIT_MAX}."] = 5,
) -> object:
    """Manage playbooks. What is added waits for a person; prune only lists what a person should archive."""
    delia, guidance = await _opened(call, is_written=action == "add"), call.constellation.guidance
    match action:
        case "add":
            new = NewGuidance(content=content or "", task_type=task_type or PROJECT, section=section or SECTION)
            row, is_new = await _added(delia, new, "")
            if not is_new:
                return {"status": "duplicate_prevented", "existing_bullet_id": row.id}
            shown = {name: getattr(row, name) for name in ("id", "content", "section", "task_type")}
            return {"status": "added", "bullet": shown}
        case "delete":
            row, _ = await guidance.get(bullet_id or "")
            if row.workspace != delia.workspace:
                raise NotFound(f"there is no bullet {bullet_id!r} in this project")
            await guidance.decide(row.id, GuidanceState.ARCHIVED, author=delia.author)
            return {"status": "deleted", "bullet_id": row.id}
        case "prune":
            queue = await guidance.queue(delia.workspace)
            return {
                "to_archive": [{"id": row.id, "reason": why} for row, why in queue if row.state is GuidanceState.ACTIVE]
            }
    rows = await guidance.select(delia.workspace, LIVING, task_types=None if task_type is None else [task_type])
    if action == "list" and task_type is None:
        return {"playbooks": Counter(sorted(row.task_type for row in rows)), "total": len(rows)}
    if action == "stats":
        scores = [row.utility_score for row in rows]
        bands, average = Counter(map(band, scores)), round(sum(scores) / max(1, len(scores)), 4)
        about = {"high_utility": bands["high"], "low_utility": bands["low"]}
        return {"total_bullets": len(rows), "avg_utility": average, **about}
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput(f"limit is a whole number from 1 to {LIMIT_MAX}, not {limit}")
    now_ms = call.server.runtime.clock.now_ms()

    def scored() -> list[dict[str, object]]:
        found = [{**_scored(row, query or "", now_ms), "section": row.section, "state": row.state} for row in rows]
        return sorted(found, key=lambda one: -float(str(one["final_score"]))) if query else found

    found = await trio.to_thread.run_sync(scored)
    return {"query": query, "task_type": task_type, "results": found[:limit], "count": min(len(found), limit)}


@tool()
async def memory(
    call: ServedCall,
    action: Literal["list", "read", "write", "delete", "search"],
    name: Annotated[str | None, "Such as architecture."] = None,
    content: Annotated[str | None, "Markdown, of action write."] = None,
    append: Annotated[bool, "Whether it is added at the end."] = False,
    query: Annotated[str | None, "Words, of action search."] = None,
) -> object:
    """Manage memories: texts about this project."""
    delia = await _opened(call, is_written=action == "write")
    texts = await _documents(delia, "memories")
    file = f"{(name or '').removesuffix('.md')}.md"
    if action in ("read", "delete") and file not in texts:
        raise NotFound(f"Memory {name!r} not found")
    match action:
        case "list":
            return {"memories": [one.removesuffix(".md") for one in texts], "count": len(texts)}
        case "read":
            return {"name": name, "content": texts[file]}
        case "write":
            before = f"{texts[file].rstrip()}\n\n" if append and file in texts else ""
            await delia.put(f"memories/{file}", f"{before}{content or ''}")
            return {"status": "written", "name": name}
        case "delete":
            folder, _ = (await delia.documents())[f"memories/{file}"]
            await call.constellation.folders.delete_file(folder, f"memories/{file}")
            return {"status": "deleted", "name": name}
    words = (query or "").casefold().split()
    hits = [one for one, text in texts.items() if words and all(word in f"{one}\n{text}".casefold() for word in words)]
    return {"query": query, "results": [{"name": one.removesuffix(".md"), "content": texts[one]} for one in hits]}


@tool()
async def profiles(
    call: ServedCall, name: Annotated[str | None, "Such as core.md; without, all are listed."] = None
) -> object:
    """Show a profile: guidance for a framework or a subject in this project. `core.md` is for everyone."""
    texts = await _documents(await _opened(call), "profiles")
    if name is None:
        return {"profiles": [*texts]}
    if name not in texts:
        raise NotFound(f"Profile {name!r} not found; there are {', '.join(texts) or 'none'}")
    return {"name": name, "content": texts[name]}


@tool()
async def snapshot_context(
    call: ServedCall,
    task_summary: str,
    pending_items: Lines,
    key_decisions: Lines = None,
    files_modified: Lines = None,
    next_steps: Lines = None,
) -> object:
    """Store the state of a task, for a new conversation, in the memory `task_snapshot`."""
    delia = await _opened(call, is_written=True)
    given = {"Pending": pending_items, "Decisions": key_decisions, "Files": files_modified, "Next steps": next_steps}
    parts = [f"## {title}\n{text.strip()}" for title, text in given.items() if text]
    await delia.put(SNAPSHOT, "\n\n".join([f"# Task snapshot\n{task_summary}", *parts]) + "\n")
    return {"status": "written", "name": "task_snapshot"}


async def _opened(call: ServedCall, *, is_written: bool = False) -> Delia:
    settings = call.server.config.embeddings
    workspace = await call.project(is_written=is_written)
    return Delia(call.constellation, workspace, call.caller.author, settings.model or settings.provider)


async def _documents(delia: Delia, kind: str) -> dict[str, str]:
    """Return the names and texts of profiles, or of memories."""
    found = await delia.documents()
    return {path.partition("/")[2]: masked(text) for path, (_, text) in found.items() if path.startswith(f"{kind}/")}


async def _added(delia: Delia, new: NewGuidance, run: str) -> tuple[Advice, bool]:
    _, profile = (await delia.documents()).get(CORE, ("", ""))
    return await delia.constellation.guidance.add(delia.workspace, new, author=delia.author, turn=run, profile=profile)


def _run(call: ServedCall, task: str) -> str:
    """Return what stands for a turn: a task in a session of the protocol."""
    return f"mcp:{blake2b(f'{call.session}/{task}'.encode(), digest_size=8).hexdigest()}"


def _scored(row: Advice, words: str, now_ms: int, *, is_primary: bool = True) -> dict[str, object]:
    """Return a bullet with how well it fits: how alike the words are, what feedback says, and how recent it is."""
    days = (now_ms - unix_ms(row.last_used_at or row.created_at)) / DAY_MS
    relevance, recency = likeness(row.content, words, 0.0), 0.5 ** (days / HALF_LIFE_DAYS)
    return {
        "id": row.id,
        "task_type": row.task_type,
        "content": masked(row.content),
        "relevance_score": round(relevance, 4),
        "utility_score": round(row.utility_score, 4),
        "recency_score": round(recency, 4),
        "final_score": round(relevance * row.rank**0.5 * recency**0.3, 4),
        "is_primary": is_primary,
    }


def _ids(given: str) -> Sequence[str]:
    """Return the ids in a list of JSON, or between commas."""
    try:
        found = json.loads(given)
    except ValueError:
        found = given.split(",")
    return [one for each in (found if isinstance(found, list) else [found]) if (one := str(each).strip())]


TOOLS: Toolset = {
    "read": [auto_context, profiles],
    "write": [complete_task, playbook, memory, snapshot_context],
}

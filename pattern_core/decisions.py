"""Decisions: what was decided about the project of a workspace, kept for anyone who works on it next.

A decision can supersede others, and be in conflict with some. Secrets are masked before anything is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import trio

from pattern_core.decision_ranking import DecisionIndex, DecisionQuestion, ranked, similar, tokens_of
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_core.untrusted import masked
from pattern_db.columns import unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import DecisionLinkKind
from pattern_db.tables import decisions
from pattern_db.tables.decisions import DecisionLink, DecisionRow

TITLE_UNITS_MAX, TEXT_UNITS_MAX = 500, 4_000  # of UTF-16
TAGS_MAX, TAG_CHARS_MAX = 32, 100
CHANGED = "decision.changed"
PATCHABLE = (
    *("archived", "confidence", "decision_key", "details", "freshness", "important", "kb_path", "scope", "summary"),
    *("tags", "text", "title"),
)
LINKED = {"supersedes": DecisionLinkKind.SUPERSEDES, "conflicts_with": DecisionLinkKind.CONFLICTS}
VALUES: Mapping[str, frozenset[str]] = {
    "scope": frozenset({"global", "project", "repo", "host", "tool", "workflow", "model", "engagement"}),
    "confidence": frozenset({"high", "medium", "low"}),
    "freshness": frozenset({"current", "may_be_stale", "stale"}),
}

# What the seed hides, in its words; `masked` knows the formats of vendors.
_SECRET = "(?:TOKEN|SECRET|PASSWORD|API[_-]?KEY)"
_HIDDEN = (
    (re.compile(r"<private>.*?(?:</private>|\Z)", re.IGNORECASE | re.DOTALL), "[private omitted]"),
    (re.compile(rf"\b(\w{{0,60}}{_SECRET}\w{{0,60}}=)[^\s\"',;]+", re.IGNORECASE), r"\1[redacted]"),
    (re.compile(rf"""(["']\w{{0,60}}{_SECRET}["']\s*:\s*["'])[^"']+""", re.IGNORECASE), r"\1[redacted]"),
    (re.compile(r"\b(Bearer )(?!\[)[^\s\"',;]+"), r"\1[redacted]"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"), "sk-[redacted]"),
)
_TAGGED = {
    "decision": re.compile(r"\b(?:decided|decision|agreed|chose|choose)\b", re.IGNORECASE),
    "preference": re.compile(r"\b(?:prefers?|preferred|preference|always|never)\b", re.IGNORECASE),
    "workflow": re.compile(r"\b(?:workflow|process|procedure|steps|checklist)\b", re.IGNORECASE),
    "bugfix": re.compile(r"\b(?:bug|bugfix|fixed|regression|root cause)\b", re.IGNORECASE),
    "implementation": re.compile(r"\b(?:implemented|implementation|refactored|migrated)\b", re.IGNORECASE),
}

Decision = DecisionRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDecision:
    """A decision to add. `cwd` is the folder in which its author works, if any."""

    title: str
    text: str
    tags: Sequence[str] = ()
    important: bool = False
    cwd: str = ""


class Decisions:
    """The decisions of one constellation."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.on_new: Callable[[UnitOfWork], None] = lambda _work: None  # `_work` has a new decision

    async def known(self, workspace: str | None, **page: Any) -> list[Decision]:
        """Return the decisions of a workspace (its id), or of all, in the order of storing; with the arguments of
        `decisions.of_workspace` a page of them.
        """
        return await self._storage.database.read(decisions.of_workspace, workspace, **page)

    async def some(self, ids: Sequence[str]) -> list[Decision]:
        """Return the decisions with these ids."""
        return await self._storage.database.read(decisions.some, ids)

    async def search(
        self, query: str, workspace: str, *, is_alone: bool, cwd: str | None
    ) -> list[tuple[int, Decision]]:
        """Return the decisions of all workspaces, or of one `is_alone`, that fit a query from a folder of a workspace
        (its id), the best first.
        """
        read, within = self._storage.database.read, workspace if is_alone else None
        rows, words = await self.known(within), await read(decisions.words, within)
        now_ms = unix_ms(self._storage.now())

        def found() -> list[tuple[int, Decision]]:
            index = DecisionIndex(words)
            return ranked(rows, DecisionQuestion(tokens_of(query), now_ms, workspace=workspace, cwd=cwd, index=index))

        return await trio.to_thread.run_sync(found)

    async def get(self, decision_id: str) -> Decision:
        """Return a decision.

        Raises:
            NotFound: there is none.
        """
        for row in await self.some([decision_id]):
            return row
        raise NotFound(f"there is no decision {decision_id!r}; `pattern decisions list` shows all")

    async def add(self, workspace: str, new: NewDecision, *, author: str) -> tuple[Decision, Decision | None]:
        """Add a decision; return it, and one that says nearly the same, if any.

        Raises:
            InvalidInput: the title is empty, or there are too many tags.
            Conflict: there are too many decisions.
        """
        title, text = cut(sanitized(new.title), TITLE_UNITS_MAX), cut(sanitized(new.text), TEXT_UNITS_MAX)
        if not title:
            raise InvalidInput("a decision needs a title")
        now = self._storage.now()
        row = Decision(
            id=self._storage.ids.new("dec"),
            workspace=workspace,
            title=title,
            text=text,
            created_at=now,
            updated_at=now,
            changed_by=author,
            cwd=new.cwd,
            project=PurePosixPath(project_root(new.cwd)).name,
            tags=inferred_tags(title, text, _checked(new.tags)),
            important=new.important,
        )
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(decisions.add, [row])
            self.on_new(work)
            work.event(CHANGED, {"decision_id": row.id, "workspace_id": workspace, "by": author})
        others = [one for one in await self.known(workspace) if one.id != row.id]
        return row, await trio.to_thread.run_sync(similar, title, text, others)

    async def change(self, workspace: str, decision_id: str, changes: Mapping[str, Any], *, author: str) -> Decision:
        """Store the given fields of a decision of a workspace, of those in `PATCHABLE`; and all ids of others in the
        workspace that it `supersedes`, or that `conflicts_with` it.

        Raises:
            NotFound: there is none.
            InvalidInput: a field is unknown or has an invalid value.
            Conflict: a decision would supersede itself by way of others, or there are too many links.
        """
        linked = {kind: [*changes[name]] for name, kind in LINKED.items() if name in changes}
        if unknown := {*changes} - {*PATCHABLE, *LINKED}:
            raise InvalidInput(f"{min(unknown)!r} of a decision cannot be changed; can be: {', '.join(PATCHABLE)}")
        for name, allowed in VALUES.items():
            if changes.get(name) is not None and changes[name] not in allowed:
                raise InvalidInput(f"`{name}` is one of {', '.join(sorted(allowed))}, not {changes[name]!r}")
        clean = {name: _clean(value) for name, value in changes.items() if name not in LINKED}
        if "tags" in clean:
            clean["tags"] = _checked(clean["tags"])
        if clean.get("title") == "":
            raise InvalidInput("a decision needs a title")
        clean |= {"updated_at": self._storage.now(), "changed_by": author}

        def store(connection: Connection) -> None:
            ids = [decision_id, *(one for others in linked.values() for one in others)]
            here = {row.id for row in decisions.some(connection, ids) if row.workspace == workspace}
            if missing := [one for one in ids if one not in here]:
                raise NotFound(f"there is no decision {missing[0]!r} in this workspace")
            decisions.change(connection, decision_id, clean)
            links = {
                link
                for link in decisions.links(connection, workspace)
                if link.kind not in linked or decision_id not in link[: 1 + (link.kind is DecisionLinkKind.CONFLICTS)]
            }
            links |= {DecisionLink(decision_id, other, kind) for kind, others in linked.items() for other in others}
            decisions.set_links(connection, workspace, links)

        async with given_or_alone(None, self._storage.commit) as work:
            work.store(store)
            work.event(CHANGED, {"decision_id": decision_id, "workspace_id": workspace, "by": author})
        return await self.get(decision_id)


def sanitized(text: str) -> str:
    """Return the text without secrets and what is marked as private, and without blanks at its ends."""
    for pattern, instead in _HIDDEN:
        text = pattern.sub(instead, text)
    return masked(text).strip()


def inferred_tags(title: str, text: str, tags: Sequence[str]) -> list[str]:
    """Return the tags and those that the words suggest, sorted, each once."""
    words = " ".join((title, text, *tags))
    return sorted({*tags, *(tag for tag, pattern in _TAGGED.items() if pattern.search(words))})


def project_root(cwd: str) -> str:
    """Return the first folder below a part of the path that is named `repos`, else the path itself."""
    parts = PurePosixPath(cwd).parts
    below = next((at + 2 for at, part in enumerate(parts[:-1]) if part.lower() == "repos"), len(parts))
    return str(PurePosixPath(*parts[:below])) if parts else ""


def cut(text: str, units: int, end: str = "") -> str:
    """Return at most so many units of UTF-16 of a text, as other programs count, and `end` if it was longer; no
    character is cut in two.
    """
    encoded = text.encode("utf-16-le", "surrogatepass")
    return text if len(encoded) <= 2 * units else encoded[: 2 * units].decode("utf-16-le", "ignore") + end


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return cut(sanitized(value), TEXT_UNITS_MAX)
    return [sanitized(one) for one in value] if isinstance(value, list | tuple) else value


def _checked(tags: Sequence[str]) -> list[str]:
    clean = [one for one in map(sanitized, tags) if one]
    if len(clean) > TAGS_MAX or any(len(one) > TAG_CHARS_MAX for one in clean):
        raise InvalidInput(f"a decision has at most {TAGS_MAX} tags of at most {TAG_CHARS_MAX} characters")
    return clean

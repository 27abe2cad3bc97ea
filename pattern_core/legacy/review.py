"""The review of archives of version 1 and 2: memories were their owner's then, not an agent's, so some are of the wrong
one, or of none.

Each issue has an id that depends only on the archive, so that a file of resolutions can name it. Without a resolution
only what is safe is done: nothing is deleted or given to another agent, and what belongs to no agent is left out.
Source: the kinds of issues, how they are found, and the actions are those of the original's plan of its migration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from pattern_core.errors import InvalidInput
from pattern_core.legacy.archive import Old, Record
from pattern_db.columns import to_json, unix_ms

Action: TypeAlias = Literal["assign_to", "delete", "merge_with", "split", "keep_both", "manual_edit", "skip"]
Severity: TypeAlias = Literal["critical", "warning", "info"]
EVIDENCE_CHARS_MAX = 200
DAY_MS = 24 * 60 * 60 * 1000
SHARED_LABELS = ("persona", "human")  # every agent has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """One issue: what it is about (`affected` are ids), why, and the sensible actions, the suggested one first. `safe`
    is done without a resolution; None: nothing is. `agent` is the name of the one that the evidence speaks for.
    """

    id: str
    type: str
    severity: Severity
    evidence: str
    affected: tuple[str, ...]
    actions: tuple[Action, ...]
    safe: Action | None
    agent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A decision about an issue. `target_agent` (id or name) is whom to assign to, `target` the id of the memory to
    merge with, to delete, or to assign; `new_content` replaces its text, and `parts` are texts that it is split into.
    """

    issue_id: str
    action: Action
    target_agent: str | None = None
    target: str | None = None
    new_content: str | None = None
    parts: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What was found and decided. `resolved` counts the issues with a resolution, or with something safe to do."""

    found: int = 0
    resolved: int = 0
    decisions: Sequence[Mapping[str, Any]] = ()


def review(old: Old, resolutions: Sequence[Resolution], now: str) -> Review:
    """Change what an archive of version 1 or 2 holds by the resolutions; of others nothing has to be decided.

    Raises:
        InvalidInput: a resolution is of no issue, or lacks what its action needs. Nothing was changed.
    """
    issues = issues_of(old, now)
    chosen = {one.issue_id: one for one in resolutions}
    if unknown := sorted(chosen.keys() - {issue.id for issue in issues}):
        raise InvalidInput(f"the archive has no issue {unknown[0]!r}; `pattern import --analyze-only` lists its issues")
    decisions: list[Mapping[str, Any]] = []
    for issue in issues:
        resolution = chosen.get(issue.id)
        if resolution is not None:
            _Change(old, issue, resolution).make()
        elif issue.safe is None and issue.type.startswith("Orphaned"):
            _remove(old, issue.affected)
        action = resolution.action if resolution else issue.safe
        by = "resolution" if resolution else "default" if action else "nobody"
        about = {key: value for key, value in asdict(issue).items() if key not in ("id", "type", "safe")}
        named = {"kind": issue.type, "name": issue.id, "decision": action or "undecided", "decided_by": by}
        decisions.append({**named, **about})
    resolved = sum(one["decision"] != "undecided" for one in decisions)
    return Review(found=len(issues), resolved=resolved, decisions=decisions)


def issues_of(old: Old, now: str) -> list[Issue]:
    """Return what has to be decided about an archive; nothing of versions in which memories belong to agents."""
    return list(_issues(old, now)) if old.version in (1, 2) else []


def _issues(old: Old, now: str) -> Iterator[Issue]:
    names = {agent["id"]: str(agent["name"]) for agent in old.agents}
    only = next(iter(names.values())) if len(names) == 1 else None
    yield from _duplicates(old, names)
    for block in old.blocks:
        if block["label"] == "persona":
            yield from _personas(block, names)
    for record in (*old.blocks, *old.entries):
        text = record["content_preview"]
        if record["agent_id"] not in names:
            evidence = (
                f"the memory {record['label']!r} is of {record['agent_id']!r}, which is not in the archive: {text}"
            )
            yield _issue("OrphanedMemory", "warning", evidence, [record["id"]], ("assign_to", "delete"), agent=only)
        if not isinstance(text, str) or "\0" in text or "\ufffd" in text:
            evidence = f"the text of the memory {record['label']!r} is damaged: {text}"
            yield _issue("CorruptContent", "warning", evidence, [record["id"]], ("manual_edit", "delete", "skip"))
    orphans: dict[str, list[str]] = {}
    for message in old.messages:
        if message["agent_id"] not in names:
            orphans.setdefault(message["agent_id"], []).append(message["id"])
    for agent, ids in orphans.items():
        evidence = f"{len(ids)} messages are of {agent!r}, which is not in the archive"
        yield _issue("OrphanedMessage", "warning", evidence, ids, ("assign_to", "delete"), agent=only)
    for what, records in (
        ("agents", old.agents),
        ("memories", [*old.blocks, *old.entries]),
        ("messages", old.messages),
    ):
        if odd := [one["id"] for one in records if _is_anomalous(one, now)]:
            evidence = f"{len(odd)} {what} have times that are missing, in the future or in the wrong order"
            yield _issue("TimestampAnomaly", "info", evidence, odd, ("skip",), "skip")


def _duplicates(old: Old, names: Mapping[str, str]) -> Iterator[Issue]:
    by_label: dict[str, list[Record]] = {}
    for block in old.blocks:
        by_label.setdefault(block["label"], []).append(block)
    for label, blocks in by_label.items():
        owners = [block["agent_id"] for block in blocks]
        is_own = len(set(owners)) < len(owners)
        if len(blocks) > 1 and (is_own or label not in SHARED_LABELS):
            said = "; ".join(f"{names.get(one['agent_id'])}: {one['content_preview']}" for one in blocks)
            ids, actions = [one["id"] for one in blocks], ("keep_both", "merge_with", "delete", "assign_to")
            severity: Severity = "warning" if is_own else "info"
            yield _issue(
                "DuplicateLabel", severity, f"{len(ids)} memories {label!r}: {said}", ids, actions, "keep_both"
            )


def _personas(block: Record, names: Mapping[str, str]) -> Iterator[Issue]:
    """Yield what speaks for the persona being another agent's."""
    text, own = str(block["content_preview"]), names.get(block["agent_id"], "")
    others = [name for key, name in names.items() if key != block["agent_id"] and _mentions(text, name)]
    if others and own:
        actions: tuple[Action, ...] = ("assign_to", "delete", "manual_edit", "skip")
        evidence = f"the persona of {own} names {', '.join(others)}: {text}"
        if not _mentions(text, own):
            yield _issue("CrossContamination", "critical", evidence, [block["id"]], actions, agent=others[0])
        elif "I am" in text:
            yield _issue("SuspiciousAttribution", "warning", evidence, [block["id"]], ("skip", *actions[:-1]))


def _mentions(text: str, name: str) -> bool:
    return bool(name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None


def _issue(
    kind: str,
    severity: Severity,
    evidence: str,
    affected: Sequence[str],
    actions: Sequence[Action] | Any,
    safe: Action | None = None,
    agent: str | None = None,
) -> Issue:
    digest = blake2b(to_json([kind, *sorted(affected)]).encode(), digest_size=4).hexdigest()
    if len(evidence) > EVIDENCE_CHARS_MAX:
        evidence = evidence[: EVIDENCE_CHARS_MAX - 1] + "…"
    return Issue(
        id=f"{kind}-{digest}", type=kind, severity=severity, evidence=evidence, affected=tuple(affected),
        actions=tuple(actions), safe=safe, agent=agent,
    )  # fmt: skip


def _is_anomalous(record: Record, now: str) -> bool:
    try:
        made = unix_ms(str(record.get("created_at")))
        return made > unix_ms(now) + DAY_MS or unix_ms(str(record.get("updated_at") or record["created_at"])) < made
    except ValueError:
        return True


def _remove(old: Old, ids: Sequence[str]) -> None:
    gone = set(ids)
    for records in (old.blocks, old.entries, old.messages):
        records[:] = [one for one in records if one["id"] not in gone]
    old.shares[:] = [one for one in old.shares if one["block_id"] not in gone]


@dataclass(frozen=True, slots=True)
class _Change:
    """A resolution of an issue, and what it is made in."""

    old: Old
    issue: Issue
    by: Resolution

    def make(self) -> None:
        """Do what was decided."""
        records = [
            one for one in (*self.old.blocks, *self.old.entries, *self.old.messages) if one["id"] in self._meant()
        ]
        match self.by.action:
            case "assign_to":
                agent = self._agent()
                for record in records:
                    record["agent_id"] = agent
            case "delete":
                is_double = self.issue.type == "DuplicateLabel" and self.by.target is None
                _remove(self.old, self.issue.affected[1:] if is_double else self._meant())
            case "merge_with":
                self._merge()
            case "split":
                self._split(records)
            case "manual_edit":
                if self.by.new_content is None:
                    raise self._invalid("needs `new_content`")
                self._set_text(records[0], self.by.new_content)

    def _meant(self) -> Sequence[str]:
        if self.by.target is None:
            return self.issue.affected
        if self.by.target not in self.issue.affected:
            raise self._invalid(f"`target` is one of {', '.join(self.issue.affected)}")
        return [self.by.target]

    def _agent(self) -> str:
        for agent in self.old.agents:
            if self.by.target_agent in (agent["id"], agent["name"]):
                return str(agent["id"])
        raise self._invalid(f"there is no agent {self.by.target_agent!r} in the archive; set `target_agent`")

    def _merge(self) -> None:
        """Append the other texts to the target's; the others' agents share it then."""
        [kept_id, *_] = self._meant()
        blocks = [one for one in self.old.blocks if one["id"] in self.issue.affected]
        kept = next((one for one in blocks if one["id"] == kept_id), None)
        if kept is None or len(blocks) < 2:
            raise self._invalid("there is nothing to merge")
        others = [one for one in blocks if one is not kept]
        self._set_text(kept, "\n\n".join(dict.fromkeys(str(one["content_preview"]) for one in (kept, *others))))
        for agent in {one["agent_id"] for one in others} - {kept["agent_id"]}:
            share = {"block_id": kept["id"], "agent_id": agent, "permission": kept.get("permission")}
            self.old.shares.append({**share, "attached_at": kept.get("created_at")})
        _remove(self.old, [one["id"] for one in others])

    def _split(self, records: Sequence[Record]) -> None:
        if not self.by.parts or len(records) != 1:
            raise self._invalid("needs `parts`, and one memory as `target`")
        first, *rest = self.by.parts
        where = self.old.blocks if records[0] in self.old.blocks else self.old.entries
        for number, text in enumerate(rest, 2):
            where.append({**records[0], "id": f"{records[0]['id']}:{number}"})
            self._set_text(where[-1], text)
        self._set_text(records[0], first)

    @staticmethod
    def _set_text(record: Record, text: str) -> None:
        record["content_preview"] = text
        if "content" in record:
            record["content"] = text

    def _invalid(self, why: str) -> InvalidInput:
        return InvalidInput(f"the resolution of {self.issue.id}, {self.by.action}: {why}")

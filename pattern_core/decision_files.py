"""Files of decisions in and out: JSON objects, one a line. What was not changed here is written again byte by byte.

An import is one transaction. A line that cannot be read is kept where it is, and reported. A record that was changed
only in the file is changed here too; one that was changed here and there is listed, and stays as it is here.

Source of the format: `decisions.jsonl` of pi-lodestone 0.2, with its later fields.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from pattern_core.decisions import VALUES, Decision, sanitized
from pattern_core.delta_files import FileImport
from pattern_core.errors import InvalidInput
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db.columns import strict_json, time_in, to_json
from pattern_db.connection import Connection
from pattern_db.enums import DecisionLinkKind, DecisionSource
from pattern_db.tables import decisions, imports
from pattern_db.tables.decisions import DecisionLine, DecisionLink

ID_CHARS_MAX = 200
COUNT_MAX = 2**53
KIND = "decisions"  # in the counts of an import
Record = Mapping[str, Any]
# The keys of a record in the order of one that is made here, with our names.
_NAMES = """id created_at updated_at cwd project project_id source title text tags important archived kb_path
source_turn_id retrieval_count injection_count last_retrieved_at last_injected_at scope decision_key summary details
confidence freshness supersedes superseded_by conflicts_with"""
_KEYS = {
    re.sub("_(.)", lambda found: found[1].upper(), name.removeprefix("decision_")): name for name in _NAMES.split()
}
_LINKED = ("supersedes", "supersededBy", "conflictsWith")
_TIMES, _LISTS, _FLAGS = {"createdAt", "updatedAt"}, {"tags", "details"}, {"important", "archived"}
_USE = {"retrievalCount", "injectionCount", "lastRetrievedAt", "lastInjectedAt"}
_COUNTS, _TEXTS = {"retrievalCount", "injectionCount"}, {"cwd", "project", "title", "text"}
_WORDS = {"title", "text", "summary"}  # which people wrote, and which may hold secrets


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a workspace has of files and decisions. `elsewhere` are the ids of other workspaces' decisions."""

    rows: Mapping[str, Decision]
    links: Sequence[DecisionLink]
    lines: Sequence[DecisionLine]
    elsewhere: frozenset[str]

    def records(self) -> dict[str, Record]:
        """Return the records of the files by id, in their order."""
        return {line.decision_id: record_of(line.line) for line in self.lines if line.decision_id}

    def written(self) -> tuple[dict[str, bytes], dict[str, set[str]]]:
        """Return, by id, the line of each decision as it is now, without its line end, and the keys that differ from
        the imported line.
        """
        records = self.records()
        then = _by_decision(_without_cycles(_links_of(records), ())[0])
        trusted = {line.decision_id: line for line in self.lines}
        made, differs = dict[str, bytes](), dict[str, set[str]]()
        for row in self.rows.values():
            came = dict(records.get(row.id, {}))
            shown = _shown(row)
            if row.id not in records:
                made[row.id] = _bytes_of({name: value for name, value in shown.items() if value is not None})
                continue
            line = trusted[row.id]
            before = decision_of(came, row.workspace, is_trusted=line.is_trusted, author=row.changed_by)
            old = _shown(replace(before, **then[row.id]))
            changed = {name: value for name, value in shown.items() if value != old[name]}
            for name, value in changed.items():
                if name in ("supersedes", "conflictsWith"):  # what it says of decisions that are not there stays
                    gone = [one for one in _ids(came, name) if one not in self.rows]
                    value = [*gone, *(value or ())] or None
                came[name] = value
            left = {name: value for name, value in came.items() if value is not None or name not in changed}
            made[row.id] = _bytes_of(left) if changed else line.line.rstrip(b"\r\n")
            record = records[row.id]
            differs[row.id] = {name for name in changed if came[name] != record.get(name)}
        return made, differs


@dataclass(slots=True)
class _Plan:
    """What an import stores."""

    done: FileImport = field(default_factory=FileImport)
    rows: list[Decision] = field(default_factory=list)
    changed: list[Decision] = field(default_factory=list)
    lines: list[DecisionLine] = field(default_factory=list)
    relined: list[tuple[str, bytes]] = field(default_factory=list)
    links: Sequence[DecisionLink] = ()
    unlinked: frozenset[DecisionLink] = frozenset()

    def store(self, connection: Connection, workspace: str) -> None:
        """Store it within the caller's transaction."""
        decisions.add(connection, self.rows)
        for row in self.changed:
            decisions.replace(connection, row)
        decisions.add_lines(connection, self.lines)
        for line_id, line in self.relined:
            decisions.set_line(connection, line_id, line)
        left = {*decisions.links(connection, workspace)} - self.unlinked
        decisions.set_links(connection, workspace, {*left, *self.links})


async def import_decisions(
    storage: Storage,
    workspace: str,
    data: bytes,
    *,
    author: str,
    source: str = "",
    is_trusted: bool = False,
    is_dry: bool = False,
    on_new: Callable[[UnitOfWork], None] = lambda _work: None,
) -> FileImport:
    """Add the records of a file to a workspace (its id). They are important only if `is_trusted`. `on_new` is called
    with the unit of work that adds some.

    Raises:
        Conflict: there are too many decisions or lines, or another import came between. Nothing is imported.
    """
    stored = await storage.database.read(_stored, workspace)
    plan = await trio.to_thread.run_sync(
        lambda: _planned(stored, workspace, data, author=author, is_trusted=is_trusted, new_id=storage.ids.new)
    )
    done = plan.done
    if (plan.lines or plan.relined) and not is_dry:
        audit = done.audit(storage, source, system=KIND, workspace=workspace)
        counts = {"added": done.added[KIND], "updated": done.updated[KIND]}
        async with given_or_alone(None, storage.commit) as work:
            work.store(plan.store, workspace)
            work.store(imports.add, audit)
            if plan.rows:
                on_new(work)
            work.event("decisions.imported", {"workspace_id": workspace, **counts, "by": author})
    return done


async def export_decisions(storage: Storage, workspace: str) -> bytes:
    """Return a workspace's decisions as a file: the imported lines in their order, then what was made here."""
    stored = await storage.database.read(_stored, workspace)
    return await trio.to_thread.run_sync(_exported, stored)


def record_of(line: bytes) -> Record:
    """Return the record in a line.

    Raises:
        InvalidInput: it has none.
    """
    try:
        found = strict_json(line.decode())
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput("not an object")
    if not isinstance(one := found.get("id"), str) or not 1 <= len(one) <= ID_CHARS_MAX or _text(one) != one:
        raise InvalidInput(f"without an `id` of 1 to {ID_CHARS_MAX} characters that can be stored")
    return found


def decision_of(record: Record, workspace: str, *, author: str, is_trusted: bool = False) -> Decision:
    """Return a record as a decision. A field of another type counts as missing, it stays in the line."""
    values: dict[str, Any] = {}
    for key, name in _KEYS.items():
        if key in _LINKED:
            continue
        given = record.get(key)
        if key in _TIMES:
            values[name] = time_in(given)
        elif key in _LISTS:
            texts = [_text(one) for one in given if isinstance(one, str)] if isinstance(given, list) else []
            values[name] = [sanitized(one) for one in texts]
        elif key in _FLAGS:
            values[name] = given is True
        elif key in _COUNTS:
            is_count = isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= COUNT_MAX
            values[name] = given if is_count else 0
        elif key in VALUES:
            values[name] = given if isinstance(given, str) and given in VALUES[key] else None
        elif isinstance(given, str):
            values[name] = sanitized(_text(given)) if key in _WORDS else _text(given)
        else:
            values[name] = "" if key in _TEXTS else None
    known = [*DecisionSource]
    values["source"] = DecisionSource(values["source"]) if values["source"] in known else DecisionSource.EXTRACTED
    values["important"] &= is_trusted
    return Decision(**values, workspace=workspace, changed_by=author)


def _planned(
    stored: _Stored, workspace: str, data: bytes, *, author: str, is_trusted: bool, new_id: Callable[[str], str]
) -> _Plan:
    plan, lines = _Plan(), {line.decision_id: line for line in stored.lines if line.decision_id}
    done, records, (written, differs) = plan.done, stored.records(), stored.written()
    kept = Counter(line.line.rstrip(b"\r\n") for line in stored.lines if line.decision_id is None)
    before, seen = dict(records), set[str]()
    position = max((line.position for line in stored.lines), default=0)
    for number, line, record, problem in _read(data):
        content, record_id = line.rstrip(b"\r\n"), "" if record is None else record["id"]
        if record_id in stored.elsewhere:
            record, problem = None, f"line {number}: the decision {record_id} is in another workspace"
        if record is None:
            done.skipped.extend([problem] * bool(problem))
            if kept[content]:
                kept[content] -= 1
            else:
                position += 1
                plan.lines.append(DecisionLine(new_id("line"), workspace, position, None, is_trusted, line))
            continue
        seen.add(record_id)
        old, row = lines.get(record_id), stored.rows.get(record_id)
        base = None if old is None else old.line.rstrip(b"\r\n")
        if row is None:
            position += 1
            plan.rows.append(decision_of(record, workspace, is_trusted=is_trusted, author=author))
            plan.lines.append(DecisionLine(new_id("line"), workspace, position, record_id, is_trusted, line))
            records[record_id] = record
            done.added[KIND] += 1
        elif content in (written[record_id], base):
            done.present[KIND] += 1
            if content != written[record_id]:
                done.outgoing.append(written[record_id])
            elif old is None:  # from now on it is known what both had
                position += 1
                plan.lines.append(DecisionLine(new_id("line"), workspace, position, record_id, True, line))
            elif content != base:
                plan.relined.append((old.id, line))
        elif old is not None and differs[record_id] <= _USE:
            given = decision_of(record, workspace, is_trusted=old.is_trusted or row.important, author=author)
            plan.changed.append(_with_use(given, row, decision_of(records[record_id], workspace, author=author)))
            plan.relined.append((old.id, line))
            records[record_id] = record
            done.updated[KIND] += 1
        else:
            done.conflicts.append(
                f"line {number}: {record_id} was changed here and in the file; it stays as it is here"
            )
    done.outgoing.extend(written[one] for one in stored.rows if one not in seen)
    _plan_links(plan, stored, before, records)
    return plan


def _with_use(given: Decision, here: Decision, before: Decision) -> Decision:
    """Return what a file gives, with the use that was counted here since the line before."""
    used: dict[str, Any] = {}
    for count, last in (("retrieval_count", "last_retrieved_at"), ("injection_count", "last_injected_at")):
        used[count] = getattr(given, count) + max(0, getattr(here, count) - getattr(before, count))
        used[last] = max(getattr(given, last) or "", getattr(here, last) or "") or None
    return replace(given, **used)


def problems_of(data: bytes) -> tuple[list[str], list[str]]:
    """Return what is wrong in a file of decisions, and what is only unusual, in words with the numbers of the lines."""
    wrong, unusual, records = list[str](), list[str](), dict[str, Record]()
    for number, _line, record, problem in _read(data):
        if record is None:
            wrong.extend([problem] * bool(problem))
            continue
        records[record["id"]] = record
        for key, allowed in {**VALUES, "source": frozenset(map(str, DecisionSource))}.items():
            if (value := record.get(key)) is not None and not (isinstance(value, str) and value in allowed):
                unusual.append(f"line {number}: `{key}` is not one of {', '.join(sorted(allowed))}")
    cyclic = _without_cycles(_links_of(records), ())[1]
    wrong.extend(f"{link.from_id} cannot supersede {link.to_id}, which supersedes it" for link in cyclic)
    return wrong, unusual


def _read(data: bytes) -> Iterator[tuple[int, bytes, Record | None, str]]:
    """Yield the lines of a file: number, line, its record, None if there is none, and what is wrong, if anything."""
    seen = dict[str, int]()
    for number, line in enumerate(split_lines(data), start=1):
        try:
            record = record_of(line)
            if (first := seen.setdefault(record["id"], number)) != number:
                raise InvalidInput(f"with the id of line {first}")
            yield number, line, record, ""
        except InvalidInput as error:
            yield number, line, None, f"line {number}: {error.message}" if line.strip() else ""


def _plan_links(plan: _Plan, stored: _Stored, before: Mapping[str, Record], after: Mapping[str, Record]) -> None:
    """Add the links that only the new records say, and remove those that only the old ones said."""
    old, _ = _without_cycles(_links_of(before), ())
    new, dropped = _without_cycles(_links_of(after), ())
    plan.unlinked = frozenset(old) - {*new}
    left = {*stored.links} - plan.unlinked
    plan.links, more = _without_cycles([link for link in new if link not in {*old, *left}], left)
    cyclic = [*dropped, *more]
    plan.done.skipped.extend(f"{link.from_id} cannot supersede {link.to_id}, which supersedes it" for link in cyclic)


def _links_of(records: Mapping[str, Record]) -> list[DecisionLink]:
    """Return what the records say of one another, each link once."""
    found: dict[DecisionLink, None] = {}
    for one, record in records.items():
        pairs = [(one, other, DecisionLinkKind.SUPERSEDES) for other in _ids(record, "supersedes")]
        pairs += [(other, one, DecisionLinkKind.SUPERSEDES) for other in _ids(record, "supersededBy")]
        conflicts = [sorted((one, other)) for other in _ids(record, "conflictsWith")]
        pairs += [(low, high, DecisionLinkKind.CONFLICTS) for low, high in conflicts]
        for low, high, kind in pairs:
            if low in records and high in records and low != high:
                found[DecisionLink(low, high, kind)] = None
    return [*found]


def _without_cycles(
    links: Iterable[DecisionLink], base: Iterable[DecisionLink]
) -> tuple[list[DecisionLink], list[DecisionLink]]:
    """Return the links that can be added to those of `base`, and those by which a decision would supersede itself."""
    below: defaultdict[str, list[str]] = defaultdict(list)
    for link in base:
        if link.kind is DecisionLinkKind.SUPERSEDES:
            below[link.from_id].append(link.to_id)
    kept, dropped = [], []
    for link in links:
        if link.kind is DecisionLinkKind.SUPERSEDES:
            ahead, reached = [link.to_id], {link.to_id}
            while ahead:
                ahead += (more := {*below.get(ahead.pop(), ())} - reached)
                reached |= more
            if link.from_id in reached:
                dropped.append(link)
                continue
            below[link.from_id].append(link.to_id)
        kept.append(link)
    return kept, dropped


def _exported(stored: _Stored) -> bytes:
    (written, _differs), out = stored.written(), bytearray()
    listed = {line.decision_id for line in stored.lines}
    for line in stored.lines:
        if out and not out.endswith(b"\n"):  # the last line of an earlier file
            out += b"\n"
        content = line.line.rstrip(b"\r\n")
        out += (written[line.decision_id] if line.decision_id else content) + line.line[len(content) :]
    made = [written[one] + b"\n" for one in stored.rows if one not in listed]
    if made and out and not out.endswith(b"\n"):
        out += b"\n"
    return bytes(out) + b"".join(made)


def _stored(connection: Connection, workspace: str) -> _Stored:
    rows = {row.id: row for row in decisions.of_workspace(connection, workspace)}
    links, lines = decisions.links(connection, workspace), decisions.lines(connection, workspace)
    return _Stored(rows, links, lines, frozenset(decisions.elsewhere(connection, workspace)))


def _shown(row: Decision) -> dict[str, Any]:
    """Return a decision with the keys of a record; None: it has no such key."""
    shown = {key: getattr(row, name) for key, name in _KEYS.items()}
    lists = {key: [*shown[key]] or None for key in ("details", "supersedes", "conflictsWith")}
    return shown | lists | {"source": row.source.value, "tags": [*row.tags]}


def _by_decision(links: Iterable[DecisionLink]) -> Mapping[str, dict[str, Any]]:
    """Return what links say of each decision, by its fields, as the database does."""
    found: defaultdict[str, dict[str, Any]] = defaultdict(
        lambda: {"supersedes": [], "superseded_by": None, "conflicts_with": []}
    )
    for link in sorted(links):
        if link.kind is DecisionLinkKind.SUPERSEDES:
            found[link.from_id]["supersedes"].append(link.to_id)
            found[link.to_id]["superseded_by"] = link.from_id
        else:
            found[link.from_id]["conflicts_with"].append(link.to_id)
            found[link.to_id]["conflicts_with"].append(link.from_id)
    return found


def _ids(record: Record, name: str) -> list[str]:
    given = record.get(name)
    return [one for one in (given if isinstance(given, list) else [given]) if isinstance(one, str)]


def _bytes_of(record: Record) -> bytes:
    # A lone surrogate is written as the escape that it came from.
    return to_json(dict(record)).encode(errors="backslashreplace")


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines of a file, each with its line end."""
    pieces = data.split(b"\n")
    return [*(piece + b"\n" for piece in pieces[:-1]), *([pieces[-1]] if pieces[-1] else [])]


def _text(text: str) -> str:
    """Return the text as it can be stored: without NUL and halves of characters."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")

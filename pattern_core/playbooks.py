"""Delia's playbooks, one file of JSON for each type of task: reading, checking and writing them. Pure.

A bullet that cannot be read stays in its place, as do keys that are not known. Files of version 1, a bare list, are
understood; what is written is version 2.

Source of the format: Delia's schema reference, version 2 (2025-12-23), and the files that its program writes: ASCII,
indented by 2, without a line end. Times without an offset are read as UTC.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from pattern_core.errors import InvalidInput
from pattern_core.guidance import SECTION, TASK_TYPE
from pattern_core.guidance_quality import (
    CHARS_USUAL_MAX,
    CHARS_USUAL_MIN,
    contradicts,
    faults,
    length_fault,
    normal,
    utility_ratio,
)
from pattern_core.untrusted import masked
from pattern_db.columns import iso, strict_json
from pattern_db.enums import GuidanceSource
from pattern_db.tables.guidance import GuidanceRow

VERSION = 2
KINDS = ("profiles", "memories")
DOCUMENT = re.compile(r"[\w][\w. -]{0,120}\.md")  # the name of a profile or a memory
COUNT_MAX = 2**31
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OLD_KEYS = {"created": "created_at", "use_count": "helpful_count"}
_TIMES = ("created_at", "last_used")
# The keys of a bullet in the order in which Delia writes them.
_KEYS = (
    *("content", "id", "section", "helpful_count", "harmful_count", "created_at", "last_used"),
    *("source_task", "source", "utility_score"),
)
_COMPARED = ("content", "section", "helpful_count", "harmful_count")  # what files and people change

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Playbook:
    """A file: its whole content, its version, and its bullets, of which any may be invalid."""

    document: Any
    version: int
    bullets: Sequence[Any]


Words = Annotated[str, Field(pattern=r"\S")]
Count = Annotated[
    int,
    BeforeValidator(lambda value: int(value) if isinstance(value, str) and value.isdecimal() else value),
    Field(strict=True, ge=0, le=COUNT_MAX),
]
Time = Annotated[str | None, BeforeValidator(lambda value: _time(value))]


class Bullet(BaseModel):
    """A bullet as it is read: with our names of its times, and an id in any case."""

    id: Words
    content: Words
    section: Words = SECTION
    helpful_count: Count = 0
    harmful_count: Count = 0
    created_at: Time = None
    last_used: Time = None
    source_task: Words | None = None
    source: GuidanceSource = GuidanceSource.LEARNED

    @property
    def compared(self) -> dict[str, object]:
        """What may change, by key."""
        return {name: getattr(self, name) for name in _COMPARED}


@dataclass(slots=True, kw_only=True)
class FolderCheck:
    """What a check of a folder found. `files` are lines about its parts; `fixed` the new content of files that `--fix`
    would change, by name.
    """

    files: list[str] = field(default_factory=list)
    bullets: int = 0
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    fixed: dict[str, str] = field(default_factory=dict)


def opened(text: str, *, newest: int = sys.maxsize) -> Playbook:
    """Return the playbook in a file; an object without a version is of version 1.

    Raises:
        InvalidInput: it is not JSON, neither a list nor an object with a list of bullets, or newer than `newest`.
    """
    try:
        document = strict_json(text.removeprefix("\ufeff"))
        text.encode()
    except ValueError as error:
        raise InvalidInput(f"Invalid JSON - {error}") from None
    if isinstance(document, list):
        return Playbook(document, 1, document)
    if not isinstance(document, dict):
        raise InvalidInput("Unknown format (expected array or object)")
    version, bullets = document.get("schema_version", 1), document.get("bullets", [])
    if not isinstance(version, int) or isinstance(version, bool) or version < 1 or not isinstance(bullets, list):
        raise InvalidInput("Unknown format (`schema_version` is a number, `bullets` a list)")
    if version > newest:
        raise InvalidInput(
            f"Schema version {version} is newer than {newest}; update this program, or import it with --force"
        )
    return Playbook(document, version, bullets)


def bullet_of(raw: Any, task_type: str) -> Bullet:
    """Return a bullet. One without an id gets one that its content decides.

    Raises:
        InvalidInput: it cannot be read; the message names the field.
    """
    if not isinstance(raw, dict):
        raise InvalidInput("not an object")
    given = {**{_OLD_KEYS[key]: value for key, value in raw.items() if key in _OLD_KEYS}, **raw}
    given = {key: value for key, value in given.items() if value not in (None, "")}
    known = hashlib.sha256(f"{task_type}/{given.get('content')}".encode(errors="replace"))
    try:
        return Bullet.model_validate({"id": f"strat-{known.hexdigest()[:8]}", **given})
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInput(f"{first['loc'][0]}: {first['msg'].lower()}") from None


def without_secrets(value: Any) -> Any:
    """Return a JSON value with its secrets masked."""
    match value:
        case str():
            return masked(value)
        case list():
            return [without_secrets(one) for one in value]
        case dict():
            return {key: without_secrets(one) for key, one in value.items()}
    return value


def shown(row: GuidanceRow) -> dict[str, object]:
    """Return guidance as `Bullet.compared` has it."""
    counts = {"helpful_count": row.helpful, "harmful_count": row.harmful}
    return {"content": row.content, "section": row.section, **counts}


def changed(raw: Raw, task_type: str, row: GuidanceRow) -> Raw:
    """Return a bullet as its guidance is now: `raw` itself if that was not changed, else with new values in place."""
    then, renamed = bullet_of(raw, task_type), {_OLD_KEYS.get(key, key): value for key, value in raw.items()}
    changes = {name: value for name, value in shown(row).items() if value != then.compared[name]}
    if "utility_score" in renamed and {"helpful_count", "harmful_count"} & {*changes}:
        changes["utility_score"] = utility_ratio(row.helpful, row.harmful)
    if row.last_used_at != then.last_used:
        changes["last_used"] = _written_time(row.last_used_at)
    if not changes:
        return raw
    return {**renamed, **changes}


def made(row: GuidanceRow) -> Raw:
    """Return guidance that was made here as a bullet."""
    times = {"created_at": _written_time(row.created_at), "last_used": _written_time(row.last_used_at)}
    about = {"id": row.id, "source_task": row.source_task, "source": row.source.value}
    made: Raw = current({**shown(row), **times, **about}, row.task_type)
    return made


def current(raw: Any, task_type: str) -> Any:
    """Return a bullet as version 2 has it: its keys in order with unknown ones behind; an invalid one as it is."""
    try:
        bullet = bullet_of(raw, task_type)
    except InvalidInput:
        return raw
    renamed = {_OLD_KEYS.get(key, key): value for key, value in raw.items()}
    known = {name: getattr(bullet, name) for name in _KEYS if name not in (*_TIMES, "utility_score")}
    score = utility_ratio(bullet.helpful_count, bullet.harmful_count)
    whole = {**known, **{name: renamed.get(name) for name in _TIMES}, "utility_score": score}
    return {**{key: whole[key] for key in _KEYS}, **{key: one for key, one in renamed.items() if key not in _KEYS}}


def written(document: Any, task_type: str, bullets: Sequence[Any], updated_at: str) -> str:
    """Return a file of version 2 with these bullets; `updated_at` is a stored time. What else the `document` of the
    earlier file had stays.
    """
    before = document if isinstance(document, dict) else {}
    header = {"schema_version": VERSION, "task_type": before.get("task_type", task_type)}
    whole = {**header, "updated_at": _written_time(updated_at), "bullets": list(bullets)}
    return dumped({**whole, **{key: one for key, one in before.items() if key not in whole}})


def dumped(document: Any) -> str:
    """Return a document as Delia writes it."""
    return json.dumps(document, indent=2)


def check(files: Mapping[str, bytes], now: str, *, is_fixed: bool = False) -> FolderCheck:
    """Check the files of a folder `.delia`, by their paths in it. `is_fixed`: as they are after `--fix`, which brings
    files of version 1 to version 2, with ids, and leaves everything else. `now` is a stored time.
    """
    done, old = FolderCheck(), 0
    profile = files.get("profiles/core.md", b"").decode(errors="replace")
    for path in sorted(path for path in files if path.startswith("playbooks/")):
        name = path.removeprefix("playbooks/").removesuffix(".json")
        try:
            book = opened(read(path, files[path]), newest=VERSION)
        except InvalidInput as error:
            done.errors.append(f"{name}.json: {error.message}")
            continue
        if is_fixed and book.version < VERSION:
            done.fixed[path] = written(book.document, name, [current(raw, name) for raw in book.bullets], now)
            book = opened(done.fixed[path])
        done.files.append(f"{path} ({len(book.bullets)} bullets)" + f" v{book.version}" * (book.version < VERSION))
        old += book.version < VERSION
        done.bullets += _check_bullets(done, name, book.bullets, profile)
    if old:
        done.warnings.append(f"Schema migration needed: {old} files at v1 (current: v{VERSION})")
    for kind in KINDS:
        there = [path for path in files if path.startswith(f"{kind}/")]
        if not there:
            done.warnings.append(f"No {kind} directory found")
            continue
        done.files.append(f"{kind}/ ({len(there)} files)")
        for path in there:
            try:
                read(path, files[path])
            except InvalidInput as error:
                done.errors.append(f"{path}: {error.message}")
    return done


def read(path: str, data: bytes, kinds: Sequence[str] = ("playbooks", *KINDS)) -> str:
    """Return the text of a file of the folder, of one of these kinds.

    Raises:
        InvalidInput: it is not UTF-8, or its path is none of a playbook, a profile or a memory.
    """
    kind, _, name = path.partition("/")
    stem = name.removesuffix(".json")
    is_playbook = kind == "playbooks" and name != stem and TASK_TYPE.fullmatch(stem)
    if kind not in kinds or not (is_playbook or (kind in KINDS and DOCUMENT.fullmatch(name))):
        raise InvalidInput(f"{path[:100]!r} is not the path of a playbook, a profile or a memory (memories/plan.md)")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not UTF-8: {error}") from None


def _check_bullets(done: FolderCheck, name: str, bullets: Sequence[Any], profile: str) -> int:
    """Check the bullets of a file; return how many are valid."""
    seen, texts, valid = dict[str, int](), dict[str, int](), 0  # likeness would take minutes for a thousand
    for number, raw in enumerate(bullets):
        place = f"{name}.json[{number}]"
        try:
            bullet = bullet_of(raw, name)
        except InvalidInput as error:
            done.errors.append(f"{place}: {error.message}")
            continue
        problem = None
        if not raw.get("id"):
            problem = "id: field required"
        elif (first := seen.setdefault(bullet.id, number)) != number:
            problem = f"id: the same as of [{first}]"
        valid += problem is None
        done.errors += [f"{place}: {problem}"] * (problem is not None)
        done.warnings += [f"{place}: {words}" for words in _remarks(raw, bullet, profile)]
        text = normal(bullet.content)
        done.warnings += [f"{place}: contradicts [{at}]" for one, at in texts.items() if contradicts(one, text)]
        if (first := texts.setdefault(text, number)) != number:
            done.warnings.append(f"{place}: the same content as [{first}]")
    return valid


def _remarks(raw: Raw, bullet: Bullet, profile: str) -> Iterator[str]:
    for fault in faults(bullet.content, bullet.source, profile):
        yield fault.reason
    count = len(bullet.content)
    if length_fault(bullet.content) is None and not CHARS_USUAL_MIN <= count <= CHARS_USUAL_MAX:
        yield f"Content of an unusual length ({count} chars); {CHARS_USUAL_MIN} to {CHARS_USUAL_MAX} are usual"
    for key in ("created", *_TIMES):
        if raw.get(key) is not None and _time(raw[key]) is None:
            yield f"{key}: not a time of ISO 8601"
    score = raw.get("utility_score", 0)
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        yield "utility_score: not a number from 0 to 1"


def _time(value: Any) -> str | None:
    """Return a time of a file as it is stored; None if it is none."""
    try:
        moment = datetime.fromisoformat(value)
        return iso(((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1))
    except (TypeError, ValueError, OverflowError):
        return None


def _written_time(time: str | None) -> str | None:
    """Return a stored time as Delia writes it: without an offset, in microseconds."""
    return None if time is None else f"{time.removesuffix('Z')}000"

"""Files in a directory of this machine: what people change by hand becomes an event with the differences."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import trio

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.files import disk
from pattern_core.files.disk import DiskEntry, UnreadableFile, matches
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent, SourceKind, take_fields
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json

FILES_MAX = 200  # that are watched; a pattern that matches more is refused
TEXT_CHARS_MAX = 50_000  # of a file of which differences are shown
KEPT_CHARS_MAX = 500_000  # of all files together: of the rest an event only says that they changed
LINES_MAX = 2_000  # of a file of which differences are shown: comparing takes quadratic time


class FileSource(SourceKind):
    """Watches the files of a directory that a pattern matches."""

    fields: ClassVar = {
        "directory": "the absolute path of a directory within one of sources.roots",
        "pattern": "which files, such as *.md or notes/**/*.txt",
        "every_s": "how often to look, in seconds",
    }

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"directory": None, "pattern": "**/*", "every_s": 10.0})
        _root(found, settings)
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what changed since the last look, as `SourceKind.poll`; the first look only remembers."""
        return await trio.to_thread.run_sync(_look, account)


def _root(config: Mapping[str, Json], settings: SourceSettings) -> Path:
    """Return the directory, checked again at each look: a link may have taken its place."""
    if not settings.roots:
        raise InvalidInput("no files may be watched; add the directory to `roots` below [sources] in pattern.toml")
    return disk.check_root(config["directory"], allowed=settings.roots, kept_out=settings.kept_out)


def _look(account: SourceAccount) -> Arrivals:
    root = _root(account.config, account.settings)
    walk = disk.walk(root)
    entries = [one for one in walk.entries if matches(account.config["pattern"], one.name)]
    if len(entries) > FILES_MAX:
        raise InvalidInput(f"{len(entries)} files match, at most {FILES_MAX} are watched; use a narrower pattern")
    before: Mapping[str, list[Any]] = account.cursor.get("files", {})
    now = dict(_read(root, entries, before))
    events = [] if "files" not in account.cursor else [*changes(before, now, is_complete=walk.is_complete)]
    if not walk.is_complete:
        now = {**before, **now}
    wait_s = account.config["every_s"]
    return Arrivals(events=events, cursor={"files": now}, wait_s=wait_s)


def _read(root: Path, entries: list[DiskEntry], before: Mapping[str, list[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield for each file when it was changed, its size, a digest, and its text if it is short enough to be kept."""
    kept = 0
    for entry in entries:
        known = before.get(entry.name)
        if known is None or known[:2] != [entry.mtime_ns, entry.size]:
            try:
                data = disk.read_file(root, entry.name)
            except (UnreadableFile, NotFound):
                continue
            text = data.decode("utf-8", "replace").replace("\r\n", "\n")
            digest = blake2b(data, digest_size=16).hexdigest()
            known = [entry.mtime_ns, entry.size, digest, text if len(text) <= TEXT_CHARS_MAX else None]
        kept += len(known[3] or "")
        yield entry.name, known if kept <= KEPT_CHARS_MAX else [*known[:3], None]


def changes(
    before: Mapping[str, list[Any]], now: Mapping[str, list[Any]], *, is_complete: bool
) -> Iterator[SourceEvent]:
    """Yield the events of texts that changed, by their names: of each when it changed (any number that is another one
    each time), its size, a digest, and the text, None if that is not kept. If `now` is not complete, none was deleted.
    """
    for name, (when, size, digest, text) in now.items():
        old = before.get(name)
        if old is not None and old[2] == digest:
            continue
        what = "added" if old is None else "changed"
        shown = f"It has {size} bytes; the differences are not shown."
        if text is not None and (old is None or old[3] is not None):
            lines, earlier = text.splitlines(), [] if old is None else old[3].splitlines()
            if len(lines) + len(earlier) <= LINES_MAX:
                shown = "\n".join(difflib.unified_diff(earlier, lines, f"a/{name}", f"b/{name}", lineterm="", n=2))
        yield SourceEvent(native=f"{name}@{when}:{digest}", title=f"{name} was {what}", text=shown)
    for name in before.keys() - now.keys() if is_complete else ():
        yield SourceEvent(
            native=f"{name}@gone:{before[name][0]}:{before[name][2]}", title=f"{name} was deleted", text=""
        )

"""A calendar elsewhere, as an iCalendar file at an address: what is new, what changed, and what begins soon.

It is asked for only if it changed. Who wrote it may do harm, so it is read in a child process. What is over is not
reported. The cursor knows each entry by a digest, without what a server writes differently each time, such as DTSTAMP,
and what begins within two days, so that it is announced in time though the calendar does not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from itertools import chain, islice, takewhile
from typing import Any, ClassVar

from pattern_core import ical
from pattern_core.errors import InvalidInput
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading import read_in_child
from pattern_core.occurrences import MINUTE_MS, CalendarOccurrence, occurrences
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent, SourceKind, take_fields
from pattern_core.timing import DAY_MS, zone_of
from pattern_core.web.policy import SourceSettings
from pattern_core.web.web import READ_TIMEOUT_S
from pattern_db.columns import Json, unix_ms
from pattern_db.tables.calendars import EventOccurrenceRow

BEFORE_MIN_MAX = 7 * 24 * 60
AHEAD_MS = 2 * DAY_MS  # of what begins, more than `before_min`, the cursor knows
SOON_MAX = 200  # occurrences that it knows, and those that begin with the last of them
LATE_MS = 60 * MINUTE_MS  # what began longer ago is not announced
ENTRIES_MAX = 2_000  # that are not over
TITLE_CHARS_MAX = 120
WORDS_CHARS_MAX = 2_000  # of an entry


class CalendarSource(SourceKind):
    """Watches a calendar."""

    fields: ClassVar = {
        "url": "the address of the calendar as iCalendar, which often ends with .ics",
        "before_min": "how long before it begins an entry is announced, in minutes",
        "every_s": "how often to ask, in seconds",
    }
    every_s_min: ClassVar = 60.0

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"url": None, "before_min": 15, "every_s": 900.0})
        if not 0 <= found["before_min"] <= BEFORE_MIN_MAX:
            raise InvalidInput(f"`before_min` is from 0 to {BEFORE_MIN_MAX}")
        if found["url"].startswith("webcal://"):
            found["url"] = f"https://{found['url'].removeprefix('webcal://')}"
        settings.check(found["url"])
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what begins soon, else what changed, as `SourceKind.poll`; the first look only remembers."""
        cursor, config, now_ms = account.cursor, account.config, account.clock.now_ms()
        lead_ms = config["before_min"] * MINUTE_MS

        def is_due(one: Mapping[str, Json]) -> bool:
            return bool(unix_ms(one["starts_at"]) - lead_ms <= now_ms)

        soon = cursor.get("soon", ())
        if due := [one for one in soon if is_due(one)]:  # a calendar that cannot be asked does not hold these back
            recent = [one for one in due if unix_ms(one["starts_at"]) + LATE_MS > now_ms]
            after = {**cursor, "soon": [one for one in soon if not is_due(one)]}
            return Arrivals(events=[_begins(one, now_ms) for one in recent], cursor=after)
        every_ms = round(config["every_s"] * 1000)
        since_ms = min(now_ms + lead_ms, cursor.get("until_ms", now_ms + lead_ms))  # what is earlier, it knew
        page, after = await account.fetch_changed(always=since_ms + 2 * every_ms > cursor.get("until_ms", 0))
        events: list[SourceEvent] = []
        if page is not None:
            if page.is_cut:
                raise InvalidInput("the calendar is too long to be read; ask its server for less of the past")
            bounds: Any = {"what": "the calendar", "timeout_s": READ_TIMEOUT_S}
            times = [str(each) for each in (now_ms, since_ms, now_ms + lead_ms + AHEAD_MS)]
            try:
                found = await read_in_child(read_entries, page.body, *times, **bounds)
            except UnreadableFile as error:
                raise InvalidInput(f"{page.url} cannot be read: {error.message}") from None
            number = cursor.get("number", 0) + 1  # an entry may change back, and is an event then, too
            events = list(_changes(cursor["known"], found["entries"], number)) if cursor else []
            known = {key: one[:2] for key, one in found["entries"].items() if one is not None}
            cursor = {**after, "known": known, "soon": found["soon"], "until_ms": found["until_ms"], "number": number}
        next_ms = min([every_ms, *(unix_ms(one["starts_at"]) - lead_ms - now_ms for one in cursor["soon"])])
        return Arrivals(events=events, cursor=cursor, wait_s=max(0, next_ms) / 1000)


def _begins(one: Mapping[str, str], now_ms: int) -> SourceEvent:
    verb = "Begins" if unix_ms(one["starts_at"]) > now_ms else "Began"
    native = f"begins:{one['key']}:{one['nominal_at']}:{one['starts_at']}"
    return SourceEvent(native=native, title=f"{verb} at {one['local']}: {one['title']}", text=one["words"])


def _changes(
    known: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str] | None], number: int
) -> Iterator[SourceEvent]:
    for key, one in now.items():
        if one is not None and known.get(key, ("",))[0] != one[0]:
            what = "Changed" if key in known else "New"
            yield SourceEvent(native=f"{number}:{key}:{one[0]}", title=f"{what}: {one[1]}", text=one[2])
    for key in known.keys() - now.keys():
        yield SourceEvent(native=f"{number}:{key}:gone", title=f"Deleted: {known[key][1]}", text="")


def read_entries(data: bytes, now: str, since: str, until: str) -> bytes:
    """Return as JSON the `entries` of a file, by a digest of their UID: a digest, the title and words of each, None for
    one that is over `now`. `soon` are the occurrences that begin later than `since`, up to `until_ms`, which is `until`
    or earlier (all in unix milliseconds). Called in a child.

    Raises:
        InvalidInput: it is not a calendar, or has too many entries.
    """
    entries: dict[str, Sequence[str] | None] = {}
    soon: list[dict[str, str]] = []
    for one in ical.read(data.decode("utf-8", "replace"), None)[0]:
        if "STATUS:CANCELLED" in one.content.splitlines():
            continue
        key, coming = _digest(one.uid), _coming(one, int(now))
        if (first := next(coming, None)) is None:
            entries[key] = None
            continue
        entries[key] = [_digest(_understood(one)), first.title[:TITLE_CHARS_MAX], _words(one, first)]
        early = takewhile(lambda each: unix_ms(each.starts_at) <= int(until), chain([first], coming))
        later = (each for each in early if unix_ms(each.starts_at) > int(since))
        soon += [_announced(key, one, each) for each in islice(later, SOON_MAX + 1)]
    if sum(one is not None for one in entries.values()) > ENTRIES_MAX:
        raise InvalidInput(f"more than {ENTRIES_MAX} entries are not over")
    soon.sort(key=lambda each: each["starts_at"])
    last_ms = unix_ms(soon[SOON_MAX - 1]["starts_at"]) if len(soon) > SOON_MAX else int(until)
    kept = [each for each in soon if unix_ms(each["starts_at"]) <= last_ms]
    return json.dumps({"entries": entries, "soon": kept, "until_ms": last_ms}).encode()


def _coming(one: ical.ReadEvent, now_ms: int) -> Iterator[CalendarOccurrence]:
    """Yield the occurrences that are not over, ascending."""
    row = one.row
    states = [replace(EventOccurrenceRow("", "", each.nominal_at, "", ""), **each.fields) for each in one.changed]
    length_ms = unix_ms(row.ends_at or row.starts_at) - unix_ms(row.starts_at)
    for each in occurrences(row, states, now_ms - length_ms - 60 * MINUTE_MS):  # clocks change by an hour
        if unix_ms(each.ends_at or each.starts_at) > now_ms:
            yield each


def _understood(one: ical.ReadEvent) -> str:
    fields = {name: getattr(one.row, name) for name in ical.UNDERSTOOD}
    return json.dumps([fields, [[each.nominal_at, each.fields] for each in one.changed]])


def _words(one: ical.ReadEvent, each: CalendarOccurrence) -> str:
    """Return when an occurrence takes place, and what the entry says of it."""
    end = "" if each.ends_at is None or each.all_day else f", ends at {_local(each.ends_at, each.zone)}"
    rule = f"It repeats: {one.row.rrule}" if one.row.rrule else ""
    place = f"Place: {each.location}" if each.location else ""
    when = f"Begins at {each.local}{end} ({each.zone})"
    return "\n".join(filter(None, (when, rule, place, one.row.description)))[:WORDS_CHARS_MAX]


def _local(moment: str, zone: str) -> str:
    return datetime.fromisoformat(moment).astimezone(zone_of(zone)).strftime("%Y-%m-%dT%H:%M")


def _announced(key: str, one: ical.ReadEvent, each: CalendarOccurrence) -> dict[str, str]:
    about = {"title": each.title[:TITLE_CHARS_MAX], "local": each.local, "words": _words(one, each)}
    return {"key": key, "starts_at": each.starts_at, "nominal_at": each.nominal_at, **about}


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()

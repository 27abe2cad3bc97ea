"""All that the command line writes: tables, records, streams, JSON, progress and errors. The only file that prints.

Data goes to the standard output, everything else to the standard error. What agents and people wrote is shown as it is,
except for control characters, which could otherwise drive the terminal. A terminal is shown tables that fit, relative
times and small plots; a pipe gets everything, uncut and with exact times.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, TypeAlias

import click

from pattern_core.untrusted import plain

DONE, FAILED, USAGE, SKIPPED = 0, 1, 2, 3

SHRUNK_CHARS_MIN = 8  # of a column; while others may be left out, it keeps …
CUT_CHARS_MIN, WRAPPED_CHARS_MIN = 14, 24  # … these, the second if its text is continued below
GAP = "  "  # between columns
MARGIN = 7  # for marks next to lines
BAR_CHARS = 12
# In JSON all that is not `plain` is written as its number. C0 controls are so already.
_NUMBERED = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PERSON = re.compile(r"(?<![\w.])(?:(?:user|agent|group):)?((?:user|agent|group)_[0-9a-z]{26})\b")
_COLUMN = re.compile(r"([^=?*]+)=?([^?*]*)([?*]?)")

Advance: TypeAlias = Callable[[], None]
Row: TypeAlias = Mapping[str, Any]


def _json(value: object, *, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _NUMBERED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_terminal() -> bool:
    """Return whether a person reads the standard output."""
    return sys.stdout.isatty()


def when(stamp: object) -> str:
    """Return a stored time for people, empty for none: relative and local on a terminal, as it is in a pipe."""
    text = str(stamp or "")
    if not text or not is_terminal():
        return text
    clock = import_module("pattern_core.ids").SystemClock()  # late: `pattern --help` needs no clock
    then = datetime.fromisoformat(text).astimezone()
    return ago(then, datetime.fromtimestamp(clock.now_ms() / 1000).astimezone(then.tzinfo))


def ago(then: datetime, now: datetime) -> str:
    """Return a time as seen from another: `3 min ago`, `today 14:02`, `12 Nov 14:02`, `12 Nov 2025`."""
    minutes = round((then - now).total_seconds() / 60)
    if abs(minutes) < 60:
        return "now" if not minutes else f"{-minutes} min ago" if minutes < 0 else f"in {minutes} min"
    days = {
        now.date() + timedelta(days=days): name for days, name in ((-1, "yesterday"), (0, "today"), (1, "tomorrow"))
    }
    if then.date() in days:
        return f"{days[then.date()]} {then:%H:%M}"
    return f"{then.day} {then:%b %H:%M}" if then.year == now.year else f"{then.day} {then:%b %Y}"


def in_line(value: object) -> str:
    """Return a text, or JSON, in one line."""
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


def cut(text: str, chars: int) -> str:
    """Return at most so many characters of a text; the last one says that there are more."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


def bar(share: float, chars: int = BAR_CHARS) -> str:
    """Return a horizontal bar for a share of 1, in eighths of a character; whatever is above 0 is seen."""
    eighths = max(round(share * chars * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def spark(counts: Sequence[int]) -> str:
    """Return a line of small columns, one for each count."""
    most = max(counts, default=0)
    return "".join("▁▂▃▄▅▆▇█"[round(count / most * 7)] if count else " " for count in counts)


def sentences(message: str) -> list[str]:
    """Return what is wrong and, if the message says so, what to do: it is behind the first full stop or the only
    semicolon.
    """
    parts = re.split(r"(?<=[^.])\. (?=[A-Z`])", message, maxsplit=1)
    if len(parts) == 1 and message.count("; ") == 1:
        parts = message.split("; ")
    parts = [part.removesuffix(".") for part in parts]
    return [part[0].upper() + part[1:] if part.partition(" ")[0].isalpha() else part for part in parts]


class Output:
    """Where one command writes; with `is_json` its data is one JSON document instead of tables."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json
        self.names: Mapping[str, str] = {}  # of agents and people, by id: shown in its place

    @property
    def is_screen(self) -> bool:
        """Whether what is printed can be drawn again: on a terminal that moves its cursor."""
        console = import_module("rich.console").Console(file=sys.stdout)
        return is_terminal() and sys.stderr.isatty() and not console.is_dumb_terminal

    def say(self, text: str = "") -> None:
        """Print a line for a person; nothing in JSON mode, where only data is printed."""
        if not self.is_json:
            self._write(self._named(plain(text)) + "\n")

    def secret(self, text: str) -> None:
        """Print a line on a terminal only: a pipe may lead to a log that others read."""
        if is_terminal():
            self.say(text)

    def heading(self, text: str) -> None:
        """Print a line that is bold on a terminal."""
        if not self.is_json:
            self._write(click.style(self._named(plain(text)), bold=True) + "\n")

    def beside(self, mark: str, text: str, color: str = "") -> None:
        """Print lines next to a mark in the margin, wrapped there; on a terminal the mark has a colour."""
        for line in text.splitlines():
            for piece in textwrap.wrap(plain(line), shutil.get_terminal_size().columns - MARGIN) or [""]:
                shown = click.style(f"{plain(mark):>{MARGIN - 2}}", fg=color or None, bold=bool(color))
                self._write(f"{shown}  {piece}\n")
                mark = ""

    def words(self, text: str) -> None:
        """Print a piece of a line, shown at once: an answer as it arrives."""
        if not self.is_json:
            self._write(plain(text))

    def data(self, value: object) -> None:
        """One JSON document, in JSON mode only."""
        if self.is_json:
            self._write(_json(value, indent=2) + "\n")

    def result(self, value: object, *lines: str) -> None:
        """Print what a command came to: lines for a person, or the value as JSON."""
        self.data(value)
        for line in lines:
            self.say(line)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Row],
        *,
        empty: str,
        shown: Callable[[Any], Row] = dict,
        data: object = None,
    ) -> None:
        """Print rows as a table of these columns, or the sentence `empty`; in JSON mode `data`, or all of every row.

        A column is a field's name, or `name=field`. One with a `?` may be left out where the terminal is narrow, the
        last first; the text of one with a `*` is continued below. A field `…_at` is a time. `shown` makes what a person
        is shown of a row.
        """
        if self.is_json:
            self.data([dict(row) for row in rows] if data is None else data)
            return
        if not rows:
            self.say(empty)
            return
        from rich.cells import cell_len, set_cell_size  # late: `pattern --help` has no table

        specs = [_COLUMN.fullmatch(column) for column in columns]
        parts = [(found[1], found[2] or found[1], found[3]) for found in specs if found]
        heads = [name.replace("_", " ") for name, _, _ in parts]
        cells = [[self._cell(_field(row, *part), is_id=part[0] == "id") for part in parts] for row in map(shown, rows)]
        natural = [max(map(cell_len, texts)) for texts in zip(heads, *cells, strict=True)]
        kept = fitted(natural, parts, shutil.get_terminal_size().columns if is_terminal() else sum(natural) + 999)
        for number, texts in enumerate([heads, *cells]):
            lines = [_lines(texts[index], width, parts[index][2]) for index, width in kept.items()]
            for height in range(max(map(len, lines))):
                pieces = (set_cell_size(one[height] if height < len(one) else "", width)
                          for one, width in zip(lines, kept.values(), strict=True))  # fmt: skip
                line = GAP.join(pieces).rstrip()
                self._write((click.style(line, bold=True) if number == 0 else line) + "\n")

    def record(self, record: Mapping[str, object], *, data: object = None) -> None:
        """Print one thing, a line per field, long texts below their name; in JSON mode `data`, or the record itself."""
        if self.is_json:
            self.data(dict(record) if data is None else data)
            return
        width = max((len(name) for name in record), default=0)
        for name, value in record.items():
            text = self._cell(when(value) or None if name.endswith("_at") else value, is_long=True)
            shown = "\n" + "\n".join("    " + line for line in text.splitlines()) if "\n" in text else f"  {text}"
            self._write(f"{name.replace('_', ' '):<{width}}{shown}".rstrip() + "\n")

    def note(self, text: str) -> None:
        """Print a remark that is not data, on the standard error."""
        self._write(plain(text) + "\n", is_data=False)

    def error(self, message: str, *, code: str = "failed") -> None:
        """Print what went wrong and, on the next line, what to do, on the standard error; JSON in JSON mode."""
        if self.is_json:
            self._write(_json({"error": {"code": code, "message": message}}) + "\n", is_data=False)
            return
        lines = "\n".join(sentences(self._named(plain(message))))
        self._write(f"{click.style('Error:', fg='red', bold=True)} {lines}\n", is_data=False)

    def ask(self, prompt: str) -> str | None:
        """Return a line that the user types, without its end; None at the end of the input. Blocks its thread."""
        click.echo(prompt, nl=False, err=True)
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None

    def confirm(self, question: str, *, yes: bool) -> None:
        """Continue only after a yes: that of the option `--yes`, or one at the terminal.

        Raises:
            click.UsageError: there is no terminal to ask at.
            click.Abort: the answer was no.
        """
        if yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError("This needs a yes, and there is no terminal to ask at: add --yes.")
        click.confirm(plain(question), abort=True, err=True)

    def ask_secret(self, question: str, *, is_new: bool = False) -> str:
        """Return a password: what is typed at the terminal, unseen (twice if it `is_new`), or the piped line.

        Raises:
            click.UsageError: nothing was piped in.
            click.Abort: the input ended.
        """
        if sys.stdin.isatty():
            return str(click.prompt(question, hide_input=True, confirmation_prompt=is_new, err=True))
        if not (line := sys.stdin.readline().rstrip("\r\n")):
            raise click.UsageError("There is no terminal to ask for the password at: pipe it in, as one line.")
        return line

    @contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Advance]:
        """Call what this yields once per finished piece of `total`: a bar on a terminal, nothing in a pipe.

        Without a total, the bar only moves; the time that it has taken is shown, too.
        """
        if self.is_json or not sys.stderr.isatty():
            yield lambda: None
            return
        from rich import progress as rich  # late: few commands have a bar

        columns = (rich.TextColumn("{task.description}"), rich.BarColumn())
        counts = (*([rich.MofNCompleteColumn()] if total is not None else []), rich.TimeElapsedColumn())
        console = import_module("rich.console").Console(file=sys.stderr)
        with rich.Progress(*columns, *counts, console=console, transient=True) as progress:
            task = progress.add_task(plain(label), total=total)
            yield lambda: progress.advance(task)

    def _named(self, text: str) -> str:
        return _PERSON.sub(lambda found: self.names.get(found[1], found[0]), text)

    def _cell(self, value: object, *, is_long: bool = False, is_id: bool = False) -> str:
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            value = ", ".join(value) or "-"
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        text = plain(text if is_long else in_line(text))
        return text if is_id else self._named(text)

    def _write(self, text: str, *, is_data: bool = True) -> None:
        # click removes colours where the stream is not a terminal, and handles consoles that cannot write UTF-8.
        click.echo(text, nl=False, err=not is_data)


def fitted(natural: Sequence[int], parts: Sequence[tuple[str, str, str]], room: int) -> dict[int, int]:
    """Return the widths of the columns that fit into `room`, by index: the widest shrink, then optional ones go.

    `natural` are the widths that they need, `parts` the name, field and mark of each. Ids and times never shrink.
    """
    rigid = [name == "id" or field.endswith(("_at", "_id")) for name, field, _ in parts]
    least = [width if fixed else min(width, SHRUNK_CHARS_MIN) for width, fixed in zip(natural, rigid, strict=True)]
    kept = [WRAPPED_CHARS_MIN if mark == "*" else CUT_CHARS_MIN for _, _, mark in parts]
    wanted = [max(low, min(width, most)) for low, width, most in zip(least, natural, kept, strict=True)]
    widths = dict(enumerate(natural))
    optional = [index for index, part in enumerate(parts) if part[2] == "?"]

    def excess(some: Mapping[int, int]) -> int:
        return sum(some.values()) + len(GAP) * (len(some) - 1) - room

    while optional and excess({index: wanted[index] for index in widths}) > 0:
        del widths[optional.pop()]
    while (over := excess(widths)) > 0 and (loose := [index for index in widths if widths[index] > least[index]]):
        widest, *others = sorted(loose, key=lambda index: (-widths[index], -index))
        step = max(1, widths[widest] - widths[others[0]]) if others else over
        widths[widest] = max(least[widest], widths[widest] - min(step, over))
    return widths


def _lines(text: str, width: int, mark: str) -> list[str]:
    """Return a cell's lines: a text that is too long is continued, or cut."""
    from rich.cells import cell_len, chop_cells, set_cell_size

    if cell_len(text) <= width:
        return [text]
    if mark == "*":
        return [piece for line in textwrap.wrap(text, width) for piece in chop_cells(line, width)]
    return [set_cell_size(text, width - 1).rstrip() + "…"]


def _field(row: Row, name: str, field: str, _mark: str) -> object:
    value = row.get(field)
    return when(value) or None if field.endswith("_at") and field != name else value

"""All that the command line writes: tables, records, streams, JSON, progress and errors. The only file that prints.

Data goes to the standard output, everything else to the standard error. What agents and people wrote is shown as it is,
except for control characters, which could otherwise drive the terminal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pattern_core.untrusted import plain

DONE, FAILED, USAGE, SKIPPED = 0, 1, 2, 3

# A file or a pipe has no width: nothing is wrapped or cut there.
_PIPE_COLUMNS = 100_000
# In JSON all that is not `plain` is written as its number. C0 controls are so already.
_NUMBERED = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

Advance: TypeAlias = Callable[[], None]
Row: TypeAlias = Mapping[str, Any]


def _json(value: object, *, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _NUMBERED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def when(stamp: object) -> str:
    """Return a time as tables show it: to the minute, in UTC; empty for none."""
    return str(stamp or "")[:16].replace("T", " ")


def in_line(value: object) -> str:
    """Return a text, or JSON, in one line."""
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


def cut(text: str, chars: int) -> str:
    """Return at most so many characters of a text; the last one says that there are more."""
    return text if len(text) <= chars else text[: chars - 1] + "…"


class Output:
    """Where one command writes; with `is_json` its data is one JSON document instead of tables."""

    def __init__(self, *, is_json: bool = False) -> None:
        self.is_json = is_json

    @property
    def is_screen(self) -> bool:
        """Whether what is printed can be drawn again: on a terminal that moves its cursor."""
        console = _console(sys.stdout)
        return console.is_terminal and not console.is_dumb_terminal and sys.stderr.isatty()

    def say(self, text: str = "") -> None:
        """Print a line for a person; nothing in JSON mode, where only data is printed."""
        if not self.is_json:
            self._write(plain(text) + "\n")

    def secret(self, text: str) -> None:
        """Print a line on a terminal only: a pipe may lead to a log that others read."""
        if sys.stdout.isatty():
            self.say(text)

    def heading(self, text: str) -> None:
        """Print a line that stands out on a terminal."""
        if not self.is_json:
            self._write(click.style(plain(text), bold=True) + "\n")

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

        A column is a field's name, or `name=field`; a field with another name that is a time (`…_at`) is shown to the
        minute. `shown` makes what a person is shown of a row.
        """
        if self.is_json:
            self.data([dict(row) for row in rows] if data is None else data)
        elif not rows:
            self.say(empty)
        else:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for column in columns:
                table.add_column(column.partition("=")[0].replace("_", " "), overflow="fold")
            for row in map(shown, rows):
                table.add_row(*(Text(_cell(_field(row, column))) for column in columns))
            _console(sys.stdout).print(table)

    def record(self, record: Mapping[str, object], *, data: object = None) -> None:
        """Print one thing, a line per field, long texts below their name; in JSON mode `data`, or the record itself."""
        if self.is_json:
            self.data(dict(record) if data is None else data)
            return
        width = max((len(name) for name in record), default=0)
        for name, value in record.items():
            text = _cell(value)
            shown = "\n" + "\n".join("    " + line for line in text.splitlines()) if "\n" in text else f"  {text}"
            self._write(f"{name.replace('_', ' '):<{width}}{shown}".rstrip() + "\n")

    def note(self, text: str) -> None:
        """Print a remark beside the data, on the standard error."""
        self._write(plain(text) + "\n", is_data=False)

    def error(self, message: str, *, code: str = "failed") -> None:
        """One sentence about what went wrong, on the standard error; JSON in JSON mode."""
        if self.is_json:
            self._write(_json({"error": {"code": code, "message": message}}) + "\n", is_data=False)
        else:
            prefix = click.style("Error:", fg="red", bold=True)
            self._write(f"{prefix} {plain(message)}\n", is_data=False)

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

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        """Call what this yields once per finished piece of `total`: a bar on a terminal, nothing in a pipe."""
        if self.is_json or not sys.stderr.isatty():
            yield lambda: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=_console(sys.stderr), transient=True) as progress:
            task = progress.add_task(plain(label), total=total)
            yield lambda: progress.advance(task)

    def _write(self, text: str, *, is_data: bool = True) -> None:
        # click takes colours out where the stream is no terminal, and knows about consoles that cannot write UTF-8.
        click.echo(text, nl=False, err=not is_data)


def _console(stream: object) -> Console:
    is_terminal = bool(getattr(stream, "isatty", lambda: False)())
    return Console(file=stream, width=None if is_terminal else _PIPE_COLUMNS, highlight=False)  # type: ignore[arg-type]  # any text stream


def _field(row: Row, column: str) -> object:
    name, _, field = column.partition("=")
    value = row.get(field or name)
    return when(value) or None if field.endswith("_at") else value


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return plain(", ".join(value)) or "-"
    if isinstance(value, Mapping | list | tuple):
        return plain(json.dumps(value, ensure_ascii=False))
    return plain(str(value))

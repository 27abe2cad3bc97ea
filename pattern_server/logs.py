"""Logging: one structured line per event on standard error, ours and our libraries' alike.

The standard library does it. An event with fields is `log.info("ready", {"url": url})`: a mapping as the only argument.
A standard error that cannot be written to, because of a full disk or a reader that left, does not end the server.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

OURS = "pattern"  # the logger that ours are below


def configure(level: str, form: Literal["auto", "json", "text"]) -> None:
    """Send everything from `level` (such as "info") on to standard error: lines of JSON, or text for people.

    Of libraries at least warnings are shown. Tracebacks never show the values of variables: those may be secrets.
    """
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = _StandardError()
    handler.setFormatter(_Lines(is_text=is_text))
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(max(logging.WARNING, number))
    logging.getLogger(OURS).setLevel(number)


class _Lines(logging.Formatter):
    """One line per event, as JSON or as words."""

    def __init__(self, *, is_text: bool) -> None:
        super().__init__()
        self._is_text = is_text

    def format(self, record: logging.LogRecord) -> str:
        """The line. Called by the handler."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        fields: dict[str, Any] = dict(record.args) if isinstance(record.args, Mapping) else {}
        if not record.name.startswith(f"{OURS}."):
            fields["logger"] = record.name
        traceback = self.formatException(record.exc_info) if record.exc_info else None
        level = record.levelname.lower()
        if self._is_text:
            words = " ".join(f"{name}={value!r}" for name, value in fields.items())
            line = f"{time} [{level:8}] {record.getMessage()} {words}".rstrip()
            return line if traceback is None else f"{line}\n{traceback}"
        fields |= {"event": record.getMessage(), "level": level, "time": time}
        if traceback is not None:
            fields["exception"] = traceback
        return json.dumps(fields, ensure_ascii=False, default=str)


class _StandardError(logging.StreamHandler[TextIO]):
    """Write to whatever standard error is at the moment, and give up silently where that fails."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # an attribute in the base, looked up anew here
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the base's name
        """Called by the base; there is nowhere left to complain."""

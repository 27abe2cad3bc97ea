"""Logging: one structured line per event on standard error, ours and our libraries' alike.

Everything goes through a handler of the standard library, because that survives a standard error that cannot be
written to: a full disk or a reader that left must not end the server.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog
from structlog.typing import Processor

OURS = "pattern"  # the logger that ours are below


def configure(level: str, form: Literal["auto", "json", "text"]) -> None:
    """Send everything from `level` (such as "info") on to standard error: lines of JSON, or text for people.

    Of libraries at least warnings are shown. Tracebacks never show the values of variables: those may be secrets.
    """
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    rendering: list[Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback, timestamp_key="time")]
        if is_text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _StandardError()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(max(logging.WARNING, number))
    logging.getLogger(OURS).setLevel(number)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever standard error is at the moment, and gives up silently where that fails."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # an attribute in the base, looked up anew here
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the base's name
        """Called by the base; there is nowhere left to complain."""

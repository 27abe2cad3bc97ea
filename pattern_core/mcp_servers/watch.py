"""What is known of a connection while it lasts, and why it was lost."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Watch:
    """Whoever notices first that a connection is of no use says why; `lost` is set then.

    `hang_up` is called when the connection is about to be left: whoever still waits to send need not wait longer.
    """

    def __init__(self) -> None:
        self.lost = trio.Event()
        self.reason = ""
        self.hang_up: Callable[[], None] = lambda: None

    def lose(self, reason: str) -> None:
        """Note that the connection is lost; the first reason counts."""
        if not self.lost.is_set():
            self.reason = reason
            self.lost.set()

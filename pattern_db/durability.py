"""What "committed" means. On one machine: the fsync of the commit itself; with replicas: that they have it too."""

from __future__ import annotations

from typing import Protocol


class Durability(Protocol):
    """The promise behind a commit.

    `deferred` is False where a commit keeps the promise by itself: then nobody needs to wait, and the gate before
    every effect that leaves the process costs one test of this attribute.
    """

    deferred: bool

    async def barrier(self, position: int) -> None:
        """Return when everything up to the `position`-th commit of the open file survives what the profile promises.

        Raises:
            OwnedElsewhere: another owner took over meanwhile; nothing after its take-over counts.
        """
        ...


class EmbeddedDurability:
    """One machine, one disk: COMMIT with synchronous=FULL has already done it."""

    deferred = False

    async def barrier(self, position: int) -> None:
        """Return at once."""

"""Why a connection was lost."""

from __future__ import annotations

from pattern_core.mcp_servers.watch import Watch


def test_the_first_reason_counts() -> None:
    watch = Watch()
    assert not watch.lost.is_set()
    watch.lose("one")
    watch.lose("two")
    assert (watch.lost.is_set(), watch.reason) == (True, "one")

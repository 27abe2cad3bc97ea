from __future__ import annotations

from pattern_core.shell.danger import Danger, reaches, reads, refused, writes


def test_the_order_of_harm() -> None:
    judged = [kind(("x",)).danger for kind in (reads, writes, reaches)] + [refused(("x",), "is bad").danger]
    assert judged == sorted(Danger)
    assert [one.word for one in judged] == ["read_only", "write", "network", "dangerous"]

from __future__ import annotations

from pattern_core.shell import programs


def test_no_program_stands_in_two_tables() -> None:
    tables = {
        "readers": set(programs.READERS),
        "network": set(programs.NETWORK),
        "dangerous": set(programs.DANGEROUS),
        "shells": set(programs.SHELLS),
        "interpreters": set(programs.INTERPRETERS),
        "wrappers": set(programs.WRAPPERS),
    }
    names = list(tables)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            assert not tables[one] & tables[other], (one, other)


def test_git_only_reads_or_reaches() -> None:
    assert not programs.GIT_READERS & programs.GIT_NETWORK
    assert {"commit", "push", "checkout"}.isdisjoint(programs.GIT_READERS)

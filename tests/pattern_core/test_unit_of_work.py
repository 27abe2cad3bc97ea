"""Units of work: stored together or not at all, and settled once."""

from __future__ import annotations

import pytest

from pattern_core.errors import Conflict, NotFound, PatternError
from pattern_core.unit_of_work import UnitOfWork, given_or_alone
from pattern_db.errors import RowConflict, RowNotFound


class Storing:
    """Commits units of work, unless it is made to fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.committed: list[UnitOfWork] = []
        self._failure = failure

    async def __call__(self, work: UnitOfWork) -> None:
        if self._failure is not None:
            raise self._failure
        self.committed.append(work)


async def test_a_unit_that_was_given_is_left_to_its_owner() -> None:
    commit, given, settled = Storing(), UnitOfWork(), list[bool]()
    async with given_or_alone(given, commit) as work:
        work.event("noted", {})
        work.when_settled(settled.append)
    assert (work, commit.committed, settled) == (given, [], [])


async def test_alone_it_is_committed_if_it_has_an_event_and_settled_once() -> None:
    for names, count in (([], 0), (["noted"], 1)):
        commit, settled = Storing(), list[bool]()
        async with given_or_alone(None, commit) as work:
            for name in names:
                work.event(name, {})
            work.when_settled(settled.append)
        assert (len(commit.committed), settled) == (count, [True])


@pytest.mark.parametrize(("failure", "kind"), [(RowConflict("taken"), Conflict), (RowNotFound("gone"), NotFound)])
async def test_what_storage_refuses_is_an_error_of_the_caller(failure: Exception, kind: type[PatternError]) -> None:
    settled: list[bool] = []
    with pytest.raises(kind, match=str(failure)):
        async with given_or_alone(None, Storing(failure)) as work:
            work.event("noted", {})
            work.when_settled(settled.append)
    assert settled == [False]


async def test_a_block_that_raises_commits_nothing() -> None:
    commit, settled = Storing(), list[bool]()
    with pytest.raises(KeyError):
        async with given_or_alone(None, commit) as work:
            work.event("noted", {})
            work.when_settled(settled.append)
            raise KeyError
    assert (commit.committed, settled) == ([], [False])


def test_the_last_that_waits_is_settled_first() -> None:
    work, first, last = UnitOfWork(), list[bool](), list[bool]()
    assert not work.has_writes
    work.when_settled(lambda committed: first.append(committed and bool(last)))
    work.when_settled(last.append)
    work.settle(committed=True)
    work.settle(committed=False)
    assert first == last == [True]
    work.event("noted", {})
    assert work.has_writes

"""Standing consent: for whom, for which arguments and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from pattern_core.consent_grants import SECONDS_MAX, ConsentGrants, Subject, check_scope
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.unit_of_work import UnitOfWork
from tests.pattern_core.turns.rig import ADA, Rig, accepted
from tests.support import USER

PAY = Subject(agent_id=ADA.id, name="tool:pay", args_hash=b"a" * 16)
OTHER_ARGUMENTS = replace(PAY, args_hash=b"b" * 16)


@asynccontextmanager
async def given() -> AsyncIterator[tuple[Rig, ConsentGrants]]:
    async with accepted() as rig:
        yield (
            rig,
            ConsentGrants(database=rig.database, clock=rig.clock, ids=rig.ids, commit=rig.journal.commit_work),
        )


async def agree(rig: Rig, grants: ConsentGrants, subject: Subject = PAY, **said: Any) -> None:
    work = UnitOfWork()
    grants.add(work, subject, **{"seconds": None, "by": USER, "approval_id": "apr_1", **said})
    await rig.journal.commit_work(work)


@pytest.mark.parametrize(
    ("said", "same", "others"),
    [
        ({"scope": "once"}, False, False),
        ({"scope": "same"}, True, False),
        ({"scope": "time", "seconds": 60}, True, True),
        ({"scope": "always"}, True, True),
    ],
)
async def test_what_an_answer_covers(said: dict[str, Any], same: bool, others: bool) -> None:
    async with given() as (rig, grants):
        await agree(rig, grants, **said)
        assert await grants.covers(PAY) is same
        assert await grants.covers(OTHER_ARGUMENTS) is others
        assert not await grants.covers(replace(PAY, name="tool:mail"))
        assert not await grants.covers(replace(PAY, agent_id="agent_other"))
        assert ("consent.granted" in await rig.names()) is same


@pytest.mark.parametrize("scope", ["time", "same", "always"])
async def test_it_ends_with_its_time(scope: str) -> None:
    async with given() as (rig, grants):
        await agree(rig, grants, scope=scope, seconds=60)
        rig.clock.advance(59_999)
        assert await grants.covers(PAY)
        rig.clock.advance(1)
        assert not await grants.covers(PAY)
        assert await grants.list(9) == []
        # The next one clears away what no longer holds.
        await agree(rig, grants, OTHER_ARGUMENTS, scope="same")
        assert len(await rig.rows("SELECT id FROM consent_grant")) == 1


async def test_it_is_listed_in_pages_and_revoked_once() -> None:
    async with given() as (rig, grants):
        for subject in (PAY, OTHER_ARGUMENTS):
            await agree(rig, grants, subject, scope="same")
            rig.clock.advance(1)
        newest, oldest = await grants.list(9)
        assert (newest.args_hash, oldest.args_hash) == (OTHER_ARGUMENTS.args_hash, PAY.args_hash)
        assert (oldest.subject, oldest.granted_by, oldest.approval_id, oldest.expires_at) == (
            "tool:pay",
            USER,
            "apr_1",
            None,
        )
        assert await grants.list(1) == [newest]
        assert await grants.list(9, before=newest.id) == [oldest]
        await grants.revoke(oldest.id, by=USER)
        assert (await grants.covers(PAY), await grants.covers(OTHER_ARGUMENTS)) == (False, True)
        assert (await rig.names())[-1] == "consent.revoked"
        with pytest.raises(NotFound, match=oldest.id):
            await grants.revoke(oldest.id, by=USER)
        assert (await rig.names()).count("consent.revoked") == 1


@pytest.mark.parametrize(
    ("scope", "seconds", "words"),
    [
        ("time", None, "needs `seconds`"),
        ("once", 60, "has no `seconds`"),
        ("same", 0, "more than 0"),
        ("always", -1, "more than 0"),
        ("time", SECONDS_MAX + 1, "at most"),
        ("time", float("nan"), "more than 0"),
    ],
)
async def test_scope_and_time_go_together(scope: Any, seconds: float | None, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_scope(scope, seconds)
    async with given() as (rig, grants):
        with pytest.raises(InvalidInput, match=words):
            await agree(rig, grants, scope=scope, seconds=seconds)
        assert await grants.list(9) == []


def test_scopes_that_go_together() -> None:
    for scope, seconds in (("once", None), ("time", 1), ("same", None), ("same", 0.5), ("always", SECONDS_MAX)):
        check_scope(scope, seconds)  # type: ignore[arg-type]  # literals in a loop

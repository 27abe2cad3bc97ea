"""What the answers of a service mean, for all kinds alike: which error, whether it is final, when to continue."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.service import AGAIN_S, REFUSED_S, ServiceApi
from pattern_core.sources.source import IS_UNCLEAR, SourceAccount
from pattern_core.testing import StoppedClock
from pattern_core.testing.wire import Play, WireServer, document
from pattern_core.web.download import BYTES_MAX
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import settings
from tests.support import START

SECRET = "s3cret-word"
API = ServiceApi(name="It", advice="make another one", means={"Gone": 404, 418: 401})


async def called(play: Play, **given: Any) -> PatternError:
    """The error that an answer leads to."""
    async with WireServer(otherwise=play) as server:
        row = SourceRow("src_1", "it", "telegram", {}, START, START)
        account = SourceAccount(row=row, settings=settings(server), clock=StoppedClock())
        with pytest.raises(PatternError) as caught:
            await API.call(account, f"{server.url}/{SECRET}?x=1", given or None, secrets=(SECRET,))
        assert SECRET not in caught.value.message and "x=1" not in caught.value.message
        return caught.value


@pytest.mark.parametrize(
    ("status", "said", "kind", "is_final"),
    [
        (400, {"error": "Bad", "message": f"not {SECRET}"}, InvalidInput, True),
        (400, {"error": "Gone"}, NotFound, True),
        (401, {}, PermissionDenied, False),
        (403, {"description": "blocked"}, PermissionDenied, True),
        (404, [], NotFound, True),
        (408, {}, Unavailable, False),
        (409, {}, Unavailable, False),
        (410, {}, NotFound, True),
        (425, {}, Unavailable, False),
        (499, {}, InvalidInput, True),
        (413, {}, InvalidInput, True),
        (418, {}, PermissionDenied, False),
        (429, {}, Overloaded, False),
        (500, None, Unavailable, False),
    ],
)
async def test_a_status_is_an_error(status: int, said: object, kind: type[PatternError], is_final: bool) -> None:
    error = await called(document(said, status=status))
    assert type(error) is kind and error.details.get(IS_FINAL, False) is is_final
    assert error.details.get(IS_UNCLEAR, False) is (kind is Unavailable)
    waits = {401: REFUSED_S, 418: REFUSED_S, 429: AGAIN_S}
    assert error.details.get("retry_after_s") == waits.get(status)
    assert ("make another one" in error.message) is (status in (401, 418))


async def test_what_was_done_is_answered() -> None:
    for status, said in ((200, {"ok": True}), (201, [1]), (202, {}), (204, None)):
        async with WireServer(
            otherwise=Play(status=status) if said is None else document(said, status=status)
        ) as server:
            row = SourceRow("src_1", "it", "telegram", {}, START, START)
            account = SourceAccount(row=row, settings=settings(server), clock=StoppedClock())
            assert (await API.call(account, f"{server.url}/x", {}, secrets=()))[0] == said


@pytest.mark.parametrize(
    ("said", "headers", "wait_s"),
    [
        ({"retry_after": 1.5}, {}, 1.5),
        ({"parameters": {"retry_after": 3}}, {}, 3),
        ({"retry_after_ms": 2500}, {"retry-after": "9"}, 2.5),
        ({"retry_after_ms": "x", "retry_after": None, "parameters": 1}, {"retry-after": "9"}, 9),
        ({}, {"ratelimit-reset": str(StoppedClock().now_ms() // 1000 + 40)}, 40),
        ({"retry_after": 1e9}, {}, 24 * 3600),
        ({"retry_after": -1}, {"retry-after": "nan"}, AGAIN_S),
    ],
)
async def test_when_to_continue(said: object, headers: dict[str, str], wait_s: float) -> None:
    error = await called(document(said, status=429, headers=headers))
    assert error.details["retry_after_s"] == pytest.approx(wait_s, abs=1)


async def test_what_cannot_be_read_or_is_not_there_leaves_it_open_what_was_done() -> None:
    for play in (Play(chunks=(b"<html>",)), Play(stops_after=0, chunks=(b"x",)), Play(chunks=(b"[" * 100_000,))):
        error = await called(play, text="Hi")
        assert isinstance(error, Unavailable) and error.details[IS_UNCLEAR] is True
    error = await called(Play(chunks=(b'"' + b"x" * BYTES_MAX + b'"',)))
    assert isinstance(error, InvalidInput) and error.details[IS_FINAL] is True
    async with WireServer() as server:
        gone = settings(server)
    row = SourceRow("src_1", "it", "telegram", {}, START, START)
    with pytest.raises(Unavailable) as caught:  # the connection was not accepted, so nothing was done
        account = SourceAccount(row=row, settings=gone, clock=StoppedClock())
        await API.call(account, f"http://127.0.0.1:{server.port}/", {}, secrets=(SECRET,))
    assert caught.value.details[IS_UNCLEAR] is False

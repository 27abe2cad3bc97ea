"""Being told of changes on either side."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest
import trio

from pattern_server.cli.client import ServerFailed
from pattern_server.cli.mirror.disk import OWN
from pattern_server.cli.mirror.watch import Bell, listen, newest_event, watch_files
from tests.pattern_server.cli.conftest import Answer, api_of, as_json

PATIENCE_S = 60.0


async def test_a_bell_rings_once_for_many() -> None:
    bell = Bell()
    for _ in range(3):
        bell.ring()
    await bell.wait(60)
    with trio.move_on_after(0.01) as scope:
        await bell.wait(60)
    assert scope.cancelled_caught
    bell.close()


async def write_again_and_again(path: Path) -> None:
    """As somebody who saves often: what is written before the watch begins rings no bell."""
    while True:
        path.write_text("x")
        await trio.sleep(0.2)


async def test_saving_a_file_rings_and_the_mirrors_notes_do_not(tmp_path: Path) -> None:
    (tmp_path / OWN).mkdir()
    (tmp_path / "ada").mkdir()
    bell = Bell()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, tmp_path, bell, pytest.fail)
        await trio.sleep(0.3)
        (tmp_path / OWN / "state").write_text("x")
        with trio.move_on_after(0.5) as quiet:
            await bell.wait(60)
        assert quiet.cancelled_caught
        nursery.start_soon(write_again_and_again, tmp_path / "ada" / "human.md")
        with trio.fail_after(PATIENCE_S):
            await bell.wait(2 * PATIENCE_S)
        nursery.cancel_scope.cancel()
    bell.close()


async def test_a_folder_that_cannot_be_watched_is_polled(tmp_path: Path) -> None:
    notes: list[str] = []
    bell = Bell()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, tmp_path / "nowhere", bell, notes.append)
        with trio.fail_after(PATIENCE_S):
            await bell.wait(60)
        nursery.cancel_scope.cancel()
    assert "cannot be watched" in notes[0]
    bell.close()


def stream(*names: str, first: int = 1) -> bytes:
    """Events as the server writes them."""
    events = [f"id: {first + n}\nevent: {name}\ndata: {json.dumps({})}\n\n" for n, name in enumerate(names)]
    return "".join(events).encode()


async def test_the_newest_event_is_found_and_followed_from() -> None:
    newest, asked = 12_345, []

    def answer(request: httpx2.Request) -> Answer:
        after = int(request.headers["last-event-id"])
        asked.append(after)
        if after > newest:
            return as_json({"detail": "there is no such event", "code": "invalid_input"}, 400)
        if after == newest and asked.count(newest) > 1:
            if asked.count(newest) > 3:
                raise httpx2.ReadError("gone")
            return 200, {"content-type": "text/event-stream"}, stream("turn.queued", "memory.changed", first=newest)
        return 200, {"content-type": "text/event-stream"}, b""

    assert await newest_event(api_of(answer), "/events") == newest
    assert len(asked) < 50
    bell = Bell()
    with trio.fail_after(PATIENCE_S):
        await bell_rings(answer, bell)
    bell.close()


async def bell_rings(answer: object, bell: Bell) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, api_of(answer), "/events", bell)  # type: ignore[arg-type]  # a function of a request
        with trio.move_on_after(PATIENCE_S) as scope:
            await bell.wait(60)
        assert not scope.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_other_refusals_are_not_taken_for_the_end() -> None:
    api = api_of(lambda _request: as_json({"detail": "no", "code": "forbidden"}, 403))
    with pytest.raises(ServerFailed, match="no"):
        await newest_event(api, "/events")

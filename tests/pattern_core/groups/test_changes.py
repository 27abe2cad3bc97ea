"""A group, or a member of it, that is changed while messages begin and rounds run: at each commit of it.

Whatever changes, each accepted message has one terminal event, nothing hangs or stays open, and a running turn keeps
the members and the coordination that it began with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, NotFound
from pattern_core.events import TERMINAL
from pattern_core.groups.group import MemberSpec
from pattern_core.runtime import Meters
from pattern_core.testing.model import Paced, says
from pattern_core.turns import actor
from pattern_db.errors import RowConflict
from tests.pattern_core.groups.rig import NAMES, answer_of, group, speak, submit
from tests.support import PATIENCE_S, Running, rows, running, until

PATTERNS: dict[str, dict[str, Any]] = {
    "debate": {"rounds": 1, "on_member_error": "skip"},  # one after another
    "parallel": {"on_member_error": "skip"},
}
Change: TypeAlias = Callable[[Running], Awaitable[None]]


class WatchedMeters(Meters):
    """Sets an event after a commit."""

    def __init__(self, at: int) -> None:
        self.reached = trio.Event()
        self._at = at
        self._count = 0
        super().__init__()

    @property
    def commits(self) -> int:
        """How many there were."""
        return self._count

    @commits.setter
    def commits(self, count: int) -> None:
        self._count = count
        if 0 < count == self._at:
            self.reached.set()


async def delete_the_group(world: Running) -> None:
    await world.constellation.delete_group("desk")


async def rename_the_group(world: Running) -> None:
    await world.constellation.groups.update("desk", {"name": "office"})


async def change_the_pattern(world: Running) -> None:
    await world.constellation.groups.update("desk", {"pattern_type": "voting", "pattern_config": {}})


async def remove_a_member(world: Running) -> None:
    await world.constellation.groups.update("desk", {}, members=[MemberSpec("ada"), MemberSpec("cleo")])


async def archive_a_member(world: Running) -> None:
    await world.constellation.roster.update("bob", {"status": "archived"})


async def delete_a_member(world: Running) -> None:
    await world.constellation.delete_agent("bob")


CHANGES = (
    delete_the_group,
    rename_the_group,
    change_the_pattern,
    remove_a_member,
    archive_a_member,
    delete_a_member,
)


async def talk(pattern: str, change: Change | None = None, at: int = 0) -> tuple[list[str | None], int]:
    """Send a group messages, the first two together, and begin a change after the commit `at`; the status of each of
    its turns (None: deleted with the group), and the number of commits.
    """
    meters, ends = WatchedMeters(at), Counter[str]()
    async with running(otherwise=speak, meters=meters) as world, trio.open_nursery() as nursery:
        desk = await group(world, pattern, PATTERNS[pattern])
        meters.commits, sent, statuses, seen = 0, list[str](), list[str | None](), [0]
        is_done = trio.Event()

        async def watch() -> None:
            async for event in world.constellation.events.subscribe(after=0):
                ends[str(event.turn_id)] += event.name in TERMINAL
                seen[0] = event.seq

        async def send(words: str) -> None:
            with suppress(NotFound) if change in (delete_the_group, rename_the_group) else nullcontext():
                sent.append(await submit(world, words))

        async def change_it() -> None:
            await meters.reached.wait()
            if change is not None:
                await change(world)
            is_done.set()

        with trio.fail_after(PATIENCE_S):
            nursery.start_soon(watch)
            nursery.start_soon(change_it)
            async with trio.open_nursery() as both:
                both.start_soon(send, "one")
                both.start_soon(send, "two")
            for words in ("three", "four"):
                for turn in sent[len(statuses) :]:
                    try:
                        statuses.append((await world.constellation.wait(turn)).status)
                    except NotFound:
                        assert change is delete_the_group
                        statuses.append(None)
                if words == "four":
                    break
                await send(words)
            if meters.reached.is_set():
                await is_done.wait()
            await until(lambda: world.constellation.is_idle and seen[0] == world.constellation.events.latest)
        nursery.cancel_scope.cancel()
        stored = await world.database.read(rows, "SELECT id FROM turn")
        everyone = {*sent, *(str(one) for (one,) in stored)}
        assert {turn: ends[turn] for turn in everyone} == dict.fromkeys(everyone, 1)
        assert await world.database.read(rows, "SELECT id FROM turn WHERE ended_at IS NULL") == []
        assert await world.database.read(rows, "SELECT * FROM outbox") == []
        found = await world.database.read(rows, "SELECT id FROM agent_groups")
        assert found == ([] if change is delete_the_group and is_done.is_set() else [(desk.id,)])
    return statuses, meters.commits


@pytest.mark.parametrize(
    ("pattern", "change"),
    [*(("debate", change) for change in CHANGES), ("parallel", delete_the_group), ("parallel", delete_a_member)],
)
async def test_a_change_at_any_commit_loses_no_message_and_ends_each_turn_once(
    pattern: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor, "LATE_S", 3600)  # commits come by work alone
    whole, commits = await talk(pattern, None)
    assert whole == ["completed"] * 3
    for at in range(1, commits + 1):
        found, _commits = await talk(pattern, change, at)
        ended = {"completed"} if change is not delete_the_group else {"completed", "cancelled", None}
        assert set(found) <= ended, f"{found} after commit {at}"


@pytest.mark.parametrize("change", [archive_a_member, delete_a_member], ids=lambda one: one.__name__)
async def test_a_question_to_a_member_that_leaves_is_not_asked_later(change: Change) -> None:
    """Its round is over by then; a message that no one waits for is delivered later."""
    gate = trio.Event()
    async with running([Paced(answer=says("busy"), gate=gate)], otherwise=speak) as world:
        await group(world, "parallel", {"on_member_error": "skip"}, names=NAMES[:2])
        await world.submit("Work.", "bob")
        await until(lambda: world.provider.running == 1)
        turn = await submit(world)
        await trio.testing.wait_all_tasks_blocked()
        await change(world)
        gate.set()
        view = await world.wait(turn)
        assert (view.status, await answer_of(world, turn)) == ("completed", "ada: ada answers")
        assert await world.database.read(rows, "SELECT * FROM outbox") == []


async def test_what_has_an_open_turn_is_not_deleted() -> None:
    async with running(otherwise=Paced(answer=says("late"), gate=trio.Event())) as world:
        desk = await group(world, "parallel", names=NAMES[:2])
        await submit(world)
        await until(lambda: world.provider.running == 2)
        with pytest.raises(Conflict, match="has not ended"):
            await world.constellation.groups.delete(desk)
        with pytest.raises(RowConflict, match="has not ended"):
            await world.constellation.roster.delete("bob")
        await world.constellation.delete_group("desk")
        await world.constellation.delete_agent("bob")

"""Shared state: of those that change a value at the same time one succeeds, and no version is used twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput, NotFound, Overloaded, VersionMismatch
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.shared_state import KEYS_MAX, NAMED_BYTES_MAX, VALUE_BYTES_MAX, SharedState
from pattern_core.testing.model import calls, says
from pattern_core.tools.builtin.state import state_get, state_set
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database
from tests.pattern_core.groups.rig import DyingMeters, Killed
from tests.pattern_core.memory.rig import Rig, constellation
from tests.support import USER, in_memory, last_words, running

TOOLS = (state_get, state_set)


@dataclass
class Begun:
    """A change that is prepared and not committed: what it is based on, and what it will store."""

    work: UnitOfWork
    key: str
    version: int
    value: object
    seen: tuple[int, int]


class Reference:
    """A dictionary, and how often each key was changed."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[object, int]] = {}
        self.changes = Counter[str]()
        self.deletions = 0
        self.used: set[tuple[str, int]] = set()

    def version(self, key: str) -> int:
        return self.values[key][1] if key in self.values else 0

    def seen(self, key: str) -> tuple[int, int]:
        """What must not have changed until a commit; a deletion of another key may refuse what creates one."""
        return self.changes[key], 0 if key in self.values else self.deletions

    def put(self, key: str, value: object, version: int) -> None:
        assert (key, version) not in self.used, "a version is used again"
        assert version > self.version(key)
        self.used.add((key, version))
        self.values[key] = (value, version)
        self.changes[key] += 1

    def delete(self, key: str) -> None:
        del self.values[key]
        self.changes[key] += 1
        self.deletions += 1


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "commit", "delete"]),
        st.sampled_from(["a", "a", "b"]),
        st.sampled_from([0, 0, 0, -1, 1]),  # how far the expected version is off
    ),
    min_size=20,
    max_size=40,
)


@given(steps)
def test_any_interleaving_is_that_of_a_dictionary(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        async with Database.in_memory(constellation()) as database:
            rig = Rig(database)
            state, reference = SharedState(rig.storage), Reference()
            begun: list[Begun] = []
            for number, (step, key, off) in enumerate(steps):
                current = reference.version(key)
                expected = max(current + off, 0)
                if step == "begin":
                    work = UnitOfWork()
                    try:
                        row = await state.set(key, number, expected=expected, author=USER, work=work)
                    except VersionMismatch as error:
                        assert expected != current == error.details["version"]
                        continue
                    assert expected == current
                    begun.append(Begun(work, key, row.version, number, reference.seen(key)))
                elif step == "commit" and begun:
                    one = begun.pop(0 if off < 0 else -1)
                    try:
                        await rig.commit(one.work)
                    except VersionMismatch as error:
                        assert reference.seen(one.key) != one.seen
                        assert error.details["version"] == reference.version(one.key)
                        continue
                    assert reference.seen(one.key) == one.seen
                    reference.put(one.key, one.value, one.version)
                elif step == "delete" and expected:
                    try:
                        await state.delete(key, expected=expected, author=USER)
                    except VersionMismatch as error:
                        assert expected != current == error.details["version"]
                        continue
                    assert expected == current
                    reference.delete(key)
                stored = {one.key: (one.value, one.version) for one in await state.page(10)}
                assert stored == reference.values

    trio.run(run)


async def test_of_agents_that_claim_a_job_one_gets_it() -> None:
    def speak(request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "user":
            return calls("state_set", {"key": "job", "value": request.system[0]})
        return says("Mine." if '"success": true' in last_words(request).replace('":true', '": true') else "Too late.")

    async with running(otherwise=speak, tools=TOOLS) as world:
        names = [f"a{number}" for number in range(8)]
        for name in names:
            await world.agent(name, prompt=name)
        said: dict[str, str] = {}

        async def ask(name: str) -> None:
            said[name] = (await world.say("Claim the job.", name)).messages[-1].content or ""

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name)
        [winner] = [name for name in names if said[name] == "Mine."]
        assert sorted(said.values()) == ["Mine."] + ["Too late."] * 7
        found = await world.constellation.state.get("job")
        assert (found.value, found.version) == (winner, 1)
        assert str(found.updated_by).startswith("agent:")


async def test_a_tool_reads_sets_and_is_refused_with_the_newest_version() -> None:
    script = [
        calls("state_set", {"key": "plan", "value": '{"day": 1}'}),
        calls("state_get", {"key": "plan"}),
        calls("state_set", {"key": "plan", "value": "two", "version": 1}),
        calls("state_set", {"key": "plan", "value": "three", "version": 1}),
        calls("state_get", {}),
        says("Done."),
    ]
    async with running(script, tools=TOOLS) as world:
        await world.agent()
        await world.say("Plan.")
        results = [last_words(request) for request in world.provider.requests[1:]]
        assert '"version":1' in results[0].replace(" ", "")
        assert '"value":{"day":1},"version":1' in results[1].replace(" ", "")
        assert '"version":2' in results[2].replace(" ", "")
        assert "the key 'plan' is at version 2, not 1; read it again" in results[3]
        assert '"versions":{"plan":2}' in results[4].replace(" ", "")
        assert (await world.constellation.state.get("plan")).value == "two"


async def test_a_kill_after_any_commit_sets_once() -> None:
    def speak(request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "user":
            return calls("state_set", {"key": "job", "value": "ada"})
        return says("Set." if "success" in last_words(request) else "Refused.")

    async def lived(kill_at: int) -> tuple[int, str]:
        async with in_memory() as database:
            async with running(otherwise=speak, tools=TOOLS, database=database) as world:
                await world.agent()
            meters = DyingMeters(kill_at)
            try:
                async with running(otherwise=speak, tools=TOOLS, database=database, meters=meters, seed=2) as world:
                    await world.wait(await world.submit("Claim.", key="k"))
            except* Killed:
                pass
            async with running(otherwise=speak, tools=TOOLS, database=database, seed=3) as world:
                view = await world.wait(await world.submit("Claim.", key="k"))
                assert (await world.constellation.state.get("job")).version == 1
                return meters.commits, view.messages[-1].content or ""

    commits, said = await lived(0)
    assert commits >= 3 and said == "Set."
    for kill_at in range(1, commits + 1):
        assert (await lived(kill_at))[1] == "Set.", f"killed after commit {kill_at}"


async def test_bounds() -> None:
    async with Database.in_memory(constellation()) as database:
        state = SharedState(Rig(database).storage)
        for key in ("", "a b", "a/b", "k" * 201):
            with pytest.raises(InvalidInput, match="a key has 1 to 200"):
                await state.set(key, 1, expected=0, author=USER)
        with pytest.raises(InvalidInput, match="null"):
            await state.set("a", None, expected=0, author=USER)
        for value in (float("nan"), "\ud800"):
            with pytest.raises(InvalidInput, match="cannot be stored"):
                await state.set("a", value, expected=0, author=USER)
        await state.set("a", "x" * (VALUE_BYTES_MAX - 2), expected=0, author=USER)
        with pytest.raises(InvalidInput, match="16,385 bytes"):
            await state.set("a", "x" * (VALUE_BYTES_MAX - 1), expected=1, author=USER)
        await state.keep("w", "any key", "x" * (NAMED_BYTES_MAX - 2), author=USER)
        with pytest.raises(InvalidInput, match="262,145 bytes"):
            await state.keep("w", "any key", "x" * (NAMED_BYTES_MAX - 1), author=USER)
        for number in range(KEYS_MAX - 1):
            await state.set(f"k{number}", 0, expected=0, author=USER)
        with pytest.raises(Overloaded, match="1,000 keys"):
            await state.set("b", 1, expected=0, author=USER)
        await state.set("a", 2, expected=1, author=USER)
        await state.delete("a", expected=2, author=USER)
        assert (await state.set("b", 1, expected=0, author=USER)).version == 3
        with pytest.raises(NotFound):
            await state.get("a")

"""Files of decisions in and out: byte by byte, each record once, none lost. L10 to L33 are cases of the original."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from pattern_core.constellation import Constellation
from pattern_core.decision_files import (
    KIND,
    decision_of,
    export_decisions,
    import_decisions,
    problems_of,
    record_of,
    split_lines,
)
from pattern_core.decisions import Decision, NewDecision
from pattern_core.delta_files import FileImport
from pattern_core.errors import Conflict, InvalidInput
from pattern_db.connection import fetch_all
from pattern_db.enums import DecisionSource
from pattern_db.tables.decisions import DecisionLink, count_shown, links
from tests.support import USER, running

GOLDEN = (
    b'{"id":"mb5x1q2k-a1b2c3","createdAt":"2026-06-06T12:00:00.000Z","updatedAt":"2026-06-06T12:00:00.000Z",'
    b'"cwd":"/repos/example","project":"example","source":"manual","title":"Keep WAL mode on",'
    b'"text":"We decided to keep WAL \xe2\x80\x93 readers never block.","tags":["decision","preference"],'
    b'"important":false,"archived":false,"retrievalCount":0,"injectionCount":0}\n'
)
DIGEST = "5319eb75fc1830739795fd44c11867953c1c81e536b9f5ae41d296245cd1bfa4"
ID = "mb5x1q2k-a1b2c3"


@dataclass(frozen=True)
class Shop:
    constellation: Constellation
    workspace: str

    async def take(self, data: bytes, **given: Any) -> FileImport:
        return await import_decisions(self.constellation.storage, self.workspace, data, author=USER, **given)

    async def give(self) -> bytes:
        return await export_decisions(self.constellation.storage, self.workspace)

    async def rows(self) -> dict[str, Decision]:
        return {row.id: row for row in await self.constellation.decisions.known(self.workspace)}

    async def change(self, decision_id: str, **changes: Any) -> None:
        await self.constellation.decisions.change(self.workspace, decision_id, changes, author=USER)

    async def links(self) -> list[DecisionLink]:
        return await self.constellation.database.read(links, self.workspace)


@asynccontextmanager
async def shop() -> AsyncIterator[Shop]:
    async with running() as world:
        workspace = await world.constellation.workspaces.ensure("shop", author=USER)
        yield Shop(world.constellation, workspace.id)


def counts(done: FileImport) -> dict[str, int]:
    return {name: getattr(done, name)[KIND] for name in ("added", "updated", "present") if getattr(done, name)[KIND]}


def line(decision_id: str, **fields: Any) -> bytes:
    record = {"id": decision_id, "createdAt": "2026-06-06T12:00:00.000Z", "title": decision_id, "text": "x", **fields}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


async def test_the_golden_line_comes_out_as_it_went_in_and_twice_changes_nothing() -> None:
    assert (len(GOLDEN), hashlib.sha256(GOLDEN).hexdigest()) == (354, DIGEST)
    async with shop() as here:
        done = await here.take(GOLDEN, source="decisions.jsonl")
        assert (counts(done), done.conflicts, done.skipped) == ({"added": 1}, [], [])
        assert counts(await here.take(GOLDEN)) == {"present": 1}
        audits = await here.constellation.database.read(fetch_all, "SELECT source_file FROM migration_audit")
        assert audits == [("decisions.jsonl",)]
        assert await here.give() == GOLDEN
        await here.change(ID, kb_path="/k/a.md")
        changed = json.loads(await here.give())
        assert [*changed] == [*json.loads(GOLDEN), "kbPath"], "the new key is the last one"
        assert changed["kbPath"] == "/k/a.md" and changed["updatedAt"] != "2026-06-06T12:00:00.000Z"
        assert changed["text"] == json.loads(GOLDEN)["text"]


async def test_a_dry_run_and_an_empty_file_import_nothing() -> None:
    async with shop() as here:
        assert counts(await here.take(GOLDEN, is_dry=True)) == {"added": 1}
        assert counts(await here.take(b"")) == {}
        assert await here.rows() == {} and await here.give() == b""


async def test_l10_l11_corrupt_lines_stay_where_they_are() -> None:
    data = line("a") + b"NOT JSON \xff\r\n\n" + line("b")[:-1]
    async with shop() as here:
        done = await here.take(data)
        assert (done.added[KIND], [said.split(":")[0] for said in done.skipped]) == (2, ["line 2"])
        assert await here.give() == data
        again = await here.take(data)
        assert (counts(again), len(again.skipped)) == ({"present": 2}, 1)
        await here.change("a", important=True)  # L11: another record is changed
        made, _ = await here.constellation.decisions.add(here.workspace, NewDecision(title="C", text="c"), author=USER)
        lines = (await here.give()).split(b"\n")
        assert lines[1:4] == [b"NOT JSON \xff\r", b"", line("b")[:-1]]  # L10: the new one has a line of its own
        assert json.loads(lines[0])["important"] is True
        assert json.loads(lines[4])["id"] == made.id and lines[5:] == [b""]


async def test_l12_only_objects_with_an_id_are_records() -> None:
    data = b'42\nnull\n[1]\n{"id":""}\n{"id":7}\n{"id":"n","x":NaN}\n' + line("a") * 2 + b"[" * 100_000
    async with shop() as here:
        done = await here.take(data)
        assert (done.added[KIND], len(done.skipped)) == (1, 8)
        assert done.skipped[6] == "line 8: with the id of line 7"
        assert await here.give() == data
        assert counts(await here.take(data)) == {"present": 1}


async def test_l33_fields_that_are_missing_or_of_another_type_lose_nothing() -> None:
    data = (
        b'{"id":"a"}\n'
        b'{"tags":"x","id":"b","title":7,"important":"yes","retrievalCount":-1,"source":"imported","createdAt":"once",'
        b'"scope":"galaxy","details":[1,"two"],"text":"half \\ud800 \\u0000","extra":{"n":1e-7,"z":1.0},"key":null}\n'
    )
    async with shop() as here:
        assert counts(await here.take(data, is_trusted=True)) == {"added": 2}
        assert await here.give() == data
        rows = await here.rows()
        assert (rows["a"].tags, rows["a"].retrieval_count, rows["a"].created_at) == ([], 0, None)
        assert (rows["b"].source, rows["b"].details) == (DecisionSource.EXTRACTED, ["two"])
        assert rows["b"].text == "half ? \ufffd"
        await here.change("b", archived=True)
        changed = json.loads((await here.give()).splitlines()[1])
        assert changed["archived"] is True and changed["updatedAt"].endswith("Z")
        kept = {name: value for name, value in changed.items() if name not in ("archived", "updatedAt")}
        assert kept == json.loads(data.splitlines()[1])


async def test_imported_decisions_are_important_only_if_they_are_trusted_and_have_no_secrets() -> None:
    data = line("a", important=True, text="password=hunter22", tags=["Bearer abc"])
    for is_trusted in (False, True):
        async with shop() as here:
            await here.take(data, is_trusted=is_trusted)
            row = (await here.rows())["a"]
            assert (row.important, row.text, row.tags) == (is_trusted, "password=[redacted]", ["Bearer [redacted]"])
            assert await here.give() == data
            await here.change("a", important=not is_trusted)
            assert json.loads(await here.give())["important"] is not is_trusted


async def test_what_was_changed_only_there_is_changed_here_and_on_both_sides_a_conflict() -> None:
    async with shop() as here:
        await here.take(line("a") + line("b") + line("c"))
        await here.change("b", title="here")
        await here.change("c", title="here")
        exported = await here.give()
        there = line("a", title="there", new=1) + line("b", title="there") + exported.splitlines(keepends=True)[2]
        done = await here.take(there)
        assert counts(done) == {"updated": 1, "present": 1}
        assert done.conflicts == ["line 2: b was changed here and in the file; it stays as it is here"]
        assert {row.id: row.title for row in (await here.rows()).values()} == {"a": "there", "b": "here", "c": "here"}
        assert (await here.give()).splitlines()[0] + b"\n" == line("a", title="there", new=1)
        assert counts(await here.take(there)) == {"present": 2}


async def test_what_was_made_here_is_known_when_it_comes_back() -> None:
    async with shop() as here:
        made, _ = await here.constellation.decisions.add(
            here.workspace, NewDecision(title="Tabs", text="x", cwd="/srv/a"), author=USER
        )
        data = await here.give()
        keys = (
            "id createdAt updatedAt cwd project source title text tags important archived retrievalCount injectionCount"
        )
        assert " ".join(json.loads(data)) == keys
        assert counts(await here.take(data)) == {"present": 1}
        assert counts(await here.take(data.replace(b"Tabs", b"Spaces"))) == {"updated": 1}
        assert await here.give() == data.replace(b"Tabs", b"Spaces")
        other = await here.constellation.workspaces.ensure("other", author=USER)
        done = await import_decisions(here.constellation.storage, other.id, data, author=USER)
        assert done.skipped == [f"line 1: the decision {made.id} is in another workspace"]
        assert await export_decisions(here.constellation.storage, other.id) == data


async def test_links_come_out_as_they_went_in_and_have_no_cycles() -> None:
    data = (
        line("old", supersededBy="new", conflictsWith=["z", "new", "gone"])
        + line("new", supersedes=["old", "old"])
        + line("z", supersedes=["new"])
        + line("cycle", supersedes=["z"], supersededBy="old")
    )
    async with shop() as here:
        done = await here.take(data)
        assert done.skipped == ["old cannot supersede cycle, which supersedes it"] or done.skipped == [
            "cycle cannot supersede z, which supersedes it"
        ]
        assert await here.give() == data
        found = await here.rows()
        assert (found["old"].superseded_by, found["old"].conflicts_with) == ("new", ("new", "z"))
        assert counts(await here.take(data)) == {"present": 4}
        await here.change("old", conflicts_with=["new"])
        changed = [json.loads(one) for one in (await here.give()).splitlines()]
        assert changed[0]["conflictsWith"] == ["gone", "new"], "what is not there stays"
        assert (await here.give()).splitlines()[1:] == data.splitlines()[1:]
        assert counts(await here.take(data)) == {"present": 4}
        assert len((await here.rows())["old"].conflicts_with) == 1, "what was removed here stays away"
        await here.take(data + line("last", supersedes=["cycle"]))
        assert (await here.rows())["cycle"].superseded_by == "last"


async def test_an_update_removes_the_links_that_it_no_longer_says() -> None:
    async with shop() as here:
        await here.take(line("a") + line("b", supersedes=["a"]))
        assert len(await here.links()) == 1
        done = await here.take(line("a", supersedes=["b"]) + line("b"))
        assert (counts(done), done.skipped) == ({"updated": 2}, [])
        assert (await here.rows())["b"].superseded_by == "a"


async def test_two_imports_at_once_are_refused_rather_than_doubled() -> None:
    async with shop() as here:
        stored = here.constellation.storage

        class Late:
            """Storage in which another import is first."""

            database, clock, ids, now = stored.database, stored.clock, stored.ids, stored.now

            async def commit(self, work: Any) -> None:
                if not await here.rows():
                    await here.take(GOLDEN)
                await stored.commit(work)

        with pytest.raises(Conflict):
            await import_decisions(Late(), here.workspace, GOLDEN, author=USER)  # type: ignore[arg-type]  # as much of it as is used
        assert await here.give() == GOLDEN


@pytest.mark.parametrize("seed", range(20))
async def test_generated_files_survive_any_damage(seed: int) -> None:
    rng = random.Random(seed)
    values: list[Any] = [None, True, 7, -1.5, "x", "é😀", [], ["a", 1], {"k": [{}]}, "2026-01-01T00:00:00Z", "a", "b"]
    keys = [*json.loads(GOLDEN), "supersedes", "supersededBy", "conflictsWith", "scope", "projectId", "own"]
    lines = []
    for number in range(12):
        record = {key: rng.choice(values) for key in rng.sample(keys, 9)} | {"id": rng.choice("abcdefghijkl")}
        separators = rng.choice([(",", ":"), (", ", ": ")])
        text = json.dumps(record, ensure_ascii=rng.random() < 0.5, separators=separators)
        lines.append(text.encode() + rng.choice([b"\n", b"\r\n", b"\n\n"]))
        del number
    data = bytearray(b"".join(lines))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    readable = set()
    for one in bytes(data).split(b"\n"):
        try:
            readable.add(record_of(one)["id"])
        except InvalidInput:
            continue
    async with shop() as here:
        done = await here.take(bytes(data))
        assert done.added[KIND] == len(readable) and set(await here.rows()) == readable
        assert await here.give() == bytes(data)
        again = await here.take(bytes(data))
        assert counts(again) == {"present": len(readable)} and again.conflicts == []


def test_a_record_has_every_field() -> None:
    record = record_of(
        GOLDEN.replace(b'"manual"', b'"turn","scope":"repo","key":"wal","summary":"s","confidence":"low"')
    )
    row = decision_of(record, "w", is_trusted=True, author=USER)
    assert (row.source, row.scope, row.decision_key, row.summary, row.confidence) == (
        DecisionSource.TURN,
        "repo",
        "wal",
        "s",
        "low",
    )
    assert row.created_at == row.updated_at == "2026-06-06T12:00:00.000Z"


async def test_a_file_and_a_workspace_come_to_the_same_state() -> None:
    """An import returns what the file lacks; written there, the next change on one side is known as one."""
    async with shop() as here:
        assert (await here.take(line("a") + line("b") + line("c"))).outgoing == []
        made, _ = await here.constellation.decisions.add(
            here.workspace, NewDecision(title="New", text="x"), author=USER
        )
        await here.change("b", title="here", important=True)
        file = line("a", title="there") + line("b") + line("c")
        done = await here.take(file)
        exported = (await here.give()).splitlines()
        assert counts(done) == {"updated": 1, "present": 2} and done.outgoing == [exported[1], exported[3]]
        file = b"".join(one + b"\n" for one in exported)
        done = await here.take(file)
        assert (counts(done), done.outgoing, await here.give()) == ({"present": 4}, [], file)
        done = await here.take(file.replace(b'"title":"here"', b'"title":"there"').replace(b'"New"', b'"Newer"'))
        assert counts(done) == {"updated": 2, "present": 2} and done.conflicts == []
        rows = await here.rows()
        assert (rows["b"].title, rows["b"].important, rows[made.id].title) == ("there", True, "Newer")
        await here.change("a", title="here")
        assert len((await here.take(file)).outgoing) == 1


async def test_what_was_only_used_here_is_no_conflict() -> None:
    async with shop() as here:
        await here.take(line("a", injectionCount=1))
        await here.constellation.database.write(count_shown, ["a"], "2026-06-07T00:00:00.000Z")
        done = await here.take(line("a", injectionCount=1))
        assert json.loads(done.outgoing[0])["injectionCount"] == 2 and counts(done) == {"present": 1}
        done = await here.take(line("a", injectionCount=4, title="there"))
        row = (await here.rows())["a"]
        assert (counts(done), row.title, row.injection_count) == ({"updated": 1}, "there", 5)
        assert row.last_injected_at == "2026-06-07T00:00:00.000Z"
        assert row.last_retrieved_at is None
        later = "2026-07-01T00:00:00.000Z"
        await here.take(line("a", injectionCount=4, title="again", lastInjectedAt=later, lastRetrievedAt=later))
        row = (await here.rows())["a"]
        assert (row.last_injected_at, row.last_retrieved_at) == (later, later)


def test_what_is_wrong_in_a_file_is_named_by_line() -> None:
    assert problems_of(GOLDEN + b"\n") == ([], [])
    data = b"NOT JSON\n" + GOLDEN * 2 + line("a", supersedes=["b", "x"], scope="galaxy", source=7)
    wrong, unusual = problems_of(data + line("b", supersedes=["a"], text="password=hunter22"))
    assert wrong[0].startswith("line 1: not JSON")
    assert wrong[1:] == ["line 3: with the id of line 2", "b cannot supersede a, which supersedes it"]
    assert [said.split(" is not one")[0] for said in unusual if "is not one" in said] == [
        "line 4: `scope`",
        "line 4: `source`",
    ]
    assert "hunter22" not in str(unusual)


EXAMPLES = int(os.environ.get("PATTERN_TEST_EXAMPLES", "100"))


async def test_no_readable_line_of_mutated_files_is_lost() -> None:
    """Each file goes into a workspace of its own and comes out the same, also after the check and a second import."""
    for first in range(0, EXAMPLES, 200):  # a constellation has a bound of workspaces
        async with shop() as here:
            for seed in range(first, min(first + 200, EXAMPLES)):
                rng, tag = random.Random(seed), f"-{seed}".encode()
                data = bytearray(
                    b"".join(line(f"{one}-{seed}", supersedes=[f"a-{seed}"], tags=["é😀"]) for one in "abc")
                )
                for _ in range(rng.randint(1, 5)):
                    at = rng.randrange(len(data))
                    match rng.randrange(3):
                        case 0:
                            data[at] = rng.randrange(256)
                        case 1:
                            del data[at : at + rng.randrange(1, 9)]
                        case _:
                            data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(80)]
                    data = data or bytearray(tag)
                into = (await here.constellation.workspaces.ensure(f"w{seed}", author=USER)).id
                there = Shop(here.constellation, into)
                readable = []
                for one in split_lines(bytes(data)):
                    with suppress(InvalidInput):
                        readable.append(record_of(one)["id"])
                done = await there.take(bytes(data))
                elsewhere = sum("another workspace" in said for said in done.skipped)
                assert done.added[KIND] == len({*readable}) - elsewhere, seed
                assert await there.give() == bytes(data), seed
                assert (await there.take(bytes(data))).updated == {}, seed
                wrong, _unusual = problems_of(bytes(data))
                assert sum(said.startswith("line") for said in wrong) == len(done.skipped) - elsewhere - sum(
                    "cannot supersede" in said for said in done.skipped
                ), seed

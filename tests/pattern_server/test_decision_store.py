"""A live file of decisions: the seed's operations, and other programs that write at the same time. L1 to L15 and L38
are cases of the original.

`python -m tests.pattern_server.test_decision_store --seconds 60` runs two processes that append and patch, and a
third one that synchronises, all killed at random moments; the test command does so for two seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.decision_files import import_decisions, record_of, split_lines
from pattern_core.decisions import NewDecision
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.ids import SystemClock, seeded_randomness
from pattern_core.testing import StoppedClock
from pattern_server.decision_store import LOCK_STALE_MS, DecisionStore
from tests.pattern_core.test_decision_files import GOLDEN, ID, line
from tests.support import START, USER, running

NEW_SETTINGS = b'{\n  "disabledProjects": []\n}'


@pytest.fixture
def store(tmp_path: Path) -> DecisionStore:
    return DecisionStore(tmp_path / "memory" / "decisions.jsonl", StoppedClock(), seeded_randomness(1))


def again(store: DecisionStore, **given: Any) -> DecisionStore:
    """Another program with the same file."""
    return DecisionStore(store.file, SystemClock(), seeded_randomness(2), **given)


async def ids(store: DecisionStore) -> list[str]:
    return [record["id"] for record in await store.all()]


async def test_l1_l2_l6_records_are_appended_also_behind_those_of_others(store: DecisionStore) -> None:
    await store.add(json.loads(GOLDEN))
    assert store.file.read_bytes() == GOLDEN
    assert await store.by_id(ID) == json.loads(GOLDEN) and await store.by_id("none") is None
    node = store.file.stat().st_ino
    with store.file.open("ab") as file:
        file.write(line("foreign"))
    await store.add(json.loads(line("b")))
    assert await ids(store) == await ids(again(store)) == [ID, "foreign", "b"]
    assert store.file.stat().st_ino == node, "an append does not replace the file"
    with pytest.raises(Conflict, match="already"):
        await store.add({"id": "b"})
    with pytest.raises(InvalidInput, match="id"):
        await store.add({"title": "x"})


async def test_l3_a_patch_keeps_the_order_of_keys_and_other_lines(store: DecisionStore) -> None:
    await store.add(json.loads(GOLDEN))
    await store.add(json.loads(line("b", gone=1)))
    made = await store.patch(ID, {"kbPath": "/k/a.md", "important": True, "id": "other"})
    assert made is not None and [*made] == [*json.loads(GOLDEN), "kbPath"]
    assert (made["important"], made["updatedAt"], made["id"]) == (True, START, ID)
    assert store.file.read_bytes().splitlines(keepends=True)[1] == line("b", gone=1)
    assert "gone" not in (await store.patch("b", {"gone": None}) or {"gone": 1})
    before = store.file.stat()
    assert await store.patch("none", {"title": "x"}) is None
    assert store.file.stat() == before


async def test_l4_l13_use_is_counted_also_where_there_was_no_counter(store: DecisionStore) -> None:
    for one in ("a", "b"):
        await store.add(json.loads(line(one)))
    await store.bump_use(["a", "b"], "retrieved")
    await store.bump_use(["a"], "injected")
    a, b = await store.all()
    assert (a["retrievalCount"], a["injectionCount"], b["retrievalCount"]) == (1, 1, 1)
    assert "injectionCount" not in b and a["lastInjectedAt"] == a["updatedAt"] == START
    before = store.file.stat()
    await store.bump_use([], "injected")
    await store.bump_use(["none"], "injected")
    assert store.file.stat() == before


async def test_l5_l8_what_others_replaced_is_seen_and_all_can_be_replaced(store: DecisionStore) -> None:
    await store.add(json.loads(line("a")))
    store.file.write_bytes(line("x") + b"NOT JSON\n")
    assert await ids(store) == ["x"]
    await store.replace_all([json.loads(line("c"))])
    assert await ids(store) == ["c"] and store.file.read_bytes() == line("c") + b"NOT JSON\n"
    store.file.unlink()
    assert await ids(store) == [] and store.file.exists()
    await store.replace_all([])
    assert store.file.read_bytes() == b""


async def test_l7_l9_l15_settings(store: DecisionStore) -> None:
    await store.ensure()
    assert (store.file.read_bytes(), store.settings.read_bytes()) == (b"", NEW_SETTINGS)
    digests = {
        b"": "c5812af1f1bd76ae4741a07bbc4bcfe228a5e936213f3f8450a13efcd3146b5b",
        b"/b": "280a8f45d18dad293bc2e5aeac09d343ece5f14976e45fcae61d37c9742c00af",
    }
    for project, digest in digests.items():
        await store.write_settings({"disabledProjects": [project.decode()] if project else []})
        assert hashlib.sha256(store.settings.read_bytes()).hexdigest() == digest
    await store.write_settings({"disabledProjects": ["/b"], "disabledProjectIds": []})
    assert (
        hashlib.sha256(store.settings.read_bytes()).hexdigest()
        == "93d38fd16498699aa9839f34ca4ba72405a01cf83ab8f77694c559dc7d360907"
    )
    assert await again(store).read_settings() == {"disabledProjects": ["/b"], "disabledProjectIds": []}
    for bad in (b"NOT JSON", b"[]", b""):
        store.settings.write_bytes(bad)
        assert await store.read_settings() == {"disabledProjects": []}


async def test_projects_are_kept_out_of_prompts_and_other_settings_stay(store: DecisionStore) -> None:
    await store.disable({"disabledProjects": ["/b"]})
    await store.disable({"disabledProjects": ["/b", "/a"], "disabledProjectIds": []})
    assert await again(store).read_settings() == {"disabledProjects": ["/a", "/b"]}
    await store.write_settings({"own": 1, "disabledProjects": ["/z"], "disabledProjectIds": ["prj_1"]})
    await store.disable({"disabledProjects": ["/a"], "disabledProjectIds": ["prj_0"]})
    expected = {"own": 1, "disabledProjects": ["/a", "/z"], "disabledProjectIds": ["prj_0", "prj_1"]}
    assert store.settings.read_bytes() == json.dumps(expected, indent=2).encode()
    for bad in (b"NOT JSON", b"[]", b'{"disabledProjects": "/a"}'):
        store.settings.write_bytes(bad)
        with pytest.raises(InvalidInput, match="try again"):
            await store.disable({"disabledProjects": ["/a"]})
        assert store.settings.read_bytes() == bad and not store.file.with_name(".lock").exists()


async def test_l10_l11_l12_lines_that_cannot_be_read_stay(store: DecisionStore) -> None:
    await store.ensure()
    data = line("a") + b"NOT JSON \xff\r\n42\nnull\n[1]\n" + line("b")[:-1]
    store.file.write_bytes(data)
    await store.add(json.loads(line("c")))
    assert store.file.read_bytes() == data + b"\n" + line("c")
    await store.patch("a", {"title": "x"})
    assert await ids(again(store)) == ["a", "b", "c"]
    assert store.file.read_bytes().splitlines(keepends=True)[1:] == (data + b"\n" + line("c")).splitlines(True)[1:]


async def test_l14_a_stale_lock_is_broken_and_no_other(store: DecisionStore) -> None:
    other, lock = again(store), store.file.with_name(".lock")
    await store.ensure()
    lock.mkdir()
    (lock / "theirs").touch()
    with trio.move_on_after(0.3) as scope:
        await other.add({"id": "a"})
    assert scope.cancelled_caught and (lock / "theirs").exists(), "a fresh one is waited for"
    at = time.time() - LOCK_STALE_MS / 1000 - 1
    os.utime(lock, (at, at))
    with trio.fail_after(20):
        await other.add({"id": "a"})
    assert await ids(store) == ["a"] and not lock.exists()
    assert sorted(path.name for path in store.file.parent.iterdir()) == ["decisions.jsonl", "settings.json"]


async def test_a_lock_that_was_lost_is_not_removed_and_nothing_is_written(
    store: DecisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, tries = store.file.with_name(".lock"), list[bytes]()
    await store.ensure()
    check = store._check_owner

    def robbed() -> None:
        if not tries:  # another program believed that our lock was stale, and has it now
            for path in lock.iterdir():
                path.unlink()
            (lock / "theirs").touch()
        tries.append(store.file.read_bytes())
        check()

    monkeypatch.setattr(store, "_check_owner", robbed)
    with trio.move_on_after(0.3):
        await store.add({"id": "a"})
    assert tries == [b""] and store.file.read_bytes() == b"" and (lock / "theirs").exists()
    (lock / "theirs").unlink()
    lock.rmdir()
    await store.add({"id": "a"})
    assert await ids(store) == ["a"]


async def test_one_process_writes_one_after_another_and_an_error_blocks_none(store: DecisionStore) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(store.add, {"id": f"d{number}"})
    with pytest.raises(Conflict):
        await store.add({"id": "d1"})
    await store.patch("d1", {"title": "x"})
    assert sorted(await ids(store)) == sorted(f"d{number}" for number in range(20))


async def test_an_exchange_writes_only_over_what_was_seen(store: DecisionStore) -> None:
    await store.ensure()
    store.file.write_bytes(line("a").replace(b"\n", b"\r\n") + line("b") + b"?\n" + line("c")[:-1])
    seen = {one: line(one)[:-1] for one in "abcz"}
    await store.patch("b", {"title": "there"})
    written = await store.exchange(seen, [line(one, title="here")[:-1] for one in "abcnz"])
    assert written == 3
    left = store.file.read_bytes().splitlines(keepends=True)
    assert left[0] == line("a", title="here").replace(b"\n", b"\r\n") and b"there" in left[1] and left[2] == b"?\n"
    assert left[3:] == [line("c", title="here"), line("n", title="here")], "what is gone by now stays away"


LEGACY: list[tuple[dict[str, Any], dict[str, Any], tuple[str, bool] | None]] = [
    ({"id": "note", "kind": "note", "tags": ["x"]}, {}, ("manual", False)),
    ({"id": "up", "kind": "tool"}, {"state": "promoted", "kbPath": "/k.md"}, ("extracted", True)),
    ({"id": "tagged", "kind": "tool", "tags": ["workflow"]}, {}, ("extracted", True)),
    ({"id": "turn", "kind": "turn"}, {"retrievalCount": 2, "lastRetrievedAt": START}, ("turn", False)),
    ({"id": "old", "kind": "note", "source": "manual"}, {"state": "archived"}, ("manual", False)),
    ({"id": "raw", "kind": "tool"}, {}, None),
    ({"id": "unused", "kind": "turn", "tags": 7}, {"retrievalCount": 0}, None),
]


async def test_l38_legacy_files_are_migrated_once(store: DecisionStore) -> None:
    await store.ensure()
    folder = store.file.parent
    observations, index = folder / "observations.jsonl", folder / "index.json"
    times = [f"2026-01-0{9 - number}T00:00:00.000Z" for number in range(len(LEGACY))]
    rows = [
        {"timestamp": at, "cwd": "/repos/shop", "project": "shop", "title": row["id"], "text": "API_KEY=abc", **row}
        for at, (row, _state, _expected) in zip(times, LEGACY, strict=True)
    ]
    observations.write_text("".join(json.dumps(row) + "\n" for row in rows) + "NOT JSON\n")
    index.write_text(json.dumps({"version": 1, "memories": {row["id"]: state for row, state, _ in LEGACY}}))
    store.file.write_bytes(b"?\n" + line("here"))
    store.settings.unlink()
    dry = await store.migrate_legacy(is_dry=True)
    assert not store.settings.exists(), "it makes nothing"
    assert (store.file.read_bytes(), observations.exists()) == (b"?\n" + line("here"), True)
    report = await store.migrate_legacy()
    assert report == dry and (report["scanned"], report["imported"], report["skipped"]) == (7, 5, 2)
    assert report["kept"] == ["note", "up", "tagged", "turn", "old"] and report["unread"] == [8]
    assert await ids(store) == ["old", "turn", "tagged", "up", "note", "here"], "by their times"
    assert store.file.read_bytes().endswith(line("here") + b"?\n")
    found = {record["id"]: record for record in await store.all()}
    for row, _state, expected in LEGACY:
        if expected is not None:
            record = found[row["id"]]
            assert (record["source"], record["important"]) == expected, row
            assert record["archived"] is (row["id"] == "old") and record["text"] == "API_KEY=[redacted]"
    assert found["turn"]["sourceTurnId"] == "turn" and found["turn"]["retrievalCount"] == 2
    assert found["up"]["kbPath"] == "/k.md" and "kbPath" not in found["turn"]
    stamp = START.replace(":", "-").replace(".", "-")
    assert (folder / f"observations.jsonl.legacy-{stamp}").exists() and (folder / f"index.json.legacy-{stamp}").exists()
    before = store.file.read_bytes()
    assert (await store.migrate_legacy())["imported"] == 0 and store.file.read_bytes() == before


EXAMPLES = int(os.environ.get("PATTERN_TEST_EXAMPLES", "60"))


async def test_no_readable_line_of_a_mutated_file_is_lost(store: DecisionStore) -> None:
    await store.ensure()
    for seed in range(EXAMPLES):
        rng = random.Random(seed)
        data = bytearray(line("a") + line("b", supersedes=["a"]) + line("c", text="é😀") + b"42\n")
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randrange(9)]
                case 2:
                    data[at:at] = rng.randbytes(3)
                case _:
                    data[at:at] = data[rng.randrange(len(data)) :][:60]
            data = data or bytearray(b"\n")
        store.file.write_bytes(bytes(data))
        records = await store.all()
        await store.add({"id": "new"})
        if records:
            await store.patch(records[0]["id"], {"title": "changed"})
        kept = [one for one in store.file.read_bytes().split(b"\n") if one]
        lost = [one for one in bytes(data).split(b"\n") if one and one not in kept]
        assert len(lost) <= bool(records), seed
        assert [record["id"] for record in await store.all()] == [*(record["id"] for record in records), "new"], seed


def _work(file: Path, name: str) -> None:
    """Append, patch and count, until this is killed; say on the standard output what is stored."""

    async def work() -> None:
        store = DecisionStore(file, SystemClock(), seeded_randomness(os.getpid()), stale_ms=500)
        for number in range(10**9):
            await store.add({"id": f"{name}-{os.getpid()}-{number}", "text": "x" * 200, "n": 0})
            sys.stdout.write(f"{name}-{os.getpid()}-{number}\n")
            sys.stdout.flush()
            await store.patch(f"{name}-{os.getpid()}-{number}", {"n": 1})
            await store.bump_use([f"{name}-{os.getpid()}-{number}"], "injected")

    async def sync() -> None:
        store = DecisionStore(file, SystemClock(), seeded_randomness(os.getpid()), stale_ms=500)
        async with running(seed=os.getpid()) as world:
            core = world.constellation
            shop = (await core.workspaces.ensure("shop", author=USER)).id
            while True:
                new = NewDecision(title="New", text="x")
                made, _ = await core.decisions.add(shop, new, author=USER)
                for _ in range(2):  # as `pattern decisions sync` does
                    lines = await store.lines()
                    data = b"".join(one.line for one in lines)
                    done = await import_decisions(core.storage, shop, data, author=USER)
                    seen = {one.record["id"]: one.line.rstrip(b"\r\n") for one in lines if one.record is not None}
                    await store.exchange(seen, done.outgoing)
                sys.stdout.write(f"{made.id}\n")
                sys.stdout.flush()
                known = [row.id for row in await core.decisions.known(shop)]
                await core.decisions.change(shop, known[-2], {"title": "changed"}, author=USER)

    trio.run(sync if name == "sync" else work)


def three_writers(folder: Path, seconds: float, seed: int) -> dict[str, int]:
    """Let two processes write one file and a third one synchronise it with decisions, killed at random times; return
    what was counted, after it was checked.
    """
    file, rng, said = folder / "decisions.jsonl", random.Random(seed), list[bytes]()
    file.write_bytes(b"NOT JSON\n" + line("kept"))
    kills, until = 0, time.monotonic() + seconds
    command = [sys.executable, "-m", "tests.pattern_server.test_decision_store", "--writes", str(file)]

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, name], stdout=subprocess.PIPE)

    busy = {name: start(name) for name in ("a", "b", "sync")}
    while busy:
        name = rng.choice([*busy])
        process = busy.pop(name)
        assert process.stdout is not None
        said += [process.stdout.readline().strip() for _ in range(rng.randint(1, 3 if name == "sync" else 40))]
        time.sleep(rng.uniform(0, 0.02))  # so that it is killed at any moment of its work
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read().split()
        process.stdout.close()
        process.wait()
        kills += 1
        if time.monotonic() < until:
            busy[name] = start(name)
    lines = split_lines(file.read_bytes())
    assert lines[:2] == [b"NOT JSON\n", line("kept")], "what another one wrote stays as it is"
    found = [record_of(one)["id"] for one in lines[1:]]  # a torn line could not be read
    assert len(found) == len({*found}), "doubled"
    known = {one.decode() for one in said}
    assert known <= {*found}, "lost"
    assert len({*found} - known) <= kills + 1, "at most one of each process was not said yet"
    return {"kills": kills, "lines": len(lines), "said": len(said)}


def test_processes_that_are_killed_lose_tear_and_double_no_line(tmp_path: Path) -> None:
    counted = three_writers(tmp_path, 2, seed=1)
    assert counted["kills"] >= 1 and counted["said"] >= 2, counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--writes", nargs=2)
    given = parser.parse_args()
    if given.writes:
        _work(Path(given.writes[0]), given.writes[1])
    else:
        with tempfile.TemporaryDirectory() as name:
            sys.stdout.write(f"{three_writers(Path(name), given.seconds, given.seed)}\n")

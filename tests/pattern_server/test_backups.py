"""Scheduled backups: what has changed is copied, what is old is deleted, and every copy can be put back."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.errors import Conflict
from pattern_core.testing import ScriptedProvider, StoppedClock, says
from pattern_db import backup
from pattern_db.columns import unix_ms
from pattern_db.connection import opened_at
from pattern_db.errors import BackupInvalid
from pattern_server.backups import (
    REGISTRY,
    Backups,
    KeptCopy,
    Rounds,
    complaints,
    encrypt,
    folder_of,
    kept,
    kept_copies,
    last_rounds,
    newest_copies,
    run_age,
    to_keep,
    verified,
)
from pattern_server.sections import BackupConfig
from tests.pattern_server import age_program
from tests.pattern_server.age_program import use_stand_in_age
from tests.pattern_server.place import Place, config_for, serving
from tests.support import until

HOUR_MS = 3_600_000


def backups_of(place: Place, clock: StoppedClock, **settings: Any) -> Backups:
    """The copies of a server, at times of the test's own."""
    state = place.parts.state
    return Backups(BackupConfig(**settings), state.accounts, state.supervisor, state.constellations.files, clock)


async def parked(place: Place, c: str) -> None:
    async with place.parts.state.supervisor.aside(c):
        pass


def copies(backups: Backups, each: str) -> list[KeptCopy]:
    return kept(backups.folder / each)


async def round_of(backups: Backups, clock: StoppedClock) -> None:
    clock.advance(24 * HOUR_MS)
    await backups.round()


async def test_only_what_has_changed_is_copied_and_nothing_is_woken(tmp_path: Path) -> None:
    scripted = {"scripted": ScriptedProvider([says("Hello."), says("Yes.")])}
    async with serving(config_for(tmp_path, embeddings={"provider": "none"}), scripted) as place:  # no work behind it
        clock = StoppedClock()
        backups = backups_of(place, clock)
        c = await place.constellation()
        await place.say("Hello")
        await round_of(backups, clock)  # in use
        first = copies(backups, c)
        assert [(one.rows["messages"], one.source) for one in first] == [(2, None)]
        assert (backups.rounds.failed, backups.rounds.complete_at) == ({}, backups.rounds.began_at)
        assert last_rounds(backups.folder) == backups.rounds
        await round_of(backups, clock)
        assert [one.file for one in copies(backups, c)] == [first[0].file]
        await place.say("Again?")
        await parked(place, c)
        before = place.parts.state.constellations.files.closed_as(c)
        for _ in range(3):  # closed, and copied once
            await round_of(backups, clock)
            assert len(place.parts.state.supervisor.handles()) == 0
            assert place.parts.state.constellations.files.closed_as(c) == before
        newest, former = copies(backups, c)
        assert (newest.rows["messages"], newest.source, former) == (4, before, first[0])
        (backups.folder / ".making").write_text("here no copy can be made to be compared")
        assert await backups.copy(c, "home") is None
        (backups.folder / ".making").unlink()
        assert copies(backups, REGISTRY)[0].rows["constellations"] == 1
        for one in copies(backups, c):
            assert verified(backups.folder / c / one.file, one).constellation_id == c


def test_copies_stay_by_day_week_and_month() -> None:
    first = datetime(2026, 1, 1, 3, tzinfo=UTC)
    times = [(first + timedelta(hours=12 * n)).isoformat() for n in range(2 * 365)]
    stays = sorted(to_keep(times, BackupConfig(daily=3, weekly=2, monthly=4)), reverse=True)
    assert [one[:13] for one in stays] == [
        *("2026-12-31T15", "2026-12-30T15", "2026-12-29T15", "2026-12-27T15"),
        *("2026-11-30T15", "2026-10-31T15", "2026-09-30T15"),
    ]
    assert to_keep(times[:5], BackupConfig(daily=0, weekly=0, monthly=0)) == {times[4]}
    assert to_keep([], BackupConfig()) == set()


async def test_old_copies_are_deleted_with_their_manifests(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        clock = StoppedClock()
        backups = backups_of(place, clock, daily=2, weekly=1, monthly=1)
        c = await place.constellation()
        for number in range(5):
            await place.admin.post("/constellations/home/agents", json={"name": f"agent-{number}"})
            await round_of(backups, clock)
        files = sorted(path.name for path in (backups.folder / c).iterdir())
        assert len(files) in (4, 6)  # the newest of a week may be one of the last two days'
        assert {Path(name).suffix for name in files} == {".db", ".json"}
        assert copies(backups, c)[0].rows["agents"] == 6


class HastyClock(StoppedClock):
    """Five hours pass between two looks."""

    def now_ms(self) -> int:
        return self.advance(5 * HOUR_MS)


async def test_rounds_begin_a_day_after_one_another(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        backups = backups_of(place, HastyClock(), daily=100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backups.run)
            await until(lambda: len(copies(backups, REGISTRY)) > 0)
            began = [backups.rounds.began_at]
            while len(began) < 3:
                await until(lambda: backups.rounds.began_at != began[-1])
                began.append(backups.rounds.began_at)
            nursery.cancel_scope.cancel()
        times = [datetime.fromisoformat(str(at)) for at in began if at]
        assert all(later - sooner >= timedelta(hours=24) for sooner, later in pairwise(times))
        await backups_of(place, HastyClock(), enabled=False).run()  # it returns at once


async def test_what_fails_is_named_and_the_rest_is_copied(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        clock = StoppedClock()
        broken, sound = await place.constellation("broken"), await place.constellation("sound")
        await parked(place, broken)
        path = tmp_path / "data" / "constellations" / broken / "pattern.db"
        content = path.read_bytes()
        path.write_bytes(content[:6000] + bytes(4000) + content[10000:])
        backups = backups_of(place, clock)
        await round_of(backups, clock)
        assert [*backups.rounds.failed] == [broken]
        assert backups.rounds.complete_at is None
        assert (copies(backups, broken), len(copies(backups, sound))) == ([], 1)
        place.parts.state.backups.rounds = backups.rounds
        ready = (await place.admin.get(f"{place.url}/readyz")).json()
        assert (ready["status"], broken in ready["warnings"][-1]) == ("ready", True)
        assert [one.id for one in kept_copies(backups.folder)] == [sound, REGISTRY]
        metrics = (await place.admin.get(f"{place.url}/metrics")).text
        assert "pattern_backup_failures 1.0" in metrics
        assert "pattern_backup_drill_timestamp_seconds" in metrics


async def test_a_trial_opens_the_documents(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        clock = StoppedClock()
        c = await place.constellation()
        await place.admin.put("/constellations/home/agents/ada/memory/human", json={"content": "Likes tea."})
        backups = backups_of(place, clock)
        for drilled in (c, REGISTRY):
            await round_of(backups, clock)
            assert (backups.rounds.failed, backups.rounds.drilled_id) == ({}, drilled)
        principal = await place.parts.state.accounts.authenticate(place.parts.local_token)
        async with place.parts.state.constellations.use(principal, "home") as home:
            spoil = "UPDATE memory_block_updates SET update_blob = x'00ff'"
            await home.database.write(lambda connection: connection.execute(spoil).fetchall())
        succeeded_at = backups.rounds.drilled_at
        await round_of(backups, clock)
        assert "memory blocks" in backups.rounds.failed[f"drill of {c}"]
        assert (backups.rounds.drilled_at, backups.rounds.drilled_id) == (succeeded_at, c)
        assert [path.name for path in backups.folder.glob(".*")] == []


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        ((sys.executable, "-c", "import sys; open(sys.argv[1])"), ""),
        ((sys.executable, "-c", "exit('no disk')"), "the command after a copy ended with exit code 1: no disk"),
        (("/nowhere/rclone",), "/nowhere/rclone"),
    ],
)
async def test_a_command_is_run_after_each_copy(tmp_path: Path, command: tuple[str, ...], failure: str) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        backups = backups_of(place, clock := StoppedClock(), command=command)
        await round_of(backups, clock)
        assert len(backups.rounds.failed) == bool(failure)
        assert failure in "".join(backups.rounds.failed.values())
        assert len(copies(backups, REGISTRY)) == 1


async def test_a_constellation_is_put_back_and_that_can_be_undone(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        c, other = await place.constellation(), await place.constellation("other")
        backups = place.parts.state.backups
        for each in (c, other):
            await backups.copy(each, "x")
        await place.admin.post("/constellations/home/agents", json={"name": "ben"})
        rows = (await place.admin.get("/constellations/home/backups")).json()["items"]
        assert [(row["id"], row["rows"]["agents"]) for row in rows] == [(c, 1)]
        body = {"file": rows[0]["path"]}
        checked = (await place.admin.post("/constellations/restore/check", json=body)).json()
        assert (checked["constellation_id"], checked["rows"]["agents"]) == (c, 1)
        refused = await place.admin.post("/constellations/other/restore", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        for back, agents in ((body, ["ada"]), (None, ["ada", "ben"])):  # back, and forward again
            newest = (await place.admin.get("/constellations/home/backups")).json()["items"][-1]
            sent = back or {"file": newest["path"]}
            answer = await place.admin.post("/constellations/home/restore", json=sent)
            assert answer.status_code == 200, answer.text
            found = (await place.admin.get("/constellations/home/agents")).json()["items"]
            assert [agent["name"] for agent in found] == agents
        folder = tmp_path / "data" / "constellations" / c
        assert backup.verify(folder / "pattern.db.replaced").rows["agents"] == 1
        assert [path.name for path in folder.iterdir() if path.name.startswith(".restore")] == []


async def test_copies_are_downloaded_by_their_owner(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        c = await place.constellation()
        one = await place.parts.state.backups.copy(c, "home")
        assert one is not None
        asked = Path((await place.admin.post("/constellations/home/backup")).json()["path"])
        for file in (asked, place.parts.state.backups.folder / c / one.file):
            answer = await place.admin.get(f"/constellations/home/backups/{file.name}")
            assert (answer.status_code, answer.content == file.read_bytes()) == (200, True)
        registry = Path((await place.admin.post("/backup")).json()["path"])
        assert (await place.admin.get(f"/backups/{registry.name}")).content == registry.read_bytes()
        assert len((await place.admin.get("/backups")).json()["items"]) == 1
        for wrong in (registry.name, "none.db", "..%2Fglobal.db", one.file.replace(".db", ".json")):
            assert (await place.admin.get(f"/constellations/home/backups/{wrong}")).status_code == 404
        ben = await place.client("ben")
        assert (await ben.get(f"/constellations/{c}/backups/{one.file}")).status_code == 404
        assert (await ben.get(f"/backups/{registry.name}")).status_code == 403


async def test_owners_put_back_what_is_listed_and_no_other_file(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        ben = await place.client("ben")
        c = (await ben.post("/constellations", json={"name": "bens"})).json()["id"]
        await ben.post("/constellations/bens/agents", json={"name": "ada"})
        one = await place.parts.state.backups.copy(c, "bens")
        assert one is not None
        path = str(place.parts.state.backups.folder / c / one.file)
        for file, status in ((one.file, 200), (path, 403), ("none.db", 404), ("..", 404)):
            assert (await ben.post("/constellations/bens/restore", json={"file": file})).status_code == status


def test_what_is_wrong_with_the_last_rounds(tmp_path: Path) -> None:
    config, at = BackupConfig(folder=tmp_path), "2026-01-01T00:00:00.000Z"
    now_ms = unix_ms(at) + 50 * HOUR_MS
    assert folder_of(config, Path("/elsewhere")) == tmp_path
    assert folder_of(BackupConfig(), Path("/data")) == Path("/data/backups")
    assert last_rounds(tmp_path) == Rounds()
    assert list(complaints(config, Rounds(), now_ms)) == []
    late = Rounds(began_at=at, complete_at=at)
    assert list(complaints(config, late, now_ms)) == ["the last complete backup was made 50 hours ago"]
    assert list(complaints(config, late, now_ms - 2 * HOUR_MS)) == []
    assert list(complaints(BackupConfig(enabled=False), late, now_ms)) == []
    failed = Rounds(began_at=at, failed={"con_1": "no room"})
    assert list(complaints(config, failed, now_ms)) == ["backups that failed: 1, the first of con_1: no room"]


def test_a_file_in_use_is_not_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "pattern.db"
    path.with_name("pattern.db-wal").touch()
    with pytest.raises(BackupInvalid, match="may have it open"):
        verified(path)


def test_the_newest_copy_of_each_is_used(tmp_path: Path) -> None:
    listed = {
        "global": ("global.db.age", "global.db"),
        "con_1": ("con_1/2025.db", "con_1/2026.db.age", "con_1/2026.db", "a.con_1.db"),
        "con_2": ("b.b.con_2.increment.age",),
        "con_3": ("con_3/2025.db", "con_3/2026.db.age"),
    }
    others = ("con_2.before-migration.2026.db", ".making/2027.db", "con_1/2027.json", "con_3/2028.txt")
    for name in (*others, *(name for names in listed.values() for name in names)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    newest = {"global": "global.db", "con_1": "con_1/2026.db", "con_2": listed["con_2"][0], "con_3": listed["con_3"][1]}
    found = newest_copies(tmp_path)
    assert {each: str(found[each].relative_to(tmp_path)) for each in listed} == newest
    assert found.keys() - listed.keys() == {"2026"}


async def test_idle_files_with_much_free_space_are_vacuumed_if_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pattern_db.maintenance.MUCH_FREE_BYTES", 1)
    async with serving(config_for(tmp_path, embeddings={"provider": "none"}), {}) as place:
        clock, free, full, busy = StoppedClock(), "free", "full", "busy"
        path = {name: tmp_path / "data/constellations" / await place.constellation(name) for name in (free, full, busy)}
        await parked(place, path[free].name)
        await parked(place, path[full].name)
        with opened_at(path[free] / "pattern.db") as connection:
            fill = "INSERT INTO blob VALUES (randomblob(32), 'raw', 90000, randomblob(90000), ?)"
            connection.executemany(fill, [("2026-01-01T00:00:00.000Z",)] * 30)
            connection.execute("DELETE FROM blob").fetchall()
        sizes = {name: (folder / "pattern.db").stat().st_size for name, folder in path.items()}
        await round_of(backups_of(place, clock), clock)
        assert (path[free] / "pattern.db").stat().st_size == sizes[free]
        backups = backups_of(place, clock, auto_vacuum=True)
        await round_of(backups, clock)
        assert backups.rounds.failed == {}
        assert (path[free] / "pattern.db").stat().st_size < sizes[free] / 2
        assert copies(backups, path[free].name)[0].size < sizes[free] / 2
        assert [(path[name] / "pattern.db").stat().st_size for name in (full, busy)] == [sizes[full], sizes[busy]]
        assert place.parts.state.supervisor.state_of(path[busy].name)[0] == "awake"
        await round_of(backups, clock)  # nothing has changed since
        assert len(copies(backups, path[free].name)) == 2


async def test_copies_are_encrypted_too_and_the_command_gets_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, _ = use_stand_in_age(tmp_path, monkeypatch)
    seen = f"import sys; open({str(tmp_path / 'seen')!r}, 'a').write(sys.argv[1] + '\\n')"
    command = (sys.executable, "-c", seen)
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        clock = StoppedClock()
        c = await place.constellation()
        path = backups_of(place, clock, age_recipient=recipient).folder / c
        with monkeypatch.context() as without:
            without.setenv("PATH", "")
            backups = backups_of(place, clock, age_recipient=recipient)
            await round_of(backups, clock)
        assert "age could not be started" in backups.rounds.failed[c]
        assert len(copies(backups, c)) == 1
        backups = backups_of(place, clock, age_recipient=recipient, daily=1, weekly=0, monthly=0, command=command)
        await round_of(backups, clock)  # nothing has changed, and that copy is not encrypted yet
        assert backups.rounds.failed == {}
        assert sorted(one.suffix for one in path.iterdir()) == [".age", ".db", ".json"]
        await place.admin.post("/constellations/home/agents", json={"name": "ben"})
        await round_of(backups, clock)
        [one] = copies(backups, c)
        sealed = path / f"{one.file}.age"
        assert sorted(path.iterdir()) == sorted([path / one.file, sealed, (path / one.file).with_suffix(".json")])
        assert sealed.read_bytes().startswith(age_program.START)
        assert (tmp_path / "seen").read_text().splitlines()[-1] == str(sealed)
        assert newest_copies(backups.folder)[c] == path / one.file


def test_a_recipient_is_a_public_key() -> None:
    with pytest.raises(ValueError, match="public key"):
        BackupConfig(age_recipient="AGE-SECRET-KEY-1")
    for key in ("age1abc", "ssh-ed25519 AAAA"):
        assert BackupConfig(age_recipient=key).age_recipient == key


async def test_a_failing_age_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in_age(tmp_path, monkeypatch)
    with pytest.raises(Conflict, match="an option that this stand-in"):
        await run_age("-x", "a", "-o", "b", "c")
    (source := tmp_path / "home.db").write_bytes(b"words")
    with pytest.raises(Conflict, match="could not be started"), monkeypatch.context() as without:
        without.setenv("PATH", "")
        await encrypt(source, tmp_path / "home.db.age", "age1x")
    assert not (tmp_path / "home.db.age").exists()
    await encrypt(source, source, "age1x")  # in its own place
    assert source.read_bytes().startswith(age_program.START)

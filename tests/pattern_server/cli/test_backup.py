"""A whole data directory: copied, and restored to another place."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio

from pattern_db import template
from pattern_db.backup import content_digest
from pattern_db.connection import open_immutable, opened_at
from pattern_db.increments import MAGIC
from pattern_db.migrate import migrations_of
from pattern_server.backups import encrypt
from pattern_server.cli import run
from tests.pattern_db.older import NOW, create_older
from tests.pattern_server.age_program import START, use_stand_in_age
from tests.pattern_server.cli.conftest import Pattern


@pytest.fixture
def copies(home: Pattern, tmp_path: Path) -> Path:
    """The folder of the copies of two constellations, and of users and tokens."""
    assert home("constellation", "create", "other").code == 0
    made = home("backup", "--all", "-o", str(tmp_path / "copies"))
    assert made.code == 0, made.err
    return tmp_path / "copies"


def digest(path: Path) -> str:
    with closing(open_immutable(path)) as connection:
        return content_digest(connection)


def test_everything_is_restored_row_by_row(home: Pattern, copies: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    line = ("restore", "--all", str(copies), "--to", str(new), "--json")
    plan = home(*line, "--dry-run")
    assert (plan.code, [row["database"] for row in plan.json]) == (0, ["(global)", "home", "other"])
    assert not new.exists() and "Nothing was restored" in plan.err
    done = home(*line)
    assert (done.code, done.json) == (0, plan.json), done.err
    assert new.stat().st_mode & 0o777 == 0o700
    assert {digest(path) for path in new.rglob("*.db")} == {digest(path) for path in copies.iterdir()}
    assert not [path for path in tmp_path.iterdir() if "restoring" in path.name]
    refused = home(*line)
    assert (refused.code, "is not empty" in refused.err) == (1, True)


@pytest.mark.parametrize("version", range(3, migrations_of("global").newest + 1))  # there are constellations since 3
def test_users_and_constellations_of_every_version_are_restored(
    version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copies := tmp_path / "copies").mkdir()
    template.create(copies / "global.db", migrations_of("global").up_to(version), now=NOW)
    with opened_at(copies / "global.db") as connection:
        sql = "INSERT INTO users (id, username, created_at, updated_at) VALUES ('user_1', 'ann', ?1, ?1)"
        connection.execute(sql, (NOW,)).fetchall()
        sql = "INSERT INTO constellations (id, owner_id, name, db_path, created_at, last_accessed_at) VALUES"
        path = f"constellations/con_{1:026d}/pattern.db"
        connection.execute(f"{sql} (?, 'user_1', 'home', ?, ?, ?)", (f"con_{1:026d}", path, NOW, NOW)).fetchall()
    create_older(copies / f"home.con_{1:026d}.db", 30, f"con_{1:026d}")
    new = tmp_path / "new"
    assert run(["restore", "--all", str(copies), "--to", str(new)]) == 0, capsys.readouterr().err
    for line in ("migrate", "check"):
        assert run(["db", line, "--data-dir", str(new)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(["db", "status", "--data-dir", str(new), "--json"]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"up to date"}


def _lose(copies: Path) -> None:
    next(copies.glob("home.*")).unlink()


def _damage(copies: Path) -> None:
    next(copies.glob("home.*")).write_bytes(b"damaged" * 1000)


def _swap(copies: Path) -> None:
    shutil.copy(next(copies.glob("other.*")), next(copies.glob("home.*")))


def _swap_registry(copies: Path) -> None:
    shutil.copy(copies / "global.db", next(copies.glob("home.*")))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_swap_registry, "of another constellation"),
        (_lose, "no copy of it"),
        (_damage, "cannot be read"),
        (_swap, "of another constellation"),
    ],
)
def test_what_cannot_be_restored_is_named(
    home: Pattern, copies: Path, tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(copies)
    (new := tmp_path / "new").mkdir()
    line = ("restore", "--all", str(copies), "--to", str(new))
    refused = home(*line)
    assert (refused.code, words in refused.err, "Databases that cannot be restored: 1 of 3" in refused.err) == (
        2,
        True,
        False,
    )
    assert [*new.iterdir()] == []
    assert home(*line, "--dry-run").code == 3
    done = home(*line, "--yes")
    assert (done.code, "Restored to" in done.err) == (3, True), done.err
    assert len([*new.rglob("*.db")]) == 2


def test_without_the_registry_nothing_is_restored(home: Pattern, copies: Path, tmp_path: Path) -> None:
    for content in (b"damaged" * 1000, None):
        (copies / "global.db").write_bytes(content) if content else (copies / "global.db").unlink()
        assert home("restore", "--all", str(copies), "--to", str(tmp_path / "new")).code == 1
    assert not (tmp_path / "new").exists()
    assert home("restore", "--all", str(copies)).code == 2
    assert home("restore", "--all", str(copies), "--to", str(tmp_path / "new"), "--as", "x").code == 2
    assert home("restore").code == 2


def test_copies_of_what_has_changed_are_restored_as_a_chain(home: Pattern, tmp_path: Path) -> None:
    names = ["sunday.db", "monday.increment", "week/tuesday.increment"]
    paths = [str(tmp_path / name) for name in names]
    made: list[dict[str, int]] = []
    for number, path in enumerate(paths):
        assert home("task", "add", f"Task {number}", "-c", "home", "-a", "ada").code == 0
        since = ("--since", paths[number - 1]) if number else ()
        ran = home("backup", "-c", "home", "-o", path, *since, "--json")
        assert ran.code == 0, ran.err
        made.append(ran.json)
    assert all(one["bytes"] < made[0]["bytes"] / 10 for one in made[1:])
    assert all(0 < one["pages"] < 30 for one in made[1:])
    for number, path in enumerate(paths):
        assert home("backup", "verify", path).code == 0
        assert home("restore", path, "--dry-run", "--json").json["rows"]["tasks"] == number + 1
    restored = home("restore", paths[2], "--json")
    assert (restored.code, restored.json["name"]) == (0, "tuesday"), restored.err
    assert len(home("task", "list", "-c", "tuesday", "--json").json) == 3
    assert home("restore", paths[1], "--in-place", "home", "--yes").code == 0
    assert len(home("task", "list", "-c", "home", "--json").json) == 2

    assert home("constellation", "create", "other").code == 0
    refused = home("backup", "-c", "other", "-o", str(tmp_path / "other"), "--since", paths[0])
    assert (refused.code, "another constellation" in refused.err) == (2, True)
    assert home("backup", "-c", "home", "-o", paths[0], "--since", paths[0], "--overwrite").code == 2
    assert home("backup", "--all", "-o", str(tmp_path / "all"), "--since", paths[0]).code == 2
    assert home("backup", "--all", "-o", str(tmp_path), "--since", str(tmp_path)).code == 2
    assert home("backup", "-c", "home", "-o", paths[1], "--since", paths[0]).code == 1
    (tmp_path / "monday.increment").unlink()
    lost = home("backup", "verify", paths[2])
    assert (lost.code, "which is missing" in lost.err) == (1, True)
    head = {"base": "tuesday.increment", "base_sha256": "", "sha256": "", "size": 1}
    Path(paths[2]).write_bytes(MAGIC + json.dumps(head).encode() + b"\n")  # of itself
    assert "more than" in home("backup", "verify", paths[2]).err
    assert [path.name for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


def test_a_whole_data_directory_at_each_point_in_time(
    home: Pattern, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, keys = use_stand_in_age(tmp_path, monkeypatch)
    key, names = ("--identity", str(keys)), ("sunday", "monday", "tuesday")
    folders = [str(tmp_path / name) for name in names]
    for number, folder in enumerate(folders):
        assert home("constellation", "create", f"of-{number}").code == 0
        assert home("task", "add", f"Task {number}", "-c", "home", "-a", "ada").code == 0
        since = ("--since", folders[number - 1], *key) if number else ()
        ran = home("backup", "--all", "-o", folder, *since, "--age-recipient", recipient, "--json")
        assert (ran.code, len(ran.json["copied"])) == (0, number + 3), ran.err
    made = [sorted(path.name.split(".", 1)[0] for path in Path(folder).glob("*.db.age")) for folder in folders]
    assert made == [["global", "home", "of-0"], ["of-1"], ["of-2"]]  # the others are increments
    assert all(path.read_bytes().startswith(START) for folder in folders for path in Path(folder).iterdir())

    assert "--identity FILE" in home("restore", "--all", folders[2], "--to", str(tmp_path / "new")).err
    for number, folder in enumerate(folders):
        new = str(tmp_path / f"new-{number}")
        dry = home("restore", "--all", folder, "--to", new, *key, "--dry-run", "--json")
        assert (dry.code, len(dry.json), Path(new).exists()) == (0, number + 3, False), dry.err
        assert home("restore", "--all", folder, "--to", new, *key).code == 0
        tasks = []
        for path in Path(new).rglob("pattern.db"):
            with closing(open_immutable(path)) as connection:
                tasks.append(connection.execute("SELECT count(*) FROM tasks").get)
        assert sorted(tasks) == [*[0] * (number + 1), number + 1]

    for path in Path(folders[1]).glob("of-0.*"):
        path.unlink()
    lost = home("restore", "--all", folders[2], "--to", str(tmp_path / "lost"), *key, "--yes")
    assert (lost.code, lost.err.count("which is missing")) == (3, 1)
    assert len([*(tmp_path / "lost").rglob("*.db")]) == 4


def test_encrypted_copies_are_restored_with_the_key(
    home: Pattern, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipient, keys = use_stand_in_age(tmp_path, monkeypatch)
    assert_encrypted_copies_are_restored(home, tmp_path, recipient, keys)
    (wrong := tmp_path / "wrong.txt").write_text("AGE-SECRET-KEY-2\n")
    sealed = str(tmp_path / "home.db.age")
    for line in (("restore", sealed, "--as", "wrong"), ("backup", "verify", sealed)):
        refused = home(*line, "--identity", str(wrong))
        assert (refused.code, "no identity matched" in refused.err) == (1, True)
        missing = home(*line)
        assert (missing.code, "--identity FILE" in missing.err) == (2, True)
    monkeypatch.setenv("PATH", "")
    assert "could not be started" in home("restore", sealed, "--as", "x", "--identity", str(keys)).err


@pytest.mark.skipif(shutil.which("age") is None or shutil.which("age-keygen") is None, reason="age is not installed")
def test_encrypted_copies_of_age_itself(home: Pattern, tmp_path: Path) -> None:
    keys = tmp_path / "key.txt"
    subprocess.run(["age-keygen", "-o", str(keys)], check=True, capture_output=True)
    made = subprocess.run(["age-keygen", "-y", str(keys)], check=True, capture_output=True, text=True)
    assert_encrypted_copies_are_restored(home, tmp_path, made.stdout.strip(), keys)


def assert_encrypted_copies_are_restored(home: Pattern, folder: Path, recipient: str, keys: Path) -> None:
    first, second = folder / "home.db", folder / "later"
    assert home("backup", "-c", "home", "-o", str(first)).code == 0
    assert home("task", "add", "Water the beds", "-c", "home", "-a", "ada").code == 0
    assert home("backup", "-c", "home", "-o", str(second), "--since", str(first)).code == 0
    for file, tasks in ((first, 0), (second, 1)):
        sealed, name = file.with_name(f"{file.name}.age"), f"with-{tasks}"
        trio.run(encrypt, file, sealed, recipient)
        key = ("--identity", str(keys))
        assert home("backup", "verify", str(sealed), *key).code == 0
        assert home("restore", str(sealed), "--dry-run", *key).code == 0
        done = home("restore", str(sealed), "--as", name, *key)
        assert done.code == 0, done.err
        assert len(home("task", "list", "-c", name, "--json").json) == tasks
    first.unlink()  # the encrypted one is used in its place
    done = home("backup", "verify", f"{second}.age", "--identity", str(keys))
    assert done.code == 0, done.err

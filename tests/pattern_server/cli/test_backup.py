"""`pattern backup` and `pattern restore`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pattern_db.files import sha256_of
from pattern_server.cli.backup import CopyDamaged, _take
from tests.pattern_server.cli.conftest import Pattern


def test_a_copy_restores_everything(home: Pattern, tmp_path: Path) -> None:
    home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
    copy = tmp_path / "copies" / "home.db"
    made = home("backup", "-c", "home", "-o", str(copy), "--json").json
    assert made["sha256"] == hashlib.sha256(copy.read_bytes()).hexdigest()
    assert made["bytes"] == copy.stat().st_size
    assert [path.name for path in copy.parent.iterdir()] == ["home.db"]

    home("chat", "-c", "home", "Remember that Ruth moved to Porto.")
    restored = home("restore", str(copy), "--as", "before")
    assert restored.code == 0, restored.err
    answer = home("chat", "-c", "before", "What do you know about Ruth?").out
    assert "Lisbon" in answer
    assert "Porto" not in answer
    assert "Porto" in home("chat", "-c", "home", "What do you know about Ruth?").out


def test_a_name_that_is_taken_is_refused(home: Pattern, tmp_path: Path) -> None:
    copy = tmp_path / "home.db"
    assert home("backup", "-c", "home", "-o", str(copy)).code == 0
    refused = home("restore", str(copy))
    assert refused.code == 1
    assert "home" in refused.err


def test_all_of_them(home: Pattern, tmp_path: Path) -> None:
    home("constellation", "create", "work")
    ran = home("backup", "--all", "-o", str(tmp_path / "all"), "--json")
    assert ran.code == 0, ran.err
    assert sorted(Path(one["file"]).name.split(".")[0] for one in ran.json["copied"]) == ["global", "home", "work"]
    again = home("backup", "--all", "-o", str(tmp_path / "all"))
    assert again.code == 3, "what exists is left out, and the exit code says so"
    assert home("backup", "--all", "-o", str(tmp_path / "all"), "--overwrite").code == 0


def test_refusals(home: Pattern, tmp_path: Path) -> None:
    (tmp_path / "there.db").write_text("mine")
    assert home("backup", "-c", "home", "-o", str(tmp_path / "there.db")).code == 1
    assert (tmp_path / "there.db").read_text() == "mine"
    assert home("backup", "-o", str(tmp_path / "x.db")).code == 2
    assert home("backup", "-c", "home", "-o", str(tmp_path)).code == 1
    assert home("backup", "--all", "-o", str(tmp_path / "there.db")).code == 1
    assert home("backup", "-c", "nowhere", "-o", str(tmp_path / "x.db")).code == 1
    not_a_copy = home("restore", str(tmp_path / "there.db"))
    assert not_a_copy.code == 1
    assert not_a_copy.err.startswith("Error: ")
    assert home("restore", str(tmp_path / "missing.db")).code == 2


def test_a_copy_that_arrives_damaged_is_not_used(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"words")
    with pytest.raises(CopyDamaged):
        _take(source, target, "0" * 64)
    assert source.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    _take(source, target, sha256_of(source))
    assert target.read_bytes() == b"words"
    assert not source.exists()

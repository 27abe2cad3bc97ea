from __future__ import annotations

from pathlib import Path

import pytest

from pattern_db import files


def test_a_file_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a"
    with files.temporary(target) as path:
        path.write_bytes(b"whole")
        assert not target.exists()
        files.replace(path, target)
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"before")

    def fail() -> None:
        with files.temporary(target) as path:
            path.write_bytes(b"half")
            path.with_name(path.name + "-wal").write_bytes(b"log")
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"before"


def test_syncing_what_is_missing_is_an_error(tmp_path: Path) -> None:
    files.sync_directory(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.sync_file(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        files.sync_directory(tmp_path / "none")

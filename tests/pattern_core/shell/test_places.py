from __future__ import annotations

import os
from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.shell.places import open_place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work" / "a" / "b").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    return tmp_path / "work"


def where(root: Path, directory: str | None) -> Path:
    place = open_place([root], (), directory)
    with place.closed_unless_taken():
        found = Path(f"/proc/self/fd/{place.descriptor}").resolve()
        assert found == place.path
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(place.descriptor)
    return found


def test_below_the_root(root: Path) -> None:
    assert where(root, None) == root
    assert where(root, "a/b") == root / "a" / "b"
    assert where(root, str(root / "a")) == root / "a"


def test_a_place_that_is_taken_stays_open(root: Path) -> None:
    place = open_place([root], (), None)
    with place.closed_unless_taken() as taken:
        assert taken() is place
    os.close(place.descriptor)


def test_no_way_leads_out(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret")
    (root / "a" / "up").symlink_to("../..")
    for directory, error in (
        ("link", NotFound),
        ("a/up", NotFound),
        ("nowhere", NotFound),
        ("..", InvalidInput),
        ("a/../..", InvalidInput),
        ("a\0", InvalidInput),
        ("/", PermissionDenied),
        (str(root.parent / "secret"), PermissionDenied),
        (str(root) + "x", PermissionDenied),
    ):
        with pytest.raises(error):
            open_place([root], (), directory)


def test_a_link_as_root_is_meant(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    assert where(root.parent / "alias", str(root.parent / "alias" / "a")) == root / "a"


def test_without_roots_the_error_says_what_to_do(root: Path) -> None:
    with pytest.raises(PermissionDenied, match=r"roots = "):
        open_place([], (), None)
    with pytest.raises(InvalidInput, match="server's own data"):
        open_place([root], [root / "a"], None)

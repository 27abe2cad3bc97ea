"""Increments: a chain makes each copy again, byte by byte; what is missing, damaged or another one is refused."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import backup, template
from pattern_db.connection import PAGE_BYTES, open_connection
from pattern_db.errors import BackupInvalid, DiskFull
from pattern_db.increments import MAGIC, assemble, head_of, write
from pattern_db.migrate import migrations_of

NOW = "2026-02-03T04:05:06.007Z"


def chain_of(folder: Path, contents: list[bytes]) -> list[Path]:
    """The copies with these contents: the first one whole, each other one as an increment of the one before."""
    made: list[Path] = []
    for number, content in enumerate(contents):
        whole = folder / f"{number}.db"
        whole.write_bytes(content)
        if made:
            write(whole, made[-1], folder / f"{number - 1}.db", folder / f"{number}.increment")
        made.append(folder / f"{number}.increment" if made else whole)
    for number in range(1, len(contents)):
        (folder / f"{number}.db").unlink()
    return made


def whole(file: Path) -> bytes:
    target, chain = file.with_name("whole"), list[Path]()
    while head := head_of(file):
        chain.append(file)
        file = file.parent / head.base
    assemble(file, chain, target)
    return target.read_bytes()


PAGES = st.lists(st.sampled_from([bytes([number]) * PAGE_BYTES for number in range(4)]), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(copies=st.lists(st.tuples(PAGES, st.sampled_from([b"", b"half a page"])), min_size=1, max_size=5))
def test_each_copy_of_a_chain_is_made_again(
    tmp_path_factory: pytest.TempPathFactory, copies: list[tuple[list[bytes], bytes]]
) -> None:
    contents = [b"".join(pages) + end for pages, end in copies]
    made = chain_of(tmp_path_factory.mktemp("chain"), contents)
    assert [whole(file) for file in made] == contents


def test_an_increment_of_a_database_is_small_and_can_be_restored(tmp_path: Path) -> None:
    path, first, second, increment = (tmp_path / name for name in ("a.db", "1.db", "2.db", "sub/2.increment"))
    template.create(path, migrations_of("constellation"), now=NOW)
    with closing(open_connection(path)) as connection:
        fill = "INSERT INTO coordination_state (key, value, updated_at) VALUES (?, '1', ?)"
        connection.executemany(fill, [(f"{number} {'x' * 500}", NOW) for number in range(2000)])
        backup.hot_backup(connection, first)
        connection.execute(fill, ("new", NOW))
        backup.hot_backup(connection, second)
    assert write(second, first, first, increment) < 8
    assert increment.stat().st_size < first.stat().st_size / 50
    assert head_of(first) is None
    second.unlink()
    assemble(first, [increment], tmp_path / "whole.db")
    assert backup.verify(tmp_path / "whole.db").rows["coordination_state"] == 2001


def test_a_chain_with_a_changed_link_is_refused(tmp_path: Path) -> None:
    first, second, third = chain_of(tmp_path, [bytes(PAGE_BYTES) * n for n in (3, 5, 4)])
    content = first.read_bytes()
    first.write_bytes(content[:-1] + b"x")
    with pytest.raises(BackupInvalid, match=r"another 0\.db"):
        whole(third)
    first.write_bytes(content)
    with pytest.raises(BackupInvalid, match=r"another 0\.db"):
        assemble(first, [third], tmp_path / "whole")
    second.write_bytes(MAGIC + json.dumps({"base": third.name}).encode() + b"\n")
    with pytest.raises(BackupInvalid, match="head"):
        whole(third)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_every_changed_or_missing_byte_of_an_increment_is_noticed(tmp_path: Path) -> None:
    rng = random.Random(3)
    _, file = chain_of(tmp_path, [rng.randbytes(PAGE_BYTES * n) for n in (3, 4)])
    content = file.read_bytes()
    for number in range(300):
        at = rng.randrange(len(content))
        changed = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        file.write_bytes(content[:at] if number % 3 == 0 else changed)
        try:
            made = whole(file)
        except (BackupInvalid, FileNotFoundError, DiskFull):
            continue
        assert made in (content, file.read_bytes()), "what has lost its magic is a file like others"


def test_a_size_that_lies_makes_no_large_file(tmp_path: Path) -> None:
    first, second = chain_of(tmp_path, [bytes(PAGE_BYTES), bytes(PAGE_BYTES) + b"x" * PAGE_BYTES])
    head, _, rest = second.read_bytes().removeprefix(MAGIC).partition(b"\n")
    second.write_bytes(MAGIC + json.dumps({**json.loads(head), "size": 1 << 50}).encode() + b"\n" + rest)
    with pytest.raises(BackupInvalid, match="missing at its end"):
        whole(second)
    assert first.exists()

"""What the mirror remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.errors import Conflict
from pattern_server.cli.mirror.plan import Known, Sent
from pattern_server.cli.mirror.states import States, claim

KNOWN = Known(
    block_id="mem_1",
    path="ada/human.md",
    version=3,
    text="よい\n",
    sent=Sent(text="a", version=3, local="b"),
    incoming=(4, "c"),
)


def test_what_is_put_is_there_the_next_time(tmp_path: Path) -> None:
    states = States(tmp_path)
    states.put(KNOWN, is_durable=True)
    assert list(States(tmp_path)) == [KNOWN]
    assert States(tmp_path).get("mem_1") == KNOWN
    states.forget("mem_1")
    states.forget("mem_1")
    assert list(states) == list(States(tmp_path)) == []


def test_damaged_states_are_named_and_passed_over(tmp_path: Path) -> None:
    States(tmp_path).put(KNOWN)
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", '{"sent": null}')):
        (tmp_path / name).write_text(text)
    states = States(tmp_path)
    assert states.unreadable == ["a.json", "b.json", "c.json"]
    assert states.get("mem_1") == KNOWN


def test_a_dry_run_leaves_no_trace(tmp_path: Path) -> None:
    states = States(tmp_path / "nowhere", is_dry=True)
    states.put(KNOWN, is_durable=True)
    assert states.get("mem_1") == KNOWN
    states.forget("mem_1")
    assert not (tmp_path / "nowhere").exists()


def test_ids_are_no_paths(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    States(tmp_path / "inner").put(Known(block_id="../x", path="a/b.md", version=0, text=""))
    assert [file.name for file in tmp_path.iterdir()] == ["inner"]


def test_a_folder_mirrors_one_constellation(tmp_path: Path) -> None:
    folder = tmp_path / ".pattern-sync"
    folder.mkdir()
    claim(folder / "constellation", "con_1")
    claim(folder / "constellation", "con_1")
    with pytest.raises(Conflict, match="another constellation"):
        claim(folder / "constellation", "con_2")

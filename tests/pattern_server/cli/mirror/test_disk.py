"""Blocks as files: their texts and names, a folder in which nothing that a person saves is lost, and its states."""

from __future__ import annotations

import json
import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import Conflict
from pattern_db.columns import Json
from pattern_server.cli.memory_edits import dumped
from pattern_server.cli.mirror import content
from pattern_server.cli.mirror.content import (
    FILE_BYTES_MAX,
    NAME_BYTES_MAX,
    Form,
    Unreadable,
    distinct_names,
    file_name,
    plain_name,
)
from pattern_server.cli.mirror.disk import Disk, States, claim, form_at
from pattern_server.cli.mirror.plan import Known, Local, Sent


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "ada").mkdir()
    return Disk(tmp_path)


def test_only_what_could_be_a_block_is_seen(disk: Disk) -> None:
    beside = (".hidden.md", "#x.md", "notes.txt", "human.md~", "human.md.yours.txt")
    for name in ("human.md", "mood.json", "diary.jsonl", *beside):
        (disk.root / "ada" / name).write_text("x")
    (disk.root / "ada/linked.md").symlink_to("/etc/hostname")
    (disk.root / "ada/folder.md").mkdir()
    (disk.root / "linked").symlink_to(disk.root / "ada")
    (disk.root / "loose.md").write_text("x")
    assert list(disk.files()) == ["ada/diary.jsonl", "ada/human.md", "ada/mood.json"]
    assert list(Disk(disk.root / "nowhere").files()) == []
    assert form_at("ada/mood.json") is Form.VALUE


def test_reading(disk: Disk) -> None:
    assert disk.read("ada/human.md") == Local()
    assert disk.read("nobody/human.md") == Local()
    file = disk.root / "ada/human.md"
    file.write_text("Likes tea.\n")
    assert disk.read("ada/human.md") == Local(text="Likes tea.\n")
    file.write_bytes(b"\xff")
    assert "UTF-8" in str(disk.read("ada/human.md").problem)
    with file.open("wb") as sparse:
        sparse.truncate(FILE_BYTES_MAX + 1)
    assert "larger" in str(disk.read("ada/human.md").problem)
    file.unlink()
    os.mkfifo(file)
    assert "plain file" in str(disk.read("ada/human.md").problem)
    file.unlink()
    file.symlink_to("/etc/hostname")
    assert "symbolic link" in str(disk.read("ada/human.md").problem)


def test_a_file_that_changed_is_not_replaced(disk: Disk) -> None:
    assert disk.write("ada/human.md", "one", expected=Local())
    file = disk.root / "ada/human.md"
    assert file.read_text() == "one\n"
    file.write_text("mine\n")
    assert not disk.write("ada/human.md", "two", expected=Local(text="one\n"))
    assert file.read_text() == "mine\n"
    assert disk.write("ada/human.md", "two", expected=Local(text="mine\n"))
    assert file.read_text() == "two\n"
    assert sorted(path.name for path in (disk.root / "ada").iterdir()) == ["human.md"]


class LateDisk(Disk):
    """Somebody saves just after the last look."""

    def _held(self, target: Path) -> Path | None:
        held = super()._held(target)
        target.write_text("saved late\n")
        return held


def test_what_is_saved_after_the_last_look_is_kept_beside(disk: Disk) -> None:
    file = disk.root / "ada/human.md"
    file.write_text("one\n")
    assert LateDisk(disk.root).write("ada/human.md", "two", expected=Local(text="one\n"))
    assert file.read_text() == "two\n"
    assert (disk.root / "ada/human.md.yours.txt").read_text() == "saved late\n"


def test_setting_aside_never_overwrites(disk: Disk) -> None:
    for expected in ("human.md.yours.txt", "human.md.yours-2.txt", "human.md.yours-3.txt"):
        (disk.root / "ada/human.md").write_text(expected)
        assert disk.set_aside("ada/human.md") == expected
        assert (disk.root / "ada" / expected).read_text() == expected
    assert disk.set_aside("ada/human.md") is None


def test_retiring_keeps_the_bytes_and_takes_empty_folders_away(disk: Disk) -> None:
    for words in ("one", "two"):
        (disk.root / "ada").mkdir(exist_ok=True)
        (disk.root / "ada/human.md").write_text(words)
        disk.retire("ada/human.md")
        assert not (disk.root / "ada").exists()
    assert {file.read_text() for file in disk.own("removed").iterdir()} == {"one", "two"}
    disk.retire("ada/human.md")


def test_reasons_come_and_go_and_a_persons_own_file_stays(disk: Disk) -> None:
    note = disk.root / "ada/human.md.error.txt"
    disk.explain("ada/human.md", "it is too long")
    assert "it is too long" in note.read_text()
    disk.explain("ada/human.md", None)
    assert not note.exists()
    note.write_text("my own")
    disk.explain("ada/human.md", None)
    assert note.read_text() == "my own"


def test_moving_and_leftovers(disk: Disk) -> None:
    (disk.root / "ada/human.md").write_text("x")
    (disk.root / "ada/.pattern-sync-new-human.md").write_text("half")
    disk.clean()
    assert disk.move("ada/human.md", "bob/person.md")
    assert not (disk.root / "ada").exists()
    (disk.root / "bob/other.md").write_text("y")
    assert not disk.move("bob/person.md", "bob/other.md")
    assert (disk.root / "bob/other.md").read_text() == "y"
    first = disk.signature("bob/other.md")
    assert first == disk.signature("bob/other.md")
    (disk.root / "bob/other.md").write_text("longer")
    assert disk.signature("bob/other.md") != first
    assert disk.signature("bob/none.md") is None


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


def test_forms_by_schema() -> None:
    assert content.form_of({}) is Form.TEXT
    assert content.form_of({"schema": "Text"}) is Form.TEXT
    assert content.form_of({"schema": {"Text": {"viewport": {}}}}) is Form.TEXT
    assert content.form_of({"schema": {"Map": {"fields": []}}}) is Form.VALUE
    assert content.form_of({"schema": {"Log": {}}}) is Form.LOG


def test_texts_of_blocks() -> None:
    assert content.text_of({"content": "shown", "value": "all of it"}) == "all of it"
    assert content.text_of({"content": "old server"}) == "old server"
    value = {"mood": "よい", "tags": [1]}
    written = content.text_of({"schema": {"Map": {}}, "content": "", "value": value})
    assert written == '{\n  "mood": "よい",\n  "tags": [\n    1\n  ]\n}\n'
    log = content.text_of({"schema": {"Log": {}}, "content": "", "value": [{"a": 1}, {"b": 2}]})
    assert log == '{"a": 1}\n{"b": 2}\n'
    assert content.body_of(Form.VALUE, written) == {"value": value}
    assert content.body_of(Form.TEXT, "x") == {"content": "x"}


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_a_text_that_was_written_reads_as_itself(text: str) -> None:
    read = content.read(content.to_bytes(text), Form.TEXT)
    assert content.like(read, text) == text


@pytest.mark.parametrize("saved", ["one\ntwo\n", "one\r\ntwo\r\n", "\ufeffone\ntwo", "one\ntwo"])
def test_what_editors_do_by_themselves_is_no_change(saved: str) -> None:
    assert content.like(saved, "one\ntwo") == "one\ntwo"


def test_another_indentation_is_no_change() -> None:
    assert content.read(b'{"a":1,\r\n"b":[2]}', Form.VALUE) == dumped({"a": 1, "b": [2]})


@pytest.mark.parametrize(
    ("raw", "form", "words"),
    [
        (b"\xff\xfe", Form.TEXT, "UTF-8"),
        (b"a\0b", Form.TEXT, "zero byte"),
        (b'{"a":', Form.VALUE, "not JSON"),
        (b'{"a": NaN}', Form.VALUE, "NaN"),
        (b"[" * 100_000, Form.VALUE, "not JSON"),
    ],
)
def test_what_cannot_be_read_says_why(raw: bytes, form: Form, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        content.read(raw, form)


def test_merging_by_form() -> None:
    assert content.merged(Form.TEXT, "a\n", "a\nmine\n", "theirs\na\n") == "theirs\na\nmine\n"
    base, mine, theirs = ({"a": 1}, {"a": 1, "b": 2}, {"a": 3})
    merged = content.merged(Form.VALUE, *(dumped(one) for one in (base, mine, theirs)))
    assert json.loads(merged) == {"a": 3, "b": 2}


labels = st.text(st.characters(exclude_characters="%~/\0", exclude_categories=["Cs"]), min_size=1, max_size=128)


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ("human", "human"),
        ("日記 2026", "日記 2026"),
        ("file:notes", "file%3Anotes"),
        ("..", "%2E%2E"),
        (".hidden", "%2Ehidden"),
        ("CON", "%43ON"),
        ("nul.txt", "%6Eul.txt"),
        ("#draft", "%23draft"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_names_that_any_system_takes(label: str, written: str) -> None:
    assert file_name(label) == written
    assert plain_name(written) == unicodedata.normalize("NFC", label)


@given(labels.filter(lambda label: unicodedata.is_normalized("NFC", label)))
def test_a_name_comes_back_or_says_that_it_cannot(label: str) -> None:
    written = file_name(label)
    assert not set(written) & set('/\\:*?"<>|\0')
    assert not written.startswith((".", "#"))
    assert len(written.encode()) <= NAME_BYTES_MAX + 8
    assert plain_name(written) == (None if "~" in written else label)


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = file_name("日" * 128), file_name("日" * 127 + "本")
    assert first != second
    assert len(first.encode()) <= NAME_BYTES_MAX
    assert plain_name(first) is None


def test_a_name_that_decodes_to_nonsense_is_no_name() -> None:
    assert plain_name("%FF") is None
    assert plain_name("") is None


@given(st.lists(st.text("aAbB.", min_size=1, max_size=3), max_size=6))
def test_names_differ_also_where_case_does_not_count(labels: list[str]) -> None:
    names = distinct_names(labels)
    assert set(names) == set(labels)
    assert len({name.casefold() for name in names.values()}) == len(names)
    assert all(plain_name(written) == label for label, written in names.items())


def test_a_name_in_use_stays() -> None:
    assert distinct_names(["human"])["human"] == "human"
    assert distinct_names(["human", "Human"], {"human": "human"}) == {"human": "human", "Human": "%48uman"}


# Merges of values: both sides began with the same one.

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab\n🌍", max_size=8)
anything: st.SearchStrategy[Json] = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=6,
)


@given(anything, anything)
def test_a_side_that_changed_nothing_changes_nothing(base: Json, other: Json) -> None:
    assert content.merge_values(base, base, other) == other
    assert content.merge_values(base, other, base) == other
    assert content.merge_values(base, other, other) == other


@pytest.mark.parametrize(
    ("base", "mine", "theirs", "merged"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, {"a": 3}, {"a": 3, "b": 2}),
        ({"a": 1, "b": 1}, {"a": 1}, {"a": 2, "b": 1}, {"a": 2}),
        ({"a": 1}, {}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"a": 2}, {}, {"a": 2}),
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 2}),
        ({"a": {"b": "x"}}, {"a": {"b": "x", "c": 1}}, {"a": {"b": "xy"}}, {"a": {"b": "xy", "c": 1}}),
        ([1, 2], [1, 2, 3], [0, 1, 2], [0, 1, 2, 3]),
        ([1, 2], [2], [1, 2, 4], [2, 4]),
        ([{"a": 1}, {"a": 2}], [{"a": 1, "done": True}, {"a": 2}], [{"a": 1}, {"a": 2}, 5], None),
        ({"a": 1}, {"a": True}, {"a": 1, "b": 1}, {"a": True, "b": 1}),
        ("one two", "one", "one two three", "one three"),
        ("tea.\nLisbon.\n", "tea and figs.\nLisbon.\n", "tea.\nLisbon.\nHi.\n", "tea and figs.\nLisbon.\nHi.\n"),
        ([1], {"a": 1}, [1, 2], {"a": 1}),
    ],
)
def test_what_both_changed_is_in_the_merged_value(base: Json, mine: Json, theirs: Json, merged: Json) -> None:
    found = content.merge_values(base, mine, theirs)
    assert found == ([{"a": 1, "done": True}, {"a": 2}, 5] if merged is None else merged)


@pytest.mark.slow
def test_a_list_of_very_many_items_loses_none() -> None:
    base: list[Json] = list(range(70_000))
    merged = content.merge_values(base, [*base, "mine"], ["theirs", *base])
    assert isinstance(merged, list)
    assert len(merged) == 70_002
    assert merged[0] == "theirs"
    assert merged[-1] == "mine"

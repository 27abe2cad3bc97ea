"""A block's content as a file's text, and names of files."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_server.cli.mirror import content
from pattern_server.cli.mirror.content import NAME_BYTES_MAX, Form, Unreadable, distinct_names, file_name, plain_name


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
    assert json.loads(written) == value
    assert "よい" in written
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
    assert content.read(b'{"a":1,\r\n"b":[2]}', Form.VALUE) == content.dumped({"a": 1, "b": [2]})


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
    merged = content.merged(Form.VALUE, *(content.dumped(one) for one in (base, mine, theirs)))
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

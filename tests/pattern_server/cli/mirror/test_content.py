"""Blocks as the texts of files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_server.cli.mirror import content
from pattern_server.cli.mirror.content import Form, Unreadable


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

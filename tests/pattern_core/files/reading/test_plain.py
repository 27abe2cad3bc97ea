from __future__ import annotations

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.files.disk import Unreadable
from pattern_core.files.reading.plain import read_text

TEXT = "Über den Gärten liegt Nebel. Die Bäume stehen früh im Grünen, und es ist schön.\n" * 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_every_form_of_unicode_is_read(encoding: str) -> None:
    assert read_text(TEXT.encode(encoding)) == TEXT


def test_big_endian_marks_are_known() -> None:
    assert read_text(codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be")) == TEXT
    assert read_text(codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be")) == TEXT


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_western_bytes_are_recognised(encoding: str) -> None:
    assert read_text(TEXT.encode(encoding)) == TEXT
    assert read_text("Grüße aus München, 20 £".encode(encoding)) == "Grüße aus München, 20 £"


def test_other_old_encodings_are_recognised() -> None:
    russian = "Привет, это длинное письмо о саде и деревьях, которые растут у реки.\n" * 4
    assert read_text(russian.encode("cp1251")) == russian
    japanese = "これは庭についての長い手紙です。木々は川のそばに立っています。\n" * 6
    assert read_text(japanese.encode("shift_jis")) == japanese


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF\x02\x01\x01" + bytes(200),
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"%PDF-1.7\n1 0 obj\n",
        b"PK\x03\x04rest",
        b"words\0and\0zeros\0here",
        bytes(range(256)) * 20,
        bytes(range(1, 32)) * 50,
        b"words\x01\x02\x03" * 50,
        b"{\\rtf1\\ansi words}",
        codecs.BOM_UTF16_LE + b"\x00\xd8\x00\xd8",  # half characters
        b"",
    ],
)
def test_binaries_that_call_themselves_text_are_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        read_text(data)


def test_colours_of_terminals_do_not_make_a_log_binary() -> None:
    assert read_text(b"\x1b[31merror\x1b[0m at once\n" * 10).startswith("\x1b[31m")


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read_text(data).encode()
    except Unreadable as error:
        assert error.message

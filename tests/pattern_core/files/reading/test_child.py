from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading.child import REFUSED, read
from pattern_core.files.reading.document import Reader
from tests.pattern_core.files.samples import docx_of, pdf_of
from tests.sources import ROOT


def run(reader: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "pattern_core.files.reading.child", reader]
    return subprocess.run(command, input=data, capture_output=True, check=False, cwd=ROOT, timeout=60)


def test_the_child_answers_with_text_and_pages() -> None:
    done = run("pdf", pdf_of(["one", "two"]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"text": "one\ntwo", "pages": [1, 2]}


def test_the_child_says_why_it_refuses() -> None:
    done = run("docx", b"no document")
    assert (done.returncode, done.stdout) == (REFUSED, b"")
    assert b"no Word document" in done.stderr


def test_each_format_has_its_reader() -> None:
    assert read(Reader.HTML, b"<p>x") == ("x\n", [])
    assert read(Reader.DOCX, docx_of(("Normal", "words"))) == ("words\n", [])
    assert read(Reader.PDF, pdf_of(["words"])) == ("words", [1])
    with pytest.raises(ValueError, match="without a child"):
        read(Reader.TEXT, b"x")
    with pytest.raises(UnreadableFile, match="empty"):
        read(Reader.HTML, b"<p> </p>")

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pattern_core.memory import document_check
from pattern_core.memory.document import DocumentDamaged
from tests.pattern_core.memory.pen import Pen

ROOT = Path(__file__).resolve().parents[3]


def snapshot(text: str) -> bytes:
    made = Pen(5)
    made.append(text)
    made.commit("user:ada", {}, now_ms=0)
    return made.snapshot()


def run(code: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *code.split(" ", 1)], input=data, capture_output=True, cwd=ROOT, check=False)


def test_clean_snapshot_holds_the_same_document() -> None:
    assert Pen.load(document_check.clean_snapshot(snapshot("hello")), peer=1).text == "hello"
    with pytest.raises(DocumentDamaged):
        document_check.clean_snapshot(b"junk")


def test_the_process_answers_with_a_snapshot_or_refuses() -> None:
    done = run("-m pattern_core.memory.document_check", snapshot("hello"))
    assert done.returncode == 0
    assert Pen.load(done.stdout, peer=1).text == "hello"
    done = run("-m pattern_core.memory.document_check", b"junk")
    assert done.returncode == document_check.REFUSED
    assert b"refused an import" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the address space")
def test_the_process_is_bounded() -> None:
    code = (
        "-c import resource; from pattern_core.memory import document_check as d; d.limit_resources();"
        " assert resource.getrlimit(resource.RLIMIT_CPU)[1] == d.CPU_SECONDS; bytearray(2 * d.ADDRESS_SPACE_BYTES)"
    )
    done = run(code, b"")
    assert b"MemoryError" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_CPU)[1] != document_check.CPU_SECONDS  # only the child's

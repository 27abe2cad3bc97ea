from __future__ import annotations

import io
import json
import subprocess
import sys

from pattern_core.memory.document_check import frame, opened, read_frames
from tests.pattern_core.memory.pen import Pen


def parts() -> list[bytes]:
    document = Pen(5)
    document.append("one")
    document.commit("user:1", {}, now_ms=0)
    snapshot, version = document.snapshot(), document.version()
    document.append(" two")
    document.commit("user:1", {}, now_ms=0)
    return [snapshot, document.export_since(version)]


def test_how_far_a_document_opens() -> None:
    snapshot, update = parts()
    assert opened([snapshot, update]) == (2, "")
    assert opened([b"", update])[0] == 1
    assert opened([]) == (0, "")
    count, reason = opened([snapshot, b"junk", update])
    assert count == 1
    assert reason


def test_frames_come_back() -> None:
    documents = [[b"", b"ab"], [], [b"x" * 300]]
    assert list(read_frames(io.BytesIO(b"".join(map(frame, documents))))) == documents


def test_the_process_answers_line_by_line() -> None:
    data = frame(parts()) + frame([b"junk"]) + frame([])
    done = subprocess.run(
        [sys.executable, "-m", "pattern_core.memory.document_check", "parts"],
        input=data,
        capture_output=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer[0] for answer in answers] == [2, 0, 0]
    assert [bool(answer[1]) for answer in answers] == [False, True, False]

from __future__ import annotations

import json
import subprocess
import sys

from pattern_core.memory import regex_child


def test_answers() -> None:
    assert regex_child.answer("b+", "x", "abbc") == {"start": 1, "end": 3, "text": "x"}
    assert regex_child.answer("z", "x", "abbc") is None
    assert "error" in (regex_child.answer("(", "x", "") or {})
    assert "error" in (regex_child.answer("(" * 5000 + ")" * 5000, "x", "") or {})


def test_it_runs_without_site_packages_and_keeps_any_character() -> None:
    question = json.dumps({"pattern": "é\\x00", "template": "🌍", "text": "aé\x00"}).encode()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(regex_child.__file__)], input=question, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {"start": 1, "end": 3, "text": "🌍"}

"""What a child does by itself: it bounds itself, and matches patterns."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pattern_core.child import first_match, limit_resources, matching_lines
from pattern_core.errors import InvalidInput


def test_the_program_bounds_itself() -> None:
    script = "import resource as r; from pattern_core.child import limit_resources as l; l({r.RLIMIT_NOFILE: 20});"
    done = subprocess.run(
        [sys.executable, "-c", script + "print(r.getrlimit(r.RLIMIT_NOFILE))"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == "(20, 20)\n"
    limit_resources({999: 1})  # what the system does not know


def match(pattern: str, template: str, text: str) -> object:
    return json.loads(first_match(json.dumps({"pattern": pattern, "template": template, "text": text}).encode()))


def test_the_first_match() -> None:
    assert match("é\\x00", "🌍", "aé\x00") == [1, 3, "🌍"]
    assert match("z", "x", "abbc") is None
    for pattern, template in (("(", ""), ("(" * 5000 + ")" * 5000, ""), ("a", r"\2"), ("a{99999999999999999999}", "")):
        with pytest.raises(InvalidInput):
            match(pattern, template, "a")


def test_matching_lines() -> None:
    question = {"pattern": "^b", "texts": [[(3, "a\nB")], [(1, "bean"), (7, "beak")]], "limit": 2, "ignore_case": True}
    assert json.loads(matching_lines(json.dumps(question).encode())) == [[0, 4, "B"], [1, 1, "bean"]]
    with pytest.raises(InvalidInput):
        matching_lines(json.dumps({**question, "pattern": "("}).encode())

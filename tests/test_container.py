"""The container's file: what it promises in data/docs/operating.md, as far as its text shows it."""

from __future__ import annotations

import json
import re
from urllib.request import urlopen

from tests.sources import ROOT

TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text(encoding="utf-8"))
# Of the image that is made: what is behind the last FROM.
LINES = [line.partition(" ") for line in TEXT.rpartition("\nFROM ")[2].splitlines() if line]


def values(instruction: str) -> list[str]:
    return [value for name, _, value in LINES if name == instruction]


def test_it_runs_as_a_user_without_rights_and_writes_only_to_the_volume() -> None:
    assert values("USER") == ["10001:10001"]
    assert values("VOLUME") == values("WORKDIR") == ["/data"]
    (environment,) = values("ENV")
    assert "PATTERN_DATA_DIR=/data" in environment
    assert "PYTHONDONTWRITEBYTECODE=1" in environment, "the root file system is read-only"


def test_it_stops_as_the_server_expects() -> None:
    assert values("STOPSIGNAL") == ["SIGTERM"]
    assert [json.loads(value) for name in ("ENTRYPOINT", "CMD") for value in values(name)] == [["pattern"], ["serve"]]


def test_its_health_check_is_a_program_that_asks_the_server() -> None:
    (check,) = values("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    compile(command[2], "health check", "exec")
    assert command[:2] == ["python", "-c"]
    assert "8470/healthz" in command[2]
    assert urlopen.__name__ in command[2]


def test_it_copies_nothing_of_a_developers_folder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv"} <= {*ignored}
    assert "--no-compile" in TEXT, "code in two forms makes the image a quarter larger"

"""The structure holds: sizes, imports without circles, unique names, tests for every room, budgets of lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.sources import read, report
from tests.structure import RULES, Code, budgets, debts, project, room_lines

REFRESH = "`python -m tests.structure --write`"


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    breaches = {one.key: one.words for one in RULES[name](project())}
    owed = set(debts().get(name, ()))
    report([words for key, words in breaches.items() if key not in owed], RULES[name].__doc__ or name)
    report([f"{name}: {key}" for key in sorted(owed - set(breaches))], f"these debts are paid, delete them: {REFRESH}.")


def test_debts_are_of_rules_that_exist() -> None:
    assert set(debts()) <= set(RULES)


def test_rooms_keep_their_budgets() -> None:
    lines, allowed = room_lines(project()), budgets()
    over = [
        f"{room} has {count} lines, not {allowed.get(room, 0)}"
        for room, count in lines.items()
        if count > allowed.get(room, 0)
    ]
    report(
        over,
        "remove lines, or raise the room's budget (python -m tests.structure --accept) and say why in the commit.",
    )
    report(sorted(allowed.keys() - lines.keys()), f"these rooms no longer exist, delete their budgets: {REFRESH}.")


# What breaks the rules, written to a small project.
LONG = "def long():\n" + "    pass\n" * 60
SHORT = "#\n" * 60
# For each rule: files that break it and files that do not, by path, and the keys of the breaches.
BROKEN: Mapping[str, tuple[dict[str, str], list[str]]] = {
    "long_functions": (
        {"pattern_db/a.py": LONG, "tests/test_a.py": LONG},
        ["pattern_db/a.py::long", "tests/test_a.py::long"],
    ),
    "long_files": ({"pattern_db/a.py": "#\n" * 601, "pattern_db/b.py": "#\n" * 600}, ["pattern_db/a.py"]),
    "small_files": (
        {
            "pattern_db/small.py": "",
            "pattern_db/__init__.py": "",
            "pattern_db/child.py": "if __name__ == '__main__':\n    pass\n",
            "pattern_db/testing/small.py": "",
            "pattern_db/more/__init__.py": "from pattern_db.more import one",
            "pattern_db/more/one.py": "",
            "pattern_db/more/forgotten.py": "",
        },
        ["pattern_db/more/forgotten.py", "pattern_db/small.py"],
    ),
    "single_importers": (
        {
            "pattern_db/user.py": "from pattern_db import crumb, shared\nfrom pattern_db.room import far\n" + SHORT * 2,
            "pattern_db/user2.py": "from pattern_db import shared\n" + SHORT * 2,
            "pattern_db/crumb.py": SHORT,
            "pattern_db/shared.py": SHORT,
            "pattern_db/room/far.py": SHORT,
        },
        ["pattern_db/crumb.py"],
    ),
    "cycles": (
        {
            "pattern_core/one/a.py": "from pattern_core.two import b",
            "pattern_core/two/b.py": "from pattern_core.three import c",
            "pattern_core/three/c.py": "if TYPE_CHECKING:\n    from pattern_core.one.d import D",
            "pattern_core/one/d.py": "",
            "pattern_core/below.py": "",
            "pattern_core/above.py": "from pattern_core import below\nfrom pattern_core.one import a",
            "pattern_core/lazy/x.py": "def f():\n    from pattern_core.lazy.y import g",
            "pattern_core/lazy/y.py": "import_module('pattern_core.lazy.x')",
        },
        [
            "pattern_core/lazy/x.py -> pattern_core/lazy/y.py",
            "pattern_core/lazy/y.py -> pattern_core/lazy/x.py",
            "pattern_core/one -> pattern_core/two",
            "pattern_core/three -> pattern_core/one",
            "pattern_core/two -> pattern_core/three",
        ],
    ),
    "class_names": (
        {"pattern_db/a.py": "class Row: ...\nclass _Own: ...", "pattern_core/b.py": "class Row: ...\nclass _Own: ..."},
        ["Row pattern_core/b.py", "Row pattern_db/a.py"],
    ),
    "testing_imports": (
        {
            "pattern_core/testing/clock.py": "",
            "pattern_core/testing/model.py": "from pattern_core.testing import clock",
            "pattern_core/a.py": "def f():\n    from pattern_core.testing.clock import Clock",
        },
        ["pattern_core/a.py -> pattern_core/testing/clock.py"],
    ),
    "broad_excepts": (
        {
            "pattern_core/a.py": "try: ...\nexcept (KeyError, Exception): ...",
            "pattern_core/b.py": "try: ...\nexcept Exception:\n    raise",
            "pattern_server/supervisor.py": "try: ...\nexcept Exception: ...",
        },
        ["pattern_core/a.py: (KeyError, Exception)"],
    ),
    "patches": (
        {
            "tests/test_a.py": (
                "from unittest import mock\nimport sys\nfrom pattern_core import clock\n"
                "def test(monkeypatch):\n"
                "    monkeypatch.setattr(clock, 'now', None)\n"
                "    monkeypatch.setattr('pattern_core.ids.now', None)\n"
                "    monkeypatch.setattr(clock, 'ROUNDS_MAX', 1)\n"
                "    monkeypatch.setattr(sys, 'stdin', None)\n"
            )
        },
        [
            "tests/test_a.py: clock.now",
            "tests/test_a.py: from unittest import mock",
            "tests/test_a.py: pattern_core.ids.now",
        ],
    ),
    "untested_names": (
        {
            "pattern_core/room/a.py": "def used(): ...\ndef tested(): ...\ndef own(): ...",
            "pattern_core/room/b.py": "from pattern_core.room.a import own",
            "pattern_server/c.py": "from pattern_core.room import a\nfrom pattern_core.room.a import tested\na.used()",
            "tests/pattern_core/room/test_a.py": "from pattern_core.room.a import tested",
            "tests/test_elsewhere.py": "from pattern_core.room.a import used",
        },
        ["pattern_core.room.a.used"],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_each_rule_finds_what_breaks_it(name: str, tmp_path: Path) -> None:
    files, keys = BROKEN[name]
    assert sorted(one.key for one in RULES[name](made(tmp_path, files))) == keys


def made(root: Path, files: Mapping[str, str]) -> Code:
    """Write a small project; `pattern_db/more` is its one folder of extensions."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Code(
        sources=read(root, ("pattern_db", "pattern_core", "pattern_server")),
        tests=read(root, ("tests",)),
        extensions={"pattern_db/more": "pattern_db/more/__init__.py"},
    )


def test_a_room_is_a_folder_with_all_that_is_in_it_or_a_file_of_its_own(tmp_path: Path) -> None:
    files = {"pattern_db/a.py": "#\n" * 3, "pattern_db/room/b.py": "#\n", "pattern_db/room/inner/c.py": "#\n" * 2}
    assert room_lines(made(tmp_path, files)) == {"pattern_db/a.py": 3, "pattern_db/room": 3}

from __future__ import annotations

import inspect

from pattern_core.meters import Meters, Unmetered
from pattern_core.models.model import Usage


def test_next_to_nothing_is_counted_where_nobody_listens() -> None:
    nobody: Meters = Unmetered()
    nobody.working += 1
    nobody.commits += 2
    nobody.turn_ended("completed", 1.0)
    nobody.step_done("p", "m", 1.0)
    nobody.tokens("p", "m", Usage(input_tokens=1, output_tokens=1), None)
    nobody.call_ended("search", "done", 1.0)
    assert vars(nobody) == {"working": 1, "commits": 2}


def test_what_can_be_told_is_the_same_for_all() -> None:
    told = {name for name, _value in inspect.getmembers(Meters, inspect.isfunction) if not name.startswith("_")}
    assert told == {name for name in vars(Unmetered) if not name.startswith("_")}

"""The table of kinds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pattern_core.rules.kinds import KINDS, OTHER_NAMES
from pattern_core.rules.rule import Rule


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_names_the_fields_of_its_rule(name: str) -> None:
    own = {one.name for one in fields(KINDS[name].make)} - {one.name for one in fields(Rule)}
    assert set(KINDS[name].fields) == (set() if name == "required_before_exit" else own)


def test_no_name_means_two_kinds() -> None:
    assert len(OTHER_NAMES) == sum(1 + len(kind.aliases) for kind in KINDS.values())
    assert all(OTHER_NAMES[name] == name for name in KINDS)

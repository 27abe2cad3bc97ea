from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.schema import SchemaKind, check_size, check_text, kind_of


@pytest.mark.parametrize("metadata", [None, {}, {"schema": "Text"}, {"schema": "text"}, {"schema": {"Text": {}}}])
def test_text_is_the_default_and_is_found_under_its_tag(metadata: dict[str, object] | None) -> None:
    assert kind_of(metadata) is SchemaKind.TEXT


@pytest.mark.parametrize("schema", ["Map", {"Map": {"fields": []}}, "log", "Composite"])
def test_other_kinds_are_refused_with_what_is_supported(schema: object) -> None:
    with pytest.raises(InvalidInput, match="not supported yet; supported: Text"):
        kind_of({"schema": schema})


@pytest.mark.parametrize("schema", ["Tree", 3, {"Text": {}, "Map": {}}, []])
def test_unknown_kinds_are_refused(schema: object) -> None:
    with pytest.raises(InvalidInput, match="there is no block schema"):
        kind_of({"schema": schema})


def test_lone_surrogates_are_refused_and_everything_else_passes() -> None:
    assert check_text("a\x00🌍") == "a\x00🌍"
    with pytest.raises(InvalidInput, match="character 3"):
        check_text("ab\ud800")


def test_size_at_the_limit_and_one_past_it() -> None:
    check_size("notes", size=100, before=10, limit=100)
    with pytest.raises(InvalidInput, match="at most 100 characters; it has 10 and would have 101") as caught:
        check_size("notes", size=101, before=10, limit=100)
    assert caught.value.details == {"limit": 100, "size": 10, "wanted": 101}


def test_a_block_over_its_limit_may_shrink_but_not_stay_or_grow() -> None:
    check_size("notes", size=150, before=200, limit=100)
    with pytest.raises(InvalidInput):
        check_size("notes", size=200, before=200, limit=100)

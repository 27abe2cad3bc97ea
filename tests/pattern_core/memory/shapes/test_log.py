from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory.shapes.log import fitted
from pattern_core.memory.shapes.render import plain
from pattern_core.memory.shapes.schema import LogSchema

SCHEMA = LogSchema(has_timestamp=False, has_agent=False)


def entries(*texts: str) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


def test_the_oldest_go_first_and_no_more_than_needed() -> None:
    log = entries("one", "two", "three")
    whole = len(plain(log, SCHEMA))
    assert fitted(SCHEMA, log, whole)[0] == 0
    assert fitted(SCHEMA, log, whole - 1)[0] == 1
    assert fitted(SCHEMA, log, len("- three"))[0] == 2


def test_the_newest_stays_however_long_it_is() -> None:
    assert fitted(SCHEMA, entries("one", "x" * 100), 5)[0] == 1
    assert fitted(SCHEMA, [], 0)[0] == 0


@given(st.lists(st.text(alphabet="a\n", max_size=9), max_size=8), st.integers(1, 60))
def test_what_stays_fits_and_one_more_would_not(texts: list[str], limit: int) -> None:
    log = entries(*texts)
    count, text = fitted(SCHEMA, log, limit)
    rest = log[count:]
    assert text == plain(rest, SCHEMA)
    assert len(rest) <= 1 or len(plain(rest, SCHEMA)) <= limit
    if count:
        assert len(plain(log[count - 1 :], SCHEMA)) > limit

from __future__ import annotations

import struct

import pytest

from pattern_core.search.names import SAMPLED, blended, nameless, without
from tests.pattern_core.search.rig import past


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("What does Ada cook?", "What does cook?"),
        ("what are ada’s and Bob's plans", "what are and plans"),
        ("Adam's apple", None),
        ("it's Monday, isn't it", None),
        ("", None),
    ],
)
def test_names_and_their_possessives_are_left_out_as_whole_words(query: str, left: str | None) -> None:
    assert without(query, {"ada", "bob"}) == left


def test_names_are_those_of_who_speaks() -> None:
    said = past()
    assert nameless(said.connection, "What does Ruth cook?") is None
    said.say("I made soup", name="Ruth Miller")
    said.say("Tim: and I ate it")
    assert nameless(said.connection, "What does Ruth cook?") == "What does cook?"
    assert nameless(said.connection, "Does Tim like what Ruth Miller cooks?") == "Does like what cooks?"
    assert nameless(said.connection, "who is Ruth?") is None, "nothing is left that would tell anything"
    assert nameless(said.connection, "What does Zoe cook?") is None


def test_who_speaks_is_known_among_many_messages() -> None:
    said = past()
    for number in range(2 * SAMPLED + 7):
        said.say("hello", name="Ruth" if number % 2 else "Tim")
    assert nameless(said.connection, "Ruth and Tim in Rome") == "and in Rome"


def test_a_blend_stands_between_two_vectors() -> None:
    east, north = struct.pack("<2f", 1, 0), struct.pack("<2f", 0, 1)
    assert struct.unpack("<2f", blended(east, north)) == pytest.approx((0.5**0.5, 0.5**0.5))
    assert blended(east, east) == east
    assert struct.unpack("<2f", blended(east, struct.pack("<2f", -1, 0))) == (0.0, 0.0)

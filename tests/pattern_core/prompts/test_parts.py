from __future__ import annotations

from pattern_core.prompts.parts import PLACES, Kind, Part, Place, left_out


def test_every_kind_has_its_place_and_the_volatile_ones_stand_behind_the_conversation() -> None:
    assert set(PLACES) == set(Kind)
    cached = {kind for kind, place in PLACES.items() if place is Place.SYSTEM}
    assert cached == {Kind.INSTRUCTIONS, Kind.GUIDE, Kind.RULES, Kind.CORE, Kind.PINNED}


def test_a_part_counts_itself_and_is_told_of_when_it_is_left_out() -> None:
    part = Part(kind=Kind.CORE, text="a" * 40, reason="why", ref="mem_1", version=3, name="human")
    assert (part.tokens, part.place) == (10, Place.SYSTEM)
    out = left_out(part, "no room")
    assert (out.kind, out.ref, out.version, out.name, out.tokens) == (Kind.CORE, "mem_1", 3, "human", 10)
    assert out.reason == "no room"

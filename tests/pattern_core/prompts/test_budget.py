from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.prompts.budget import fit
from pattern_core.prompts.parts import Kind, Part
from pattern_core.prompts.settings import ContextSettings

SETTINGS = ContextSettings(extra_tokens=1_000)  # pinned 400, recalled 250, logs 150, tasks 100, activity 100
WINDOW = 1_000  # a fifth of which is less than the pinned blocks' share


def part(kind: Kind, tokens: int, ref: str = "") -> Part:
    return Part(kind=kind, text="word" * tokens, reason="", ref=ref or f"{kind}-{tokens}")


def shown(*parts: Part, settings: ContextSettings = SETTINGS, window: int = WINDOW) -> list[str]:
    return [one.ref for one in fit(parts, settings, window).shown]


def test_each_kind_has_its_share_and_nothing_is_cut() -> None:
    found = fit([part(Kind.RECALLED, 500), part(Kind.PINNED, 400), part(Kind.RECALLED, 250)], SETTINGS, WINDOW)
    assert [one.ref for one in found.shown] == ["pinned-400", "recalled-250"]
    [out] = found.left_out
    assert out.ref == "recalled-500"
    assert out.reason == "no room: 250 tokens are left (context: 25 % of 1000 for recalled)"


def test_what_one_kind_does_not_need_is_left_to_those_after_it() -> None:
    assert shown(part(Kind.RECALLED, 650)) == ["recalled-650"]
    assert shown(part(Kind.PINNED, 100), part(Kind.RECALLED, 550)) == ["pinned-100", "recalled-550"]
    assert shown(part(Kind.PINNED, 100), part(Kind.RECALLED, 551)) == ["pinned-100"]
    assert shown(part(Kind.ACTIVITY, 1_000)) == ["activity-1000"]


def test_nothing_flows_up_to_where_vendors_cache() -> None:
    assert shown(part(Kind.PINNED, 401)) == []


def test_a_smaller_part_goes_where_a_larger_one_does_not_fit() -> None:
    assert shown(part(Kind.PINNED, 300, "a"), part(Kind.PINNED, 200, "b"), part(Kind.PINNED, 100, "c")) == ["a", "c"]


def test_pinned_and_named_blocks_may_take_a_fifth_of_a_large_window() -> None:
    assert shown(part(Kind.PINNED, 1_250), window=8_000) == ["pinned-1250"]
    assert shown(part(Kind.PINNED, 1_601), window=8_000) == []
    assert shown(part(Kind.REFERRED, 1_250), window=8_000) == ["referred-1250"]
    assert shown(part(Kind.REFERRED, 1_601), window=8_000) == []
    # What they take beyond their share costs the others nothing.
    assert shown(part(Kind.PINNED, 1_250), part(Kind.RECALLED, 250), window=8_000) == ["pinned-1250", "recalled-250"]
    assert shown(part(Kind.REFERRED, 400), part(Kind.RECALLED, 250), part(Kind.RECALLED, 1)) == [
        "referred-400",
        "recalled-250",
    ]


def test_core_blocks_are_always_shown_and_remarked_on_when_they_take_too_much() -> None:
    found = fit([part(Kind.CORE, 600)], SETTINGS, WINDOW)
    assert ([one.ref for one in found.shown], list(found.left_out)) == (["core-600"], [])
    assert found.notes == [
        "the core blocks take about 600 of the window's 1000 tokens; shorten them, or make some of them working blocks"
    ]
    assert fit([part(Kind.CORE, 500)], SETTINGS, WINDOW).notes == []


def test_what_is_switched_off_is_not_shown_and_leaves_its_share() -> None:
    settings = replace(SETTINGS, hidden=frozenset({Kind.PINNED, Kind.TIME}))
    found = fit([part(Kind.PINNED, 10), part(Kind.RECALLED, 650), part(Kind.TIME, 5)], settings, WINDOW)
    assert [one.ref for one in found.shown] == ["recalled-650"]
    assert [one.reason for one in found.left_out] == [
        "switched off by context.show.pinned",
        "switched off by context.show.time",
    ]


_parts = st.lists(
    st.builds(lambda kind, tokens: part(kind, tokens), st.sampled_from(list(SETTINGS.shares)), st.integers(1, 400)),
    max_size=12,
)


@given(_parts)
def test_the_extra_tokens_are_never_passed_and_every_part_is_accounted_for(parts: list[Part]) -> None:
    found = fit(parts, SETTINGS, WINDOW)
    assert sum(one.tokens for one in found.shown) <= SETTINGS.extra_tokens
    assert len(found.shown) + len(found.left_out) == len(parts)
    numbers = [next(number for number, one in enumerate(parts) if one is shown) for shown in found.shown]
    assert numbers == sorted(numbers)


@given(_parts, _parts)
def test_what_is_found_for_the_moment_does_not_decide_which_pinned_blocks_are_shown(
    some: list[Part], others: list[Part]
) -> None:
    pinned = [one for one in some if one.kind is Kind.PINNED]
    beside = [one for one in others if one.kind is not Kind.PINNED]
    together = fit([*pinned, *beside], SETTINGS, WINDOW).shown
    assert [one for one in together if one.kind is Kind.PINNED] == list(fit(pinned, SETTINGS, WINDOW).shown)

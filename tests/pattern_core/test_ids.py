from __future__ import annotations

import random
import re
import time

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.ids import (
    POSITION_DIGITS,
    SEQUENCE_BITS,
    SNOWFLAKE_EPOCH_MS,
    Clock,
    Ids,
    SystemClock,
    earliest_position,
    message_id,
    new_secret,
    now_text,
    seeded_randomness,
    system_randomness,
    time_of,
    ulid,
)
from pattern_core.testing import START_MS, StoppedClock

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def decode(text: str) -> int:
    """A ULID by the letter of its specification: the digits of base 32, most significant first."""
    value = 0
    for digit in text.upper():
        value = value * 32 + CROCKFORD.index(digit)
    return value


def test_the_example_of_the_specification() -> None:
    # 01ARZ3NDEKTSV4RRFFQ69G5FAV in the README of github.com/ulid/spec
    value = decode("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert ulid(value >> 80, value & (1 << 80) - 1) == "01arz3ndektsv4rrffq69g5fav"


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_a_ulid_is_its_time_and_its_entropy(now_ms: int, entropy: int) -> None:
    text = ulid(now_ms, entropy)
    assert len(text) == 26
    assert decode(text) == now_ms << 80 | entropy


def test_ids_are_named_and_differ() -> None:
    ids = Ids(StoppedClock(), seeded_randomness(1))
    made, seeds = [ids.new("turn") for _time in range(1000)], [ids.seed() for _time in range(1000)]
    assert len(set(made)) == len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)  # as a column holds
    assert all(re.fullmatch(r"turn_[0-9a-hjkmnp-tv-z]{26}", one) for one in made)


def test_the_same_seed_makes_the_same_ids() -> None:
    one, two = (Ids(StoppedClock(), seeded_randomness(7)) for _time in range(2))
    assert [one.new("a"), one.seed(), one.position()] == [two.new("a"), two.seed(), two.position()]
    chances = (seeded_randomness(7), seeded_randomness(8), system_randomness(), system_randomness())
    assert len({Ids(StoppedClock(), chance).new("a") for chance in chances}) == len(chances)


def test_positions_rise_strictly_whatever_the_clock_does() -> None:
    clock, chance = StoppedClock(), random.Random(5)
    ids = Ids(clock, seeded_randomness(1))
    positions = []
    for _time in range(10_000):
        clock.advance(chance.choice((0, 0, 1, 5, 1000, -1, -1000, -86_400_000)))
        positions.append(ids.position())
    assert all(re.fullmatch(r"\d{19}", position) for position in positions)
    assert positions == sorted(set(positions))  # as text: that is how columns compare them


def test_a_position_holds_its_time_and_follows_the_newest_in_use() -> None:
    clock = StoppedClock(START_MS + 123)
    position = Ids(clock, seeded_randomness(1)).position()
    assert (int(position) >> SEQUENCE_BITS) + SNOWFLAKE_EPOCH_MS == START_MS + 123
    assert message_id(position) == f"msg_{position}"
    clock.advance(-3_600_000)  # and a restart on a machine whose clock went back
    assert Ids(clock, seeded_randomness(1), last=position).position() > position


def test_positions_that_others_give_out_are_passed_by() -> None:
    clock = StoppedClock()
    ids = Ids(clock, seeded_randomness(1))
    first = int(ids.position())
    assert ids.pass_by(first + 100) == first
    assert int(ids.position()) == first + 101
    assert ids.pass_by(5) == first + 101
    assert int(ids.position()) == first + 102


def test_the_earliest_position_of_a_moment_is_below_what_is_given_out_then() -> None:
    clock = StoppedClock()
    ids = Ids(clock, seeded_randomness(1))
    before = ids.position()
    clock.advance(1)
    assert before < earliest_position(clock.now_ms()) <= ids.position()
    assert (time_of(ids.position()), time_of(before)) == (clock.now_ms(), clock.now_ms() - 1)
    assert time_of("") == 0
    assert earliest_position(0) == "0" * POSITION_DIGITS


def test_the_systems_clock_gives_unix_milliseconds() -> None:
    clock: Clock = SystemClock()
    before = time.time() * 1000
    assert before - 1 <= clock.now_ms() <= time.time() * 1000 + 1


def test_the_time_as_it_is_stored() -> None:
    clock = StoppedClock(1_795_000_000_007)
    assert now_text(clock) == "2026-11-18T11:06:40.007Z"
    clock.advance(-8)
    assert now_text(clock) == "2026-11-18T11:06:39.999Z"


def test_a_secret_does_not_follow_from_a_seed() -> None:
    random.seed(1)
    first = new_secret()
    random.seed(1)
    assert first != new_secret()
    assert re.fullmatch(r"[0-9a-f]{64}", first)

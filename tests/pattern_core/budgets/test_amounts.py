from __future__ import annotations

import pytest

from pattern_core.budgets.amounts import WorstCase, dollars, microdollars, worst_case
from pattern_core.errors import InvalidInput
from pattern_core.models.model import Usage


def cost(usage: Usage) -> int:
    """Ten micro-dollars a token in, thirteen if it is written to a cache, fifty out."""
    plain = usage.input_tokens - usage.cache_write_tokens
    return 10 * plain + 13 * usage.cache_write_tokens + 50 * usage.output_tokens


def test_the_worst_case_is_the_dearest_prompt_and_all_output() -> None:
    assert worst_case(cost, prompt_tokens=100, output_tokens=20) == WorstCase(
        tokens=120, microdollars=100 * 13 + 20 * 50, prompt_tokens=100, prompt_microdollars=1000
    )
    cheap_cache = worst_case(
        lambda usage: cost(usage) - 13 * usage.cache_write_tokens, prompt_tokens=100, output_tokens=0
    )
    assert cheap_cache.microdollars == 1000


def test_an_unknown_price_is_no_price_of_zero() -> None:
    worst = worst_case(lambda _usage: None, prompt_tokens=100, output_tokens=20)
    assert worst == WorstCase(tokens=120, microdollars=None, prompt_tokens=100, prompt_microdollars=None)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000001"),
        (42, "$0.000042"),
        (250_000, "$0.25"),
        (1_500_000, "$1.50"),
        (1_234_567_890_120, "$1,234,567.89012"),
        (-2_000_000, "-$2.00"),
    ],
)
def test_money_is_shown_exactly(amount: int, text: str) -> None:
    assert dollars(amount) == text
    if amount >= 0:
        assert microdollars(text) == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("5", 5_000_000),
        (" $0.25 ", 250_000),
        ("1,000.5", 1_000_500_000),
        (".5", 500_000),
        ("12,345,678", 12_345_678_000_000),
    ],
)
def test_money_is_read(text: str, amount: int) -> None:
    assert microdollars(text) == amount


@pytest.mark.parametrize("text", [
        "", "five", "-1", "0.0000001", "NaN", "Infinity", "1e30", "$", ".", "9" * 40,
        "1,5", "1,50", "0,25", "1,0000", "1,,000", ",5", "1000,000", "1.000,5", "$$5", "1_000", "\u0665",
    ],
)  # fmt: skip
def test_what_is_no_money_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no sum of money"):
        microdollars(text)

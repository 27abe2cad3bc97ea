"""Money as whole micro-dollars, and what a model call may cost at most. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

from pattern_core.errors import InvalidInput
from pattern_core.models.model import Usage

MICRO = 1_000_000  # micro-dollars in a dollar
AMOUNT_MAX = 2**53  # what every JSON reader keeps exact: nine thousand million dollars

# Digits, also in threes with commas between. A decimal comma is refused: 1,5 must not become fifteen dollars.
_SUM = re.compile(r"\$?\s*(\d+|\d{1,3}(?:,\d{3})+)?(\.\d*)?", re.ASCII)

Cost: TypeAlias = Callable[[Usage], int | None]
"""What some tokens cost in micro-dollars, rounded up; None if the price is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """The most that a call may take: the prompt and all output that is allowed; and what its prompt alone takes.

    Money is in micro-dollars, None where the price is not known.
    """

    tokens: int
    microdollars: int | None
    prompt_tokens: int
    prompt_microdollars: int | None


def worst_case(cost: Cost, *, prompt_tokens: int, output_tokens: int) -> WorstCase:
    """Return what a call may take with a prompt of `prompt_tokens` and at most `output_tokens` of output.

    The prompt counts as not cached, or as written to the vendor's cache if that costs more.
    """
    plain = Usage(input_tokens=prompt_tokens, output_tokens=output_tokens)
    stored = Usage(input_tokens=prompt_tokens, output_tokens=output_tokens, cache_write_tokens=prompt_tokens)
    costs = (cost(plain), cost(stored))
    return WorstCase(
        tokens=prompt_tokens + output_tokens,
        microdollars=None if None in costs else max(one for one in costs if one is not None),
        prompt_tokens=prompt_tokens,
        prompt_microdollars=cost(Usage(input_tokens=prompt_tokens, output_tokens=0)),
    )


def dearest(cases: Iterable[WorstCase]) -> WorstCase:
    """Return the most that any of several calls may take, with the prompt tokens of the first.

    A call of a model without a known price says nothing about money.
    """
    all_cases = list(cases)
    prompts = (case.prompt_microdollars for case in all_cases)
    return WorstCase(
        tokens=max(case.tokens for case in all_cases),
        microdollars=max((case.microdollars for case in all_cases if case.microdollars is not None), default=None),
        prompt_tokens=all_cases[0].prompt_tokens,
        prompt_microdollars=max((one for one in prompts if one is not None), default=None),
    )


def dollars(microdollars: int) -> str:
    """Money for people, exact: `$1.50`, `$0.000042`; as many decimals as it needs and at least two."""
    whole, rest = divmod(abs(microdollars), MICRO)
    decimals = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{'-' if microdollars < 0 else ''}${whole:,}.{decimals}"


def microdollars(text: str) -> int:
    """Return the micro-dollars of a sum in dollars, such as `5`, `$0.25` or `1,000.5`.

    Raises:
        InvalidInput: it is no sum of money, is negative or too large, or has parts smaller than a micro-dollar.
    """
    found = _SUM.fullmatch(text.strip())
    digits = "" if found is None else f"{found[1] or ''}{found[2] or ''}".replace(",", "")
    with suppress(InvalidOperation):
        value = Decimal(digits) * MICRO
        if 0 <= value <= AMOUNT_MAX and value == value.to_integral_value():
            return int(value)
    raise InvalidInput(f"{text!r} is no sum of money; write dollars with at most six decimals, such as 5 or 0.25")

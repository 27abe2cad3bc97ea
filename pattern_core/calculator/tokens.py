"""An expression as tokens: numbers, names and signs. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from pattern_core.errors import InvalidInput

EXPRESSION_CHARS_MAX = 1_000
TOKENS_MAX = 300
NAME_CHARS_MAX = 40
EXPONENT_MAX = 400  # of a number written as 1e400

_TOKEN = re.compile(
    r"""
    (?P<base>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+)
    |(?P<number>(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+(?![\w.]))?)
    |(?P<sign>\*\*|->|[-+*/^%!(),=;])
    |(?P<name>[^\W\d]\w*)
    |(?P<space>\s+)
    """,
    re.VERBOSE,
)
# What people type, as the signs and names that are read.
_SAME = {
    "°C": " degC ",
    "°F": " degF ",
    "°": " degree ",
    "℃": " degC ",
    "℉": " degF ",
    "µ": "u",
    "μ": "u",
    "×": "*",
    "·": "*",
    "⋅": "*",
    "÷": "/",
    "−": "-",
    "–": "-",
    "→": "->",
    "√": " sqrt ",
    "²": "^2",
    "³": "^3",
    "\n": ";",
}


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `number` is the value of a number, 0 for the others. `text` is what was written."""

    kind: Literal["number", "name", "sign", "end"]
    text: str
    number: Fraction = Fraction(0)


def tokens_of(expression: str) -> Sequence[Token]:
    """The tokens of an expression, the last one of kind `end`.

    Raises:
        InvalidInput: it is empty or too long, or a character belongs to no token.
    """
    if not expression.strip():
        raise InvalidInput("there is nothing to calculate: `expression` is empty")
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise InvalidInput(f"an expression has at most {EXPRESSION_CHARS_MAX} characters; calculate it in parts")
    text = expression.strip()
    for typed, meant in _SAME.items():
        text = text.replace(typed, meant)
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidInput(f"{text[at]!r} has no meaning in an expression")
        at = match.end()
        if match.lastgroup != "space":
            found.append(_token(str(match.lastgroup), match[0]))
        if len(found) > TOKENS_MAX:
            raise InvalidInput(
                f"an expression has at most {TOKENS_MAX} numbers, names and signs; calculate it in parts"
            )
    return [*found, Token("end", "")]


def _token(group: str, text: str) -> Token:
    match group:
        case "base":
            return Token("number", text, Fraction(int(text.replace("_", ""), 0)))
        case "number":
            return Token("number", text, _number(text))
        case "name":
            if len(text) > NAME_CHARS_MAX:
                raise InvalidInput(f"a name has at most {NAME_CHARS_MAX} characters")
            if not text.isidentifier():  # ½ counts as a letter
                raise InvalidInput(f"{text!r} has no meaning in an expression")
            return Token("name", text)
        case _:
            return Token("sign", text)


def _number(text: str) -> Fraction:
    plain = text.replace("_", "")
    _mantissa, _, exponent = plain.lower().partition("e")
    # Looked at before: the number itself could fill the memory.
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > EXPONENT_MAX):
        raise InvalidInput(f"{text} is too large or too small; exponents go to {EXPONENT_MAX}")
    return Fraction(plain.rstrip(".") if not exponent else plain)

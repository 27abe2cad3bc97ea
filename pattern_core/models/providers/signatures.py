"""Whose signature it is: the vendors' proofs of reasoning are replayed to the vendor that made them and to no other.

A stored signature begins with its vendor's mark and a colon. Anthropic's are bound to a model, whose name comes next,
with a space behind it; those from before that was so stand unmarked: they are base64, which has no colon. So an agent
that moves to another model loses the proofs and nothing else.
"""

from __future__ import annotations

import json

ANTHROPIC = "anthropic"
OPENAI = "openai"  # of the responses format
CHAT = "chat"  # of chat completions, by servers that give calls an `extra_content`
GOOGLE = "google"
REDACTED = "redacted_thinking"  # Anthropic's reasoning that only the vendor can read


def marked(vendor: str, proof: str) -> str | None:
    """The signature as it is stored; None where there is no proof."""
    return f"{vendor}:{proof}" if proof else None


def proof_of(vendor: str, signature: str | None) -> str | None:
    """The vendor's proof as it came, None if there is none or it is another vendor's."""
    mark, colon, proof = (signature or "").partition(":")
    return proof if colon and mark == vendor and proof else None


def bound(model: str, proof: str) -> str:
    """The proof with the model that made it, for `marked`; "" where there is no proof."""
    return f"{model} {proof}" if proof else ""


def unbound(proof: str | None, model: str | None = None) -> str | None:
    """The proof alone, None if another model than `model` made it; None as `model` takes any one's."""
    maker, _, own = (proof or "").rpartition(" ")
    return own if own and (model is None or maker in ("", model)) else None


def kept(proof: str | None) -> dict[str, object]:
    """What a proof holds that is a JSON object; nothing where it is none."""
    try:
        value = json.loads(proof or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def unmarked(signature: str | None) -> str | None:
    """The signature if it is one of Anthropic's without a mark, else None."""
    return signature if signature and ":" not in signature else None

"""Whose signature it is: the vendors' proofs of reasoning are replayed to the vendor that made them and to no other.

A stored signature begins with its vendor's mark and a colon. Anthropic's own stand unmarked, as they always did: they
are base64, which has no colon. So an agent that moves to another model loses the proofs and nothing else.
"""

from __future__ import annotations

import json

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


def kept(proof: str | None) -> dict[str, object]:
    """What a proof holds that is a JSON object; nothing where it is none."""
    try:
        value = json.loads(proof or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def unmarked(signature: str | None) -> str | None:
    """The signature if it is Anthropic's own, else None."""
    return signature if signature and ":" not in signature else None

"""Tool rules: what an agent may call when, enforced where calls run and told to the model in words.

    ruleset.py    the rules of an agent, from what is stored (reading.py, kinds.py, values.py), and contradictions
    state.py      what they judge by, all of it from rows (facts.py), so that a restart sees the same
    offer.py      before a decision: the tools in view, one that must be called, arguments that are given
    check.py      before a call: run, refuse, or ask a person
    exits.py      before the end: what is still missing
    words.py      the rules in the prompt
    detectors.py  loops that no rule names: identical calls, ping-pong, no progress

All of it is pure but `facts`, which reads.
"""

from __future__ import annotations

from pattern_core.rules.check import Verdict, check, in_order
from pattern_core.rules.exits import Exit, ForcedCall, at_exit, ends_after
from pattern_core.rules.offer import Offer, added, offer
from pattern_core.rules.refusals import Asked
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.state import Call, CallState
from pattern_core.rules.words import words

__all__ = [
    "Asked",
    "Call",
    "CallState",
    "Exit",
    "ForcedCall",
    "Offer",
    "RuleSet",
    "Verdict",
    "added",
    "at_exit",
    "check",
    "ends_after",
    "in_order",
    "offer",
    "words",
]

"""`pattern turn …`."""

from __future__ import annotations

from pattern_server.cli.turns import _took
from tests.pattern_server.cli.conftest import Pattern

ASKS = '[{"tool": "block_edit", "type": "requires_consent"}]'


def test_a_turn_is_shown_and_stopped(home: Pattern) -> None:
    assert home("agent", "edit", "ada", "-c", "home", "--rules", ASKS).code == 0
    waiting = home("chat", "-c", "home", "--json", "Remember that Ruth lives in Lisbon.").json
    assert waiting["status"] == "waiting"
    turn = ("turn", "show", waiting["turn_id"], "-c", "home")
    shown = home(*turn).out
    assert f"waits for  {waiting['approvals'][0]}\n" in shown
    assert "user: Remember that Ruth lives in Lisbon.\n" in shown
    stop = ("turn", "cancel", waiting["turn_id"], "-c", "home")
    stopped = home(*stop)
    assert (stopped.code, stopped.out) == (0, f"Stopped {waiting['turn_id']}.\n")
    again = home(*stop)
    assert (again.code, "had ended already (cancelled)" in again.out) == (0, True)
    assert home(*turn, "--json").json["status"] == "cancelled"
    assert home("approvals", "list", "-c", "home").out == "Nothing waits for an answer.\n"
    unknown = home("turn", "cancel", "turn_x", "-c", "home")
    assert (unknown.code, "there is no turn" in unknown.err) == (1, True)


def test_what_a_turn_took() -> None:
    usage = {"input_tokens": 1_234, "output_tokens": 5, "cost_microdollars": 1_500_000, "is_estimate": False}
    assert _took(usage) == "1,234 tokens in, 5 out; $1.50"
    unknown = {**usage, "cost_microdollars": None, "is_estimate": True}
    assert _took(unknown) == "1,234 tokens in, 5 out (estimated); a price that is not known"

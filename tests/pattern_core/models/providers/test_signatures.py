from __future__ import annotations

from pattern_core.models.providers.signatures import (
    ANTHROPIC,
    GOOGLE,
    OPENAI,
    bound,
    kept,
    marked,
    proof_of,
    unbound,
    unmarked,
)


def test_a_proof_goes_back_to_its_vendor_only() -> None:
    signature = marked(GOOGLE, "a:b+/=")
    assert signature == "google:a:b+/="
    assert proof_of(GOOGLE, signature) == "a:b+/="
    assert proof_of(OPENAI, signature) is None
    assert unmarked(signature) is None
    assert unmarked("sig+/=") == "sig+/="
    assert proof_of(GOOGLE, "google") is None
    assert marked(GOOGLE, "") is None
    assert (proof_of(GOOGLE, None), proof_of(GOOGLE, "google:"), unmarked(None), unmarked("")) == (None,) * 4


def test_a_proof_that_is_bound_goes_back_to_its_model_only() -> None:
    proof = proof_of(ANTHROPIC, marked(ANTHROPIC, bound("claude-opus-5", "sig+/=")))
    assert unbound(proof, "claude-opus-5") == unbound(proof) == "sig+/="
    assert unbound(proof, "claude-haiku-4-5") is None
    assert unbound("data", "claude-haiku-4-5") == "data"  # from before models were noted
    assert (bound("m", ""), unbound(None, "m"), unbound("", "m"), unbound("m ", "m")) == ("", None, None, None)


def test_what_is_kept_as_json_may_have_come_from_anywhere() -> None:
    assert kept('{"id": "x"}') == {"id": "x"}
    assert [kept(proof) for proof in (None, "", "[1]", "{", "[" * 100_000)] == [{}] * 5

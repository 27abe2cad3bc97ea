from __future__ import annotations

from pattern_core.models.providers.signatures import GOOGLE, OPENAI, kept, marked, proof_of, unmarked


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


def test_what_is_kept_as_json_may_have_come_from_anywhere() -> None:
    assert kept('{"id": "x"}') == {"id": "x"}
    assert [kept(proof) for proof in (None, "", "[1]", "{", "[" * 100_000)] == [{}] * 5

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import PatternError
from pattern_core.messages import Image, Message, Reasoning, Text, ToolCall, ToolResult, user
from pattern_core.models import errors
from pattern_core.models.errors import ModelError
from pattern_core.models.model import ModelRequest, ToolSpec, Usage, made_up_call_id
from pattern_core.models.tokens import (
    ELLIPSIS,
    clip,
    clip_middle,
    estimate_parts,
    estimate_request,
    estimate_text,
    estimate_tools,
    estimate_usage,
    message_tokens,
    request_tokens,
)


def test_the_digest_of_a_tool_stands_for_all_that_the_model_sees() -> None:
    def spec(**changes: object) -> ToolSpec:
        given: dict[str, object] = {"name": "n", "description": "d", "parameters": {"a": 1, "b": 2}, **changes}
        return ToolSpec(**given)  # type: ignore[arg-type]  # the values are what the fields want

    assert spec().digest == spec(parameters={"b": 2, "a": 1}).digest
    assert len(spec().digest) == 16
    others = [spec(name="x"), spec(description="x"), spec(parameters={"a": 1})]
    assert len({spec().digest, *(other.digest for other in others)}) == 4


def test_made_up_ids_depend_on_the_question_and_the_index() -> None:
    def ask(text: str) -> ModelRequest:
        return ModelRequest(model="any", system=(), messages=[user(text)])

    assert made_up_call_id(ask("a"), 0) == made_up_call_id(ask("a"), 0)
    empty = ModelRequest(model="any", system=(), messages=[])
    ids = {made_up_call_id(asked, index) for asked in (ask("a"), ask("b\ud800"), empty) for index in (0, 1)}
    assert len(ids) == 6
    assert all(one.startswith("call_") for one in ids)


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ModelError)]
KINDS.remove(errors.NoAnswer)  # which is made of an answer
RETRYABLE = {"ModelUnreachable", "ModelTimeout", "ModelOverloaded", "ModelLoading", "ModelServerError", "ModelGarbage"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_clients_and_retries_need(kind: type[ModelError]) -> None:
    error = kind("no", provider="openai", status=418, retry_after_s=3.0)
    assert isinstance(error, PatternError)
    assert (error.provider, error.status, error.retry_after_s, str(error)) == ("openai", 418, 3.0, "no")
    assert error.details == {"provider": "openai", "status": 418}
    assert error.retryable is (kind.__name__ in RETRYABLE)


# Estimates of tokens


def test_known_texts() -> None:
    assert [estimate_text(text) for text in ("", "a", "four", "fives", "żółw", "日本", "😀")] == [0, 1, 1, 2, 3, 3, 2]
    assert estimate_text("\ud83d") == 2


@given(st.text(), st.text())
def test_more_text_is_never_fewer_tokens(left: str, right: str) -> None:
    assert estimate_text(left) <= estimate_text(left + right) <= estimate_text(left) + estimate_text(right)


def test_every_part_counts() -> None:
    words = Text(text="a" * 40)
    call = ToolCall(call_id="c", tool="search", arguments={"query": "tea"})
    broken = ToolCall(call_id="c", tool="search", invalid="{" * 40)
    result = ToolResult(call_id="c", tool="search", content="b" * 40)
    assert [estimate_parts([part]) for part in (words, Reasoning(text="a" * 40), call, broken, result)] == [
        10,
        10,
        8 + 2 + 4,
        8 + 2 + 10,
        8 + 10,
    ]
    assert estimate_parts([Image(media_type="", url="https://x/a.png"), words]) == 1_600 + 10
    assert sum(map(message_tokens, [Message(role="assistant", parts=(words, call))])) == 4 + 10 + 14
    assert message_tokens(Message(role="assistant", parts=(words, call))) == 4 + 10 + 14


def test_a_request_is_all_it_shows() -> None:
    tool = ToolSpec(name="search", description="Find.", parameters={"type": "object"})
    request = ModelRequest(model="m", system=["aaaa", "bbbb"], messages=[user("cccc")], tools=[tool], memory=["dddd"])
    assert estimate_tools([tool]) == 12 + 2 + 2 + 5
    assert estimate_request(request) == 2 + 5 + 21 + 1
    assert estimate_usage(request, [Text(text="eeee")]) == Usage(input_tokens=29, output_tokens=1, is_estimate=True)


def test_what_was_counted_with_a_request_is_not_counted_again() -> None:
    counted = ModelRequest(model="m", system=["aaaa"], messages=[user("cccc")], estimate=7)
    assert request_tokens(counted) == 7
    assert request_tokens(replace(counted, estimate=None)) == 6
    assert estimate_usage(counted, ()).input_tokens == 7


@given(st.text(max_size=300), st.integers(0, 80))
def test_a_clipped_text_fits(text: str, tokens: int) -> None:
    cut = clip(text, tokens)
    assert estimate_text(cut) <= tokens
    if estimate_text(text) <= tokens:
        assert cut == text
    elif cut:
        assert cut.endswith(ELLIPSIS)
        assert text.startswith(cut.removesuffix(ELLIPSIS))


def test_a_text_is_cut_after_a_sentence_if_one_ends_late_enough() -> None:
    assert clip("One sentence that is here. Another one follows it now.", 9) == "One sentence that is here.…"
    assert clip("One. Another sentence without an end in sight", 8) == "One. Another sentence witho…"


@given(st.text(alphabet="ab. é中", min_size=50, max_size=400), st.integers(30, 60))
def test_the_middle_gives_way(text: str, tokens: int) -> None:
    note = f" {'|' * 38} "  # ten tokens
    cut = clip_middle(text, tokens, note)
    assert estimate_text(cut) <= tokens + 2
    if estimate_text(text) <= tokens:
        assert cut == text
    else:
        head, tail = cut.split(note)
        assert text.startswith(head)
        assert text.endswith(tail)
        assert head
        assert tail

from __future__ import annotations

import pytest

from pattern_core.errors import PatternError
from pattern_core.messages import user
from pattern_core.models import errors
from pattern_core.models.errors import ModelError, WindowExceeded
from pattern_core.models.model import ModelRequest, ToolSpec, made_up_call_id


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
RETRYABLE = {"ModelUnreachable", "ModelTimeout", "ModelOverloaded", "ModelServerError", "ModelGarbage"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_clients_and_retries_need(kind: type[ModelError]) -> None:
    error = kind("no", provider="openai", status=418, retry_after_s=3.0)
    assert isinstance(error, PatternError)
    assert (error.provider, error.status, error.retry_after_s, str(error)) == ("openai", 418, 3.0, "no")
    assert error.details == {"provider": "openai", "status": 418}
    assert error.retryable is (kind.__name__ in RETRYABLE)


def test_codes_differ() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
    assert WindowExceeded.code == "window_exceeded"

from __future__ import annotations

import pytest

from pattern_core.errors import PatternError
from pattern_core.models import errors
from pattern_core.models.errors import ModelError, WindowExceeded

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

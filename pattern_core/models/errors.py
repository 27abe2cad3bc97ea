"""The errors of model calls.

ModelError
├── ModelUnreachable     no connection, or it broke before or during the answer  retried
├── ModelTimeout         no data for too long                                    retried
├── ModelOverloaded      429, 503, 529: retry later (`retry_after_s`)            retried
│   └── ModelLoading     503 of a server that is loading the model               retried for minutes
├── ModelServerError     any other 5xx, or an error event within a stream        retried
├── ModelRefused         401, 403, 404: key, permission or model name are wrong  not retried
├── ModelRejected        400, 413, 422: the request itself is not acceptable     not retried
│   ├── WindowExceeded   … because it is longer than the model's window          not retried
│   └── ToolsUnsupported … because the model or its server knows no tools        called again without
├── ModelGarbage         the answer does not follow the vendor's format          retried once
├── NoAnswer             the answer is empty or a copy of the prompt             called again once by the turn
└── ModelNotConfigured   no such provider, or its key is missing                 not retried

Each carries `provider` and, where known, `status` (HTTP), `rate` (the rate limits in its headers) and the vendor's own
message.
"""

from __future__ import annotations

from typing import ClassVar

from pattern_core.errors import PatternError
from pattern_core.models.model import RateStatus, Usage


class ModelError(PatternError):
    """Base: the provider failed. `retryable` says whether the same request may succeed later."""

    code = "model_error"
    remedy = "Test the model with `pattern model test`."
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, provider: str, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, provider=provider, status=status)
        self.provider = provider
        self.status = status
        self.retry_after_s = retry_after_s
        self.rate: RateStatus | None = None  # set by the reader of the headers


class ModelUnreachable(ModelError):
    """There was no connection, or it broke."""

    code = "model_unreachable"
    remedy = "Check that the model's server runs and that `base_url` is right: `pattern model test`."
    retryable = True


class ModelTimeout(ModelError):
    """The provider sent nothing for too long."""

    code = "model_timeout"
    remedy = "Use a faster model, or raise `limits.turn.model_timeout_s` or `model_idle_timeout_s`."
    retryable = True


class ModelOverloaded(ModelError):
    """The provider is busy or a rate limit is reached; `retry_after_s` is the requested delay in seconds."""

    code = "model_overloaded"
    remedy = "Wait, lower `calls_max` of the provider, or give the agent `routing.fallback_models`."
    retryable = True


class ModelLoading(ModelOverloaded):
    """The server is loading the model."""

    code = "model_loading"
    remedy = "Wait; the call is retried for up to five minutes."


class ModelServerError(ModelError):
    """The provider failed on its side."""

    code = "model_server_error"
    remedy = "Wait and retry; see the log of the model's server, or give the agent `routing.fallback_models`."
    retryable = True


class ModelRefused(ModelError):
    """The provider does not accept the key, the account or the model's name."""

    code = "model_refused"
    remedy = "Check the key, the account and the model's name: `pattern model test`."


class ModelRejected(ModelError):
    """The provider does not accept this request."""

    code = "model_rejected"
    remedy = "Read the provider's words in the message; `omit` removes fields that a compatible server refuses."


class WindowExceeded(ModelRejected):
    """The prompt is longer than the model's window; `details["window"]` is the reported window in tokens."""

    code = "window_exceeded"
    remedy = "Shorten the message, or give the model a larger window and set `window` in `pattern.toml`."


class ToolsUnsupported(ModelRejected):
    """The model does not support tools, or (with `details["as_text"]`) the server cannot parse its calls."""

    code = "model_without_tools"
    remedy = "Nothing: the model is asked without tools. For memory and search, choose one that calls tools."


class ModelGarbage(ModelError):
    """The answer breaks the vendor's own format."""

    code = "model_garbage"
    remedy = "Retry; if it lasts, update the model's server or choose another model."
    retryable = True


class NoAnswer(ModelError):
    """The model's answer is unusable. `reminder` is a note for the retry, `usage` the usage of the answer."""

    code = "no_answer"
    remedy = "Ask in other words, or choose a larger model."

    def __init__(self, message: str, *, provider: str, reminder: str, usage: Usage) -> None:
        super().__init__(message, provider=provider)
        self.reminder = reminder
        self.usage = usage


class ModelNotConfigured(ModelError):
    """There is no such provider, or no key for it."""

    code = "model_not_configured"
    remedy = "Connect a model with `pattern up`, or set the key that the message names."


def was_shown(error: ModelError) -> bool:
    """Return True if part of the answer was passed on before `error`: clients must learn what supersedes it."""
    return error.details.get("shown") is True

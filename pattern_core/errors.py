"""The expected failures of requests, as one tree of errors with stable codes.

PatternError
├── InvalidInput            the caller's input is invalid
├── NotFound                does not exist (or is not yours)
├── Conflict                another writer was first
│   ├── IdempotencyMismatch the key was used for another request
│   └── VersionMismatch     the object has another version than the change is based on
├── PermissionDenied        the block, the tool or the role forbids it
├── Overloaded              a named bound is reached; nothing was accepted
├── Unavailable             the constellation cannot work now (quarantine, drain)
├── LimitReached            a turn's own bound stopped it
└── ModelError              the model's provider failed (see pattern_core.models.errors)

Errors of storage are `pattern_db.errors`; bugs are whatever Python raises. Only these have codes that clients see.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class PatternError(Exception):
    """Base of all expected failures; the message says what to do next.

    `code` is stable: clients may switch on it. `remedy` says on the page Troubleshooting what to do about any error
    with that code. `details` is JSON-safe data for the problem document.
    """

    code: ClassVar[str] = "internal"
    remedy: ClassVar[str] = ""

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidInput(PatternError):
    """The input is malformed or out of bounds; nothing was changed."""

    code = "invalid_input"
    remedy = "Correct the fields that the message names."


class NotFound(PatternError):
    """The object does not exist, or belongs to another user: the answer is the same on purpose."""

    code = "not_found"
    remedy = "Check the name or id, the constellation, and whether the token is for another user or constellation."


class Conflict(PatternError):
    """The object was changed or already exists; read it again and decide."""

    code = "conflict"
    remedy = "Read the object again; then change it, or choose another name."


class IdempotencyMismatch(Conflict):
    """The idempotency key was already used for a different request."""

    code = "idempotency_mismatch"
    remedy = "Use a new `Idempotency-Key` for each new request."


class VersionMismatch(Conflict):
    """The object is not at the version in `If-Match`, or exists although `If-None-Match` forbids it."""

    code = "version_mismatch"
    remedy = "Read the object again, apply your change to the new version, and send it with the new `ETag`."


class PermissionDenied(PatternError):
    """The permission of the block, tool or token does not allow this."""

    code = "permission_denied"
    remedy = "Use a token with the required scope, or change the permission or rule that the message names."


class Overloaded(PatternError):
    """A bounded queue is full; nothing was accepted. `details["retry_after_s"]` says when to retry."""

    code = "overloaded"
    remedy = "Retry after `Retry-After`; if it happens often, send less at once or raise the limit."


class Unavailable(PatternError):
    """The constellation or server cannot run now; `details["retry_after_s"]` says when to retry."""

    code = "unavailable"
    remedy = "Retry after `Retry-After`; if it lasts, see `/readyz` and the log for the reason."


class LimitReached(PatternError):
    """A turn's own bound (steps, calls, tokens, time) stopped it."""

    code = "limit_reached"
    remedy = "Raise the limit or budget that the message names, or divide the work into smaller messages."


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the single exceptions of a group, with their tracebacks."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


@contextmanager
def instead_of(kind: type[Exception], error: PatternError) -> Iterator[None]:
    """Raise `error` instead of one of this kind, such as an error of storage, within the block."""
    try:
        yield
    except kind:
        raise error from None
